"""Renews the leases of one simulated process: the shipped flow and agenda, on virtual time.

What the two faces' engines do around them is done here: a loss is told at the lease's deadline by a
timer that asks nobody, a lost lease is given back, and whoever ends a lease waits until nothing is
in flight for it.  What may not happen is looked for at every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorlock._core import redlock
from quorlock._core.commands import Acquire
from quorlock._core.effects import Receipt, SendAll, joined
from quorlock._core.outcomes import Loss
from quorlock._core.renewal import Agenda, Renewal, renew
from quorlock._core.time import FOR_EVER, PAST, notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._core.outcomes import Answer
    from quorlock._core.redlock import Holding
    from quorlock._core.time import Instant
    from quorlock.testing.history import Lease
    from quorlock.testing.process import Process, Turn
    from quorlock.testing.world import World


class Kept:
    """A lease of the history, as renewal sees it (`_core.renewal.Held`)."""

    def __init__(self, world: World, process: Process, lease: Lease, max_hold: int | None) -> None:
        self.lease = lease
        self.trouble: Loss | None = None
        self.against: tuple[Answer, ...] = ()
        self.hold_until: Instant = FOR_EVER
        if max_hold is not None and lease.receipt is not None:
            self.hold_until = lease.hold_until = lease.receipt.started + max_hold
        self.began = 0  # when the pass began that is under way for it, in true time
        self._world = world
        self._process = process

    @property
    def valid_until(self) -> Instant:
        """In the past once it is over."""
        return PAST if self.lease.ended is not None else self.lease.valid_until

    @property
    def deadline(self) -> Instant:
        """When its loss is told."""
        return self.valid_until - notice(self.lease.ttl_ms)

    def facts(self) -> Holding:
        """As the flow takes it."""
        lease = self.lease
        valid_until = lease.valid_until
        return redlock.Holding(lease.resource, lease.key, lease.token, valid_until, lease.receipt)

    def prolong(self, valid_until: Instant, ttl_ms: int) -> bool:
        """An extension has won."""
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

    def end(self, loss: Loss | None = None) -> None:
        """Lost, for good, and told; one that nobody holds any more runs out, and nobody is told."""
        del loss
        if self.lease.why != "abandoned":
            self._world.end(self.lease, "lost")

    def follow(self, receipt: Receipt) -> None:
        """A top-up may have set keys of it."""
        everywhere = (1 << self._process.policy.n) - 1
        self.lease.receipt = joined(self.lease.receipt, receipt, everywhere)


class Renewer:
    """One process's engine."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self._agenda = Agenda()
        self._busy = False  # a pass is under way
        self._rings_at: Instant | None = None

    def add(self, lease: Lease, ttl_ms: int, max_hold: int | None) -> Renewal:
        """Renew it from now on, until it is over."""
        kept = Kept(self.world, self.process, lease, max_hold)
        lease.renewed = True
        renewal = Renewal(kept, ttl_ms, self.process.now(), self.process.chance)
        self._agenda.add(renewal)
        self._watch(kept)
        self._look()
        return renewal

    def drop(self, renewal: Renewal) -> None:
        """Its lease is over; whoever has ended it waits while it is in flight."""
        self._agenda.drop(renewal)

    def hint(self, keys: Sequence[bytes] | None) -> None:
        """Somebody says, rightly or not, that these keys were changed; None: that all were."""
        self._agenda.hint(keys, self.process.now())
        self._look()

    # --- the alarm ---------------------------------------------------------------------------

    def _watch(self, kept: Kept) -> None:
        self.process.ring(kept.deadline, self._alarm, kept)

    def _alarm(self, kept: Kept) -> None:
        if kept.lease.ended is not None or kept.lease.why == "abandoned":
            return  # nobody is there any more to be told: its keys end with their ttl
        if self.process.now() >= kept.deadline:
            kept.end(kept.trouble or Loss.EXPIRED)
        else:
            self._watch(kept)

    # --- the engine --------------------------------------------------------------------------

    def _look(self, _: Any = None) -> None:
        due = self._agenda.next_due()
        if self._busy or due is None:
            return
        at = self.process.now()
        taken = self._agenda.take(at)
        if taken:
            self._renew(taken, at)
        elif self._rings_at is None or due < self._rings_at or self._rings_at <= at:
            self._rings_at = due
            self.process.ring(due, self._look, None)

    def _renew(self, taken: Sequence[Renewal], at: Instant) -> None:
        self._busy = True
        policy, chance = self.process.policy, self.process.chance
        for renewal in taken:
            _kept(renewal).began = self.world.now
        lease = _kept(taken[0]).lease

        def done(outcome: Any) -> None:
            del outcome
            self._busy = False
            for renewal in taken:
                renewal.done()
            self._settle(taken)

        flow = renew(taken, at, policy, chance)
        self.world.call(
            self.process, "renew", flow, done, resource=lease.resource, token=lease.token
        )

    def _settle(self, taken: Sequence[Renewal]) -> None:
        over, _ = self._agenda.settle(taken, self.process.now())
        for renewal in over:
            kept = _kept(renewal)
            lease = kept.lease
            kept.end(kept.trouble or Loss.EXPIRED)
            if lease.why == "lost":
                flow = redlock.give_back(lease.key, lease.token, lease.receipt)
                self.world.call(
                    self.process,
                    "give_back",
                    flow,
                    _nothing,
                    resource=lease.resource,
                    token=lease.token,
                )
        self._look()


def check_sent(world: World, turn: Turn[Any], effect: SendAll) -> None:
    """What renewal sends: nothing for a lease that is over, no top-up without a majority before."""
    for send in effect.sends:
        token: bytes = getattr(send.command, "token", b"")
        lease = world.leases.get(token)
        if lease is None:
            continue
        if lease.ended is not None:
            text = f"{token.decode()} is over ({lease.why}), and something is sent to renew it"
            world.violated("afterlife", text, client=lease.client, token=token)
        if type(send.command) is Acquire:
            world.topped_up += 1
            world.check_renewed(lease, turn.call.began)


def _kept(renewal: Renewal) -> Kept:
    assert isinstance(renewal.holding, Kept)
    return renewal.holding


def _nothing(outcome: Any) -> None:
    del outcome
