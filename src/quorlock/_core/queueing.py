"""Queueing: the flow of a waiter in the queues of the nodes.

Every node has a queue of places, and a release passes the lock on to the first of them: the node
reserves the lock for that place and calls it (`scripts/release.lua`).  When a quorum of nodes has
called, an attempt decides.  Queues, calls and reservations are hints, which may be lost: only a
round grants the lock, and a waiter looks at its place now and then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from quorlock._core.claims import place_of_claim
from quorlock._core.commands import LEAVE, Look, Release
from quorlock._core.effects import Commit, Enlist, Send, Timeout, Wait
from quorlock._core.member import Removed
from quorlock._core.redlock import attempt, failure_reason
from quorlock._core.results import Acquired, AttemptFailed, FailureReason
from quorlock._core.rounds import NodeReply, Target
from quorlock._core.tally import Tally
from quorlock._core.time import FOR_EVER, NS_PER_MS
from quorlock._core.votes import NO_REPLY, TIMED_OUT
from quorlock._core.waiter import ATTEMPT, CORRECT, GIVE_UP, LOOK, WAIT, Waiter
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy, Flow
    from quorlock._core.line import Line, Lines
    from quorlock._core.member import Member, News
    from quorlock._core.request import AcquireRequest
    from quorlock._core.rounds import SentRound
    from quorlock._core.time import Duration, Instant

# How long the nodes are not asked to queue after too many of them could not.
_POLL_FOR: Duration = 5_000 * NS_PER_MS
# None: the wait continues.
_Outcome: TypeAlias = "Acquired | AttemptFailed | None"


def queue_up(
    member: Member,
    line: Line,
    request: AcquireRequest,
    policy: Policy,
    entropy: Entropy,
    lines: Lines,
    at: Instant,
) -> Flow[tuple[Acquired | AttemptFailed | None, Instant]]:
    """Wait in the queues of the nodes, and attempt when called.

    Returns:
        The lease, or the failure, or None if too few nodes can queue; and the current time.
    """
    by = max(end_of(request), at + policy.connect_timeout)
    place: bytes = yield Enlist(by, request.stop, request.key)
    if not place:
        return None, at
    member.place = place = place_of_claim(request.claim, place)
    waiter = Waiter(place, member, line, policy, entropy)
    queueing = _Queueing(member, waiter, line, policy, entropy, at)
    try:
        outcome = yield from queueing.run()
        if outcome is None and queueing.has_votes:
            lines.polls_until = queueing.at + _POLL_FOR
    except GeneratorExit:
        raise
    except BaseException:
        yield queueing.leave
        raise
    return outcome, queueing.at


class _Queueing:
    """One waiter in the queues.

    Attributes:
        at: The current time, as far as known.
        has_votes: A quorum of nodes has replied to the latest request, whatever they replied.
    """

    def __init__(
        self,
        member: Member,
        waiter: Waiter,
        line: Line,
        policy: Policy,
        entropy: Entropy,
        at: Instant,
    ) -> None:
        self.at = at
        self._line = line
        self.has_votes = True
        self._member = member
        self._request = member.request
        self._waiter = waiter
        self._policy = policy
        self._entropy = entropy
        self._sent: SentRound | None = None
        self._attempts = 0
        self._lost: AttemptFailed | None = None  # the latest attempt that did not win

    @property
    def leave(self) -> Send:
        """Return what removes the place from the queues that it may be in.

        A node that hangs is sent no place. If it were sent the removals nevertheless, those of all
        waiters would fill the memory.
        """
        path = self._sent.target.path if self._sent else None
        leave = Release(self._request.key, b"", self._waiter.place, LEAVE)
        return Send(leave, Target(self._waiter.queued, path) if path else None)

    def run(self) -> Flow[Acquired | AttemptFailed | None]:
        """Wait until granted, until the time is up, or until it makes no sense."""
        yield from self._ask()
        is_late = False  # no reply that has come is unread
        while True:
            step = self._waiter.step(self.at) if self._member.is_open else WAIT
            if step is GIVE_UP and (is_late or self._waiter.replies.is_complete):
                yield self.leave
                return self._not_queued()
            outcome: _Outcome = None
            if step is ATTEMPT:
                outcome = yield from self._attempt()
            elif step is CORRECT:
                yield from self._correct()
            elif step is LOOK:
                yield from self._ask()
            else:
                outcome, is_late = yield from self._wait()
            if outcome is not None:
                return outcome

    def _ask(self) -> Flow[None]:
        """Have the nodes queue the place, or look at it."""
        waiter = self._waiter
        kind = Look if waiter.replies.ahead == 0 else Release
        queued, waiter.queued = waiter.queued, (1 << self._policy.n) - 1  # if it is interrupted
        sent: SentRound = yield Send(kind(self._request.key, b"", waiter.place, waiter.ticket))
        waiter.queued = queued | sent.target.nodes
        self._sent, self.at = sent, sent.sent_at
        waiter.on_asked(sent.round, sent.sent_at)

    def _correct(self) -> Flow[None]:
        """Send the number that a quorum has led to, to nodes with another one."""
        waiter, path = self._waiter, self._sent.target.path if self._sent else None
        correction = Release(self._request.key, b"", waiter.place, -waiter.ticket)
        yield Send(correction, Target(waiter.take_corrections(), path))

    def _attempt(self) -> Flow[_Outcome]:
        """Run an acquire round; if it does not win, its release queues the place again."""
        waiter = self._waiter
        waiter.on_attempt()
        outcome = yield from attempt(self._request, self._policy, self._entropy, waiter)
        if isinstance(outcome, Acquired):
            return outcome
        self.at = outcome.ended
        self._attempts += 1
        self._lost = outcome = outcome._replace(attempts=self._attempts)
        waiter.on_attempt_lost()
        if waiter.ticket == LEAVE:  # its release has left the queues
            return outcome
        if outcome.reason is FailureReason.HELD:
            self._line.note(outcome.answers, self.at)
        is_over = self.at >= end_of(self._request) or is_stopped(self._request)
        if outcome.reason is FailureReason.HELD and not is_over:
            return None
        yield self.leave
        return outcome

    def _wait(self) -> Flow[tuple[_Outcome, bool]]:
        """Wait for an event; return the outcome, and whether none came."""
        request, waiter = self._request, self._waiter
        until = min(waiter.wake_at(), end_of(request))
        event: News | NodeReply | Timeout
        event = yield Wait(until, request.stop, self._member, waiter)
        if isinstance(event, NodeReply):
            self.at = event.at
        elif isinstance(event, Acquired):
            yield self.leave  # a lost attempt may have queued the place again since
            yield Commit(event)
            return event, False
        elif isinstance(event, Timeout):
            self.at = event.at
            return (yield from self._on_timeout()), True
        elif isinstance(event, Removed):
            waiter.on_removed()
        # Or it was promoted when its time was up, and has not read that before.
        return None, False

    def _on_timeout(self) -> Flow[_Outcome]:
        request = self._request
        if is_stopped(request):
            yield self.leave
            lost = self._lost or not_called(request, self._policy, self.at)
            return lost._replace(ended=self.at)
        if self.at < end_of(request):
            return None
        # One attempt is made when the time is up; its release leaves the queues.
        self._waiter.ticket = LEAVE
        outcome = yield from attempt(request, self._policy, self._entropy, self._waiter)
        if isinstance(outcome, Acquired):
            return outcome
        self.at = outcome.ended
        return outcome._replace(attempts=self._attempts + 1)

    def _not_queued(self) -> AttemptFailed | None:
        """Return the failure if too few nodes reply; None if they reply, and cannot queue."""
        replies, policy = self._waiter.replies, self._policy
        answers = tuple([TIMED_OUT if a is None else a for a in replies.answers])
        # The missing right may be one that an attempt does not need (docs/how-to/acl.md).
        able = [a.is_lock_answer or a.code is VoteCode.ACCESS_DENIED for a in answers]
        self.has_votes = sum(able) >= policy.quorum
        if self.has_votes:
            return None
        reason = failure_reason(answers, Tally(policy.n, 0))
        key = self._request.key
        return AttemptFailed(reason, answers, replies.asked_at, self.at, key, self._attempts)


def not_called(request: AcquireRequest, policy: Policy, at: Instant) -> AttemptFailed:
    """Return the failure of a waiter that has asked no node for the lock."""
    answers, key = (NO_REPLY,) * policy.n, request.key
    return AttemptFailed(FailureReason.HELD, answers, request.asked_at, at, key, attempts=0)


def is_stopped(request: AcquireRequest) -> bool:
    """Return whether the caller has ended the wait."""
    return request.stop is not None and request.stop.is_set()


def end_of(request: AcquireRequest) -> Instant:
    """Return when the time for the acquire is up."""
    return FOR_EVER if request.timeout is None else request.asked_at + request.timeout
