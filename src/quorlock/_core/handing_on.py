"""Release, and handing the lock on to the next waiter of the same process.

A caller that releases runs one acquire round for the next of the line, in which every node
replaces the old token by a fresh one: a release and an acquire in one step.  So the next lease has
a fresh token, fence and validity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core import redlock
from quorlock._core.claims import waits_apart
from quorlock._core.effects import Send
from quorlock._core.results import LossReason, ReleaseResult
from quorlock._core.rounds import Target
from quorlock._core.tally import Tally
from quorlock._core.time import PAST
from quorlock._core.votes import Vote

if TYPE_CHECKING:
    from quorlock._core.claims import Claim
    from quorlock._core.commands import AnyAcquire
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy, Flow
    from quorlock._core.line import Line, Lines
    from quorlock._core.member import Member
    from quorlock._core.results import Acquired
    from quorlock._core.rounds import SentRound
    from quorlock._core.time import Instant


def release(
    claim: Claim,
    token: bytes,
    target: Target | None,
    policy: Policy,
    entropy: Entropy,
    lines: Lines | None,
    at: Instant,
) -> Flow[ReleaseResult]:
    """Release a lease that is over here, or hand the lock on to a waiter of this process.

    Args:
        claim: What the lease has.
        token: The token of the lease.
        target: The nodes that have its key; None if another process acquired it.
        policy: The settings.
        entropy: The source of tokens.
        lines: The lines of this process; None if its callers do not wait in line.
        at: The current time.
    """
    line = line_of(claim, lines)
    if line is None:
        return redlock.release(claim, token, target, policy)
    return _release_in_line(claim, token, target, policy, entropy, line, at)


def line_of(claim: Claim, lines: Lines | None) -> Line | None:
    """Return the line of callers to whom the lock may be handed on; None if there is none."""
    line = None if lines is None else lines.get(claim.key)
    # An exchange would replace one of several tokens.
    return None if line is None or waits_apart(claim) else line


def free_line_after(flow: Flow[ReleaseResult], line: Line) -> Flow[ReleaseResult]:
    """Release without handing the lock on; then the next in line asks the nodes."""
    try:
        return (yield from flow)
    finally:
        line.on_released(PAST)


def _release_in_line(
    claim: Claim,
    token: bytes,
    target: Target | None,
    policy: Policy,
    entropy: Entropy,
    line: Line,
    at: Instant,
) -> Flow[ReleaseResult]:
    is_won = False
    try:
        member = None if target is None else line.take_next(at)
        if member is None or target is None:
            return (yield from redlock.release(claim, token, target, policy))
        is_won, tally, until, ended = yield from _hand_on(
            member, token, target, policy, entropy, line
        )
        if is_won:
            return (yield from _result(tally, until, ended))
        released = yield from redlock.release(claim, token, target, policy)
        return _after_exchange(released, tally)
    finally:
        if not is_won:
            line.on_released(at)


def _hand_on(
    member: Member, token: bytes, target: Target, policy: Policy, entropy: Entropy, line: Line
) -> Flow[tuple[bool, Tally, Instant, Instant]]:
    """Exchange the token for a fresh one of the waiter, and give it the lease.

    Returns:
        Whether the round has won, else the old token is still to be released; its tally, the end
        of the nodes' time to reply, and the instant of the verdict.
    """
    claim, new = member.request.claim, entropy.token()
    sent: SentRound | None = None
    try:
        command = _exchange_command(member, new, token, policy)
        sent_round: SentRound = yield Send(command, Target((1 << policy.n) - 1, target.path))
        sent = sent_round
        tally = Tally(policy.n, sent_round.round)
        until = sent_round.sent_at + policy.node_timeout
        at = yield from redlock.collect_until_decided(tally, until)
        lease = yield from redlock.lease_won(member.request, new, tally, sent_round, at, policy)
        unsent = target.nodes & ~sent_round.target.nodes
        if lease is None:
            yield Send(claim.release(new), sent_round.target)
        elif unsent:
            yield Send(claim.release(token), Target(unsent, target.path))
        if lease is not None:
            yield from _give(lease, member, line, tally, at)
        return lease is not None, tally, until, at
    except GeneratorExit:
        raise
    except BaseException:
        # Interrupted, perhaps while it was being sent, or after the waiter got its lease.
        if not member.notify_again(new):
            yield Send(claim.release(new), sent.target if sent else None)
        yield Send(claim.release(token), target)
        raise
    finally:
        if member.is_open:
            line.put_back(member)


def _exchange_command(member: Member, new: bytes, old: bytes, policy: Policy) -> AnyAcquire:
    request = member.request
    return request.claim.acquire(
        new,
        request.ttl_ms,
        policy,
        fenced=request.fencing,
        place=member.place,
        instead=old,
    )


def _give(lease: Acquired, member: Member, line: Line, tally: Tally, at: Instant) -> Flow[None]:
    """Give the waiter its lease; release that if it has just left."""
    others_wait = any(answer is not None and answer.ahead > 0 for answer in tally.answers)
    line.on_exchanged(at, others_wait=others_wait)
    line.note(lease.answers, at)
    if not member.give(lease):
        yield Send(lease.release, lease.sent_round.target)
        line.on_released(at)


def _after_exchange(released: ReleaseResult, tally: Tally) -> ReleaseResult:
    """Return the result of a release after a lost exchange, which has replaced some old tokens.

    Nodes that lack the old token do not show that the lease was lost before.
    """
    deleted = sum(
        after.vote is Vote.GRANTED or (before is not None and before.replaced)
        for before, after in zip(tally.answers, released.answers, strict=True)
    )
    return released._replace(deleted=deleted >= tally.quorum, gone=None)


def _result(tally: Tally, until: Instant, ended: Instant) -> Flow[ReleaseResult]:
    """Collect replies until it is known whether a quorum had the old token."""
    ended = yield from redlock.collect_while(_is_deletion_open, tally, until, ended)
    deleted = _replaced(tally) >= tally.quorum
    lacking = sum(a is not None and a.is_lock_answer and not a.replaced for a in tally.answers)
    is_gone = not deleted and tally.n - lacking < tally.quorum
    gone = LossReason.EVICTED if is_gone else None
    return ReleaseResult(deleted=deleted, gone=gone, answers=tally.final_answers(), ended=ended)


def _is_deletion_open(tally: Tally) -> bool:
    """Return whether the missing replies decide if a quorum has replaced the old token."""
    replaced = _replaced(tally)
    return replaced < tally.quorum <= replaced + tally.pending


def _replaced(tally: Tally) -> int:
    return sum(answer is not None and answer.replaced for answer in tally.answers)
