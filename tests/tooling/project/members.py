"""Members of classes that the documentation names: which of them no class has.

`python -m tests.tooling.project.members` prints the names without a member.
"""

import ast
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
SOURCES = (ROOT / "src" / "quorlock", ROOT / "sim" / "quorlock_sim")

# `Class.member` in back-quotes, perhaps with arguments or text behind it.
_NAMED = re.compile(r"`(?:[a-z_]+\.)*([A-Z][A-Za-z]*[a-z][A-Za-z]*)\.([A-Za-z_]\w*)")
# Classes of Python's library that the documentation names.
_OF_PYTHON: dict[str, type] = {"Condition": threading.Condition, "Thread": threading.Thread}


class Name(NamedTuple):
    """A name in the documentation, and its place."""

    place: str
    owner: str
    member: str


def named(texts: dict[str, str]) -> Iterator[Name]:
    """Yield each `Class.member` in back-quotes, by file and line."""
    for file, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            for match in _NAMED.finditer(line):
                yield Name(f"{file}:{number}", match[1], match[2])


def documentation() -> dict[str, str]:
    """Return the texts that users and developers read: README.md, docs, and the sources' own."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    files += [file for folder in SOURCES for file in sorted(folder.rglob("*.py"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}


def members(sources: Iterable[str]) -> dict[str, set[str]]:
    """Return the members of each class; classes with the same name are one."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                own.setdefault(node.name, set()).update(_members_of(node))
                bases.setdefault(node.name, set()).update(map(_last_name, node.bases))
    return {name: set().union(*(own[one] for one in _line(name, bases))) for name in own}


def missing(names: Iterable[Name], found: dict[str, set[str]]) -> list[Name]:
    """Return the names that no class has."""
    return [name for name in names if name.member not in found.get(name.owner, set())]


def in_library() -> dict[str, set[str]]:
    """Return the members of the classes of the library, the simulator and Python."""
    files = (file for folder in SOURCES for file in sorted(folder.rglob("*.py")))
    found = {name: set(dir(kind)) for name, kind in _OF_PYTHON.items()}
    return found | members(file.read_text() for file in files)


def _line(name: str, bases: dict[str, set[str]]) -> set[str]:
    """Return a class and all its bases, as far as they are known."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in seen and one in bases:
            seen.add(one)
            waiting += bases[one]
    return seen


def _last_name(base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):
        return _last_name(base.value)
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


def _members_of(cls: ast.ClassDef) -> Iterator[str]:
    """Yield the methods and attributes that a class defines, in its body or on `self`."""
    for node in cls.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
            yield from (name for part in ast.walk(node) for name in _set_on_self(part))
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _set_on_self(node: ast.AST) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        for part in ast.walk(target) if isinstance(target, ast.AST) else ():
            if isinstance(part, ast.Attribute) and getattr(part.value, "id", "") == "self":
                yield part.attr


def main() -> None:
    """Print the names that no class has."""
    for name in missing(named(documentation()), in_library()):
        print(f"{name.place}: {name.owner}.{name.member}")


if __name__ == "__main__":
    main()
