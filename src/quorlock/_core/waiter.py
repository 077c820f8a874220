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
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy
    from quorlock._core.line import Line
    from quorlock._core.member import Member
    from quorlock._core.results import Acquired
    from quorlock._core.rounds import NodeReply
    from quorlock._core.time import Duration, Instant
    from quorlock._core.votes import Answer

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
# When the key expires, the first of the queue makes an attempt, and the next ones look after it. A
# node reports the ttl in whole milliseconds, rounded down. Half a millisecond more is for requests
# that take different times to reach a node.
_AFTER_EXPIRY: Duration = 3 * NS_PER_MS // 2
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


class PlaceReplies:
    """The replies to one request that queues a place, and the changes of the key after them.

    Attributes:
        round: The request; CALL if none was sent yet.
        asked_at: When it was sent.
        answers: The answers of the nodes; None: no reply yet.
        ahead: How many are before the place on a quorum of nodes; None: no quorum has queued it.
        changed: The nodes that have reported a change since their reply.
        is_outdated: The place was removed from the queues since, perhaps.
    """

    def __init__(self, n: int, quorum: int, round_: int, asked_at: Instant) -> None:
        self.round = round_
        self.asked_at = asked_at
        self.answers: list[Answer | None] = [None] * n
        self.ahead: int | None = None
        self.changed: set[int] = set()
        self.is_outdated = False
        self._quorum = quorum
        # How many are before the place, on the nodes that have queued it.
        self._aheads: list[int] = []
        self._free_at: list[Instant] = [FOR_EVER] * n

    def add(self, node: int, answer: Answer) -> None:
        """Record a node's reply."""
        self.answers[node] = answer
        if self.changed:
            self.changed.discard(node)  # the change was before the reply
        if answer.ticket:
            self._aheads.append(max(0, answer.ahead))
            if len(self._aheads) >= self._quorum:
                self.ahead = sorted(self._aheads)[self._quorum - 1]
        left_ms = answer.ttl_left_ms
        if left_ms is not None and left_ms >= 0:
            self._free_at[node] = self.asked_at + left_ms * NS_PER_MS

    @property
    def is_complete(self) -> bool:
        """Return whether every node has replied."""
        return None not in self.answers

    def free_at(self) -> Instant:
        """Return when to send a request that finds the keys of a quorum of nodes expired.

        It takes as long to the nodes as the request that they replied to.
        """
        return sorted(self._free_at)[self._quorum - 1]


class _Calls:
    """The calls since the latest attempt, and how long a waiter waits for a quorum of them.

    due_at: When patience ends.
    """

    def __init__(self, quorum: int, entropy: Entropy) -> None:
        self._quorum = quorum
        self._entropy = entropy
        self._nodes: set[int] = set()  # those that have called
        self._began: Instant = FOR_EVER  # the first call, or the first reply without a key
        self._patience_base = _PATIENCE_MIN
        self._patience = entropy.between(_PATIENCE_MIN, 2 * _PATIENCE_MIN)
        self.due_at: Instant = FOR_EVER

    def add(self, node: int, at: Instant) -> None:
        self._nodes.add(node)
        if at < self._began:
            self.on_free(at)

    def on_free(self, at: Instant) -> None:
        """Record that a node has passed the lock on, or has no key and so cannot call."""
        if at < self._began:
            self._began, self.due_at = at, at + self._patience

    def clear(self) -> None:
        """Record that an attempt begins: it uses up the calls."""
        self._nodes.clear()
        self._began = self.due_at = FOR_EVER

    def wait_longer(self) -> None:
        self._patience_base = min(2 * self._patience_base, _PATIENCE_MAX)
        self._patience = self._entropy.between(self._patience_base, 2 * self._patience_base)
        self.due_at = self._began + self._patience

    def are_enough(self, at: Instant) -> bool:
        """Return whether to make an attempt: a quorum has called, or patience has ended."""
        return len(self._nodes) >= self._quorum or at >= self.due_at


