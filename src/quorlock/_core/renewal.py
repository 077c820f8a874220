"""Renewal as a flow: one batch extends many leases, then restores keys on nodes that lost them.

This module decides what a round means for each lease, and which nodes get their key again.
`renewal_schedule` decides when a lease is due and by how much it may be extended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.effects import Receive, Send, SendBatch, Timeout
from quorlock._core.redlock import classify_loss, is_loss_ambiguous
from quorlock._core.renewal_schedule import BATCH_MAX
from quorlock._core.rounds import SentRound, Target
from quorlock._core.tally import PENDING, WON, Tally
from quorlock._core.time import FOR_EVER, NS_PER_MS, PAST
from quorlock._core.votes import TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy, Flow
    from quorlock._core.redlock import LeaseFacts
    from quorlock._core.renewal_schedule import RenewalEntry
    from quorlock._core.rounds import NodeReply
    from quorlock._core.tally import Verdict
    from quorlock._core.time import Instant


class _LeaseRound:
    """One lease's share of a batch: its own start, deadline and tally."""

    __slots__ = ("decided_at", "entry", "facts", "is_extended", "sent_round", "tally", "ttl_ms")

    def __init__(
        self, renewal: RenewalEntry, facts: LeaseFacts, ttl_ms: int, sent_round: SentRound, n: int
    ) -> None:
        self.entry = renewal
        self.facts = facts
        self.ttl_ms = ttl_ms
        self.sent_round = sent_round
        self.tally = Tally(n, sent_round.round)
        self.decided_at: Instant | None = None
        self.is_extended = False


class _BatchTally:
    """The rounds of a batch, one tally to a driver: pending while any of them is."""

    def __init__(self) -> None:
        self.rounds: dict[int, _LeaseRound] = {}
        self._open = 0
        self._missing = 0  # answers of nodes that no verdict waits for

    def add(self, round_: _LeaseRound) -> None:
        self.rounds[round_.sent_round.round] = round_
        self._open += 1

    def count(self, reply: NodeReply) -> Verdict:
        """Count a reply in its own round (rule 1)."""
        round_ = self.rounds.get(reply.round)
        if round_ is not None and round_.tally.answers[reply.node] is None:
            verdict = round_.tally.count(reply)
            if round_.decided_at is not None:
                self._missing -= 1
            elif verdict is not PENDING and not is_loss_ambiguous(round_.tally):
                round_.decided_at = reply.at
                self._open -= 1
        return PENDING if self._open or self._missing > 0 else WON

    def mark_timed_out(self, at: Instant) -> None:
        """Close the rounds that are still open: their time is up."""
        for round_ in self.rounds.values():
            if round_.decided_at is None:
                round_.tally.mark_timed_out()
                round_.decided_at = at
        self._open = 0

    def await_stragglers(self) -> bool:
        """Wait for every reply to the rounds that were won; return whether any is missing.

        The replies show which nodes lack the key.
        """
        self._missing = sum(r.tally.pending for r in self.rounds.values() if r.is_extended)
        self.rounds = {number: r for number, r in self.rounds.items() if r.is_extended}
        return self._missing > 0


def renew(
    renewals: Sequence[RenewalEntry],
    at: Instant,
    policy: Policy,
    entropy: Entropy,
    others_due: Instant = FOR_EVER,
) -> Flow[None]:
    """Extend all of these leases, in chunks; then restore keys on the nodes that lack them.

    The results are stored in the renewals and their holdings.  others_due: when the next of the
    other leases is due; it cannot be extended before this returns.
    """
    votes = _BatchTally()
    for start in range(0, len(renewals), BATCH_MAX):
        is_last = start + BATCH_MAX >= len(renewals)
        free_until = others_due if is_last else PAST
        at = yield from _extend(
            renewals[start : start + BATCH_MAX], votes, at, policy, entropy, free_until
        )
    if votes.await_stragglers():
        # At once and for all chunks: a hung node takes its time once, not per chunk.
        last = max(round_.sent_round.sent_at for round_ in votes.rounds.values())
        longer = min(2 * (at - last), others_due - last)  # if the quorum was late, others may be
        at = yield from _collect(votes, last + max(policy.node_timeout, longer))
    lacking = [round_ for round_ in votes.rounds.values() if _nodes_missing_key(round_.tally)]
    for start in range(0, len(lacking), BATCH_MAX):
        at = yield from _restore_keys(lacking[start : start + BATCH_MAX], at, policy)


