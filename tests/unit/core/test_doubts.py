"""Releases that may still be carried out: which, where, and until when."""

from quorlock._core.commands import Release
from quorlock._core.releases_in_doubt import (
    ReleaseCopy,
    ReleasesInDoubt,
    counted_from,
    merged,
    remaining,
)
from quorlock._core.time import FOR_EVER, NS_PER_MS, NS_PER_S
from tests.harness.support.script import policy_of

MAX_TTL = 30 * NS_PER_S


def copy_of(token: bytes, run_id: str = "run") -> ReleaseCopy:
    return ReleaseCopy(Release(b"k", token), run_id)


def test_two_copies_of_one_release_end_one_by_one() -> None:
    """Under way until the last of them has ended, and in doubt for max_ttl after that."""
    doubts = ReleasesInDoubt(MAX_TTL)
    for now in (0, 1):
        doubts.sent(copy_of(b"t"), now)
    doubts.on_connection_lost(copy_of(b"t"), 5)
    assert doubts.are_about(b"t", 10 * MAX_TTL)
    doubts.on_connection_lost(copy_of(b"t"), 20 * MAX_TTL)
    assert doubts.are_about(b"t", 21 * MAX_TTL - 1)
    assert not doubts.are_about(b"t", 21 * MAX_TTL)


def test_a_doubt_about_any_process_counts() -> None:
    doubts = ReleasesInDoubt(MAX_TTL)
    for run_id, now in (("first", 0), ("second", 10)):
        doubts.on_connection_lost(copy_of(b"t", run_id), now)  # it was never sent
    for number in range(40):
        doubts.note(b"%d" % number, "run", MAX_TTL + 5)  # what is over is forgotten
    assert doubts.still_in_doubt(b"t", MAX_TTL) == {"second": MAX_TTL + 10}
    assert doubts.are_about(b"t", MAX_TTL + 9)
    assert not doubts.are_about(b"t", MAX_TTL + 10)


def test_what_is_over_is_forgotten() -> None:
    """However many there were; but nothing that is still under way, or was just now."""
    doubts = ReleasesInDoubt(MAX_TTL)
    doubts.sent(copy_of(b"old"), 0)
    for number in range(10_000):
        copy = copy_of(b"%d" % number)
        doubts.sent(copy, number * NS_PER_S)
        doubts.on_connection_lost(copy, number * NS_PER_S)
        assert number < 29 or doubts.are_about(b"%d" % (number - 29), number * NS_PER_S)
    assert len(doubts._until) < 100
    assert doubts.are_about(b"old", 10_000 * NS_PER_S)
    assert doubts.still_in_doubt(b"old", 10_000 * NS_PER_S) == {"run": FOR_EVER}


def test_of_two_doubts_about_one_server_the_longer_one_counts() -> None:
    assert merged({"a": 1, "b": 9}, {"b": 5, "c": 7}) == {"a": 1, "b": 9, "c": 7}
    assert merged({"b": 5}, {"b": 9}) == {"b": 9}


def test_what_is_left_goes_to_another_clock() -> None:
    """Rounded up, and longer by what two clocks may differ; an open end stays open."""
    in_doubt = {"a": 5 * NS_PER_S + 1, "open": FOR_EVER, "over": 2 * NS_PER_S}
    left = remaining(in_doubt, 2 * NS_PER_S)
    assert left == {"a": 3.001, "open": None}
    there = counted_from(100 * NS_PER_S, left, policy_of(3))
    assert there["open"] == FOR_EVER
    assert there["a"] >= 103 * NS_PER_S + 1 + 3 * NS_PER_S // 100
    assert there["a"] <= 103 * NS_PER_S + 40 * NS_PER_MS
