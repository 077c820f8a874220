"""Invalidations in simulated worlds: at any time, of any key, true by chance only.

Real invalidations arrive when a key is gone, late or never; these arrive at random. The time of a
lease's next check, and of a waiter's next look, is all that may depend on them.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from quorlock._core.commands import Look
from quorlock._core.effects import CHANGED
from quorlock._core.renewal_schedule import EXPEDITED_PAUSE_SHARE, RenewalEntry
from quorlock._core.rounds import NodeReply
from quorlock._core.time import NS_PER_MS
from quorlock._core.votes import NO_REPLY
from quorlock_sim import client
from quorlock_sim.client import SimFlow
from quorlock_sim.client_renewal import Renewer
from quorlock_sim.client_waiting import Waiting
from quorlock_sim.history import LeaseRecord
from quorlock_sim.network import NetworkProfile
from quorlock_sim.plan import Plan
from quorlock_sim.runner import run
from quorlock_sim.scenarios import SCENARIOS

WORLDS = 100
RENEWAL = SCENARIOS["renewal"]
QUEUES = SCENARIOS["queues"]
CALM = replace(RENEWAL, calm=1_000, drifting=0, late_tail=0)


def calm(seed: int) -> Plan:
    """A world without a fault, whose network is always fast."""
    plan = CALM.plan(seed)
    return replace(plan, network_profile=NetworkProfile(100_000, 100_000, 0, 0))


class InvalidatedRenewer(Renewer):
    """Renewal in a process that gets invalidations all the time."""

    mean_pause = 0
    pushes = 0
    checked = 0

    def add(self, lease: LeaseRecord, ttl_ms: int, max_hold: int | None) -> RenewalEntry:
        renewal = super().add(lease, ttl_ms, max_hold)
        dice = Random(f"{self.world.plan.seed} {lease.token!r}")
        self._schedule_push(lease, dice)
        return renewal

    def _schedule_push(self, lease: LeaseRecord, dice: Random) -> None:
        key = lease.claim.key
        keys = dice.choice((None, [key], [b"another's", key], [b"another's"]))
        pause = dice.randint(1, 2 * self.mean_pause)
        self.process.later(pause, self._push, (lease, dice, keys))

    def _push(self, push: tuple[Any, ...]) -> None:
        lease, dice, keys = push
        InvalidatedRenewer.pushes += 1
        self.expedite(keys)
        # Also for a while after the lease has ended, or if its process is gone.
        ended = self.world.plan.lasts if lease.ended is None else lease.ended
        if self.world.now < ended + 20 * self.mean_pause:
            self._schedule_push(lease, dice)

    def _renew(self, taken: Any, at: int) -> None:
        InvalidatedRenewer.checked += len(taken)
        super()._renew(taken, at)


@pytest.fixture(params=[2, 40])
def invalidated(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> type[InvalidatedRenewer]:
    """Send an invalidation every so many milliseconds on average."""
    monkeypatch.setattr(client, "Renewer", InvalidatedRenewer)
    InvalidatedRenewer.mean_pause, InvalidatedRenewer.pushes, InvalidatedRenewer.checked = (
        request.param * NS_PER_MS,
        0,
        0,
    )
    return InvalidatedRenewer


def test_no_invalidation_breaks_a_promise(invalidated: type[InvalidatedRenewer]) -> None:
    """Renewal keeps its guarantees: no overlap, nothing left behind, nothing sent for a lease that
    is over, every loss reported in time.
    """
    for seed in range(WORLDS):
        _, judgement = run(RENEWAL.plan(seed))
        assert not judgement.violations, (seed, judgement.violations)
    assert invalidated.pushes > 10 * WORLDS


def test_no_false_invalidation_loses_a_lease(invalidated: type[InvalidatedRenewer]) -> None:
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
    assert invalidated.checked > renewed


def test_invalidations_cause_checks(
    invalidated: type[InvalidatedRenewer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invalidations make renewal check, and at a bounded rate."""
    checks: dict[type, list[int]] = {}
    for kind in (InvalidatedRenewer, Silent):
        monkeypatch.setattr(client, "Renewer", kind)
        checks[kind] = []
        for seed in range(30):
            InvalidatedRenewer.checked = 0
            world, _ = run(calm(seed))
            checks[kind].append(InvalidatedRenewer.checked)
            ttls = sum(
                ((lease.ended or world.now) - lease.since) / (lease.ttl_ms * NS_PER_MS)
                for lease in world.history.leases
                if lease.renewed
            )
            assert InvalidatedRenewer.checked <= EXPEDITED_PAUSE_SHARE * ttls + 2 * len(
                world.history.leases
            )
    assert sum(checks[InvalidatedRenewer]) > 2 * sum(checks[Silent])


class Silent(InvalidatedRenewer):
    """A world without invalidations."""

    def _schedule_push(self, lease: LeaseRecord, dice: Random) -> None:
        pass


class InformedWaiting(Waiting):
    """Waiters who get reports of changes all the time, from any nodes."""

    mean_pause = 0
    reports = 0

    def enlist(self, turn: SimFlow[Any]) -> bytes:
        place = super().enlist(turn)
        if place:
            self._schedule_report(place, Random(f"{self._process.world.plan.seed} {place!r}"))
        return place

    def _schedule_report(self, place: bytes, dice: Random) -> None:
        pause = dice.randint(1, 2 * self.mean_pause)
        self._process.later(pause, self._report, (place, dice))

    def _report(self, what: tuple[bytes, Random]) -> None:
        place, dice = what
        turn = self._flows.get(place)
        if turn is None:
            return
        for node in range(self._process.policy.n):
            if dice.random() < 2 / 3:
                InformedWaiting.reports += 1
                turn.deliver(NodeReply(CHANGED, node, NO_REPLY, self._process.now()))
        self._schedule_report(place, dice)


@pytest.mark.parametrize("mean_pause", [1, 20])
def test_no_report_of_a_change_breaks_a_promise_to_waiters(
    mean_pause: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No overlap, no place left behind, no waiter passed, however often waiters look."""
    monkeypatch.setattr(client, "Waiting", InformedWaiting)
    InformedWaiting.mean_pause, InformedWaiting.reports = mean_pause * NS_PER_MS, 0
    looks, began = [0], SimFlow.began

    def counts(flow: SimFlow[Any], command: Any) -> None:
        looks[0] += isinstance(command, Look)
        began(flow, command)

    monkeypatch.setattr(SimFlow, "began", counts)
    for seed in range(WORLDS // 4):
        _, judgement = run(QUEUES.plan(seed))
        assert not judgement.violations, (seed, judgement.violations)
    assert InformedWaiting.reports > WORLDS // 4
    assert looks[0] > WORLDS // 4
