"""Plans with many callers that wait for one lock, in several processes and in lines inside them.

Most callers wait for long, so that a waiter that is forgotten shows as idle time of the lock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorlock._core.time import NS_PER_MS, NS_PER_S
from quorlock_sim.network import NetworkProfile
from quorlock_sim.plan import RIGHTS

if TYPE_CHECKING:
    from random import Random

    from quorlock_sim.plan import Job, Plan

_PATIENT = 20 * NS_PER_S
_CALLERS_MAX = 5  # further ones in one process


def shaped(plan: Plan, dice: Random) -> Plan:
    """Return the plan with further callers, patient ones, and nodes that cannot call."""
    clients = plan.clients
    extra = int(dice.random() * (_CALLERS_MAX + 1))
    hosts = tuple(int(dice.random() * clients) for _ in range(extra))
    workloads = [*plan.workloads, *[plan.workloads[host][::-1] for host in hosts]]
    pollers = (int(dice.random() * clients),) if _happens(dice, 150) else ()
    old = pollers if _happens(dice, 500) else ()
    return replace(
        plan,
        workloads=tuple(tuple(_waiting(job, dice) for job in jobs) for jobs in workloads),
        hosts=hosts,
        pollers=pollers,
        old=old,
        deaf=_deaf(plan.settings.n, dice),
        denied=_denied(plan.settings.n, dice),
        network_profile=_network(plan, dice),
    )


def _waiting(job: Job, dice: Random) -> Job:
    """Return the job: most wait for long, and hold the lock for a short time."""
    is_as_drawn = _happens(dice, 200)
    return replace(
        job,
        after=int(job.after * dice.random() / 2),
        timeout=job.timeout if _happens(dice, 200) else _PATIENT,
        hold=job.hold if is_as_drawn else int(dice.random() * 5 * NS_PER_MS),
        extensions=job.extensions if is_as_drawn else (),
        ending=job.ending if is_as_drawn else "release",
    )


def _deaf(n: int, dice: Random) -> tuple[int, ...]:
    """Return the nodes that cannot call: mostly none, or a minority of them."""
    if _happens(dice, 800):
        return ()
    count = 1 + int(dice.random() * ((n - 1) // 2)) if _happens(dice, 900) else n
    return tuple(range(min(n, count)))


def _denied(n: int, dice: Random) -> tuple[tuple[int, str], ...]:
    """Return nodes with the rights that they lack: mostly none, else of some, or of all nodes."""
    if _happens(dice, 850):
        return ()
    count = 1 + int(dice.random() * ((n - 1) // 2)) if _happens(dice, 700) else n
    first = int(dice.random() * n)
    return tuple(
        ((first + index) % n, RIGHTS[int(dice.random() * len(RIGHTS))]) for index in range(count)
    )


def _network(plan: Plan, dice: Random) -> NetworkProfile:
    """Return a network in which most replies come in time; often all of them."""
    timeout = plan.settings.node_timeout
    if _happens(dice, 300):
        return plan.network_profile
    return NetworkProfile(timeout // 200, timeout // (5, 10, 50)[int(dice.random() * 3)], 0, 0)


def _happens(dice: Random, per_mille: int) -> bool:
    return dice.random() * 1000 < per_mille
