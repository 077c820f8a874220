"""Hints in simulated worlds: at any time, of any key, true by chance only.

Real hints come when a key is gone, late or never; these come whenever they like, which is all that
they could do wrong: nothing but when a lease is looked at may depend on them.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from quorlock._core.renewal import HINTED, Renewal
from quorlock._core.time import NS_PER_MS
from quorlock.testing import process
from quorlock.testing.history import Lease
from quorlock.testing.network import Weather
from quorlock.testing.plan import Plan
from quorlock.testing.renewing import Renewer
from quorlock.testing.scenario import SCENARIOS
from quorlock.testing.sim import run

WORLDS = 500
RENEWAL = SCENARIOS["renewal"]
CALM = replace(RENEWAL, calm=1_000, drifting=0, late_tail=0)


def calm(seed: int) -> Plan:
    """A world without a fault, whose network is always fast."""
    plan = CALM.plan(seed)
    return replace(plan, weather=Weather(100_000, 100_000, 0, 0))


class Told(Renewer):
    """Renewal in a process to which somebody keeps saying that keys have changed."""

    mean_pause = 0
    heard = 0
    looked = 0

    def add(self, lease: Lease, ttl_ms: int, max_hold: int | None) -> Renewal:
        renewal = super().add(lease, ttl_ms, max_hold)
        dice = Random(f"{self.world.plan.seed} {lease.token!r}")
        self._tell(lease, dice)
        return renewal

    def _tell(self, lease: Lease, dice: Random) -> None:
        keys = dice.choice((None, [lease.key], [b"somebody's", lease.key], [b"somebody's"]))
        pause = dice.randint(1, 2 * self.mean_pause)
        self.process.later(pause, self._hear, (lease, dice, keys))

    def _hear(self, said: tuple[Any, ...]) -> None:
        lease, dice, keys = said
        Told.heard += 1
        self.hint(keys)
        # And for a while after the lease has ended, or nobody is there to end it.
        ended = self.world.plan.lasts if lease.ended is None else lease.ended
        if self.world.now < ended + 20 * self.mean_pause:
            self._tell(lease, dice)

    def _renew(self, taken: Any, at: int) -> None:
        Told.looked += len(taken)
        super()._renew(taken, at)


@pytest.fixture(params=[2, 40])
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Told]:
    """So many milliseconds between two hints, on the average."""
    monkeypatch.setattr(process, "Renewer", Told)
    Told.mean_pause, Told.heard, Told.looked = request.param * NS_PER_MS, 0, 0
    return Told


def test_no_hint_breaks_a_promise(told: type[Told]) -> None:
    """Through all that renewal must survive: no overlap, nothing left behind, nothing sent for a
    lease that is over, every loss told in time.
    """
    for seed in range(WORLDS):
        _, judgement = run(RENEWAL.plan(seed))
        assert not judgement.violations, (seed, judgement.violations)
    assert told.heard > 10 * WORLDS


def test_no_false_hint_loses_a_lease(told: type[Told]) -> None:
    """Where nothing goes wrong nothing is lost, however often that is said."""
    renewed = 0
    for seed in range(300):
        world, judgement = run(calm(seed))
        assert not judgement.violations
        for lease in world.history.leases:
            renewed += lease.renewed
            may_be = not lease.renewed or lease.hold_until is not None
            assert lease.why != "lost" or may_be, (seed, lease)
    assert renewed > 300
    assert told.looked > renewed


def test_hints_are_of_use(told: type[Told], monkeypatch: pytest.MonkeyPatch) -> None:
    """They make renewal look, and not without end: HINTED times in a ttl."""
    looks: dict[type, list[int]] = {}
    for kind in (Told, Silent):
        monkeypatch.setattr(process, "Renewer", kind)
        looks[kind] = []
        for seed in range(100):
            Told.looked = 0
            world, _ = run(calm(seed))
            looks[kind].append(Told.looked)
            ttls = sum(
                ((lease.ended or world.now) - lease.since) / (lease.ttl_ms * NS_PER_MS)
                for lease in world.history.leases
                if lease.renewed
            )
            assert Told.looked <= HINTED * ttls + 2 * len(world.history.leases)
    assert sum(looks[Told]) > 2 * sum(looks[Silent])


class Silent(Told):
    """Nobody says anything."""

    def _tell(self, lease: Lease, dice: Random) -> None:
        pass
