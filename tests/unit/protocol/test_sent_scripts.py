"""The scripts that a node was sent: each in full the first time, and again once forgotten."""

from __future__ import annotations

import pytest

from quorlock._core.commands import Command, Extend, IssueFence, Look, Release, Share
from quorlock._protocol.sent_scripts import SentScripts

RELEASE, LOOK = Release(b"k", b"1"), Look(b"k", b"", b"place", 3)
EXTEND = Extend(b"k", b"1", 1_000)
SHARE, FENCE = Share(b"k", b"1", 1_000), IssueFence(b"k", b"1", 7, 0)


@pytest.mark.parametrize(
    "command", [RELEASE, LOOK, EXTEND, SHARE, FENCE], ids=lambda c: type(c).__name__
)
def test_the_first_of_each_kind_is_in_full(command: Command) -> None:
    """A script that was sent for one kind says nothing about the others."""
    scripts = SentScripts()
    others = [
        other for other in (RELEASE, EXTEND, SHARE, FENCE) if not isinstance(command, type(other))
    ]
    assert [scripts.add(command), scripts.add(command)] == [True, False]
    assert all(scripts.add(other) for other in others)


def test_releases_and_looks_share_a_script() -> None:
    scripts = SentScripts()
    assert [scripts.add(LOOK), scripts.has_release, scripts.add(RELEASE)] == [True, True, False]
    scripts.forget(RELEASE)
    assert [scripts.has_release, scripts.add(LOOK)] == [False, True]


def test_all_kinds_but_looks_are_listed() -> None:
    """A look needs more than its script before it."""
    scripts = SentScripts()
    assert scripts.all_kinds() == set()
    for command in (LOOK, EXTEND, SHARE, FENCE):
        scripts.add(command)
    assert scripts.all_kinds() == {type(command) for command in (RELEASE, EXTEND, SHARE, FENCE)}


def test_what_is_forgotten_is_in_full_again() -> None:
    """Only that kind; an extension stays by name."""
    scripts = SentScripts()
    for command in (RELEASE, EXTEND, SHARE, FENCE):
        scripts.add(command)
    scripts.forget(SHARE)
    scripts.forget(EXTEND)
    assert [scripts.add(c) for c in (RELEASE, EXTEND, SHARE, FENCE)] == [False, False, True, False]
