"""The line of a process: who is its first, who gets the lock next, and for how many times."""

from __future__ import annotations

import time

import pytest

from quorlock._core.claims import Keys
from quorlock._core.line import EXCHANGES_MAX, STALLED_AFTER, TURN_MAX, Line, Lines
from quorlock._core.member import PROMOTED, REMOVED, Member
from quorlock._core.results import Acquired
from quorlock._core.rounds import SentRound, Target
from quorlock._core.time import NS_PER_MS
from tests.harness.support.script import START, ms, policy_of, request_of

REQUEST = request_of(policy_of(3))


def lease() -> Acquired:
    sent = SentRound(1, START, START, Target(7, None))
    return Acquired(Keys(b"r"), b"token", 10_000, START + ms(10_000), (), sent)


def members(line: Line, count: int) -> list[Member]:
    joined = [Member(REQUEST) for _ in range(count)]
    for member in joined:
        line.join(member, START)
    return joined


def granted(line: Line, member: Member, *, others_wait: bool = False) -> None:
    line.on_granted(member, START, has_waited=True, others_wait=others_wait)
    member.close()


def test_only_the_first_asks() -> None:
    """The first to join is promoted, the others wait."""
    first, second, third = members(Line(), 3)
    assert list(first.news) == [PROMOTED]
    assert [member.is_asking for member in (first, second, third)] == [True, False, False]


def test_the_next_is_promoted_when_the_first_leaves() -> None:
    """A waiter that gives up makes the next one the first, in the order of joining."""
    line = Line()
    first, second, third = members(line, 3)
    line.leave(first, START)
    assert (second.is_asking, third.is_asking) == (True, False)


def test_a_waiter_in_the_middle_may_leave() -> None:
    """A waiter that left gets nothing, and the order of the others stays."""
    line = Line()
    first, second, third = members(line, 3)
    second.close()
    line.leave(second, START)
    line.leave(first, START)
    assert (second.is_asking, third.is_asking) == (False, True)


def test_while_this_process_holds_the_lock_none_asks() -> None:
    """A waiter behind a holder in the same process waits for it, for half a second."""
    line = Line()
    first, second = members(line, 2)
    granted(line, first)
    line.advance(START + STALLED_AFTER - 1)
    assert not second.is_asking
    line.advance(START + STALLED_AFTER)
    assert second.is_asking


def test_a_release_promotes_the_next() -> None:
    """The next waiter asks the nodes if the holder has released without handing on."""
    line = Line()
    first, second = members(line, 2)
    granted(line, first)
    line.on_released(START)
    assert second.is_asking


def test_the_lock_is_handed_on_in_order() -> None:
    """The first comes before those behind it; a waiter that left is passed over."""
    line = Line()
    first, second, third = members(line, 3)
    second.close()
    assert line.take_next(START) is first
    assert line.take_next(START) is third
    assert line.take_next(START) is None


def test_a_waiter_that_was_taken_out_comes_back_first() -> None:
    """An exchange that fails leaves the order as it was."""
    line = Line()
    first, second, _ = members(line, 3)
    granted(line, first)
    taken = line.take_next(START)
    assert taken is second
    line.put_back(taken)
    assert taken.is_asking
    assert line.take_next(START) is second


def test_each_waiter_that_was_taken_out_queues_again() -> None:
    """Two threads have taken one each: only one of them can be the first."""
    line = Line()
    taken = members(line, 2)
    taken[1].promote()
    for member in taken:
        member.news.clear()
        assert line.take_next(START) is member
    for member in taken:
        line.put_back(member)
        assert list(member.news) == [REMOVED]
    assert line.take_next(START) is taken[0]


@pytest.mark.parametrize("others_wait", [True, False])
def test_a_line_has_the_lock_so_often_in_a_row(others_wait: bool) -> None:
    """The number of exchanges is limited while other processes wait; else it is not."""
    line = Line()
    first, *rest = members(line, EXCHANGES_MAX + 2)
    granted(line, first, others_wait=others_wait)
    for member in rest[:EXCHANGES_MAX]:
        assert line.take_next(START) is member
        line.on_exchanged(START, others_wait=others_wait)
    assert line.take_next(START) is (None if others_wait else rest[EXCHANGES_MAX])


