"""The flow of a waiter: what it sends, in which order, and that it leaves nothing behind.

Each test drives the flow by hand: it says what every effect results in.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from quorlock._core.acquiring import acquire
from quorlock._core.claims import Keys
from quorlock._core.commands import JOIN, LEAVE, Acquire, Look, Release, ScriptedAcquire
from quorlock._core.effects import (
    CALL,
    Commit,
    Enlist,
    FlowCancelled,
    Receive,
    Send,
    Sleep,
    Timeout,
    Wait,
)
from quorlock._core.handing_on import release
from quorlock._core.line import STALLED_AFTER, Line, Lines
from quorlock._core.member import PROMOTED, Member
from quorlock._core.request import AcquireRequest
from quorlock._core.results import Acquired, LossReason
from quorlock._core.rounds import NodeReply, SentRound, Target
from quorlock._core.time import from_seconds
from quorlock._core.votes import GRANTED, HELD, NOT_SET, Answer, Vote
from quorlock.errors import AcquireStopped, AcquireTimeout, NodeError, QuorumUnreachable, VoteCode
from tests.harness.support.script import DOWN, START, Dice, ms, policy_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

PLACE = b"0123456789abcdef:1:100"
POLICY = policy_of(3)
EVERYWHERE = Target(0b111, "path")
QUEUED = Answer(Vote.REFUSED, VoteCode.HELD, "", 5_000, ticket=4, ahead=0)
NO_QUEUE = Answer(Vote.REFUSED, VoteCode.HELD, "", 5_000)
EXCHANGED = Answer(Vote.GRANTED, VoteCode.GRANTED, ahead=0, replaced=True)
TAKEN = Answer(Vote.GRANTED, VoteCode.GRANTED, ahead=0)


class Hand:
    """A flow that is driven by hand. `now` is the time that the next results have."""

    def __init__(self, flow: Any) -> None:
        self.now = START
        self.rounds = 0
        self.result: Any = None
        self.over = False
        self.flow = flow
        self.effect: Any = next(flow)

    def expects(self, kind: type[object]) -> None:
        """Expect an effect of this kind."""
        effect = self.effect
        assert isinstance(effect, kind), effect

    def waits(self) -> Member:
        """Expect a wait; return the waiter."""
        effect = self.effect
        assert isinstance(effect, Wait), effect
        return effect.member

    def step(self, value: Any) -> None:
        """Give the flow the result of its effect."""
        try:
            self.effect = self.flow.send(value)
        except StopIteration as stop:
            self.result, self.over = stop.value, True

    def sends(self, command: object) -> None:
        """Expect this command, and send it."""
        assert isinstance(self.effect, Send), self.effect
        assert self.effect.command == command
        self.send()

    def send(self) -> Send:
        """Expect a send, and send it."""
        send = self.effect
        assert isinstance(send, Send), send
        self.rounds += 1
        self.step(SentRound(self.rounds, self.now, self.now, Target(0b111, "path")))
        return send

    def replies(self, *answers: Answer) -> None:
        """Give the replies of the nodes to the latest round, as far as the flow wants them."""
        round_ = self.rounds
        for node, answer in enumerate(answers):
            if self.over or not isinstance(self.effect, (Receive, Wait)):
                return
            self.reply(NodeReply(round_, node, answer, self.now))

    def call(self, *nodes: int) -> None:
        """Have these nodes call."""
        for node in nodes:
            self.reply(NodeReply(CALL, node, GRANTED, self.now))

    def reply(self, reply: NodeReply) -> None:
        """Give the flow a reply, as a driver does."""
        effect = self.effect
        observer = effect.observer if isinstance(effect, Wait) else None
        if not isinstance(effect, Wait) or (observer is not None and observer.on_reply(reply)):
            self.step(reply)

    def times_out(self) -> None:
        """Let the time of the wait pass."""
        assert isinstance(self.effect, (Receive, Wait, Sleep)), self.effect
        self.now = max(self.now, self.effect.until)
        self.step(self.now if isinstance(self.effect, Sleep) else Timeout(self.now))

    def cancels(self) -> list[object]:
        """Cancel the flow; return what it sends."""
        sent: list[object] = []
        try:
            effect = self.flow.throw(FlowCancelled())
            while True:
                assert isinstance(effect, Send)
                sent.append(effect.command)
                effect = self.flow.send(SentRound(99, self.now, self.now, Target(0b111, "path")))
        except FlowCancelled:
            self.over = True
        return sent


class Interrupted:
    """Raises KeyboardInterrupt at the k-th line of the pure core."""

    def __init__(self, k: int) -> None:
        self.left = k
        self.where = ""

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        del arg
        if "/_core/" not in frame.f_code.co_filename:
            return None
        self.left -= event == "line"
        if self.left == 0 and not self.where:
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            raise KeyboardInterrupt
        return self.trace


@contextlib.contextmanager
def interrupted(k: int) -> Iterator[Interrupted]:
    at, before = Interrupted(k), sys.gettrace()
    sys.settrace(at.trace)
    try:
        yield at
    finally:
        sys.settrace(before)


def acquires(lines: Lines, timeout: float | None = None, **rest: Any) -> Hand:
    wait = None if timeout is None else from_seconds(timeout)
    request = AcquireRequest("r", Keys(b"r"), 10_000, START, wait, **rest)
    return Hand(acquire(request, POLICY, Dice(), lines))


def releases(lines: Lines, token: bytes = b"old", target: Target | None = EVERYWHERE) -> Hand:
    return Hand(release(Keys(b"r"), token, target, POLICY, Dice(), lines, START))


def leave() -> Release:
    return Release(b"r", b"", PLACE, LEAVE)


def enlisted(lines: Lines, timeout: float | None = None, **rest: Any) -> Hand:
    """Return a flow that has its place, after an attempt that found the lock held."""
    hand = acquires(lines, timeout, **rest)
    hand.sends(Acquire(b"r", b"token-0", 10_000))
    hand.replies(HELD, HELD, HELD)
    hand.sends(Release(b"r", b"token-0"))
    hand.replies(HELD, HELD, HELD)
    hand.expects(Enlist)
    hand.step(PLACE)
    return hand


def queued(lines: Lines | None = None, timeout: float | None = None, **rest: Any) -> Hand:
    """Return a flow that waits in the queues, after an attempt that found the lock held."""
    hand = enlisted(lines or Lines(), timeout, **rest)
    hand.sends(Release(b"r", b"", PLACE, JOIN))
    hand.replies(QUEUED, QUEUED, QUEUED)
    hand.waits()
    return hand


def attempts(hand: Hand, *, token: bytes = b"token-1", replies: tuple[Answer, ...]) -> None:
    """Expect an attempt for the place."""
    hand.sends(ScriptedAcquire(b"r", token, 10_000, 0, 0, PLACE))
    hand.replies(*replies)


def lease_of(token: bytes = b"given") -> Acquired:
    sent = SentRound(1, START, START, Target(0b111, "path"))
    return Acquired(Keys(b"r"), token, 10_000, START + ms(9_000), (), sent)


# --- the way in --------------------------------------------------------------------------------


def test_a_free_lock_costs_what_it_did() -> None:
    """A lock without contention needs one plain round, and no queue."""
    lines = Lines()
    hand = acquires(lines)
    hand.sends(Acquire(b"r", b"token-0", 10_000))
    hand.replies(GRANTED, GRANTED)
    hand.expects(Commit)
    assert lines.get(b"r") is None


def test_a_quorum_of_calls_leads_to_an_attempt() -> None:
    """The attempt names the place, and its win is committed."""
    hand = queued()
    hand.call(2, 0)
    attempts(hand, replies=(TAKEN, TAKEN))
    hand.expects(Commit)
    assert hand.effect.granted.token == b"token-1"


def test_replies_and_calls_that_come_together_all_count() -> None:
    """The last reply of a quorum and a quorum of calls are one event."""
    hand = enlisted(Lines())
    hand.sends(Release(b"r", b"", PLACE, JOIN))
    hand.replies(QUEUED)
    answers = [NodeReply(hand.rounds, node, QUEUED, hand.now) for node in (1, 2)]
    calls = [NodeReply(CALL, node, GRANTED, hand.now) for node in (2, 1)]
    for reply in (answers[0], calls[0], answers[1], calls[1]):
        hand.reply(reply)
    attempts(hand, replies=(TAKEN, TAKEN))
    hand.expects(Commit)


def test_a_winner_leaves_the_queues_of_nodes_that_were_not_asked() -> None:
    """A node with a backlog gets no attempt, and may have reserved the lock."""
    hand = queued()
    hand.call(0, 1)
    hand.rounds += 1
    hand.step(SentRound(hand.rounds, START, START, Target(0b011, "path")))
    hand.replies(TAKEN, TAKEN)
    leaves = hand.send()
    assert (leaves.command, leaves.behind) == (leave(), Target(0b100, "path"))
    hand.expects(Commit)


def test_a_lost_attempt_queues_again_with_its_number() -> None:
    """The release of a lost attempt frees its keys, and the place keeps its turn."""
    hand = queued()
    hand.call(0, 1)
    attempts(hand, replies=(TAKEN, HELD, HELD))
    hand.sends(Release(b"r", b"token-1", PLACE, 4))
    hand.replies(QUEUED, QUEUED, QUEUED)
    hand.waits()
    hand.call(1, 2)
    attempts(hand, token=b"token-2", replies=(TAKEN, TAKEN))
    hand.expects(Commit)


def test_a_waiter_leaves_also_where_only_a_lost_attempt_has_queued_it() -> None:
    hand = enlisted(Lines())
    hand.rounds += 1
    hand.step(SentRound(hand.rounds, START, START, Target(0b011, "path")))
    hand.replies(QUEUED, QUEUED)
    hand.call(0, 1)
    attempts(hand, replies=(TAKEN, HELD, HELD))
    hand.sends(Release(b"r", b"token-1", PLACE, 4))
    hand.replies(QUEUED, QUEUED, QUEUED)
    hand.waits()
    assert hand.flow.throw(FlowCancelled()) == Send(leave(), Target(0b111, "path"))


def test_a_promotion_that_is_read_late_changes_nothing() -> None:
    """The waiter became the first when its time was up: it asks once, and has the news unread."""
    hand = queued()
    hand.step(PROMOTED)
    hand.waits()
    hand.call(2, 0)
    attempts(hand, replies=(TAKEN, TAKEN))
    hand.expects(Commit)


def test_after_a_wait_the_next_acquire_queues_at_once() -> None:
    """An attempt that would be lost is saved."""
    lines = Lines()
    hand = queued(lines)
    hand.call(0, 1)
    attempts(hand, replies=(TAKEN, TAKEN))
    again = releases(lines)
    again.sends(Release(b"r", b"old"))
    again.replies(GRANTED, GRANTED)
    assert again.result.deleted
    assert isinstance(acquires(lines).effect, Enlist)


def test_a_number_that_differs_is_corrected() -> None:
    """Only the node with another number gets it."""
    hand = enlisted(Lines())
    hand.sends(Release(b"r", b"", PLACE, JOIN))
    hand.replies(QUEUED, QUEUED._replace(ticket=9))
    correction = hand.send()
    assert correction.command == Release(b"r", b"", PLACE, -9)
    assert correction.behind == Target(0b001, "path")
    hand.waits()


# --- looks, and what cannot queue ----------------------------------------------------------------


def test_it_looks_at_its_place() -> None:
    """A call or the place itself may be lost: the look queues it again with its number."""
    hand = queued()
    hand.times_out()
    assert hand.now == START + ms(10)
    hand.sends(Release(b"r", b"", PLACE, 4))
    hand.waits()


def test_without_enlisting_it_polls() -> None:
    """Too few nodes can call: it tries again after random pauses, as with waiting="poll"."""
    hand = acquires(Lines())
    for _ in range(2):
        hand.send()
        hand.replies(HELD, HELD, HELD)
    hand.expects(Enlist)
    hand.step(b"")
    for _ in range(3):
        hand.send()
        hand.replies(HELD, HELD, HELD)
        hand.send()
        hand.replies(HELD, HELD, HELD)
        hand.expects(Sleep)
        hand.times_out()


def test_nodes_that_cannot_queue_are_not_asked_for_a_while() -> None:
    """Nodes that reply about the lock without a number make it poll, and later acquires too."""
    lines = Lines()
    hand = enlisted(lines)
    hand.sends(Release(b"r", b"", PLACE, JOIN))
    hand.replies(NO_QUEUE, NO_QUEUE, QUEUED)
    hand.sends(leave())
    hand.expects(Send)
    assert isinstance(hand.effect.command, Acquire)
    assert lines.polls_until > START
    assert isinstance(acquires(lines).effect, Send)


def test_an_outage_ends_the_wait() -> None:
    """A waiter leaves the queues while no quorum replies, and the limit for outages counts."""
    hand = queued(timeout=60.0)
    hand.times_out()
    hand.sends(Release(b"r", b"", PLACE, 4))
    hand.replies(DOWN.answer, DOWN.answer, QUEUED)
    hand.sends(leave())
    hand.expects(Sleep)
    with pytest.raises(QuorumUnreachable):
        during_outage(hand)
    assert hand.now < START + from_seconds(6)


def looks(hand: Hand, *answers: Answer) -> None:
    """Have a waiter wait until it looks at its place, and give it these replies."""
    while isinstance(hand.effect, Wait):
        hand.times_out()
    hand.send()
    hand.replies(*answers)


def test_an_outage_after_a_wait_counts_from_its_beginning() -> None:
    """The nodes were there during the wait: each waiter tries again for `outage_timeout`."""
    lines = Lines()
    first = queued(lines, timeout=60.0)
    second = acquires(lines, timeout=60.0)
    second.waits()
    while first.now < START + from_seconds(20):
        looks(first, QUEUED, QUEUED, QUEUED)
        first.waits()
    began = first.now
    looks(first, DOWN.answer, DOWN.answer, QUEUED)
    first.sends(leave())
    second.now = first.now
    second.step(second.waits().news.popleft())
    second.step(PLACE)
    second.send()
    second.replies(DOWN.answer, DOWN.answer, QUEUED)
    second.sends(leave())
    for hand in (first, second):
        hand.expects(Sleep)
        with pytest.raises(QuorumUnreachable):
            during_outage(hand)
        assert began + from_seconds(4) < hand.now < began + from_seconds(6)


def test_nodes_that_do_not_reply_to_a_waiter_are_silent() -> None:
    """Votes of "not in time" name nodes that did not reply."""
    stop = threading.Event()
    hand = queued(stop=stop)
    hand.times_out()
    hand.sends(Release(b"r", b"", PLACE, 4))
    hand.times_out()
    hand.sends(leave())
    hand.expects(Sleep)
    stop.set()
    with pytest.raises(AcquireStopped) as caught:
        hand.times_out()
    assert [vote.code for vote in caught.value.votes] == ["timed_out"] * 3


def during_outage(hand: Hand) -> None:
    """Drive the flow to its end while no node is connected."""
    while not hand.over:
        if isinstance(hand.effect, Sleep):
            hand.times_out()
        elif isinstance(hand.effect, Send):
            hand.send()
        else:
            hand.replies(*[DOWN.answer] * 3)
            if isinstance(hand.effect, Receive):
                hand.times_out()


def test_a_lasting_fault_ends_the_wait() -> None:
    """A right that was taken away during the wait is said at once."""
    denied = Answer(Vote.REFUSED, VoteCode.ACCESS_DENIED, "NOPERM")
    hand = queued()
    hand.times_out()
    hand.send()
    hand.replies(denied, denied, denied)
    hand.sends(leave())
    hand.sends(Acquire(b"r", b"token-1", 10_000))
    hand.replies(denied, denied, denied)
    hand.sends(Release(b"r", b"token-1"))
    hand.replies(denied, denied, denied)
    with pytest.raises(NodeError):
        hand.times_out()


# --- the ways out ----------------------------------------------------------------------------


def test_when_the_time_is_up_one_attempt_is_made() -> None:
    """The release of that attempt leaves the queues, so an abandoned wait leaves no place."""
    hand = queued(timeout=0.005)
    hand.times_out()
    attempts(hand, replies=(HELD, HELD, HELD))
    hand.sends(Release(b"r", b"token-1", PLACE, LEAVE))
    with pytest.raises(AcquireTimeout):
        hand.replies(HELD, HELD, HELD)


def test_the_attempts_of_a_wait_and_the_last_one_are_all_reported() -> None:
    hand = queued(timeout=0.005)
    hand.call(0, 1)
    attempts(hand, replies=(TAKEN, HELD, HELD))
    hand.sends(Release(b"r", b"token-1", PLACE, 4))
    hand.replies(QUEUED, QUEUED, QUEUED)
    hand.times_out()
    attempts(hand, token=b"token-2", replies=(HELD, HELD, HELD))
    hand.sends(Release(b"r", b"token-2", PLACE, LEAVE))
    with pytest.raises(AcquireTimeout) as late:
        hand.replies(HELD, HELD, HELD)
    assert (late.value.attempts, late.value.elapsed) == (3, 0.005)


def test_a_last_attempt_that_was_not_sent() -> None:
    """Too many calls of the process are under way: it leaves, and has the votes of the line."""
    hand = queued(timeout=0.005)
    hand.times_out()
    hand.rounds += 1
    attempt = hand.rounds
    hand.step(SentRound(attempt, START, START, Target(0, None)))
    crowded = Answer(Vote.UNKNOWN, VoteCode.LOCAL_QUEUE_TIMEOUT)
    hand.replies(crowded, crowded)
    leaves = hand.send()
    assert (leaves.command, leaves.behind) == (leave(), Target(0b111, None))
    back = hand.send()
    assert back.behind == Target(0, None)
    with pytest.raises(AcquireTimeout) as caught:
        hand.step(NodeReply(attempt, 2, crowded, hand.now))
    assert [vote.code for vote in caught.value.votes] == ["held"] * 3


def test_a_last_attempt_that_a_node_did_not_get() -> None:
    """A node in quarantine queues, and gets no attempts: the waiter leaves its queue too."""
    hand = queued(timeout=0.005)
    hand.times_out()
    hand.rounds += 1
    hand.step(SentRound(hand.rounds, START, START, Target(0b011, "path")))
    hand.replies(HELD, HELD)
    leaves = hand.send()
    assert (leaves.command, leaves.behind) == (leave(), Target(0b100, "path"))
    hand.sends(Release(b"r", b"token-1", PLACE, LEAVE))
    with pytest.raises(AcquireTimeout):
        hand.replies(HELD, HELD)


def test_a_stopped_waiter_leaves() -> None:
    """A waiter that is stopped leaves all queues without waiting for replies."""
    stop = threading.Event()
    hand = queued(stop=stop)
    stop.set()
    hand.step(Timeout(hand.now))
    hand.send()
    if isinstance(hand.effect, Sleep):
        with pytest.raises(AcquireStopped):
            hand.times_out()


def test_a_cancelled_waiter_leaves() -> None:
    """Nothing else is sent."""
    assert queued().cancels() == [leave()]


def test_a_waiter_that_is_cancelled_in_an_attempt_leaves() -> None:
    """The attempt releases its token first, then it leaves the queues."""
    hand = queued()
    hand.call(0, 1)
    hand.send()
    assert hand.cancels() == [Release(b"r", b"token-1"), leave()]


def test_a_winner_that_is_cancelled_releases() -> None:
    """The lock is released, since its caller does not get the lease; the next of the line asks."""
    lines = Lines()
    hand, behind = queued(lines), acquires(lines)
    hand.call(0, 1)
    attempts(hand, replies=(TAKEN, TAKEN))
    assert hand.cancels() == [Release(b"r", b"token-1"), leave()]
    behind.waits()
    assert behind.waits().is_asking


def test_the_next_of_the_line_asks_when_the_first_leaves() -> None:
    """The waiter behind it is promoted."""
    lines = Lines()
    hand, behind = queued(lines), acquires(lines)
    behind.waits()
    hand.cancels()
    behind.step(behind.waits().news.popleft())
    behind.expects(Enlist)


def test_a_waiter_of_a_line_that_gives_up_asks_no_node() -> None:
    """The error has the votes that the first of the line got."""
    lines = Lines()
    queued(lines)
    behind = acquires(lines, timeout=0.1)
    with pytest.raises(AcquireTimeout) as caught:
        behind.times_out()
    error = caught.value
    assert (error.attempts, [vote.code for vote in error.votes]) == (0, ["held"] * 3)
    assert str(error).endswith("after 100 ms in line; the holder's lease ends in at most 5.0 s")


def test_old_votes_are_not_used() -> None:
    """The lock may be free since, or the nodes away. A grant to another means that it is held."""
    line = Line()
    line.note((QUEUED, EXCHANGED, DOWN.answer), START)
    assert line.votes(START + ms(999)) == (QUEUED, HELD, DOWN.answer)
    assert line.votes(START + ms(1_000)) == ()


def test_votes_of_an_outage_are_no_sign_of_a_holder() -> None:
    """A waiter of the line whose time is up asks the nodes itself, and reports the outage."""
    lines = Lines()
    hand = queued(lines)
    behind = acquires(lines, timeout=1.5)
    hand.times_out()
    hand.sends(Release(b"r", b"", PLACE, 4))
    hand.replies(DOWN.answer, DOWN.answer, QUEUED)
    hand.sends(leave())
    while isinstance(behind.effect, Wait):
        behind.times_out()
    behind.expects(Enlist)


def test_without_votes_a_waiter_of_a_line_makes_one_attempt() -> None:
    """The first has no reply yet, and the error is to have the votes of the nodes."""
    lines = Lines()
    lines.line(b"r", START).join(
        Member(AcquireRequest("r", Keys(b"r"), 10_000, START, None)), START
    )
    behind = acquires(lines, timeout=0.1)
    behind.times_out()
    behind.sends(Acquire(b"r", b"token-0", 10_000))
    behind.replies(HELD, HELD, HELD)
    behind.sends(Release(b"r", b"token-0"))
    with pytest.raises(AcquireTimeout):
        behind.replies(HELD, HELD, HELD)


def test_a_line_that_does_not_move_lets_its_next_waiter_ask() -> None:
    """The lease of this process may have ended without a release."""
    lines = Lines()
    hand, behind = queued(lines), acquires(lines)
    hand.call(0, 1)
    attempts(hand, replies=(TAKEN, TAKEN))
    behind.waits()
    assert behind.effect.until == START + STALLED_AFTER
    behind.times_out()
    behind.expects(Enlist)


# --- handing on ----------------------------------------------------------------------------------


def test_a_release_hands_the_lock_on() -> None:
    """One round replaces the token on all nodes; the waiter commits what it is given."""
    lines = Lines()
    hand = queued(lines)
    releaser = releases(lines)
    exchange = releaser.send()
    assert exchange.command == ScriptedAcquire(b"r", b"token-0", 10_000, 0, 0, PLACE, b"old")
    assert exchange.behind == Target(0b111, "path")
    assert releaser.effect.until == START + POLICY.node_timeout
    releaser.replies(EXCHANGED, EXCHANGED)
    assert (releaser.result.deleted, releaser.result.gone) == (True, None)
    assert not lines.line(b"r", START)._others_wait, "it may be handed on without an end"
    hand.waits()
    given = hand.waits().news.popleft()
    assert isinstance(given, Acquired)
    assert (given.token, given.valid_until) == (b"token-0", POLICY.valid_until(START, 10_000))
    hand.step(given)
    hand.sends(leave())
    assert hand.effect == Commit(given)


def test_after_an_exchange_the_next_of_the_line_asks_no_node() -> None:
    lines = Lines()
    queued(lines)
    following = acquires(lines)
    releaser = releases(lines)
    releaser.send()
    releaser.replies(EXCHANGED, EXCHANGED)
    assert not following.waits().news


def test_an_adopted_lease_is_not_handed_on() -> None:
    """Any node may have its key.  The waiter stays the first of its line."""
    lines = Lines()
    waiter = queued(lines).waits()
    releaser = releases(lines, target=None)
    assert releaser.send() == Send(Release(b"r", b"old"))
    releaser.replies(GRANTED, GRANTED)
    assert releaser.result.deleted
    assert lines.line(b"r", START).take_next(START) is waiter


def test_a_waiter_with_an_open_request_leaves_too() -> None:
    """The open request may reach a node after the exchange, and would queue the place again."""
    hand = queued()
    hand.times_out()
    hand.send()
    hand.waits()
    given = lease_of()
    assert hand.waits().give(given)
    hand.step(hand.waits().news.popleft())
    hand.sends(leave())
    assert hand.effect == Commit(given)


def test_an_exchange_that_is_lost_releases_both() -> None:
    """The waiter stays the first, and the old token is released as ever."""
    lines = Lines()
    queued(lines)
    releaser = releases(lines)
    releaser.send()
    releaser.replies(EXCHANGED, HELD, HELD)
    releaser.sends(Release(b"r", b"token-0"))
    releaser.sends(Release(b"r", b"old"))
    releaser.replies(GRANTED, GRANTED)
    assert releaser.result.deleted


@pytest.mark.parametrize("has_replies", [True, False])
def test_after_a_lost_exchange_the_waiter_queues_again(has_replies: bool) -> None:
    """The exchange has removed its place from the queues: it keeps its number, and its turn."""
    lines = Lines()
    hand = queued(lines)
    hand.times_out()
    hand.sends(Look(b"r", b"", PLACE, 4))
    if has_replies:
        hand.replies(QUEUED, QUEUED, QUEUED)
    member = hand.waits()
    releaser = releases(lines)
    exchange = releaser.send().command
    assert isinstance(exchange, ScriptedAcquire)
    assert exchange.place == PLACE
    releaser.replies(HELD, HELD, HELD)
    releaser.sends(Release(b"r", b"token-0"))
    hand.step(member.news.popleft())
    hand.sends(Look(b"r", b"", PLACE, 4))
    hand.replies(QUEUED, QUEUED, QUEUED)
    hand.waits()
    assert not member.news


def test_an_exchange_that_is_won_too_late_releases_both() -> None:
    """The validity is over when the quorum has replied: the lease would be none."""
    for late in (0, 1):
        lines = Lines()
        member = queued(lines).waits()
        releaser = releases(lines)
        releaser.send()
        releaser.now = POLICY.valid_until(START, 10_000) - 1 + late
        releaser.replies(EXCHANGED, EXCHANGED)
        if late:
            releaser.sends(Release(b"r", b"token-0"))
            releaser.sends(Release(b"r", b"old"))
        assert member.is_open == bool(late)


def test_an_exchange_without_a_fence_releases_both() -> None:
    """The nodes' clocks are too far apart: no fence, no lease."""
    lines = Lines()
    member = Member(AcquireRequest("r", Keys(b"r"), 10_000, START, None, fencing=True))
    lines.line(b"r", START).join(member, START)
    releaser = releases(lines)
    exchange = releaser.send()
    assert isinstance(exchange.command, ScriptedAcquire)
    assert exchange.command.grid_ms
    day_us = 86_400 * 10**6
    for node in range(3):
        clock = 10**15 + node * day_us
        answer = EXCHANGED._replace(fence=clock, clock_us=clock)
        releaser.step(NodeReply(releaser.rounds, node, answer, releaser.now))
    releaser.sends(Release(b"r", b"token-0"))
    releaser.sends(Release(b"r", b"old"))
    releaser.replies(HELD, HELD, HELD)
    assert member.is_open
    assert releaser.result.deleted, "the exchange has replaced the old token"


