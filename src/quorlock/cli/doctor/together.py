"""The checks of all nodes together. Pure: facts in, results out."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from quorlock.cli.doctor.each import CHECKS as EACH
from quorlock.cli.doctor.findings import Check, Result, error, ok, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock.cli.doctor.facts import Facts, NodeFacts

_PATIENCE = "wait; restart nodes one at a time, max_ttl apart"
_APART_MAX = 1.0  # seconds: NTP keeps servers within milliseconds


def _count(facts: Facts) -> list[Result]:
    n = facts.n
    spare = n - facts.quorum
    if n == 1:
        found = "one node: while it is down there is no lock; nothing else changes"
        return [warning(found, "three nodes for one to fail, five for two")]
    if n % 2 == 0:
        fix = f"{n + 1} nodes, or {n - 1} for the same number of failures"
        return [warning(f"{n} nodes, quorum {facts.quorum}: {spare} may fail", fix)]
    return [ok(f"{n} nodes, quorum {facts.quorum}: {spare} may fail")]


def _distinct(facts: Facts) -> list[Result]:
    by_process = _grouped(facts, lambda node: node.run_id)
    same = [nodes for nodes in by_process.values() if len(nodes) > 1]
    fix = "name every server once; each must be a process of its own"
    told = [error(f"{_names(nodes)} are one server (equal run_id)", fix) for nodes in same]
    return told or [ok("all are servers of their own")] * bool(by_process)


def _hosts(facts: Facts) -> list[Result]:
    if facts.n == 1 or not facts.reached:
        return []
    if all(node.here for node in facts.reached):
        return [ok("all are on this machine: the lock is for it alone, and down when it is")]
    by_host = _grouped(facts, lambda node: "this machine" if node.here else node.peer)
    fix = "one machine for each node"
    shared = [
        warning(f"{_names(nodes)} are on one machine, {host}", fix)
        for host, nodes in by_host.items()
        if len(nodes) > 1
    ]
    return shared or [ok("all are on machines of their own, by their addresses")]


def _zones(facts: Facts) -> list[Result]:
    by_zone = _grouped(facts, lambda node: node.told.get("availability_zone", ""))
    full = [zone for zone, nodes in by_zone.items() if len(nodes) >= facts.quorum]
    if not by_zone or facts.n == 1:
        return []
    if full:
        found = f"{_names(by_zone[full[0]])} are in one availability zone, {full[0]}"
        return [warning(found, "no zone should have a quorum: spread the nodes over three")]
    return [ok(f"{len(by_zone)} availability zones, none with a quorum")]


def _uptime(facts: Facts) -> list[Result]:
    """Who votes already, by the restart guard."""
    if facts.restart_guard is None:
        return [ok("restart_guard is none: all vote at once")]
    out = [(node, left) for node in facts.reached if (left := _kept_out(node, facts)) > 0]
    told = [_late(node, left) for node, left in out]
    # Of those that do not tell it is not known, and so they are not counted.
    lefts = sorted(left for _, left in out if math.isfinite(left))
    missing = facts.quorum - (facts.n - len(lefts))
    if missing > 0:
        found = f"{len(lefts)} of {facts.n} nodes are kept out: no lock for"
        late = error(f"{found} {math.ceil(lefts[missing - 1])} s", _PATIENCE)
        told = [late] if facts.n == 1 else [*told, late]
    return told or [ok("all vote: past the restart guard, or born empty")] * bool(facts.reached)


def _late(node: NodeFacts, left: float) -> Result:
    if math.isinf(left):
        return unknown("it does not tell how long it is up", "grant +info and +get")._replace(
            node=node.address
        )
    found = f"it came up lately, or was emptied: it votes again in {math.ceil(left)} s"
    return warning(found, _PATIENCE)._replace(node=node.address)


def _kept_out(node: NodeFacts, facts: Facts) -> float:
    """For how many seconds more; 0 where it votes."""
    if facts.restart_guard == "marker":
        return _left_by_marker(node, facts)
    uptime = node.number("uptime_in_seconds")
    if node.node.durable or (node.run_id and node.born_empty == node.run_id):
        return 0.0
    if uptime is None:
        return math.inf
    # INFO's seconds are whole ones, of which one may not have passed.
    return max(0.0, facts.max_ttl * (1 + facts.drift_factor) + 1 - uptime)


def _left_by_marker(node: NodeFacts, facts: Facts) -> float:
    run_id, _, since = node.marker.rpartition(":")
    if run_id != node.run_id or not since.isdecimal() or not node.readings:
        return facts.max_ttl * (1 + facts.drift_factor)
    age = node.readings[-1].server - int(since) / 1000
    return max(0.0, facts.max_ttl * (1 + facts.drift_factor) - age)


def _clocks(facts: Facts) -> list[Result]:
    """Servers' clocks against each other, by ours."""
    ahead = {
        node.address: (reading.server - (reading.before + reading.after) / 2)
        for node in facts.reached
        for reading in node.readings[:1]
    }
    if len(ahead) < 2:  # noqa: PLR2004
        return []
    first, last = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
    apart = ahead[last] - ahead[first]
    # What an answer took may all have been on one side.
    noise = max(r.after - r.before for node in facts.reached for r in node.readings[:1])
    if apart > _APART_MAX + noise:
        found = f"the clock of {last} is {apart:.1f} s ahead of that of {first}"
        return [warning(found, "run chrony or ntpd on every node")]
    return [ok(f"clocks are within {_APART_MAX:g} s of each other")]


def _grouped(facts: Facts, key: Callable[[NodeFacts], str]) -> dict[str, list[NodeFacts]]:
    """Nodes that could be asked, by what they have in common; without those that do not tell."""
    groups: defaultdict[str, list[NodeFacts]] = defaultdict(list)
    for node in facts.reached:
        if name := key(node):
            groups[name].append(node)
    return dict(groups)


def _names(nodes: list[NodeFacts]) -> str:
    return ", ".join(node.address for node in nodes)


_REACH, *_REST = EACH
CHECKS: tuple[Check, ...] = (
    Check(
        "count",
        "Of three nodes one may fail, of five two; of four no more than of three, of one none.",
        _count,
    ),
    _REACH,
    Check("distinct", "The vote of a server that is named twice counts twice.", _distinct),
    *_REST,
    Check("hosts", "Nodes that share a machine fail together.", _hosts),
    Check("zones", "Nodes that share a zone fail together.", _zones),
    Check("uptime", "A node that restarted may have forgotten locks, so it keeps out.", _uptime),
    Check("clocks", "Fences and the marker guard go by the nodes' clocks.", _clocks),
)
