"""Plans whose clients take sets of resources: some share one, some share several."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from quorlock_sim.plan import Job, Plan

_RESOURCES = 3
_SOLE = 300  # per mille of the jobs that take one resource


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
