"""Acquire: attempts, and between them a wait in line or a pause, until the lock is granted.

`redlock` runs one attempt, and `waiting` waits in line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from quorlock._core.claims import waits_apart
from quorlock._core.effects import Sleep
from quorlock._core.owner import is_done, readable
from quorlock._core.queueing import end_of
from quorlock._core.redlock import attempt, common_owner, common_readers, time_until_free_ms
from quorlock._core.results import Acquired, FailureReason
from quorlock._core.time import NS_PER_MS, NS_PER_S, to_seconds
from quorlock._core.votes import node_votes
from quorlock._core.waiting import wait_in_line
from quorlock.errors import (
    AcquireStopped,
    AcquireTimeout,
    NodeError,
    QuorumUnreachable,
    VoteCode,
)

if TYPE_CHECKING:
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy, Flow
    from quorlock._core.line import Lines
    from quorlock._core.request import AcquireRequest, BaseRequest
    from quorlock._core.results import AttemptFailed
    from quorlock._core.rounds import SentRound
    from quorlock._core.time import Duration, Instant
    from quorlock._core.votes import Answer

# Enough nodes replied about the lock: a later attempt may get it.
WORTH_RETRYING = (FailureReason.HELD, FailureReason.LATE, FailureReason.UNFENCED)
# The nodes are there; a quarantine ends at a known time, or when an operator says that a node is
# new.
_NO_OUTAGE = (*WORTH_RETRYING, FailureReason.QUARANTINED)
# After so many attempts a waiter for several keys pauses before it joins the next queue: up to the
# first time below, or up to the time that the attempt took.  Each of the two doubles so many times.
_SWAPS_MAX = 3
_PAUSE_MIN: Duration = 4 * NS_PER_MS
_PAUSE_MAX: Duration = NS_PER_S
_MIN_DOUBLINGS, _ATTEMPT_DOUBLINGS = 3, 6
_ERRORS = (FailureReason.FAULTY, FailureReason.FORBIDDEN)


def acquire(
    request: AcquireRequest,
    policy: Policy,
    entropy: Entropy,
    lines: Lines | None = None,
    begun: tuple[bytes, SentRound] | None = None,
) -> Flow[Acquired]:
    """Attempt until granted, until `stop` is set, or until waiting longer makes no sense.

    An attempt that has begun is completed: its lease is returned if it wins.

    Args:
        request: The lock, and how long to wait for it.
        policy: The settings.
        entropy: The source of tokens and pauses.
        lines: The lines of this process; None to try again after random pauses instead.
        begun: The token and the round of the first attempt, if it was sent already (`usual`).

    Raises:
        AcquireStopped: `stop` was set before the lock was granted.
        AcquireTimeout: the lock was held until the timeout.
        QuorumUnreachable: no quorum replied for `outage_timeout`, or too many nodes were in
            quarantine until the timeout.
        NodeError: too many nodes reply with errors.
    """
    failures, stop = Failures(request, policy), request.stop
    if lines is not None and (request.timeout == 0 or request.asked_at < lines.polls_until):
        lines = None
    joins = begun is None and joins_line(request, lines)
    while stop is None or not stop.is_set():
        outcome: Acquired | AttemptFailed | None = None
        if joins and lines is not None:
            failures.has_waited = True
            request = _behind_holder(request, failures, lines)
            outcome = yield from wait_in_line(request, policy, entropy, lines, failures.at)
            lines = lines if outcome else None  # else too few nodes can queue it
        # In turn: after an attempt that found it held, the line; after a failed wait, an attempt.
        # A waiter for several locks then waits in the queue of the next key that is in its way.
        joins = lines is not None and (not joins or bool(request.claim.keys[1:]))
        if outcome is None:
            outcome = yield from attempt(request, policy, entropy, begun=begun)
            begun = None
        if isinstance(outcome, Acquired):
            return outcome
        outcome = failures.add(outcome, lines)
        wake = next_attempt_at(outcome, request, policy, entropy, failures.outage_since)
        joins = joins and outcome.reason is FailureReason.HELD
        if wake is None and (stop is None or not stop.is_set()):
            raise_failure(outcome, request, policy, failures.count)
        if wake is not None and joins:
            wake = _rejoin_at(request, outcome, policy, entropy, failures.count)
        if wake is not None:
            woke = yield Sleep(wake, stop)
            if joins:
                failures.at = woke
    raise failures.stopped(policy)


def _rejoin_at(
    request: AcquireRequest,
    failed: AttemptFailed,
    policy: Policy,
    entropy: Entropy,
    attempts: int,
) -> Instant | None:
    """Return when a waiter joins the queue of the next key that is in its way; None: at once.

    Waiters for several keys may be in each other's way: each has one key reserved for it, leaves
    that key's queue, and is given the key that the other one has just left.  In one event loop
    they do so in step, without an end.  A random pause, in no queue, lets one of them pass.  Many
    waiters do it too, unless they pause for much longer than their attempts take.
    """
    if not request.claim.keys[1:] or attempts < _SWAPS_MAX:
        return None
    pauses = attempts - _SWAPS_MAX
    # A pause of the process counts for as long as an attempt may take.
    took = min(failed.ended - failed.started, max_rounds(request) * policy.node_timeout)
    by_attempt = min(took << min(pauses, _ATTEMPT_DOUBLINGS), _PAUSE_MAX)
    longest = max(_PAUSE_MIN << min(pauses, _MIN_DOUBLINGS), by_attempt)
    return min(end_of(request), failed.ended + entropy.between(0, longest))


def joins_line(request: AcquireRequest, lines: Lines | None) -> bool:
    """Return whether a call begins with a wait in line, as others of this process are before it."""
    line = None if lines is None else lines.get(request.claim.key)
    return line is not None and line.is_in_use(request.asked_at)


def _behind_holder(request: AcquireRequest, failures: Failures, lines: Lines) -> AcquireRequest:
    """Return the request as a waiter makes it, in the queue of the key that was in its way."""
    if request.claim.keys[1:]:
        key = failures.key or request.key
        return request._replace(claim=request.claim.led_by(key))
    # Of an attempt that found the lock held.
    if failures.votes and not waits_apart(request.claim):
        lines.line(request.key, failures.at).note(failures.votes, failures.at)
    return request


class Failures:
    """The failed attempts of one call.

    Attributes:
        count: How many.
        at: The current time, as far as known.
        has_waited: The call has waited for the lock: the nodes were there before.
        outage_since: When the nodes were there last, before the latest attempts found too few;
            None if they are there.
    """

    count = 0
    has_waited = False
    outage_since: Instant | None = None
    _last: AttemptFailed | None = None

    def __init__(self, request: BaseRequest, policy: Policy) -> None:
        self.at = request.asked_at
        self._request = request
        # What the nodes may take from one failure to the next.
        longest_attempt = max_rounds(request) * policy.node_timeout
        connecting = policy.connect_timeout + policy.node_timeout
        self._longest = connecting + longest_attempt + _longest_pause(policy, longest_attempt)

    def add(self, failed: AttemptFailed, lines: Lines | None) -> AttemptFailed:
        """Record an attempt, or several of one wait; return it.

        If no node was asked, as too many calls of this process were under way, votes that were
        got before say more about the lock.
        """
        began, self.at = self.at, failed.ended  # at the end of the attempt before
        self.count += failed.attempts
        if all(answer.code is VoteCode.LOCAL_QUEUE_TIMEOUT for answer in failed.answers):
            line = lines and lines.get(self._request.key)
            if line and (votes := line.votes(self.at)):
                failed = failed._replace(reason=FailureReason.HELD, answers=votes)
            elif self._last is not None and self._last.reason is FailureReason.HELD:
                _, answers, _, _, key, _ = self._last
                failed = failed._replace(reason=FailureReason.HELD, answers=answers, key=key)
        if failed.attempts or failed.reason is not FailureReason.HELD:
            self._last = failed
        if failed.reason in _NO_OUTAGE:
            self.has_waited, self.outage_since = True, None
            return failed
        if self.outage_since is None:
            # Connecting came before the first attempt began, and counts.
            began = failed.started if self.has_waited else self._request.asked_at
            self.outage_since = began
        # A pause of this process is no outage.
        self.outage_since += max(0, failed.ended - began - self._longest)
        return failed

    @property
    def votes(self) -> tuple[Answer, ...]:
        """The votes of the latest attempt; () before the first."""
        return self._last.answers if self._last else ()

    @property
    def key(self) -> bytes:
        """The key that was in the way of the latest attempt; b"" before the first."""
        return self._last.key if self._last else b""

    def stopped(self, policy: Policy) -> AcquireStopped:
        """Return the error of a call that `stop` has ended."""
        votes = node_votes(policy.addresses, self.votes) if self.votes else ()
        elapsed = to_seconds(self.at - self._request.asked_at)
        return AcquireStopped(self._request.resource, votes, self.count, elapsed)


def try_acquire(request: AcquireRequest, policy: Policy, entropy: Entropy) -> Flow[Acquired | None]:
    """Make one attempt; None if the lock is held. Raises QuorumUnreachable, NodeError."""
    outcome = yield from attempt(request, policy, entropy)
    if isinstance(outcome, Acquired):
        return outcome
    if outcome.reason in WORTH_RETRYING:
        return None
    raise_failure(outcome, request, policy, attempts=1)


def max_rounds(request: BaseRequest) -> int:
    """Return the rounds that an attempt may take: acquire, release, and raising a fence between."""
    return 3 if request.fencing else 2


def next_attempt_at(
    last: AttemptFailed,
    request: BaseRequest,
    policy: Policy,
    entropy: Entropy,
    outage_since: Instant | None,
) -> Instant | None:
    """Return when to try again; None when the time is up (rules 10 and 11)."""
    if last.reason is FailureReason.FORBIDDEN:
        return None
    # Redlock page, "Retry on failure": a random delay, greater than the time a round takes, so that
    # contenders who split the votes do not collide again.  A pause of the process counts for
    # nothing: the delay would be as long.
    longest_attempt = max_rounds(request) * policy.node_timeout
    shortest = max(policy.retry_delay[0], min(last.ended - last.started, longest_attempt))
    wake = last.ended + entropy.between(shortest, _longest_pause(policy, shortest))
    give_up = [] if request.timeout is None else [request.asked_at + request.timeout]
    if outage_since is not None:
        # The last attempt must *end* within the outage, and each of its rounds may take
        # node_timeout.
        give_up.append(outage_since + policy.outage_timeout - longest_attempt)
    if not give_up:
        return wake
    # The last sleep is clamped: one attempt is made when the time is up, none after it.
    last_chance = min(give_up)
    return None if last_chance <= last.ended else min(wake, last_chance)


def _longest_pause(policy: Policy, attempt: Duration) -> Duration:
    """Return the longest pause after an attempt that took so long."""
    return max(policy.retry_delay[1], 2 * attempt)


def raise_failure(
    last: AttemptFailed, request: BaseRequest, policy: Policy, attempts: int
) -> NoReturn:
    """Raise the error of a call whose last attempt has failed."""
    votes = node_votes(policy.addresses, last.answers)
    elapsed = to_seconds(last.ended - request.asked_at)
    if last.reason in WORTH_RETRYING:
        left = time_until_free_ms(last.answers, policy.quorum)
        holder_ttl = None if left is None else left / 1000
        shared_by, owners = common_readers(last.answers, policy.quorum)
        alone = common_owner(last.answers, policy.quorum)
        owners = owners or [alone]
        holder = ", ".join([name for owner in owners if (name := readable(owner))]) or None
        way = policy.resource_of(last.key) if request.claim.keys[1:] else None
        facts = (holder_ttl, holder, way, None, shared_by or None, is_done(alone) or None)
        raise AcquireTimeout(request.resource, votes, attempts, elapsed, *facts)
    error = NodeError if last.reason in _ERRORS else QuorumUnreachable
    raise error(request.resource, votes, attempts, elapsed)
