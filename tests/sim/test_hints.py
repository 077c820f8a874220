"""Hints in simulated worlds: at any time, of any key, true by chance only.

Real hints come when a key is gone, late or never; these come whenever they like, which is all that
they could do wrong: nothing but when a lease is looked at may depend on them.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from quorlock._core.renewal_schedule import EXPEDITED_PAUSE_SHARE, RenewalEntry
from quorlock._core.time import NS_PER_MS
from quorlock_sim import client
from quorlock_sim.client_renewal import Renewer
from quorlock_sim.history import LeaseRecord
from quorlock_sim.network import NetworkProfile
from quorlock_sim.plan import Plan
from quorlock_sim.runner import run
from quorlock_sim.scenarios import SCENARIOS

WORLDS = 200
RENEWAL = SCENARIOS["renewal"]
CALM = replace(RENEWAL, calm=1_000, drifting=0, late_tail=0)


def calm(seed: int) -> Plan:
    """A world without a fault, whose network is always fast."""
    plan = CALM.plan(seed)
    return replace(plan, network_profile=NetworkProfile(100_000, 100_000, 0, 0))


class Told(Renewer):
    """Renewal in a process that gets invalidations all the time."""

    mean_pause = 0
    heard = 0
    looked = 0

    def add(self, lease: LeaseRecord, ttl_ms: int, max_hold: int | None) -> RenewalEntry:
        renewal = super().add(lease, ttl_ms, max_hold)
        dice = Random(f"{self.world.plan.seed} {lease.token!r}")
        self._tell(lease, dice)
        return renewal

    def _tell(self, lease: LeaseRecord, dice: Random) -> None:
        keys = dice.choice((None, [lease.key], [b"somebody's", lease.key], [b"somebody's"]))
        pause = dice.randint(1, 2 * self.mean_pause)
        self.process.later(pause, self._hear, (lease, dice, keys))

    def _hear(self, said: tuple[Any, ...]) -> None:
        lease, dice, keys = said
        Told.heard += 1
        self.hint(keys)
        # Also for a while after the lease has ended, or if its process is gone.
        ended = self.world.plan.lasts if lease.ended is None else lease.ended
        if self.world.now < ended + 20 * self.mean_pause:
            self._tell(lease, dice)

    def _renew(self, taken: Any, at: int) -> None:
        Told.looked += len(taken)
        super()._renew(taken, at)


@pytest.fixture(params=[2, 40])
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Told]:
    """Send an invalidation every so many milliseconds on average."""
    monkeypatch.setattr(client, "Renewer", Told)
    Told.mean_pause, Told.heard, Told.looked = request.param * NS_PER_MS, 0, 0
    return Told


def test_no_invalidation_breaks_a_promise(told: type[Told]) -> None:
    """Renewal keeps its guarantees: no overlap, nothing left behind, nothing sent for a lease that
    is over, every loss reported in time.
    """
    for seed in range(WORLDS):
        _, judgement = run(RENEWAL.plan(seed))
        assert not judgement.violations, (seed, judgement.violations)
    assert told.heard > 10 * WORLDS


def test_no_false_invalidation_loses_a_lease(told: type[Told]) -> None:
    """A world without faults loses no lease, however many invalidations it gets."""
    renewed = 0
    for seed in range(100):
        world, judgement = run(calm(seed))
        assert not judgement.violations
        for lease in world.history.leases:
            renewed += lease.renewed
            may_be = not lease.renewed or lease.hold_until is not None
            assert lease.why != "lost" or may_be, (seed, lease)
    assert renewed > 100
    assert told.looked > renewed


def test_invalidations_cause_checks(told: type[Told], monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalidations make renewal check, and at a bounded rate: HINTED times in a ttl."""
    looks: dict[type, list[int]] = {}
    for kind in (Told, Silent):
        monkeypatch.setattr(client, "Renewer", kind)
        looks[kind] = []
        for seed in range(30):
            Told.looked = 0
            world, _ = run(calm(seed))
            looks[kind].append(Told.looked)
            ttls = sum(
                ((lease.ended or world.now) - lease.since) / (lease.ttl_ms * NS_PER_MS)
                for lease in world.history.leases
                if lease.renewed
            )
            assert Told.looked <= EXPEDITED_PAUSE_SHARE * ttls + 2 * len(world.history.leases)
    assert sum(looks[Told]) > 2 * sum(looks[Silent])


class Silent(Told):
    """A world without invalidations."""

    def _tell(self, lease: LeaseRecord, dice: Random) -> None:
        pass
