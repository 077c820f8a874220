"""No module imports itself by way of others, also not for its types.

A circle of imports shows parts that know each other's insides. The graph has an edge for every
import below src/quorlock, at the top of a module, for annotations only, or inside a function; the
one lazy exception is LAZY of test_layers.
"""

from functools import cache
from pathlib import Path

import pytest

from tests.tooling.project.test_layers import LAZY, SRC, imports
from tests.tooling.project.test_layers import write as write_below

# What the library does not need in order to run.
APART = ("__main__", "_cli", "_demo", "testing")


@cache
def graph(src: Path) -> dict[str, set[str]]:
    """Return the modules below src/quorlock, each with those that it imports."""
    paths = {name_of(src, path): path for path in sorted((src / "quorlock").rglob("*.py"))}
    edges: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for found in imports(src, path):
            imported = found.name
            while imported not in paths and "." in imported:
                imported = imported.rpartition(".")[0]
            if imported in paths and imported not in (name, LAZY.get(found.file)):
                edges[name].add(imported)
    return edges


def name_of(src: Path, path: Path) -> str:
    return ".".join(path.relative_to(src).with_suffix("").parts).removesuffix(".__init__")


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module."""
    reached = {name: reachable(edges, name) for name in edges}
    found: list[set[str]] = []
    for name in edges:
        circle = {other for other in reached[name] if name in reached[other]}
        if circle and circle not in found:
            found.append(circle)
    return found


def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that a module imports, directly or by way of others."""
    reached: set[str] = set()
    ahead = [start]
    while ahead:
        new = edges[ahead.pop()] - reached
        reached |= new
        ahead += new
    return reached


def library(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the part of the graph that a program runs when it uses a lock."""
    names = {name for name in edges if f"{name}.".split(".")[1] not in APART}
    return {name: edges[name] & names for name in names}


def test_the_library_has_no_circle_of_imports() -> None:
    assert circles(library(graph(SRC))) == []


def test_all_of_it_has_none() -> None:
    """Neither have the command line, the demo and the helpers for tests."""
    assert circles(graph(SRC)) == []


@pytest.mark.parametrize(
    "source",
    [
        "from quorlock._core.b import name",
        "from quorlock._core import b",
        "from . import b",
        "from .b import name",
        "import quorlock._core.b",
        "import typing\nif typing.TYPE_CHECKING:\n    from .b import name",
        "def f():\n    from quorlock._core.b import name",
        "from quorlock._core import c",
    ],
)
def test_the_check_sees_a_circle(source: str, tmp_path: Path) -> None:
    """However the import is written, and also by way of a third module."""
    write_below(
        tmp_path,
        {
            "__init__.py": "",
            "_core/__init__.py": "",
            "_core/a.py": source,
            "_core/b.py": "from quorlock._core.a import name",
            "_core/c.py": "from quorlock._core.b import name",
        },
    )
    (circle,) = circles(graph(tmp_path))
    assert circle >= {"quorlock._core.a", "quorlock._core.b"}


def test_the_check_leaves_a_sound_tree_alone(tmp_path: Path) -> None:
    write_below(
        tmp_path,
        {
            "__init__.py": "from quorlock._core.a import name",
            "_core/__init__.py": "",
            "_core/a.py": "from quorlock._core import b",
            "_core/b.py": "import typing",
        },
    )
    assert circles(graph(tmp_path)) == []