def test_a_waiter_that_left_during_the_exchange_gets_nothing() -> None:
    """The fresh token is released; the old one is gone, as by a release."""
    lines = Lines()
    hand = queued(lines)
    following = acquires(lines)
    lines.line(b"r", START).on_exchanged(START, others_wait=False)
    releaser = releases(lines)
    releaser.send()
    assert hand.cancels() == [leave()]
    releaser.replies(EXCHANGED, EXCHANGED)
    assert not following.waits().news
    releaser.sends(Release(b"r", b"token-0"))
    releaser.replies(EXCHANGED)
    assert releaser.result.deleted
    assert list(following.waits().news) == [PROMOTED], "the next of the line asks"


def test_a_lost_exchange_does_not_show_that_the_lease_was_lost() -> None:
    """Some nodes have replaced the old token, and let another client have the lock since."""
    lines = Lines()
    queued(lines)
    releaser = releases(lines)
    releaser.send()
    releaser.replies(EXCHANGED, NOT_SET, NOT_SET)
    releaser.sends(Release(b"r", b"token-0"))
    releaser.sends(Release(b"r", b"old"))
    releaser.replies(HELD, HELD, HELD)
    assert not releaser.result.deleted
    assert releaser.result.gone is None


def test_a_cancelled_exchange_releases_both() -> None:
    """The caller of release is interrupted: nothing stays, and the waiter keeps waiting."""
    lines = Lines()
    hand = queued(lines)
    for is_sent in (True, False):  # or interrupted while it is being sent
        releaser = releases(lines)
        if is_sent:
            releaser.send()
        release = releaser.flow.throw(FlowCancelled())
        behind = Target(0b111, "path") if is_sent else None
        assert release == Send(Release(b"r", b"token-0"), behind), "it follows the exchange"
        assert releaser.flow.send(None) == Send(Release(b"r", b"old"), Target(0b111, "path"))
        with pytest.raises(FlowCancelled):
            releaser.flow.send(None)
        assert hand.waits().is_open


