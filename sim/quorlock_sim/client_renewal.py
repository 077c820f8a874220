"""Renewal of the leases of one simulated process: the shipped flow and schedule on virtual time.

This module does what the two APIs do around them. A timer reports a loss at the lease's deadline
without a request, and a lost lease is released. The end of a lease waits for its renewal in flight.
Every step checks the promises about renewal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorlock._core import redlock
from quorlock._core.commands import ACQUIRES
from quorlock._core.redlock import release_without_waiting
from quorlock._core.renewal import renew
from quorlock._core.renewal_schedule import RenewalEntry, RenewalSchedule
from quorlock._core.rounds import Target, joined
from quorlock._core.time import FOR_EVER, notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._core.effects import Flow, SendBatch
    from quorlock._core.redlock import LeaseFacts
    from quorlock._core.results import ExtendFailed, LossReason
    from quorlock._core.time import Instant
    from quorlock_sim.client import Process, SimFlow
    from quorlock_sim.history import LeaseRecord
    from quorlock_sim.world import World


class SimRenewedLease:
    """A renewed lease, for the schedule (`_core.renewal_schedule.Held`)."""

    def __init__(
        self, world: World, process: Process, lease: LeaseRecord, max_hold: int | None
    ) -> None:
        self.lease = lease
        self.last_failure: ExtendFailed | None = None
        self.hold_until: Instant = FOR_EVER
        if max_hold is not None and lease.started_at is not None:
            self.hold_until = lease.hold_until = lease.started_at + max_hold
        self.began = 0  # the start of its present pass, in true time
        self._world = world
        self._process = process

    @property
    def valid_until(self) -> Instant:
        """The end of its validity; in the past once it is over, even for negative readings."""
        return -FOR_EVER if self.lease.ended is not None else self.lease.valid_until

    @property
    def deadline(self) -> Instant:
        """The instant at which its loss is reported."""
        return self.valid_until - notice(self.lease.ttl_ms)

    @property
    def reported_until(self) -> Instant:
        """The last promised `valid_until`; in the past once its holder gave it up."""
        return -FOR_EVER if self.lease.given_up is not None else self.lease.promises[-1][1]

    def facts(self) -> LeaseFacts:
        """Return the facts for the flow."""
        return facts_of(self.lease)

    def extend_validity(self, valid_until: Instant, ttl_ms: int) -> bool:
        """Extend the validity after a won extension; return False if it came too late."""
        del ttl_ms
        lease, world = self.lease, self._world
        if self._process.now() >= self.valid_until:
            return False
        world.check_renewed(lease, self.began)
        promise = max(lease.valid_until, valid_until)
        world.check_covered(lease, promise)
        lease.promises.append((world.now, promise))
        if lease.hold_until is not None and promise > lease.hold_until:
            text = f"{lease.token.decode()} was renewed beyond its max_hold"
            world.violated("limit", text, client=lease.client, token=lease.token)
        return True

    def end(self, loss: LossReason | None = None) -> None:
        """Report the loss of the lease; an abandoned one expires without a report."""
        del loss
        if self.lease.why != "abandoned":
            self._world.end(self.lease, "lost")

    def add_release_target(self, target: Target) -> None:
        """Add the nodes on which a repair may have set keys to those to release."""
        everywhere = (1 << self._process.policy.n) - 1
        self.lease.target = joined(self.lease.target, target, everywhere)

    def release_flow(self, restored: Target) -> Flow[None]:
        """Release the lease, which is over, where it was restored, unless it was handed over."""
        if self.lease.why != "handed over":
            facts = facts_of(self.lease)
            yield from release_without_waiting(facts.claim, facts.token, restored)


class Renewer:
    """The renewal of one process."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self._schedule = RenewalSchedule()
        self._busy = False  # a pass is running
        self._wakes_at: Instant | None = None

    def add(self, lease: LeaseRecord, ttl_ms: int, max_hold: int | None) -> RenewalEntry:
        """Renew a lease from now on, until it is over."""
        kept = SimRenewedLease(self.world, self.process, lease, max_hold)
        lease.renewed = True
        renewal = RenewalEntry(kept, ttl_ms, self.process.now(), self.process.entropy)
        self._schedule.add(renewal)
        self._watch(kept)
        self._look()
        return renewal

    def drop(self, renewal: RenewalEntry) -> None:
        """Stop renewing a lease that is over; its renewal may still be in flight."""
        self._schedule.drop(renewal)

    def expedite(self, keys: Sequence[bytes] | None) -> None:
        """Expedite the renewal of these keys, which may have changed; None: of all keys."""
        self._schedule.expedite(keys, self.process.now())
        self._look()

    # --- the report of a loss ----------------------------------------------------------------

    def _watch(self, kept: SimRenewedLease) -> None:
        self.process.wake_at(kept.deadline, self._alarm, kept)

    def _alarm(self, kept: SimRenewedLease) -> None:
        if kept.lease.ended is not None or kept.lease.why == "abandoned":
            return  # no holder is left for the report; the keys end with their ttl
        if self.process.now() >= kept.deadline:
            kept.end()  # the simulated world keeps no reason
        else:
            self._watch(kept)

    # --- passes ------------------------------------------------------------------------------

    def _look(self, _: Any = None) -> None:
        due = self._schedule.next_due()
        if self._busy or due is None:
            return
        at = self.process.now()
        taken = self._schedule.pop_due(at)
        if taken:
            self._renew(taken, at)
        elif self._wakes_at is None or due < self._wakes_at or self._wakes_at <= at:
            self._wakes_at = due
            self.process.wake_at(due, self._look, None)

    def _renew(self, taken: Sequence[RenewalEntry], at: Instant) -> None:
        self._busy = True
        policy, entropy = self.process.policy, self.process.entropy
        for renewal in taken:
            _kept(renewal).began = self.world.now
        lease = _kept(taken[0]).lease

        def done(outcome: Any) -> None:
            del outcome
            self._busy = False
            for renewal in taken:
                renewal.clear_in_flight()
            self._settle(taken)

        flow = renew(taken, at, policy, entropy, self._schedule.next_due() or FOR_EVER)
        self.world.call(
            self.process, "renew", flow, done, resource=lease.resource, token=lease.token
        )

    def _settle(self, taken: Sequence[RenewalEntry]) -> None:
        over, _ = self._schedule.reschedule(taken, self.process.now())
        for renewal in over:
            kept = _kept(renewal)
            lease = kept.lease
            kept.end()  # the simulated world keeps no reason
            if lease.why == "lost" and lease.given_up is None:
                flow = redlock.release_without_waiting(lease.claim, lease.token, lease.target)
                self.world.call(
                    self.process,
                    "give_back",
                    flow,
                    _nothing,
                    resource=lease.resource,
                    token=lease.token,
                )
                if (lines := self.process.waiting.lines) is not None:
                    lines.on_released(lease.claim, self.process.now())
        self._look()


def check_sent(world: World, turn: SimFlow[Any], effect: SendBatch) -> None:
    """Check that nothing is sent for a lease that is over, and no repair without a majority."""
    for send in effect.sends:
        token: bytes = getattr(send.command, "token", b"")
        lease = world.leases.get(token)
        if lease is None:
            continue
        if lease.ended is not None:
            text = f"{token.decode()} is over ({lease.why}), but an extension is sent to renew it"
            world.violated("afterlife", text, client=lease.client, token=token)
        if isinstance(send.command, ACQUIRES):
            world.check_renewed(lease, turn.call.began)


def facts_of(lease: LeaseRecord) -> LeaseFacts:
    """Return the facts about a lease for the flows."""
    what = (lease.resource, lease.claim, lease.token)
    return redlock.LeaseFacts(*what, lease.valid_until, lease.target, lease.in_doubt)


def _kept(renewal: RenewalEntry) -> SimRenewedLease:
    assert isinstance(renewal.lease, SimRenewedLease)
    return renewal.lease


def _nothing(outcome: Any) -> None:
    del outcome
