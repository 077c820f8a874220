"""Plans with many callers that wait for one lock, in several processes and in lines inside them.

Most callers wait for long, so that a waiter that is forgotten shows as idle time of the lock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorlock._core.time import NS_PER_MS, NS_PER_S
from quorlock_sim.network import NetworkProfile
from quorlock_sim.plan import RIGHTS, Aim

if TYPE_CHECKING:
    from random import Random

    from quorlock_sim.plan import Job, Plan

_PATIENT = 20 * NS_PER_S
# The steps of a client in such a world; most have fewer.
STEPS = 200
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


def aimed(plan: Plan, dice: Random) -> Plan:
    """Return a plan in which a client is paused or killed before a step; the seed says which."""
    base, step = divmod(plan.seed, STEPS)
    timeout, max_ttl = plan.settings.node_timeout, plan.settings.max_ttl_ms * NS_PER_MS
    kind = "client_crash" if _happens(dice, 400) else "pause"
    # Longer than a reservation, or than a lease, or neither.
    lasts = (timeout, 3 * timeout, max_ttl // 2, 2 * max_ttl)[int(dice.random() * 4)]
    client = int(dice.random() * plan.clients)
    hosts = tuple(int(dice.random() * plan.clients) for _ in range(int(dice.random() * 3)))
    workloads = [*plan.workloads, *[plan.workloads[host][::-1] for host in hosts]]
    jobs = [tuple(_short(job, max_ttl, dice) for job in workload) for workload in workloads]
    return replace(
        plan,
        workloads=tuple(jobs),
        hosts=hosts,
        lasts=6 * NS_PER_S,
        network_profile=NetworkProfile(timeout // 200, timeout // (5, 10)[base % 2], 0, 0),
        aim=Aim(client, step, kind, lasts, base),
    )


def _short(job: Job, max_ttl: int, dice: Random) -> Job:
    """Return the job: it begins soon, holds the lock for a short time, and waits for long."""
    return replace(
        _waiting(job, dice),
        after=int(dice.random() ** 2 * max_ttl / 4),
        timeout=_PATIENT // 2,
        ending="release",
        cancel_after=None,
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
