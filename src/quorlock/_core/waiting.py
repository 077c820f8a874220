"""Waiting in line for a lock: the flow of one waiter.

In its process a waiter waits for the callers before it (`line`).  The first of the line waits in
the queues of the nodes (`queueing`), unless a caller of this process hands the lock on to it before
(`handing_on`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.claims import waits_apart
from quorlock._core.effects import Commit, Send, Timeout, Wait
from quorlock._core.line import Line
from quorlock._core.member import Member, Promoted
from quorlock._core.queueing import end_of, is_stopped, not_called, queue_up
from quorlock._core.redlock import attempt
from quorlock._core.results import Acquired

if TYPE_CHECKING:
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy, Flow
    from quorlock._core.line import Lines
    from quorlock._core.member import News
    from quorlock._core.request import AcquireRequest
    from quorlock._core.results import AttemptFailed
    from quorlock._core.time import Instant


def wait_in_line(
    request: AcquireRequest, policy: Policy, entropy: Entropy, lines: Lines, at: Instant
) -> Flow[Acquired | AttemptFailed | None]:
    """Wait until granted, until the time is up, until `stop` is set, or until it makes no sense.

    Returns:
        The lease, or the failure; None if too few nodes can queue the caller.
    """
    # A waiter for several locks is in one queue after the other, and has a line to itself; so has
    # one that shares the lock.
    line = Line() if waits_apart(request.claim) else lines.line(request.key, at)
    member = Member(request)
    outcome: Acquired | AttemptFailed | None
    try:
        line.join(member, at)
        outcome, at = yield from _wait_for_turn(member, line, request, policy, at)
        if outcome is None and member.is_asking:
            outcome, at = yield from queue_up(member, line, request, policy, entropy, lines, at)
        if isinstance(outcome, Acquired):
            return outcome
        line.leave(member, at)
        given = member.close()
        if given is not None:
            return (yield from _commit(given))
        if outcome is None and not member.is_asking:
            outcome = yield from _time_is_up(line, request, policy, entropy, at)
        return outcome
    except GeneratorExit:
        raise
    except BaseException:
        # Cancelled or interrupted, perhaps with a lease that the caller will not have.
        has_lease = not member.is_open
        line.leave(member, at)
        given = member.close()
        if given is not None:
            yield Send(given.release, given.sent_round.target)
        if has_lease:
            line.on_released(at)
        raise


def _commit(lease: Acquired) -> Flow[Acquired]:
    """Give the caller a lease that another caller of this process has won for it."""
    yield Commit(lease)
    return lease


def _time_is_up(
    line: Line, request: AcquireRequest, policy: Policy, entropy: Entropy, at: Instant
) -> Flow[Acquired | AttemptFailed]:
    """Return the failure with the votes that others of the line got, or of an attempt."""
    votes = line.votes(at)
    if votes:
        return not_called(request, policy, at)._replace(answers=votes)
    return (yield from attempt(request, policy, entropy))


def _wait_for_turn(
    member: Member, line: Line, request: AcquireRequest, policy: Policy, at: Instant
) -> Flow[tuple[Acquired | AttemptFailed | None, Instant]]:
    """Wait until promoted, given a lease, or until the time is up; return the instant too."""
    give_up = end_of(request)
    while True:
        event: News | Timeout
        if member.news:
            event = member.news.popleft()
        else:
            event = yield Wait(min(give_up, line.look_at(at)), request.stop, member)
        if isinstance(event, Promoted):
            return None, at
        if isinstance(event, Acquired):
            return (yield from _commit(event)), at
        if isinstance(event, Timeout):
            at = event.at
            if is_stopped(request):
                return not_called(request, policy, at), at
            if at >= give_up:
                return None, at
            line.stay(member, at)
