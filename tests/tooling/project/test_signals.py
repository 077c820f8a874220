"""Mutexes that a signal handler could leave locked, or wait for: searched in the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)


def under_a_lock(source: str) -> Iterator[ast.AST]:
    """Every comprehension that stands in the body of a `with` over a lock."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.With) and any("lock" in ast.unparse(i) for i in node.items):
            inside = (found for line in node.body for found in ast.walk(line))
            yield from (found for found in inside if isinstance(found, COMPREHENSIONS))


def test_no_comprehension_stands_under_a_lock() -> None:
    """PEP 709: a signal that arrives in one skips the `__exit__` of the `with` around it."""
    found = [
        f"{path}:{getattr(node, 'lineno', 0)}"
        for path in SRC.rglob("*.py")
        for node in under_a_lock(path.read_text())
    ]
    assert found == []


def test_the_check_sees_one() -> None:
    """The check can fail."""
    assert list(under_a_lock("with self._lock:\n    x = [a for a in b if a]"))
    assert not list(under_a_lock("with self._lock:\n    x = sum(a for a in b)"))


@pytest.mark.parametrize("name", ["Condition", "Event", "Semaphore", "Barrier"])
def test_drivers_wait_by_raw_locks(name: str) -> None:
    """threading's own waiting is Python code: a Ctrl-C inside leaves its lock taken."""
    drivers = (SRC / "quorlock" / "_drivers").glob("*.py")
    assert [p.name for p in drivers if f"threading.{name}(" in p.read_text()] == []


# Exceptions, with the reason why they cannot hang.
MAY_LOCK = {
    "_drivers/node_states.py": "for 0.1 s at most; then another lock takes its place",
    "_drivers/wait.py": "each waits by a lock of its own, which nobody else takes",
}
FOLDERS = ("_core", "_protocol", "_drivers", "_api", "_sync", "asyncio")


def test_no_lock_is_taken() -> None:
    """A handler that calls the library, or that raises, meets no lock (decision 9)."""
    library = SRC / "quorlock"
    taken = {
        str(path.relative_to(library))
        for folder in FOLDERS
        for path in (library / folder).rglob("*.py")
        if any(name in path.read_text() for name in ("Lock()", "allocate_lock("))
    }
    assert taken == set(MAY_LOCK)
