"""The shape of the code: short functions, and core modules that one can read."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SRC = ROOT / "src" / "quorlock"
SIM = ROOT / "sim" / "quorlock_sim"


def function_lengths(path: Path) -> dict[str, int]:
    """Lines of every function body in a file, without its docstring."""
    lengths: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node) and len(node.body) > 1
            first = node.body[1 if documented else 0]
            name = f"{path.name}:{node.lineno} {node.name}"
            lengths[name] = (node.end_lineno or first.lineno) - first.lineno + 1
    return lengths


def attributes(cls: ast.ClassDef) -> set[str]:
    """Return the attributes that a class sets on itself, or annotates in its body."""
    found = {
        part.attr
        for part in ast.walk(cls)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and getattr(part.value, "id", "") == "self"
    }
    return found | {
        part.target.id
        for part in cls.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }


def test_few_classes_have_many_attributes() -> None:
    """State in many attributes is state that one has to read all of the class to understand."""
    apart = [SRC / name for name in ("testing", "_cli", "_demo")]
    crowded = {
        cls.name: len(attributes(cls))
        for path in SRC.rglob("*.py")
        if not any(path.is_relative_to(folder) for folder in apart)
        for cls in ast.walk(ast.parse(path.read_text()))
        if isinstance(cls, ast.ClassDef) and len(attributes(cls)) >= 16
    }
    assert len(crowded) <= 2, crowded


def test_functions_are_short(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = {
        f"{path.parent.relative_to(ROOT)}/{name}": length
        for path in sorted([*SRC.rglob("*.py"), *SIM.rglob("*.py")])
        for name, length in function_lengths(path).items()
    }
    ordered = sorted(lengths.values())
    median, most = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.9)]
    longest = max(lengths, key=lambda name: lengths[name])
    with capsys.disabled():
        print(
            f"\nshape: {len(ordered)} functions, median {median} lines, 90 % within {most},"
            f" longest {lengths[longest]} ({longest})"
        )
    assert median <= 8
    assert most <= 30
    assert lengths[longest] <= 70


def test_core_modules_can_be_read_in_one_sitting() -> None:
    lines = {p.name: len(p.read_text().splitlines()) for p in (SRC / "_core").rglob("*.py")}
    assert lines
    assert {name: count for name, count in lines.items() if count > 600} == {}


def test_attributes_are_counted_once() -> None:
    text = "class C:\n    a: int\n    def f(self):\n        self.a, self.b = 1, self.c"
    (cls,) = ast.parse(text).body
    assert isinstance(cls, ast.ClassDef)
    assert attributes(cls) == {"a", "b"}


def test_the_count_leaves_docstrings_out(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text('def f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    return a\n')
    assert function_lengths(path) == {"x.py:1 f": 2}