def test_an_interrupted_release_does_not_take_back_what_it_has_given() -> None:
    """Wherever an interrupt comes, the waiter is notified of the lease, or that is released."""
    given = 0
    for k in itertools.count(1):
        lines = Lines()
        hand = queued(lines)
        member, woken = hand.waits(), threading.Event()
        member.wake = woken.set
        releaser = releases(lines)
        releaser.send()
        sent: list[object] = []
        with interrupted(k) as at, contextlib.suppress(KeyboardInterrupt):
            releaser.replies(EXCHANGED, EXCHANGED)
            while not releaser.over and isinstance(releaser.effect, Send):
                sent.append(releaser.send().command)
        if not at.where:
            break
        print(k, at.where, member.is_open, sent)
        if member.is_open:
            assert Release(b"r", b"token-0") in sent, at.where
        elif Release(b"r", b"token-0") not in sent:
            given += 1
            assert isinstance(member.news.popleft(), Acquired), at.where
            assert woken.is_set(), at.where
        else:
            pytest.fail(f"{at.where}: given and released")
    assert given > 5


def test_a_given_lease_is_released_if_its_waiter_is_cancelled() -> None:
    """The lease was won for a caller that is gone."""
    hand = queued()
    hand.waits()
    given = lease_of()
    hand.waits().give(given)
    assert hand.cancels() == [leave(), Release(b"r", b"given")]