class Waiter:
    """One place in the queues, and the next step of its flow.

    Attributes:
        place: The place.
        ticket: Its number in all queues; JOIN before a quorum has proposed one.
        replies: The replies of the nodes to its latest request.
        has_waited: Some node had others before it, or another holder.
        queued: The nodes (bit i: node i) that were sent it to queue, which may still have it.
    """

    def __init__(
        self, place: bytes, member: Member, line: Line, policy: Policy, entropy: Entropy
    ) -> None:
        self.place = place
        self.ticket = JOIN
        self.replies = PlaceReplies(policy.n, policy.quorum, CALL, PAST)
        self.has_waited = False
        self.queued = 0
        self._member = member
        self._line = line
        self._policy = policy
        self._entropy = entropy
        self._calls = _Calls(policy.quorum, entropy)
        self._proposed = [0] * policy.n  # its number in each queue, until a quorum has queued it
        self._wrong = 0  # bit i: node i has queued it with another number than `ticket`
        self._pause: Duration = 0  # after the latest request; 0: after the first
        self._look_at = self._next_look()
        self._wake_at: Instant = FOR_EVER  # as the flow knows it

    # --- its requests and their replies ------------------------------------------------------

    def on_asked(self, round_: int, at: Instant) -> None:
        """Record that a request was sent that queues the place: to join, to look, or again."""
        if self.replies.round != CALL:
            self._pause = self._entropy.between(*_LOOKS)
        self.replies = PlaceReplies(self._policy.n, self._policy.quorum, round_, at)
        self._look_at = self._next_look()

    def on_removed(self) -> None:
        """Record that an exchange for the caller, which has not won, may have removed its place."""
        self.replies.is_outdated = True

    def on_reply(self, reply: NodeReply) -> bool:
        """Record a call, a change, or a reply to the latest request; others change nothing.

        Returns:
            Whether there is a step to take, or `wake_at` is earlier than it said.
        """
        if not self.record(reply):
            return False
        is_sooner = self._look_at < self._wake_at or self._calls.due_at < self._wake_at
        return is_sooner or self.step(reply.at) is not WAIT

    def record(self, reply: NodeReply) -> bool:
        """Record a call, a change, or a reply to the latest request; return whether it was one."""
        round_, node, answer, at = reply
        if round_ == CALL:
            self._calls.add(node, at)
        elif round_ == CHANGED:
            self.replies.changed.add(node)
            self._look_at = self._next_look()
        elif round_ == self.replies.round and self.replies.answers[node] is None:
            self._on_answer(node, answer, at)
        else:
            return False
        return True

    def _on_answer(self, node: int, answer: Answer, at: Instant) -> None:
        replies = self.replies
        was_queued = replies.ahead is not None
        replies.add(node, answer)
        self.has_waited |= answer.ahead >= 0
        if answer.code is VoteCode.KEY_MISSING:
            # Free, and not passed on to any waiter: the node cannot call.  All waiters may find so
            # at the same time, so even a quorum of such replies waits for the random patience.
            self._calls.on_free(at)
        if self.ticket != JOIN:
            is_wrong = answer.ticket not in (0, self.ticket)
            self._wrong = self._wrong & ~(1 << node) | is_wrong << node
        else:
            self._proposed[node] = answer.ticket
            if replies.ahead is not None:
                self._agree_on(max(self._proposed))
        if replies.ahead is not None:
            self._look_at = self._next_look()
            if not was_queued:
                self._line.note(replies.answers, at)

    def _agree_on(self, ticket: int) -> None:
        self.ticket = ticket
        for node, proposed in enumerate(self._proposed):
            self._wrong |= (proposed not in (0, ticket)) << node

    # --- the next step -----------------------------------------------------------------------

    def step(self, at: Instant) -> Step:
        """Return what to do now."""
        replies = self.replies
        if self._calls.are_enough(at):
            return ATTEMPT
        if replies.is_outdated:
            return LOOK
        if self._wrong:
            return CORRECT
        if replies.ahead is None:
            is_over = replies.is_complete or at >= replies.asked_at + self._policy.node_timeout
            return GIVE_UP if is_over else WAIT
        if at < self._look_at:
            return WAIT
        # The first of the queue does not wait for the calls that its look would lead to.
        return ATTEMPT if replies.ahead == 0 and at >= self._expiry() else LOOK

    def wake_at(self) -> Instant:
        """Return when to ask for the next step again, if no reply asks for that before."""
        self._wake_at = min(self._look_at, self._calls.due_at)
        return self._wake_at

    def take_corrections(self) -> int:
        """Return the nodes (as bits) with another number; they count as corrected now."""
        nodes, self._wrong = self._wrong, 0
        return nodes

    def on_attempt(self) -> None:
        """Record that an attempt begins."""
        self._calls.clear()
        if self.replies.changed:
            self.replies.changed.clear()
            self._look_at = self._next_look()

    def on_attempt_lost(self) -> None:
        """Wait longer for a quorum of calls from now on."""
        self._calls.wait_longer()

    def on_won(self, tally: Tally, at: Instant) -> Acquired | None:
        """Record that the attempt has won; return a lease that its caller was given during it."""
        others_wait = max([answer.ahead for answer in tally.answers if answer is not None]) > 0
        waited = self.has_waited
        self._line.on_granted(self._member, at, has_waited=waited, others_wait=others_wait)
        self._line.note(tally.answers, at)
        return self._member.close()

    def tally(self, n: int, round_: int) -> Tally:
        """Return the tally of an attempt; calls during it are recorded here."""
        return _AttemptTally(n, round_, self)

    def _next_look(self) -> Instant:
        """Return when to look: after a pause, or when the keys of a quorum expire or change."""
        replies, ahead = self.replies, self.replies.ahead
        if ahead is None:
            return replies.asked_at + self._policy.node_timeout
        # Not after the first request: in quick hand-overs the call is about to come.
        if self._pause and not ahead and len(replies.changed) >= self._policy.quorum:
            return replies.asked_at + _LOOK_PAUSE
        ahead = min(ahead, _AHEAD_MAX)
        pause = self._pause * (1 + ahead)
        if not self._pause:
            pause = _FIRST_LOOK_BEHIND * (1 + ahead) if ahead else _FIRST_LOOK
        return min(replies.asked_at + pause, self._expiry() + _AFTER_THOSE_AHEAD * ahead)

    def _expiry(self) -> Instant:
        return self.replies.free_at() + _AFTER_EXPIRY


class _AttemptTally(Tally):
    """A tally that passes other replies on to the waiter: calls, and those to its request."""

    __slots__ = ("_waiter",)

    def __init__(self, n: int, round_: int, waiter: Waiter) -> None:
        super().__init__(n, round_)
        self._waiter = waiter

    def count(self, reply: NodeReply) -> Verdict:
        if reply.round != self.round:
            self._waiter.record(reply)
            return self.verdict
        return Tally.count(self, reply)  # as `super` does, which makes an object for every reply
