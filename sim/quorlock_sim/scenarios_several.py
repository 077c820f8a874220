"""Plans whose clients take sets of resources: some share one, some share several."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorlock._core.time import NS_PER_MS, NS_PER_S
from quorlock_sim.network import NetworkProfile

if TYPE_CHECKING:
    from random import Random

    from quorlock_sim.plan import Job, Plan

_RESOURCES = 3
_SOLE = 300  # per mille of the jobs that take one resource
_PATIENT = 20 * NS_PER_S
_CALLERS_MAX = 5  # further ones in the first process
_LASTS = 6 * NS_PER_S
# The tick of a loop is well below the slack of a deadline (`workload`), as a call may take some.
_TICKS = (NS_PER_MS // 20, NS_PER_MS // 10, NS_PER_MS // 5)


def shaped(plan: Plan, dice: Random) -> Plan:
    """Return the plan with further resources in most of the jobs."""
    resources = tuple(f"r{number}" for number in range(_RESOURCES))
    workloads = tuple(tuple(_several(job, dice) for job in jobs) for jobs in plan.workloads)
    return replace(plan, workloads=workloads, resources=resources)


def _several(job: Job, dice: Random) -> Job:
    first = int(dice.random() * _RESOURCES)
    if dice.random() * 1000 < _SOLE:
        return replace(job, resource=first)
    count = 1 + int(dice.random() * (_RESOURCES - 1))
    also = tuple((first + step) % _RESOURCES for step in range(1, 1 + count))
    return replace(job, resource=first, also=also)


def in_step(plan: Plan, dice: Random) -> Plan:
    """Return the plan with patient callers in one event loop, and round trips of equal length.

    The callers of a loop read their replies in the same turn, and send over the same connections.
    So two of them may do the same, in step, for as long as no random choice parts them.
    """
    hosts = (0,) * (1 + int(dice.random() * _CALLERS_MAX))
    workloads = [*plan.workloads, *[plan.workloads[0]] * len(hosts)]
    trip = plan.settings.node_timeout // (8, 20, 50)[int(dice.random() * 3)]
    return replace(
        plan,
        workloads=tuple(tuple(_patient(job, dice) for job in jobs) for jobs in workloads),
        hosts=hosts,
        lasts=_LASTS,
        connection_sets=(1,) * plan.clients,
        resources=tuple(f"r{number}" for number in range(_RESOURCES)),
        network_profile=NetworkProfile(trip, trip // (5, 50)[int(dice.random() * 2)], 0, 0),
        tick=_TICKS[int(dice.random() * len(_TICKS))],
    )


def _patient(job: Job, dice: Random) -> Job:
    """Return the job: it begins soon, mostly wants several resources, and waits for long."""
    return replace(
        _several(job, dice),
        after=int(job.after * dice.random() / 8),
        timeout=_PATIENT,
        hold=int(dice.random() * 2 * NS_PER_MS),
        extensions=(),
        ending="release",
        cancel_after=None,
    )
