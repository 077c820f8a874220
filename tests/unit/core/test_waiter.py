"""A place in the queues of the nodes: what its flow does after which replies and calls."""

from __future__ import annotations

import pytest

from quorlock._core.commands import JOIN
from quorlock._core.effects import CALL, CHANGED
from quorlock._core.line import Line
from quorlock._core.member import Member
from quorlock._core.rounds import NodeReply
from quorlock._core.tally import PENDING, WON
from quorlock._core.votes import ABSENT, GRANTED, NO_REPLY, NOT_SET, Answer, Vote
from quorlock._core.waiter import Step, Waiter
from quorlock.errors import VoteCode
from tests.harness.support.script import DOWN, START, Dice, ms, policy_of, request_of

PLACE = b"0123456789abcdef:1:100"


def queued(ticket: int, ahead: int = 0, left: int = 5_000) -> Answer:
    """Held by another for `left` ms, and the place is in the queue."""
    return Answer(Vote.REFUSED, VoteCode.HELD, "", left, ticket=ticket, ahead=ahead)


def waiter_of(n: int = 3, share: float = 0.0) -> Waiter:
    policy = policy_of(n)
    member = Member(request_of(policy))
    waiter = Waiter(PLACE, member, Line(), policy, Dice(share))
    waiter.on_asked(7, START)
    return waiter


def reply(waiter: Waiter, node: int, answer: Answer, after: float = 1, round_: int = 7) -> None:
    waiter.on_reply(NodeReply(round_, node, answer, START + ms(after)))


def call(waiter: Waiter, node: int, after: float = 1) -> None:
    reply(waiter, node, GRANTED, after, CALL)


def joined(n: int = 3, ahead: int = 0, share: float = 0.0) -> Waiter:
    waiter = waiter_of(n, share)
    for node in range(n):
        reply(waiter, node, queued(4, ahead))
    return waiter


@pytest.mark.parametrize(("n", "quorum"), [(1, 1), (3, 2), (5, 3)])
def test_a_quorum_of_calls_begins_an_attempt(n: int, quorum: int) -> None:
    """Fewer calls do not, nor two of the same node."""
    waiter = joined(n)
    for node in range(quorum - 1):
        call(waiter, node)
        call(waiter, node)
        assert waiter.step(START + ms(1)) is Step.WAIT
    call(waiter, quorum - 1)
    assert waiter.step(START + ms(1)) is Step.ATTEMPT


def test_too_few_calls_begin_an_attempt_after_a_while() -> None:
    """Two waiters may have split the nodes, or a call is lost: patience ends after 5 ms."""
    waiter = joined()
    call(waiter, 0, 3)
    assert waiter.step(START + ms(7.9)) is Step.WAIT
    assert waiter.wake_at() == START + ms(8)
    assert waiter.step(START + ms(8)) is Step.ATTEMPT


def test_patience_grows_with_every_lost_attempt() -> None:
    """Waiters that split the nodes again and again meet in the order of their numbers."""
    assert [ms(10), ms(20), ms(40), ms(80), ms(100)] == grown(waiter_of(share=0.0), 5)
    assert [ms(20), ms(40), ms(80), ms(160), ms(200)] == grown(waiter_of(share=1.0), 5)


def grown(waiter: Waiter, times: int) -> list[int]:
    """Return how long one call waits for others, after each of so many lost attempts."""
    waits: list[int] = []
    for _ in range(times):
        waiter.on_attempt_lost()
        call(waiter, 0, 0)
        until = next(at for at in range(0, ms(500), ms(1)) if steps_to(waiter, START + at))
        waits.append(until)
        waiter.on_attempt()
    return waits


def steps_to(waiter: Waiter, at: int) -> bool:
    return waiter.step(at) is Step.ATTEMPT


def test_an_attempt_uses_up_its_calls() -> None:
    """Calls that come after it has begun count for the next one."""
    waiter = joined()
    call(waiter, 0)
    call(waiter, 1)
    waiter.on_attempt()
    assert waiter.step(START + ms(2)) is Step.WAIT
    call(waiter, 0, 2)
    call(waiter, 2, 2)
    assert waiter.step(START + ms(2)) is Step.ATTEMPT


def test_a_call_that_comes_during_a_round_is_not_lost() -> None:
    """The tally of the attempt passes it on, and so do late replies to the request before it."""
    waiter = waiter_of()
    tally = waiter.tally(3, 8)
    assert tally.count(NodeReply(CALL, 0, GRANTED, START)) is PENDING
    assert tally.count(NodeReply(7, 1, queued(9), START)) is PENDING
    assert tally.count(NodeReply(8, 0, GRANTED, START)) is PENDING
    assert tally.count(NodeReply(CALL, 1, GRANTED, START)) is PENDING
    assert tally.count(NodeReply(8, 1, GRANTED, START)) is WON
    assert waiter.step(START) is Step.ATTEMPT
    assert waiter.replies.answers[1] == queued(9)