def test_a_lease_that_comes_with_a_won_attempt_is_released() -> None:
    """Only one of them can be valid; the other's keys must not stay."""
    hand = queued()
    member = hand.waits()
    hand.call(0, 1)
    hand.send()
    member.give(lease_of())
    hand.replies(TAKEN, TAKEN)
    hand.sends(Release(b"r", b"given"))
    hand.expects(Commit)


def test_a_node_that_got_no_exchange_gets_a_release() -> None:
    """The node may hold the old token: nothing else would release it there."""
    lines = Lines()
    queued(lines)
    releaser = releases(lines)
    releaser.rounds = 1
    releaser.step(SentRound(1, START, START, Target(0b011, "path")))
    releaser.replies(EXCHANGED, EXCHANGED, NOT_SET)
    release = releaser.send()
    assert release.command == Release(b"r", b"old")
    assert release.behind == Target(0b100, "path")
    assert releaser.result.deleted


def test_a_lease_whose_keys_were_gone_is_not_reported_as_deleted() -> None:
    """The exchange is granted where the key is absent; then the releaser had lost its lease."""
    lines = Lines()
    queued(lines)
    releaser = releases(lines)
    releaser.send()
    releaser.replies(TAKEN, TAKEN, EXCHANGED)
    assert not releaser.result.deleted
    assert releaser.result.gone is LossReason.EVICTED


def test_a_release_waits_for_the_nodes_that_decide_whether_it_deleted() -> None:
    """The exchange is won before: one of the nodes had lost the key."""
    lines = Lines()
    queued(lines)
    releaser = releases(lines)
    releaser.send()
    releaser.replies(TAKEN, EXCHANGED, EXCHANGED)
    assert (releaser.result.deleted, releaser.result.gone) == (True, None)


def test_without_a_waiter_a_release_is_plain() -> None:
    """The line stays known, and the nodes pass the lock on."""
    lines = Lines()
    hand = queued(lines)
    hand.call(0, 1)
    attempts(hand, replies=(TAKEN, TAKEN))
    releaser = releases(lines, b"token-1")
    releaser.sends(Release(b"r", b"token-1"))