def test_a_line_has_the_lock_for_so_long() -> None:
    """The turn of a line ends after a time while other processes wait."""
    line = Line()
    first, second = members(line, 2)
    granted(line, first, others_wait=True)
    assert line.take_next(START + TURN_MAX) is None
    assert line.take_next(START + TURN_MAX - 1) is second


def test_a_new_turn_counts_anew() -> None:
    """A line may exchange as often again once the nodes have granted the lock again."""
    line = Line()
    first, second = members(line, 2)
    granted(line, first, others_wait=True)
    for _ in range(EXCHANGES_MAX):
        line.on_exchanged(START, others_wait=True)
    assert line.take_next(START) is None
    granted(line, Member(REQUEST), others_wait=True)
    assert line.take_next(START) is second


def test_a_promoted_waiter_that_has_left_does_not_block_the_line() -> None:
    """Another thread may promote a waiter at the moment at which it leaves."""
    line = Line()
    first, second = members(line, 2)
    first.close()  # its `leave` finds another first, as if it had been promoted after it
    line.advance(START)
    assert second.is_asking


def test_a_lease_is_given_once() -> None:
    """A waiter takes one lease; what comes later is refused, so that its giver releases it."""
    member, one, another = Member(REQUEST), lease(), lease()
    woken: list[int] = []
    member.wake = lambda: woken.append(len(member.news))
    assert member.give(one)
    assert not member.give(another)
    assert (list(member.news), woken) == ([one], [1]), "the news are there when it is woken"
    assert member.close() is one, "and its owner gets it when it leaves"


def test_a_waiter_that_left_takes_no_lease() -> None:
    """The lease of a waiter that has timed out stays with its giver."""
    member = Member(REQUEST)
    assert member.close() is None
    assert not member.give(lease())
    assert not member.is_open


def test_contention_is_remembered_for_a_moment() -> None:
    """An acquire joins at once after a wait; half a second later it tries first."""
    line = Line()
    assert not line.is_in_use(START)
    first = Member(REQUEST)
    line.join(first, START)
    granted(line, first)
    line.on_released(START)
    assert line.is_in_use(START + ms(499))
    assert not line.is_in_use(START + ms(500))


def test_a_lock_that_was_free_is_not_contended() -> None:
    """A waiter that was called at once, with none behind it, leaves no trace."""
    line = Line()
    first = Member(REQUEST)
    line.join(first, START)
    line.on_granted(first, START, has_waited=False, others_wait=False)
    line.on_released(START)
    assert not line.is_in_use(START)


def test_lines_without_use_are_forgotten() -> None:
    """A program that locks a million resources once does not keep a line for each."""
    lines = Lines()
    busy = lines.line(b"busy", START)
    busy.join(Member(REQUEST), START)
    for number in range(1_000):
        lines.line(b"%d" % number, START + number * NS_PER_MS)
    assert lines.get(b"busy") is busy
    assert sum(lines.get(b"%d" % number) is not None for number in range(1_000)) <= 256


def test_many_lines_in_use_are_not_looked_at_for_each_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Callers waited for 8,000 locks, and half a minute of an event loop went into looking."""
    looks, is_idle = 0, Line.is_idle

    def counted(self: Line, at: int) -> bool:
        nonlocal looks
        looks += 1
        return is_idle(self, at)

    monkeypatch.setattr(Line, "is_idle", counted)
    lines = Lines()
    for number in range(2_000):
        members(lines.line(b"%d" % number, START), 1)
    assert looks <= 2 * 2_000
    assert all(lines.get(b"%d" % number) is not None for number in range(2_000)), "all are in use"


def test_waiters_take_no_longer_where_there_are_thousands() -> None:
    """Each looks twice a second whether it is still in line, and the latest may leave first."""

    def cpu_time(number: int) -> float:
        line = Line()
        first, *others = members(line, number)
        granted(line, first)
        began = time.thread_time()
        for member in others:
            line.stay(member, START)
        for member in reversed(others):
            line.leave(member, START)
        assert not line.has_waiters
        return time.thread_time() - began

    # A search of the line would take 64 times as long for each of them.
    few, many = (min(cpu_time(number) for _ in range(3)) for number in (250, 16_000))
    assert many / few < 8 * 64
