"""Minimisation of a plan that breaks a promise: fewer faults, jobs, extensions, clients.

One element is removed at a time, as long as a promise of the same rule is still broken.  Every
client has a separate random generator, so removing one leaves the others unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorlock_sim.plan import Job, Plan

# A world runs in a few ms, so this number of tries takes some seconds.
TRIES_MAX = 2_000


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return a plan that still fails, but no longer if any single element is removed."""
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(plan):
            tries += 1
            if tries > TRIES_MAX:
                return plan
            if fails(candidate):
                plan, smaller = candidate, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield every plan with one element less, large elements first."""
    for client, workload in enumerate(plan.workloads):
        if workload:
            yield _with_workload(plan, client, ())
    for index in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:index] + plan.faults[index + 1 :])
    for client, workload in enumerate(plan.workloads):
        for shorter in _shorter(workload):
            yield _with_workload(plan, client, shorter)
    if plan.network_profile.tail:
        yield replace(plan, network_profile=replace(plan.network_profile, tail=0))
    if any(connection_sets > 1 for connection_sets in plan.connection_sets):
        yield replace(plan, connection_sets=(1,) * len(plan.connection_sets))


def _shorter(workload: tuple[Job, ...]) -> Iterator[tuple[Job, ...]]:
    for index in range(len(workload)):
        yield workload[:index] + workload[index + 1 :]
    for index, job in enumerate(workload):
        for simpler in _simpler(job):
            yield (*workload[:index], simpler, *workload[index + 1 :])


def _with_workload(plan: Plan, client: int, workload: tuple[Job, ...]) -> Plan:
    workloads = (*plan.workloads[:client], workload, *plan.workloads[client + 1 :])
    return replace(plan, workloads=workloads)


def _simpler(job: Job) -> Iterator[Job]:
    for index in range(len(job.extensions)):
        yield replace(job, extensions=job.extensions[:index] + job.extensions[index + 1 :])
    if job.cancel_after is not None:
        yield replace(job, cancel_after=None)
    if job.ending != "release":
        yield replace(job, ending="release")
