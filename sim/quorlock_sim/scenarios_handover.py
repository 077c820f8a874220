"""Worlds in which a lease is handed over at the one critical moment for a release of it.

As in `scenarios_restart`, chance finds these orders of events too rarely. They are written down
here, with random durations.  All other worlds of that scenario are in `scenarios`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorlock._core.time import NS_PER_MS
from quorlock_sim.plan import Fault, Job
from quorlock_sim.scenarios_restart import bare, in_order

if TYPE_CHECKING:
    from random import Random

    from quorlock_sim.plan import Plan

_NODE_TIMEOUT = 50 * NS_PER_MS
# A client reconnects after this back-off (`client.BACK_OFF_MIN`). It sends its pending releases
# then, and again after the first pause (`_core.pending_releases.FIRST_PAUSE`).
_BACK_OFF = 50 * NS_PER_MS
_PAUSE = 100 * NS_PER_MS
# Instants after an adoption, in per cent of a ttl: n1 is cut off from the adopting client, and the
# release is executed.  Between them an extension (every third of a ttl) counts n0 and n2.
_ROUNDS = ((50, 85), (145, 180))


def shaped(plan: Plan, dice: Random) -> Plan:
    """Return one of the written plans in one world of four."""
    if dice.random() * 4 >= 1:
        return plan
    return (_under_way, _carried)[int(dice.random() * 2)](plan, dice)


def _under_way(plan: Plan, dice: Random) -> Plan:
    """Plan a release that is in flight while its lease is handed over, once or twice.

    The SET of c0 to n2 is lost with its connection.  The second release that c0 sends there for it
    is delayed, and c0 hands its lease over.  The last adopting client sets the key on n2, unless it
    knows of that release, and counts it. n1 is cut off, and then the release is executed.
    """
    trip, ttl = _lengths(dice, 400)
    hops = 1 + int(dice.random() * 2)
    cut, deleted = _ROUNDS[int(dice.random() * 2)]
    held_up = _BACK_OFF + _PAUSE // 2
    hands_over = _BACK_OFF + _PAUSE + 8 * trip + int(dice.random() * 50 * NS_PER_MS)
    holds = ttl * (deleted + 100) // 100
    adopted = hands_over + _NODE_TIMEOUT // 4 + 2 * trip
    adopted += (hops - 1) * (holds + _NODE_TIMEOUT // 4 + 2 * trip)
    arrives = adopted + ttl * deleted // 100
    job = _job(
        ttl, hold=hands_over - 2 * trip, hops=hops, successor_holds=holds, successor_renews=True
    )
    faults = (
        Fault(trip // 2, "break", client=0, node=2),
        Fault(held_up, "one_way_to", client=0, node=2, lasts=arrives - held_up),
        Fault(adopted + ttl * cut // 100, "one_way_to", client=hops, node=1, lasts=3 * ttl // 2),
    )
    # On n1 the adopting client's key expires while its lease is valid.
    asks = adopted + ttl * (cut - 17 + 105) // 100
    others = (_job(ttl, after=asks, timeout=ttl // 4, hold=ttl, ending="release"),)
    workloads = ((job,), (_job(ttl, after=9 * ttl),), (_job(ttl, after=9 * ttl),), others)
    return replace(
        bare(plan, 4, ttl, trip), workloads=workloads, faults=in_order(faults), lasts=13 * ttl // 2
    )


def _carried(plan: Plan, dice: Random) -> Plan:
    """Plan an acquire without a reply for longer than max_ttl after its lease's hand-over.

    n2 has set the key of c0, which receives no reply.  c1 adopts the lease, and counts n2.  c0
    hands another lease over, long after that, and then its connection to n2 breaks.
    """
    trip, ttl = _lengths(dice, 300)
    hands_over = 4 * trip + int(dice.random() * 50 * NS_PER_MS)
    forgets = hands_over + ttl + 50 * NS_PER_MS + int(dice.random() * ttl / 2)
    cut = forgets + ttl * 40 // 100
    breaks = cut + ttl * 40 // 100
    first = _job(ttl, hold=hands_over - 2 * trip, successor_holds=4 * ttl, successor_renews=True)
    second = _job(ttl, after=forgets - hands_over - 2 * trip, resource=1, hold=0)
    faults = (
        Fault(0, "one_way_from", client=0, node=2, lasts=breaks + 1),
        Fault(cut, "one_way_to", client=1, node=1, lasts=3 * ttl // 2),
        Fault(breaks, "break", client=0, node=2, amount=1000),
    )
    asks = cut + ttl * (105 - 17) // 100
    others = (_job(ttl, after=asks, timeout=ttl // 4, hold=ttl, ending="release"),)
    return replace(
        bare(plan, 3, ttl, trip),
        workloads=((first, second), (_job(ttl, after=9 * ttl),), others),
        faults=in_order(faults),
        lasts=13 * ttl // 2,
        resources=("r0", "r1"),
    )


def _lengths(dice: Random, least_ms: int) -> tuple[int, int]:
    """Return the one-way delay to a node, and a ttl."""
    trip = NS_PER_MS + int(dice.random() * NS_PER_MS)
    return trip, (least_ms + int(dice.random() * 400)) * NS_PER_MS


def _job(
    ttl: int,
    *,
    after: int = 0,
    resource: int = 0,
    timeout: int = 0,
    hold: int = 0,
    ending: str = "hand_over",
    hops: int = 1,
    successor_holds: int = 0,
    successor_renews: bool = False,
) -> Job:
    return Job(
        after=after,
        resource=resource,
        ttl_ms=ttl // NS_PER_MS,
        once=not timeout,
        timeout=timeout,
        hold=hold,
        ending=ending,
        hops=hops,
        successor_holds=successor_holds,
        successor_renews=successor_renews,
    )
