"""Commands are compared by what they ask for, and by kind."""

from __future__ import annotations

from quorlock._core.commands import Acquire, Extend, Release


def test_commands_of_two_kinds_are_never_equal() -> None:
    """An Extend has the fields of an Acquire: a set must distinguish them."""
    acquire, extend = Acquire(b"k", b"t", 1), Extend(b"k", b"t", 1)
    assert acquire != extend
    assert not acquire == extend  # noqa: SIM201 (two operators, each with its own method)
    assert len({acquire, extend, Acquire(b"k", b"t", 1), Extend(b"k", b"t", 1)}) == 2


def test_commands_of_one_kind_are_equal_by_their_facts() -> None:
    for kind in (Acquire, Extend):
        assert kind(b"k", b"t", 1) == kind(b"k", b"t", 1)
        assert not kind(b"k", b"t", 1) != kind(b"k", b"t", 1)  # noqa: SIM202
        assert kind(b"k", b"t", 1) != kind(b"k", b"u", 1)
        assert hash(kind(b"k", b"t", 1)) == hash(kind(b"k", b"t", 1))
    assert Release(b"k", b"t") == Release(b"k", b"t")
    assert Release(b"k", b"t") != Release(b"k", b"u")
