"""Worlds in which most leases are kept as done: no client may hold the lock while a mark lasts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from quorlock_sim.plan import Job, Plan

_KEPT = 700  # per mille


def shaped(plan: Plan, dice: Random) -> Plan:
    """Return the plan with most endings changed to "keep"."""

    def changed(job: Job) -> Job:
        return replace(job, ending="keep") if dice.random() * 1000 < _KEPT else job

    workloads = tuple(tuple(changed(job) for job in jobs) for jobs in plan.workloads)
    return replace(plan, workloads=workloads)