def _extend(
    chunk: Sequence[RenewalEntry],
    votes: _BatchTally,
    at: Instant,
    policy: Policy,
    entropy: Entropy,
    free_until: Instant,
) -> Flow[Instant]:
    """Extend one chunk: a round for each lease, counted by the rules of `redlock.extend`.

    free_until: until then nothing else needs to be sent.
    """
    asked: list[tuple[RenewalEntry, LeaseFacts, int]] = []
    for renewal in chunk:
        ttl_ms = renewal.ttl_ms(at)
        facts = renewal.mark_in_flight(at) if ttl_ms else None
        if facts is not None:
            asked.append((renewal, facts, ttl_ms))
    if not asked:
        return at
    sent_rounds: tuple[SentRound, ...] = yield SendBatch(
        tuple(
            [
                Send(
                    facts.claim.extend(facts.token, ttl_ms),
                    facts.target,
                    FOR_EVER,
                    facts.valid_until,
                    facts.in_doubt,
                )
                for _, facts, ttl_ms in asked
            ]
        )
    )
    rounds: list[_LeaseRound] = []
    for (renewal, facts, ttl_ms), sent_round in zip(asked, sent_rounds, strict=True):
        rounds.append(_LeaseRound(renewal, facts, ttl_ms, sent_round, policy.n))
        votes.add(rounds[-1])
    sent, first_end = sent_rounds[-1].sent_at, min([facts.valid_until for _, facts, _ in asked])
    until = min(policy.extension_until(sent, first_end), free_until)
    at = yield from _collect(votes, max(until, sent + policy.node_timeout))
    votes.mark_timed_out(at)
    for round_ in rounds:
        _conclude(round_, at, policy, entropy)
    return at


def _conclude(round_: _LeaseRound, at: Instant, policy: Policy, entropy: Entropy) -> None:
    """Settle one lease: it is extended if its round won within its validity (rules 4 and 6)."""
    facts, tally, renewal = round_.facts, round_.tally, round_.entry
    valid_until = policy.valid_until(round_.sent_round.started_at, round_.ttl_ms)
    decided_at = at if round_.decided_at is None else round_.decided_at
    round_.is_extended = tally.verdict is WON and decided_at < min(facts.valid_until, valid_until)
    if round_.is_extended:
        renewal.on_extended(valid_until, round_.ttl_ms, at, entropy)
    else:
        # If the round was closed for lack of replies, waiting for them was pause enough.
        pause = 0 if TIMED_OUT in tally.answers else entropy.between(*policy.retry_delay)
        renewal.on_failed(classify_loss(tally, facts), at, pause)
    renewal.clear_in_flight()


def _nodes_missing_key(tally: Tally) -> int:
    """Return the nodes that lack the key, as bits: absent there, or never set there."""
    return sum(
        1 << node
        for node, answer in enumerate(tally.answers)
        if answer is not None and answer.lacks_key
    )


def _restore_keys(rounds: Sequence[_LeaseRound], at: Instant, policy: Policy) -> Flow[Instant]:
    """Restore the key, for what is left of the ttl, on nodes that lack it.

    This is a second step, after rounds that were won without those nodes: a key that was just set
    does not show that the lease continued.  (See redsync#149; RedLock.net re-creates and counts.)
    From the next round on it counts like any other.
    """
    asked: list[tuple[RenewalEntry, Send]] = []
    for round_ in rounds:
        spent_ms = -(-(at - round_.sent_round.started_at) // NS_PER_MS)
        facts = round_.entry.mark_in_flight(at) if spent_ms < round_.ttl_ms else None
        if facts is not None:
            left_ms = round_.ttl_ms - spent_ms
            acquire = facts.claim.acquire(facts.token, left_ms, policy)
            lacking = Target(_nodes_missing_key(round_.tally), round_.sent_round.target.path)
            send = Send(acquire, lacking, FOR_EVER, facts.valid_until, facts.in_doubt)
            asked.append((round_.entry, send))
    if not asked:
        return at
    sent_rounds: tuple[SentRound, ...] = yield SendBatch(tuple([send for _, send in asked]))
    for (renewal, _), sent_round in zip(asked, sent_rounds, strict=True):
        lease = renewal.lease
        if sent_round.target.nodes:
            lease.add_release_target(sent_round.target)
            # Read after that: another event loop may have released it.
            if lease.reported_until <= sent_round.sent_at:
                yield from lease.release_flow(sent_round.target)
        renewal.clear_in_flight()
    return (yield from _drain_restore_replies(sent_rounds, policy))


def _collect(votes: _BatchTally, until: Instant) -> Flow[Instant]:
    """Count replies until no more are needed or the time is up; return the instant of either."""
    wish = Receive(until, votes)
    while True:
        event: NodeReply | Timeout = yield wish
        if isinstance(event, Timeout) or votes.count(event) is not PENDING:
            return event.at


def _drain_restore_replies(sent_rounds: tuple[SentRound, ...], policy: Policy) -> Flow[Instant]:
    """Drain the replies to restored keys so that they do not stay in the socket.

    They do not change the result.
    """
    missing, until = policy.n * len(sent_rounds), sent_rounds[-1].sent_at + policy.node_timeout
    at = sent_rounds[-1].sent_at
    while missing:
        event: NodeReply | Timeout = yield Receive(until)
        at = event.at
        if isinstance(event, Timeout):
            break
        missing -= event.round >= sent_rounds[0].round
    return at
