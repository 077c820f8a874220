"""Values are read-only and compared by what they hold, and no tuples."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, ClassVar

import pytest

from quorlock._core.values import Value


class Badge(Value):
    __slots__ = __match_args__ = ("name", "code")
    HIDDEN: ClassVar = frozenset({"code"})

    name: str
    code: str

    def __init__(self, name: str, code: str = "none") -> None:
        self._fill(name=name, code=code)


class Pass(Badge):
    """Of the same facts, and another kind."""

    __slots__ = ()


def test_it_is_compared_and_hashed_by_what_it_holds() -> None:
    assert Badge("a", "1") == Badge("a", "1")
    assert Badge("a", "1") != Badge("a", "2")
    assert len({Badge("a", "1"), Badge("a", "1"), Badge("b", "1")}) == 2


@pytest.mark.parametrize("other", [Pass("a", "1"), ("a", "1"), ["a", "1"], "a", None])
def test_another_kind_is_never_equal(other: object) -> None:
    assert Badge("a", "1") != other
    assert other != Badge("a", "1")


def test_it_is_no_tuple() -> None:
    """Among things that are walked over it is one thing, and nothing tells its secret by chance."""
    assert not isinstance(Badge("a", "1"), Iterable)
    assert "{}".format(Badge("a", "1")) == "Badge(name='a')"
    assert "%s" % Badge("a", "1") == "Badge(name='a')"  # noqa: UP031 (a tuple would be taken apart)


def test_it_cannot_be_changed() -> None:
    badge = Badge("a", "1")
    for change in (setattr, lambda value, name, _: delattr(value, name)):
        for name in ("name", "other"):
            with pytest.raises(dataclasses.FrozenInstanceError):
                change(badge, name, "b")
    assert badge == Badge("a", "1")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_it_is_copied_and_pickled_whole(protocol: int) -> None:
    badge = Pass("a", "1")
    pickled = pickle.loads(pickle.dumps(badge, protocol))
    for twin in (copy.copy(badge), copy.deepcopy(badge), pickled):
        assert twin == badge
        assert twin.code == "1"


def test_to_dataclasses_it_is_one() -> None:
    """With `dataclasses` itself, and with `copy.replace` of Python 3.13."""
    badge = Badge("a", "1")
    assert dataclasses.is_dataclass(badge)
    assert dataclasses.asdict(badge) == {"name": "a", "code": "1"}
    assert [(one.name, one.repr) for one in dataclasses.fields(badge)] == [
        ("name", True),
        ("code", False),
    ]
    replace: Any = getattr(copy, "replace", dataclasses.replace)
    for made in (dataclasses.replace(badge, name="b"), replace(badge, name="b")):
        assert made == Badge("b", "1")
    with pytest.raises(TypeError, match="nome"):
        replace(badge, nome="b")


def test_it_can_be_matched() -> None:
    match Badge("a", "1"):
        case Badge(name, code):
            assert (name, code) == ("a", "1")


def test_it_does_without_dataclasses_until_somebody_asks() -> None:
    program = "; ".join(
        (
            "import sys; from quorlock import Node, Ticket",
            "kept = {Node('a', password='x'): repr(Ticket('r', 't', 1.0))}",
            "assert kept[Node('a', password='x')] and 'dataclasses' not in sys.modules",
            "import dataclasses",
            "assert dataclasses.replace(Node('a'), db=1).db == 1",
        )
    )
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"],
        check=True,
    )