def test_the_number_is_the_largest_of_a_quorum() -> None:
    """The nodes with another number are corrected, also those that reply later."""
    waiter = waiter_of()
    reply(waiter, 0, queued(4))
    assert waiter.ticket == JOIN
    reply(waiter, 1, queued(6))
    assert waiter.ticket == 6
    assert waiter.step(START + ms(1)) is Step.CORRECT
    assert waiter.take_corrections() == 0b001
    assert waiter.step(START + ms(1)) is Step.WAIT
    reply(waiter, 2, queued(9))
    assert waiter.step(START + ms(1)) is Step.CORRECT
    assert (waiter.take_corrections(), waiter.ticket) == (0b100, 6)


def test_absent_keys_begin_an_attempt_after_a_while() -> None:
    """The nodes could not call any waiter, so all may find so at once: even a quorum waits."""
    waiter = waiter_of()
    for node in range(3):
        reply(waiter, node, ABSENT._replace(ticket=3), after=1 + node)
    assert waiter.step(START + ms(5.9)) is Step.WAIT
    assert waiter.wake_at() == START + ms(6)
    assert waiter.step(START + ms(6)) is Step.ATTEMPT
    waiter.on_attempt()
    assert waiter.step(START + ms(6)) is Step.WAIT


def test_a_node_that_was_not_asked_has_not_called() -> None:
    """A release that follows an attempt goes to the nodes of that attempt only."""
    waiter = waiter_of()
    for node in range(3):
        reply(waiter, node, NOT_SET)
    assert waiter.step(START + ms(1)) is Step.GIVE_UP


def test_replies_to_earlier_requests_change_nothing() -> None:
    """Rule 1: a reply counts for its own round."""
    waiter = joined()
    reply(waiter, 0, ABSENT, round_=6)
    assert waiter.replies.answers[0] == queued(4)


@pytest.mark.parametrize(("ahead", "look"), [(0, 10), (1, 200), (2, 300), (4, 500), (50, 500)])
def test_the_first_look(ahead: int, look: int) -> None:
    """The first of the queue soon checks that it has its place; those behind it later."""
    waiter = joined(ahead=ahead)
    assert waiter.wake_at() == START + ms(look)
    assert waiter.step(START + ms(look - 1)) is Step.WAIT
    assert waiter.step(START + ms(look)) is Step.LOOK


@pytest.mark.parametrize(("ahead", "look"), [(0, 250), (1, 500), (3, 1_000), (9, 1_250)])
def test_later_looks(ahead: int, look: int) -> None:
    """Then it looks at random times, less often the more are ahead, up to a limit."""
    waiter = waiter_of()
    waiter.on_asked(7, START)
    for node in range(3):
        reply(waiter, node, queued(4, ahead))
    assert waiter.wake_at() == START + ms(look)


@pytest.mark.parametrize(
    ("ahead", "after", "step"),
    [(0, 1.5, Step.ATTEMPT), (1, 6.5, Step.LOOK), (2, 11.5, Step.LOOK)],
)
def test_when_the_key_expires(ahead: int, after: float, step: Step) -> None:
    """The first of the queue asks for the lock as soon as the keys of a quorum have expired."""
    waiter = waiter_of(5)
    waiter.on_asked(7, START)
    for node, left in enumerate([90, 40, 60, 5_000, 70]):
        reply(waiter, node, queued(4, ahead, left), after=3)
    expiry = START + ms(70 + after)
    assert waiter.wake_at() == expiry, "the third shortest of the five, counted from the request"
    assert waiter.step(expiry - 1) is Step.WAIT
    assert waiter.step(expiry) is step


def test_an_attempt_at_the_expiry_is_made_once() -> None:
    """A lost attempt has asked the nodes again by its release, and their replies count."""
    waiter = waiter_of()
    waiter.on_asked(7, START)
    for node in range(3):
        reply(waiter, node, queued(4, left=20))
    assert waiter.step(START + ms(22)) is Step.ATTEMPT
    waiter.on_attempt()
    waiter.on_attempt_lost()
    waiter.on_asked(9, START + ms(24))
    for node in range(3):
        reply(waiter, node, queued(4, left=30), after=25, round_=9)
    assert waiter.step(START + ms(26)) is Step.WAIT
    assert waiter.step(START + ms(24 + 30 + 2)) is Step.ATTEMPT


