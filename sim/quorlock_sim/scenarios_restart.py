"""Worlds in which a node comes back with old keys from disk, or empty, at the critical moment.

Chance finds these orders of events once in a hundred thousand worlds, if at all. They are written
down here as plans with random durations.  All other worlds are in `scenarios`; orders of events
that need no plan are in `directed`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorlock._core.time import NS_PER_MS
from quorlock_sim.network import NetworkProfile
from quorlock_sim.plan import Fault, Job, Plan

if TYPE_CHECKING:
    from random import Random

# A client reconnects after this back-off (`client.BACK_OFF_MIN`).
_BACK_OFF = 50 * NS_PER_MS
_NODE_TIMEOUT = 50 * NS_PER_MS
_LONG_AGO = 10**15


def shaped(plan: Plan, dice: Random) -> Plan:
    """Return one of the three plans, in place of the drawn one."""
    return (_heir, _old_marker, _failover)[int(dice.random() * 3)](plan, dice)


def _heir(plan: Plan, dice: Random) -> Plan:
    """Plan the return of a released key from disk, which the adopting client extends.

    c0 loses its connection to n2 before the reply that n2 has set its key, and wins on n0 and n1.
    Its pending release deletes the key on n2, while the disk still has it.  c2 is granted n2.  n2
    crashes and restarts with the key of c0, whose lease c1 adopts. c1 extends it on n0, and on n2
    if a quarantined node counted.  On n1 the key expires, and c2 is granted it: n1 and n2 are a
    majority.
    """
    ttl = _NODE_TIMEOUT * 4 + int(dice.random() * 2 * _NODE_TIMEOUT)
    ttl -= ttl % NS_PER_MS
    trip = NS_PER_MS + int(dice.random() * NS_PER_MS)
    # The adoption is sent shortly before the keys of c0 expire, and n2 has crashed before that.
    adopts = ttl - 4 * trip - int(dice.random() * 5 * NS_PER_MS)
    crash = adopts - 8 * trip - int(dice.random() * 5 * NS_PER_MS)
    asks = crash - 2 * trip
    down = 1 + int(dice.random() * trip)
    back = crash + down + 1
    ends = ttl + 2 * trip + 2 * NS_PER_MS  # of the keys
    hands_over = adopts - _NODE_TIMEOUT // 4
    job = Job(after=0, resource=0, ttl_ms=ttl // NS_PER_MS, once=True, timeout=0, hold=0)
    faults = (
        Fault(trip * 3 // 2, "break", client=0, node=2, amount=1000),
        Fault(trip * 3 // 2 + 1, "save", node=2),
        Fault(back - _BACK_OFF, "break", client=1, node=2, amount=1000),
        Fault(asks - 1, "one_way_to", client=2, node=1, lasts=ends - asks + 1),
        Fault(crash, "crash_saved", node=2, lasts=down),
        Fault(hands_over, "one_way_to", client=1, node=1, lasts=ends + 2 * trip - hands_over),
    )
    return replace(
        bare(plan, 3, ttl, trip),
        workloads=(
            (replace(job, hold=hands_over - 2 * trip, ending="hand_over"),),
            (replace(job, after=2 * ttl),),
            (replace(job, after=asks, hold=_NODE_TIMEOUT),),
        ),
        faults=in_order(faults),
        lasts=3 * ttl,
    )


def _old_marker(plan: Plan, dice: Random) -> Plan:
    """Plan a restart with an old marker, and without a key that the node had set since.

    c0 does not reach n2, and wins on n0 and n1.  n0 has its marker on disk, but not the key.  It
    crashes and restarts. n0 and n2 grant c1 the lock if the restart guard ignores that the marker
    belongs to another process.
    """
    ttl = _NODE_TIMEOUT * 8 + int(dice.random() * 8 * _NODE_TIMEOUT)
    ttl -= ttl % NS_PER_MS
    trip = NS_PER_MS + int(dice.random() * NS_PER_MS)
    crash = 5 * trip + int(dice.random() * ttl / 4)
    down = 1 + int(dice.random() * 10 * trip)
    asks = crash + down + 2 * _BACK_OFF + 4 * trip + int(dice.random() * ttl / 8)
    job = Job(after=0, resource=0, ttl_ms=ttl // NS_PER_MS, once=True, timeout=0, hold=0)
    faults = (
        Fault(int(dice.random() * trip), "save", node=0),
        Fault(0, "break", client=0, node=2),
        Fault(crash, "crash_saved", node=0, lasts=down),
    )
    base = bare(plan, 2, ttl, trip)
    return replace(
        base,
        settings=replace(base.settings, restart_guard="marker"),
        node_offsets=tuple(offset + _LONG_AGO for offset in base.node_offsets),
        workloads=((replace(job, after=1, hold=ttl),), (replace(job, after=asks, hold=trip),)),
        faults=in_order(faults),
        lasts=2 * ttl,
    )


def _failover(plan: Plan, dice: Random) -> Plan:
    """Plan a master that is a replica for a while, which one connection of a client learns.

    c0 does not reach n2, wins on n0 and n1, and reaches n1 no more.  n1 becomes the replica of an
    empty master, and refuses an acquire of c1.  When it is a master again, n1 and n2 grant c1 the
    lock if another connection of c1 to n1, which was idle in that time, still votes.
    """
    ttl = _NODE_TIMEOUT * 8 + int(dice.random() * 8 * _NODE_TIMEOUT)
    ttl -= ttl % NS_PER_MS
    trip = NS_PER_MS + int(dice.random() * NS_PER_MS)
    strikes = 5 * trip + int(dice.random() * ttl / 8)
    lasts = 12 * trip
    asks = 8 * trip + int(dice.random() * ttl / 8)  # after the job before
    job = Job(after=1, resource=0, ttl_ms=ttl // NS_PER_MS, once=True, timeout=0, hold=trip)
    faults = (
        Fault(0, "break", client=0, node=2),
        Fault(3 * trip, "one_way_to", client=0, node=1, lasts=ttl),
        Fault(strikes, "failover", node=1, lasts=lasts),
    )
    return replace(
        bare(plan, 2, ttl, trip),
        connection_sets=(1, 3),
        resources=("r0", "r1"),
        workloads=(
            (replace(job, hold=ttl),),
            (replace(job, after=strikes - trip // 2, resource=1), replace(job, after=asks)),
        ),
        faults=faults,
        lasts=2 * ttl,
    )


def bare(plan: Plan, clients: int, ttl: int, trip: int) -> Plan:
    """Return a plan for three nodes with exact clocks, and one delay for all messages."""
    settings = replace(
        plan.settings,
        n=3,
        max_ttl_ms=ttl // NS_PER_MS,
        node_timeout=_NODE_TIMEOUT,
        restart_guard="uptime",
    )
    return replace(
        plan,
        settings=settings,
        network_profile=NetworkProfile(trip, 0, 0, 0),
        connection_sets=(1,) * clients,
        client_paces=(1_000_000,) * clients,
        node_paces=(1_000_000,) * 3,
        client_offsets=(plan.client_offsets * 2)[:clients],
        node_offsets=(plan.node_offsets * 3)[:3],
        resources=("r0",),
    )


def in_order(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Return the faults in order of time."""
    return tuple(sorted(faults, key=lambda fault: fault.at))
