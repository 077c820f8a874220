"""Keeping as a flow: a lock becomes the mark of work that is done.

The mark is no token of any lease, so a release or an extension of the token that arrives later
finds another value, and changes nothing.  The ttl of the mark may exceed `max_ttl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorlock._core.commands import Keep
from quorlock._core.effects import Send, Sleep
from quorlock._core.redlock import (
    classify_loss,
    collect_until_decided,
    collect_while,
    is_loss_ambiguous,
    raise_if_permanent,
    release_without_waiting,
)
from quorlock._core.results import LossReason
from quorlock._core.tally import WON, Tally
from quorlock._core.time import FOR_EVER, to_seconds

if TYPE_CHECKING:
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy, Flow
    from quorlock._core.redlock import LeaseFacts
    from quorlock._core.time import Instant
    from quorlock._core.votes import Answer


class KeepResult(NamedTuple):
    """The outcome of keeping. loss: why no quorum has the mark in time; None: one has it."""

    loss: LossReason | None
    answers: tuple[Answer, ...]


def keep(
    facts: LeaseFacts, mark: bytes, kept_ms: int, now: Instant, policy: Policy, entropy: Entropy
) -> Flow[KeepResult]:
    """Replace the token by the mark on a quorum, trying again while validity remains.

    A quorum that had the token until it took the mark, within the validity, has granted the lock to
    no other client.  Then the token is released where it still is.  Marks stay, also if it fails:
    the work is done, and they may be on a quorum whose replies were lost.

    Raises:
        NodeError: so many nodes refuse for good that trying again cannot help.
    """
    began = now
    command = Keep(facts.claim.key, facts.token, mark, kept_ms)
    result = KeepResult(LossReason.EXPIRED, ())
    try:
        while now < facts.valid_until:
            result, now = yield from _round(command, facts, policy)
            if result.loss is not LossReason.UNREACHABLE:
                break
            raise_if_permanent(result.answers, facts.resource, to_seconds(now - began), policy)
            wake = now + entropy.between(*policy.retry_delay)
            now = yield Sleep(min(wake, facts.valid_until))
    except GeneratorExit:
        raise
    except BaseException:
        yield from release_without_waiting(facts.claim, facts.token, facts.target)
        raise
    yield from release_without_waiting(facts.claim, facts.token, facts.target)
    return result


def _round(command: Keep, facts: LeaseFacts, policy: Policy) -> Flow[tuple[KeepResult, Instant]]:
    """Ask all nodes once; only replies within the validity count."""
    sent_round = yield Send(command, facts.target, FOR_EVER, facts.valid_until)
    tally = Tally(policy.n, sent_round.round)
    latest = policy.extension_until(sent_round.sent_at, facts.valid_until)
    until = min(latest, facts.valid_until)
    decided_at = yield from collect_until_decided(tally, until)
    if tally.verdict is WON and decided_at < facts.valid_until:
        return KeepResult(None, tally.final_answers()), decided_at
    ended = yield from collect_while(is_loss_ambiguous, tally, until, decided_at)
    failed = classify_loss(tally, facts)
    return KeepResult(failed.reason, failed.answers), ended
