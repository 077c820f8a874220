"""Both faces of quorlock.fencing have the same names, parameters and docstrings."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import quorlock.asyncio.fencing as aio
from quorlock import fencing

CLASSES = ("FenceTable", "FencedFile", "FencedRedis", "FencedRows")


def test_both_export_the_same_names() -> None:
    """All but the classes that wait are the same objects."""
    assert aio.__all__ == fencing.__all__
    for name in fencing.__all__:
        assert (getattr(aio, name) is getattr(fencing, name)) != (name in CLASSES)


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_its_twin(name: str) -> None:
    """Name for name; what waits in one is awaited in the other."""
    here, there = public(getattr(fencing, name)), public(getattr(aio, name))
    assert list(here) == list(there)
    waiting = [name for name in there if inspect.iscoroutinefunction(there[name])]
    assert waiting
    for method in here:
        assert inspect.signature(here[method]) == inspect.signature(there[method])
        assert inspect.getdoc(here[method]) == inspect.getdoc(there[method])
    ours, theirs = (inspect.getdoc(getattr(face, name)) for face in (fencing, aio))
    assert ours
    assert theirs
    assert theirs.startswith(ours)
