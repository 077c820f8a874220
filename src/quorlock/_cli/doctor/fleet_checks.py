"""The checks of all nodes together, as pure functions of the facts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

from quorlock._cli.doctor.facts import Facts, NodeFacts
from quorlock._cli.doctor.findings import Check, Result, error, ok, unknown, warning
from quorlock._cli.doctor.node_checks import CHECKS as EACH

_READERS = "+time +zadd +zcard +zrange +zrem +zremrangebyscore +zscore"
_CALLING = "+subscribe +publish +zadd +zpopmin +zrange +zrank +zrem +zcard &quorlock:inbox:*"
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
    fix = "name every server once; each must be a separate process"
    results = [error(f"{_names(nodes)} are one server (equal run_id)", fix) for nodes in same]
    return results or [ok("all are different servers")] * bool(by_process)


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
    return shared or [ok("all are on different machines, by their addresses")]


def _zones(facts: Facts) -> list[Result]:
    by_zone = _grouped(facts, lambda node: node.info_fields.get("availability_zone", ""))
    full = [zone for zone, nodes in by_zone.items() if len(nodes) >= facts.quorum]
    if not by_zone or facts.n == 1:
        return []
    if full:
        found = f"{_names(by_zone[full[0]])} are in one availability zone, {full[0]}"
        return [warning(found, "no zone should have a quorum: spread the nodes over three")]
    return [ok(f"{len(by_zone)} availability zones, none with a quorum")]


def _uptime(facts: Facts) -> list[Result]:
    """Check which nodes vote already, by the restart guard."""
    if facts.restart_guard is None:
        return [ok("restart_guard is none: all vote at once")]
    out = [(node, left) for node in facts.reached if (left := _kept_out(node, facts)) > 0]
    results = [_late(node, left) for node, left in out]
    # Nodes without a known uptime are not counted.
    lefts = sorted(left for _, left in out if math.isfinite(left))
    missing = facts.quorum - (facts.n - len(lefts))
    if missing > 0:
        found = f"{len(lefts)} of {facts.n} nodes are kept out: no lock for"
        late = error(f"{found} {math.ceil(lefts[missing - 1])} s", _PATIENCE)
        results = [late] if facts.n == 1 else [*results, late]
    return results or [ok("all vote: past the restart guard, or born empty")] * bool(facts.reached)


def _late(node: NodeFacts, left: float) -> Result:
    if math.isinf(left):
        return unknown("its uptime is unknown", "grant +info and +get")._replace(node=node.address)
    found = f"it came up lately, or was emptied: it votes again in {math.ceil(left)} s"
    return warning(found, _PATIENCE)._replace(node=node.address)


def _kept_out(node: NodeFacts, facts: Facts) -> float:
    """Return the seconds until the node votes; 0 if it does."""
    if facts.restart_guard == "marker":
        return _left_by_marker(node, facts)
    uptime = node.number("uptime_in_seconds")
    if node.node.durable or (node.run_id and node.born_empty == node.run_id):
        return 0.0
    if uptime is None:
        return math.inf
    # INFO's seconds are whole, so up to one of them may not have passed.
    return max(0.0, facts.max_ttl * (1 + facts.drift_factor) + 1 - uptime)


def _left_by_marker(node: NodeFacts, facts: Facts) -> float:
    run_id, _, since = node.marker.rpartition(":")
    if run_id != node.run_id or not since.isdecimal() or not node.readings:
        return facts.max_ttl * (1 + facts.drift_factor)
    age = node.readings[-1].server - int(since) / 1000
    return max(0.0, facts.max_ttl * (1 + facts.drift_factor) - age)


def _settings(facts: Facts) -> list[Result]:
    """Check that a client with these settings is let in by the nodes."""
    if facts.refusal is not None:
        return [error(*facts.refusal)]
    return [ok("they fit those that the nodes store")] * bool(facts.reached)


def _clocks(facts: Facts) -> list[Result]:
    """Compare the servers' clocks, by the local clock."""
    ahead = {
        node.address: (reading.server - (reading.before + reading.after) / 2)
        for node in facts.reached
        for reading in node.readings[:1]
    }
    if len(ahead) < 2:  # noqa: PLR2004
        return []
    first, last = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
    apart = ahead[last] - ahead[first]
    # The whole duration of a reply may lie in one direction.
    noise = max(r.after - r.before for node in facts.reached for r in node.readings[:1])
    if apart > _APART_MAX + noise:
        found = f"the clock of {last} is {apart:.1f} s ahead of that of {first}"
        return [warning(found, "run chrony or ntpd on every node")]
    return [ok(f"clocks are within {_APART_MAX:g} s of each other")]


def _waiting(facts: Facts) -> list[Result]:
    """Check whether nodes can queue waiters and call them; unfit ones are reported already."""
    if not facts.reached:
        return []
    if facts.waiting == "poll":
        return [ok("clients poll (waiting='poll')")]
    unable = [node for node in facts.reached if node.unqueued and not node.refused]
    if not unable:
        return [ok("all nodes can queue waiters and call them")]
    refusals = dict.fromkeys(text for node in unable for text in node.unqueued.values())
    is_forbidden = any("NOPERM" in text for text in refusals)
    able = facts.n - len(unable)
    effect = (
        "waiters poll, and get the lock in no order"
        if able < facts.quorum
        else "the others do it, as long as they are up"
    )
    found = f"{len(unable)} of {facts.n} nodes cannot call waiters ({_names(unable)}: "
    found += f"{next(iter(refusals))}); {effect}"
    fix = (
        f"grant {_CALLING} (docs/how-to/acl.md)" if is_forbidden else "Redis 6 or newer, or Valkey"
    )
    return [warning(found, f"{fix}; or give waiting='poll'")]


def _sharing(facts: Facts) -> list[Result]:
    """Say which nodes cannot keep readers. That is no warning: most users share no lock."""
    fit = [node for node in facts.reached if not node.refused]
    unable = [node for node in fit if node.unshared]
    if not unable:
        return [ok("all nodes can share locks")] if fit else []
    refusal = next(iter(unable[0].unshared.values()))
    found = f"{len(unable)} of {facts.n} nodes cannot share locks ({_names(unable)}: {refusal})"
    return [ok(f"{found}; shared=True needs {_READERS} (docs/how-to/acl.md)")]


def _grouped(facts: Facts, key: Callable[[NodeFacts], str]) -> dict[str, list[NodeFacts]]:
    """Group the nodes that could be asked by a property; nodes without a value are left out."""
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
    Check(
        "waiting",
        "Waiters that no node calls try again at random times, and the order is lost.",
        _waiting,
    ),
    Check("sharing", "A lock is shared on a quorum of nodes that can keep its readers.", _sharing),
    Check(
        "settings",
        "All clients must agree on the number of nodes, max_ttl and the restart guard.",
        _settings,
    ),
    Check("uptime", "A restarted node may have forgotten locks, so it casts no vote.", _uptime),
    Check("clocks", "Fences and the marker guard go by the nodes' clocks.", _clocks),
)