def change(waiter: Waiter, node: int) -> None:
    reply(waiter, node, NO_REPLY, 1, CHANGED)


def looked(n: int = 3, ahead: int = 0) -> Waiter:
    """Return a waiter that has looked at its place, and has all replies."""
    waiter = joined(n, ahead)
    waiter.on_asked(7, START)
    for node in range(n):
        reply(waiter, node, queued(4, ahead))
    return waiter


def test_the_first_looks_when_a_quorum_has_reported_a_change() -> None:
    """A node that reports two changes counts once."""
    waiter = looked(5)
    assert waiter.replies.ahead == 0
    for node in (0, 1, 1):
        change(waiter, node)
    assert waiter.step(START + ms(9)) is Step.WAIT
    change(waiter, 4)
    assert waiter.wake_at() == START + ms(5)
    assert waiter.step(START + ms(5)) is Step.LOOK


def test_those_behind_it_do_not_look_at_changes() -> None:
    """The lock was passed on, perhaps."""
    waiter = looked(3, ahead=1)
    for node in range(3):
        change(waiter, node)
    assert waiter.replies.ahead == 1
    assert waiter.wake_at() == START + ms(500)


def test_changes_before_the_first_look_do_not_count() -> None:
    """A call is about to come, in quick hand-overs."""
    waiter = joined()
    for node in range(3):
        change(waiter, node)
    assert waiter.wake_at() == START + ms(10)


def test_there_is_one_look_for_a_change() -> None:
    """A report that comes before the reply to the look says no more than the reply."""
    waiter = looked()
    change(waiter, 0)
    change(waiter, 1)
    waiter.on_asked(8, START + ms(6))
    assert waiter.replies.ahead is None, "that is not known yet"
    change(waiter, 2)
    for node in range(3):
        reply(waiter, node, queued(4), 7, round_=8)
    assert waiter.step(START + ms(200)) is Step.WAIT
    change(waiter, 0)
    assert waiter.step(START + ms(200)) is Step.WAIT
    change(waiter, 1)
    assert waiter.step(START + ms(10.9)) is Step.WAIT, "looks are 5 ms apart"
    assert waiter.step(START + ms(11)) is Step.LOOK


def test_calls_come_before_changes() -> None:
    """A node that passes the lock on calls and changes the key; the attempt uses up both."""
    waiter = joined()
    for node in range(2):
        call(waiter, node)
        change(waiter, node)
    assert waiter.step(START + ms(6)) is Step.ATTEMPT
    waiter.on_attempt()
    assert waiter.step(START + ms(6)) is Step.WAIT


def test_a_change_during_a_round_is_not_lost() -> None:
    """The tally of the attempt passes it on, as it does with calls."""
    waiter = looked()
    tally = waiter.tally(3, 8)
    for node in range(2):
        assert tally.count(NodeReply(CHANGED, node, NO_REPLY, START)) is PENDING
    assert waiter.step(START + ms(5)) is Step.LOOK


def test_it_waits_for_replies_before_it_looks_again() -> None:
    """A slow network is no reason to ask twice."""
    waiter = waiter_of()
    assert waiter.wake_at() == START + ms(50)
    reply(waiter, 0, queued(4))
    assert waiter.step(START + ms(49)) is Step.WAIT


def test_too_few_nodes_can_queue() -> None:
    """A waiter gives up as soon as all have replied, or their time is up."""
    waiter = waiter_of()
    reply(waiter, 0, queued(4))
    reply(waiter, 1, queued(0))
    assert waiter.step(START + ms(1)) is Step.WAIT
    assert waiter.step(START + ms(50)) is Step.GIVE_UP
    reply(waiter, 2, DOWN.answer)
    assert waiter.step(START + ms(1)) is Step.GIVE_UP


def test_a_minority_that_cannot_queue_is_not_felt() -> None:
    """A node that is down, or has no right to queue, changes nothing."""
    waiter = waiter_of()
    reply(waiter, 0, queued(4))
    reply(waiter, 1, DOWN.answer)
    reply(waiter, 2, queued(4))
    assert waiter.step(START + ms(1)) is Step.WAIT
    call(waiter, 0)
    call(waiter, 2)
    assert waiter.step(START + ms(1)) is Step.ATTEMPT


def test_whether_it_had_to_wait() -> None:
    """A place that was called at once did not wait; one that is in a queue does."""
    waiter = waiter_of()
    reply(waiter, 0, queued(4, ahead=-1, left=100))
    assert not waiter.has_waited
    reply(waiter, 1, queued(4, ahead=0))
    assert waiter.has_waited
