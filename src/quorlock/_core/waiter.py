"""The state of one place in the queues of the nodes, and what its flow does next.

No input or output: the flow (`queueing`) reports replies and calls, and asks for the next step.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from quorlock._core.commands import JOIN
from quorlock._core.effects import CALL, CHANGED
from quorlock._core.tally import Tally, Verdict
from quorlock._core.time import FOR_EVER, NS_PER_MS, PAST
from quorlock._core.votes import NO_REPLY, Answer
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy
    from quorlock._core.line import Line
    from quorlock._core.member import Member
    from quorlock._core.results import Acquired
    from quorlock._core.rounds import NodeReply
    from quorlock._core.time import Duration, Instant

# How long the first call waits for a quorum of them; twice as long after every lost round, up to
# the second number.  Random, so that two waiters who split the nodes do not ask in step.
_PATIENCE_MIN: Duration = 5 * NS_PER_MS
_PATIENCE_MAX: Duration = 100 * NS_PER_MS
# A waiter looks at its place again, since a call, or the place itself, may be lost: the first of a
# queue soon.  Later ones wait longer, so that a long queue does not load the nodes.
_FIRST_LOOK: Duration = 10 * NS_PER_MS
_FIRST_LOOK_BEHIND: Duration = 100 * NS_PER_MS
_LOOKS: tuple[Duration, Duration] = (250 * NS_PER_MS, 500 * NS_PER_MS)
# If the key changes often, looks for that reason have this distance.
_LOOK_PAUSE: Duration = 5 * NS_PER_MS
_AHEAD_MAX = 4  # counts for the pause; those ahead may be gone
# It also looks when the key expires: the first of the queue at once, the next ones after it.
_AFTER_EXPIRY: Duration = 1 * NS_PER_MS
_AFTER_THOSE_AHEAD: Duration = 5 * NS_PER_MS


class Step(Enum):
    """The next action of a waiter."""

    ATTEMPT = "attempt"  # an acquire round
    LOOK = "look"  # ask the nodes for its place, which they make again if it is lost
    CORRECT = "correct"  # send the number that a quorum has led to
    GIVE_UP = "give up"  # fewer than a quorum of nodes have queued it
    WAIT = "wait"


# A module's names are read faster than members of an Enum, as in `tally`.
ATTEMPT, LOOK, CORRECT = Step.ATTEMPT, Step.LOOK, Step.CORRECT
GIVE_UP, WAIT = Step.GIVE_UP, Step.WAIT


class Waiter:
    """One place in the queues.

    Attributes:
        place: The place.
        ticket: Its number in all queues; JOIN before a quorum has proposed one.
        answers: The answers of the nodes to its latest request; None: no reply yet.
        asked_at: When that request was sent.
        has_waited: Some node had others before it, or another holder.
    """

    def __init__(
        self, place: bytes, member: Member, line: Line, policy: Policy, entropy: Entropy
    ) -> None:
        self.place = place
        self.ticket = JOIN
        self.answers: list[Answer | None] = [None] * policy.n
        self.has_waited = False
        self._member = member
        self._line = line
        self._quorum = policy.quorum
        self._entropy = entropy
        self._round = CALL  # of its latest request; CALL before the first
        self._numbers = [0] * policy.n  # its number in each queue, as far as known
        self._has_wrong_number = False
        # How many are before it, on the nodes that have queued it by their latest answers.
        self._aheads: list[int] = []
        self._free_at: list[Instant] = [FOR_EVER] * policy.n
        self._called = 0  # bit i: node i has called
        self._free_since: Instant = FOR_EVER  # the first call, or the first reply without a key
        self._changed = 0  # bit i: node i has reported a change since its latest reply
        self._is_removed = False  # perhaps: from the queues, since its latest request
        self._patience_base = _PATIENCE_MIN
        self._patience = entropy.between(_PATIENCE_MIN, 2 * _PATIENCE_MIN)
        self._node_timeout = policy.node_timeout
        self.asked_at: Instant = PAST
        self._pause: Duration = 0  # after the latest request; 0: after the first
        self._look_at: Instant = FOR_EVER
        self._wake_at: Instant = FOR_EVER  # as the flow knows it

    # --- its requests and their replies ------------------------------------------------------

    def on_asked(self, round_: int, at: Instant) -> None:
        """Record that a request was sent that queues the place: to join, to look, or again."""
        if self._round != CALL:
            self._pause = self._entropy.between(*_LOOKS)
        self._round, self.asked_at = round_, at
        n = len(self.answers)
        self.answers, self._free_at, self._aheads = [None] * n, [FOR_EVER] * n, []
        self._changed, self._is_removed = 0, False
        self._look_at = self._next_look()

    def on_removed(self) -> None:
        """Record that an exchange for the caller, which has not won, may have removed its place."""
        self._is_removed = True

    def on_reply(self, reply: NodeReply) -> bool:
        """Record a call, a change, or a reply to the latest request; others change nothing.

        Returns:
            Whether there is a step to take, or `wake_at` is earlier than it said.
        """
        round_, node, answer, at = reply
        if round_ == CALL:
            self._called |= 1 << node
            self._free_since = min(self._free_since, at)
        elif round_ == CHANGED:
            self._changed |= 1 << node
            self._look_at = self._next_look()
        elif round_ == self._round and self.answers[node] is None:
            self._on_answer(node, answer, at)
            self._look_at = self._next_look()
        else:
            return False
        return self.step(at) is not WAIT or self._next_wake() < self._wake_at

    def _on_answer(self, node: int, answer: Answer, at: Instant) -> None:
        self.answers[node] = answer
        self._changed &= ~(1 << node)  # the change was before the reply
        self._numbers[node] = answer.ticket
        if answer.ticket:
            self._aheads.append(max(0, answer.ahead))
        self.has_waited |= answer.ahead >= 0
        if answer.code is VoteCode.KEY_MISSING:
            # Free, and not passed on to any waiter: the node cannot call.  All waiters may find so
            # at the same time, so even a quorum of such replies waits for the random patience.
            self._free_since = min(self._free_since, at)
        elif answer.is_held and answer.ttl_left_ms is not None and answer.ttl_left_ms >= 0:
            self._free_at[node] = at + answer.ttl_left_ms * NS_PER_MS
        if self.ticket == JOIN and self.is_queued:
            self.ticket = max(self._numbers)
        if self.ticket != JOIN:
            self._has_wrong_number = len({0, self.ticket, *self._numbers}) > 2  # noqa: PLR2004
        if len(self._aheads) >= self._quorum:
            self._line.note(self.final_answers(), at)

    @property
    def is_queued(self) -> bool:
        """Return whether a quorum of nodes has queued it, by the replies to the latest request."""
        return len(self._aheads) >= self._quorum

    @property
    def is_first(self) -> bool:
        """Return whether a quorum of nodes has queued it with no other before it."""
        return self._ahead() == 0

    @property
    def is_answered(self) -> bool:
        """Return whether every node has replied to the latest request."""
        return None not in self.answers

    def final_answers(self) -> tuple[Answer, ...]:
        """Return the latest answers; `NO_REPLY` for nodes without one."""
        return tuple([NO_REPLY if answer is None else answer for answer in self.answers])

    # --- the next step -----------------------------------------------------------------------

    def step(self, at: Instant) -> Step:
        """Return what to do now."""
        if self._called.bit_count() >= self._quorum or at >= self._free_since + self._patience:
            return ATTEMPT
        if self._is_removed:
            return LOOK
        if self._has_wrong_number:
            return CORRECT
        if len(self._aheads) < self._quorum:
            is_over = self.is_answered or at >= self.asked_at + self._node_timeout
            return GIVE_UP if is_over else WAIT
        return LOOK if at >= self._look_at else WAIT

    def wake_at(self) -> Instant:
        """Return when to ask for the next step again, if no reply asks for that before."""
        self._wake_at = self._next_wake()
        return self._wake_at

    def _next_wake(self) -> Instant:
        return min(self._look_at, self._free_since + self._patience)

    def take_corrections(self) -> int:
        """Return the nodes (bit i: node i) with another number; they count as corrected now."""
        nodes = 0
        for node, number in enumerate(self._numbers):
            if number not in (0, self.ticket):
                nodes |= 1 << node
                self._numbers[node] = self.ticket
        self._has_wrong_number = False
        return nodes

    def on_attempt(self) -> None:
        """Record that an attempt begins: it uses up the calls."""
        self._called, self._free_since, self._changed = 0, FOR_EVER, 0
        self._look_at = self._next_look()

    def on_attempt_lost(self) -> None:
        """Wait longer for a quorum of calls from now on."""
        self._patience_base = min(2 * self._patience_base, _PATIENCE_MAX)
        self._patience = self._entropy.between(self._patience_base, 2 * self._patience_base)

    def on_won(self, tally: Tally, at: Instant) -> Acquired | None:
        """Record that the attempt has won; return a lease that its caller was given during it."""
        others_wait = any(answer is not None and answer.ahead > 0 for answer in tally.answers)
        self._line.on_granted(
            self._member,
            at,
            has_waited=self.has_waited,
            others_wait=others_wait,
        )
        self._line.note(tally.final_answers(), at)
        return self._member.close()

    def tally(self, n: int, round_: int) -> Tally:
        """Return the tally of an attempt; calls during it are recorded here."""
        return _AttemptTally(n, round_, self)

    def _next_look(self) -> Instant:
        """Return when to look: after a pause, or when the keys of a quorum expire or change."""
        ahead = self._ahead()
        if ahead is None:
            return self.asked_at + self._node_timeout
        # Not after the first request: in quick hand-overs the call is about to come.
        if self._pause and not ahead and self._changed.bit_count() >= self._quorum:
            return self.asked_at + _LOOK_PAUSE
        pause = self._pause * (1 + ahead)
        if not self._pause:
            pause = _FIRST_LOOK_BEHIND * (1 + ahead) if ahead else _FIRST_LOOK
        free_at = sorted(self._free_at)[self._quorum - 1]
        return min(self.asked_at + pause, free_at + _AFTER_EXPIRY + _AFTER_THOSE_AHEAD * ahead)

    def _ahead(self) -> int | None:
        """Return how many are before it on a quorum of nodes, a few at most; None: not known."""
        return min(sorted(self._aheads)[self._quorum - 1], _AHEAD_MAX) if self.is_queued else None


class _AttemptTally(Tally):
    """A tally that passes other replies on to the waiter: calls, and those to its request."""

    __slots__ = ("_waiter",)

    def __init__(self, n: int, round_: int, waiter: Waiter) -> None:
        super().__init__(n, round_)
        self._waiter = waiter

    def count(self, reply: NodeReply) -> Verdict:
        if reply.round != self.round:
            self._waiter.on_reply(reply)
            return self.verdict
        return super().count(reply)
