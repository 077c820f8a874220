"""Commands are compared by what they ask for, and by kind."""

from __future__ import annotations

from quorlock._core.commands import (
    Acquire,
    Extend,
    Inspect,
    Look,
    Release,
    ScriptedAcquire,
    Share,
    may_be_submitted,
)


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


def test_which_commands_may_be_submitted_to_another_thread() -> None:
    """The flow of an exchange, or of a waiter, has to know the nodes that got its command."""
    scripted = ScriptedAcquire(b"k", b"t", 1)
    for command in (
        Acquire(b"k", b"t", 1),
        Extend(b"k", b"t", 1),
        Release(b"k", b"t"),
        Inspect(b"k"),
        scripted,
        Share(b"k", b"t", 1),
    ):
        assert may_be_submitted(command)
    for command in (
        scripted._replace(instead=b"old"),
        scripted._replace(place=b"p"),
        Share(b"k", b"t", 1, place=b"p"),
        Look(b"k", b"", b"p", 1),
    ):
        assert not may_be_submitted(command)
