"""Worlds in which a node comes back with what it had on disk, at the one moment that matters.

Chance finds their orders of events once in a hundred thousand worlds, if at all; so the orders are
written down here, as plans, and chance has only the lengths.  Leaves all other worlds to
`scenario`, and orders that need no plan to `directed`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorlock._core.time import NS_PER_MS
from quorlock.testing.network import Weather
from quorlock.testing.plan import Fault, Job, Plan

if TYPE_CHECKING:
    from random import Random

# A client that lost its connection tries again after so long (`process.BACK_OFF_MIN`).
_BACK_OFF = 50 * NS_PER_MS
_NODE_TIMEOUT = 50 * NS_PER_MS
_LONG_AGO = 10**15


def shaped(plan: Plan, dice: Random) -> Plan:
    """One of the two, in place of what was drawn."""
    return (_heir, _old_marker)[int(dice.random() * 2)](plan, dice)


def _heir(plan: Plan, dice: Random) -> Plan:
    """A key that was given back comes back from the disk, and the lease's heir extends it.

    c0 loses its connection to n2 before it hears that n2 has set its key, and wins on n0 and n1.
    What it owes n2 deletes the key there, which the disk still has.  c2 is granted n2.  n2 crashes
    and restarts with the key of c0, whose lease c1 adopts: extended on n0, and on n2 if a node that
    is kept out counted.  On n1 the key runs out, and c2 is granted it: n1 and n2 are a majority.
    """
    ttl = _NODE_TIMEOUT * 4 + int(dice.random() * 2 * _NODE_TIMEOUT)
    ttl -= ttl % NS_PER_MS
    trip = NS_PER_MS + int(dice.random() * NS_PER_MS)
    # The adoption is sent so long before the keys of c0 end, and n2 has crashed before that.
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
        _bare(plan, 3, ttl, trip),
        careers=(
            (replace(job, hold=hands_over - 2 * trip, ending="hand_over"),),
            (replace(job, after=2 * ttl),),
            (replace(job, after=asks, hold=_NODE_TIMEOUT),),
        ),
        faults=_in_order(faults),
        lasts=3 * ttl,
    )


def _old_marker(plan: Plan, dice: Random) -> Plan:
    """A node comes back with a marker of long ago, and without the key that it had set since.

    c0 does not reach n2, and wins on n0 and n1.  n0 has its marker on disk, and not the key.  It
    crashes and restarts, and c1 is granted the lock by n0 and n2, if nobody minds that the marker
    is of another process.
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
    bare = _bare(plan, 2, ttl, trip)
    return replace(
        bare,
        settings=replace(bare.settings, restart_guard="marker"),
        node_offsets=tuple(offset + _LONG_AGO for offset in bare.node_offsets),
        careers=((replace(job, after=1, hold=ttl),), (replace(job, after=asks, hold=trip),)),
        faults=_in_order(faults),
        lasts=2 * ttl,
    )


def _bare(plan: Plan, clients: int, ttl: int, trip: int) -> Plan:
    """Three nodes, so many clients, clocks that are true, and messages that all take as long."""
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
        weather=Weather(trip, 0, 0, 0),
        bundles=(1,) * clients,
        client_paces=(1_000_000,) * clients,
        node_paces=(1_000_000,) * 3,
        client_offsets=(plan.client_offsets * 2)[:clients],
        node_offsets=(plan.node_offsets * 3)[:3],
        resources=("r0",),
    )


def _in_order(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at))
