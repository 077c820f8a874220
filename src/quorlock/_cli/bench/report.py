"""The results as text for people and as JSON for programs, and an interpretation."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from quorlock._cli.bench.facts import BenchNodeFacts, BenchRate, Contention, Measured, Times, Verbs
from quorlock._cli.bench.plot import bar, histogram, ms

_WIDEST, _NARROWEST = 100, 72
_BUSY = 0.8  # of a CPU: above this, Python has no time to spare
_SLOW = 3.0  # times the duration of the quorum's slowest node


def as_facts(measured: Measured) -> dict[str, Any]:
    """Return the results as `#/$defs/bench` of docs/reference/cli.schema.json."""
    one, troubles = measured.one, measured.troubles
    verbs = {"acquire": one.acquire, "extend": one.extend, "release": one.release}
    contention = measured.contention
    return {
        "seconds": round(measured.seconds, 3),
        "quorum": measured.quorum,
        "ttl": measured.ttl,
        "nodes": [
            node._asdict() | {"error": node.error or None, "round_trip": _times(node.round_trip)}
            for node in measured.nodes
        ],
        "one_caller": {
            **{verb: _times(Times.of(taken)) for verb, taken in verbs.items()},
            "cpu": round(one.cpu, 3),
        },
        "many_callers": [
            rate._asdict() | {"per_second": round(rate.per_second, 1), "cpu": round(rate.cpu, 3)}
            for rate in measured.rates
        ],
        "contention": contention._asdict()
        | {
            "per_second": round(contention.per_second, 1),
            "busy": round(contention.busy, 3),
            "wait": _times(contention.wait),
        },
        "errors": [
            {"error": name, "count": count, "example": troubles.examples[name]}
            for name, count in troubles.errors.most_common()
        ],
        "lost": troubles.lost,
        "overlaps": troubles.overlaps,
    }


def _times(times: Times) -> dict[str, float | None]:
    return {
        name: round(value, 7) if isinstance(value, float) else value
        for name, value in times._asdict().items()
    }


def as_text(measured: Measured) -> str:
    """Return the results as paragraphs that fit the terminal, up to a maximal width."""
    width = max(_NARROWEST, min(shutil.get_terminal_size().columns - 1, _WIDEST))
    parts = (
        _nodes(measured.nodes, measured.quorum, width),
        _one(measured.one, width),
        _rates(measured.rates, width),
        _contention(measured.contention),
        _troubles(measured, width),
        (line for word in words(measured) for line in textwrap.wrap(word, width)),
    )
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))


def _nodes(nodes: Sequence[BenchNodeFacts], quorum: int, width: int) -> Iterator[str]:
    room = width - 36
    yield f"{'each node alone: a GET':{room}}{'p50':>11}{'p99':>11}{'in quorum':>12}"
    for node in nodes:
        if node.round_trip.number or not node.error:
            share = "-" if node.in_quorum is None else f"{node.in_quorum:.0%}"
            trips = f"{ms(node.round_trip.p50):>11}{ms(node.round_trip.p99):>11}"
            yield f"  {_shortened(node.node, room - 4):{room - 2}}{trips}{share:>12}"
        if node.error:
            yield from _indented(f"{_shortened(node.node, room - 4)}: {node.error}", width)
    if len(nodes) > 1:
        yield f"  in quorum: how often its yes was among the {quorum} that acquire waits for"


def _one(one: Verbs, width: int) -> Iterator[str]:
    yield f"{'one caller':18}{'p50':>11}{'p90':>11}{'p99':>11}{'longest':>11}"
    for verb, taken in (("acquire", one.acquire), ("extend", one.extend), ("release", one.release)):
        times = Times.of(taken)
        row = "".join(f"{ms(t):>11}" for t in (times.p50, times.p90, times.p99, times.max))
        yield f"  {verb:16}{row}"
    if one.acquire:
        yield ""
        yield f"{'acquire':>14}{'times':>9}"
        yield from histogram(one.acquire, width)


def _rates(rates: Sequence[BenchRate], width: int) -> Iterator[str]:
    room, most = width - 44, max(rate.per_second for rate in rates)
    yield f"{'many callers: acquire + release':34}{'CPU':>7}"
    for rate in rates:
        # The numbers are aligned to the right.
        name = f"{'':{7 - len(str(rate.callers))}}{_callers(rate)}"
        line = f"{name:18}{rate.per_second:>8,.0f} per s{rate.cpu:>8.0%}"
        yield f"{line}  {bar(rate.per_second, most, room)}".rstrip()


def _contention(contention: Contention) -> Iterator[str]:
    wait, busy = contention.wait, contention.busy
    yield f"{contention.contenders} callers want one lock and hold it for 20 ms"
    yield f"  {'turns':12}{contention.per_second:>10,.1f} per s; it is held {busy:.0%} of the time"
    yield f"  {'wait':12}{ms(wait.p50):>10} p50, {ms(wait.p90)} p90, {ms(wait.max)} longest"
    yield f"  {'turns each':12}{contention.fewest:>10,} the fewest; the most: {contention.most:,}"


def _troubles(measured: Measured, width: int) -> Iterator[str]:
    troubles = measured.troubles
    for name, count in troubles.errors.most_common():
        yield from textwrap.wrap(f"{count:,} x {name}, such as: {troubles.examples[name]}", width)
    if troubles.lost:
        yield f"leases lost, over before they were released: {troubles.lost:,}"
    if troubles.overlaps:
        yield f"overlaps, two that held the same lock at once: {troubles.overlaps:,}"


def words(measured: Measured) -> Iterator[str]:
    """Yield sentences about what bounds the results."""
    yield from _about_one(measured)
    yield from _about_nodes(measured)
    yield from _about_many(measured.rates)


def _about_one(measured: Measured) -> Iterator[str]:
    """Explain one caller's pace: a round ends when a quorum has replied."""
    node, took = slowest_of_quorum(measured), Times.of(measured.one.acquire).p50
    if node is None or took is None or node.round_trip.p50 is None:
        return
    trip, n = node.round_trip.p50, len(measured.nodes)
    waits = f"a round waits for {measured.quorum} of {n} nodes, of which the slowest is" * (n > 1)
    pace = "the nodes and the network set" if trip > took / 2 else "this machine sets"
    yield (
        f"One caller: {waits or 'a round waits for'} {_shortened(node.node)}. It answers a GET in"
        f" {ms(trip)}; an acquire takes {ms(took)}, with this process on a CPU for"
        f" {measured.one.cpu:.0%} of the time. So {pace} the pace."
    )


def _about_nodes(measured: Measured) -> Iterator[str]:
    slowest, took = slowest_of_quorum(measured), Times.of(measured.one.acquire).p50
    bound = slowest.round_trip.p50 if slowest else None
    for node in measured.nodes:
        trip = node.round_trip.p50
        # It must exceed a whole acquire too: on one machine the difference may be noise.
        if bound and trip and took and trip > max(_SLOW * bound, took):
            slow = f"{_shortened(node.node)} takes {trip / bound:.0f} times as long"
            yield f"{slow}; no round waits for it while {measured.quorum} others reply."
    out = sum(bool(node.error) for node in measured.nodes)
    spare = len(measured.nodes) - out - measured.quorum
    if out:
        left = f"{spare} more may fail" if spare > 0 else "none of the others may fail"
        yield f"{out} of {len(measured.nodes)} nodes did not vote: {left}."


def _about_many(rates: Sequence[BenchRate]) -> Iterator[str]:
    """Compare the best rates of threads and tasks; there may be none of threads."""
    ordered = sorted(rates, key=lambda rate: rate.per_second)
    top = ordered[-1]
    if not top.per_second:
        return
    other = next((rate for rate in reversed(ordered) if rate.face != top.face), None)
    against = f", against {other.per_second:,.0f} with {_callers(other)}" if other else ""
    rest = "; the rest it waited for the nodes, the network, or other programs here"
    if top.cpu >= _BUSY:
        rest = ": that is what bounds it, so more processes do more"
    yield (
        f"Many callers: {top.per_second:,.0f} per s with {_callers(top)}{against}. This process was"
        f" on a CPU for {top.cpu:.0%} of the time{rest}."
    )


def slowest_of_quorum(measured: Measured) -> BenchNodeFacts | None:
    """Return the node that a round waits for: of five the third fastest; None if too few vote."""
    up = [n for n in measured.nodes if n.round_trip.p50 is not None and not n.error]
    up.sort(key=lambda node: node.round_trip.p50 or 0.0)
    return up[measured.quorum - 1] if len(up) >= measured.quorum else None


def _callers(rate: BenchRate) -> str:
    return f"{rate.callers:,} {rate.face if rate.callers > 1 else rate.face[:-1]}"


def _shortened(name: str, room: int = 40) -> str:
    """Return the end of a long name, which differs between nodes."""
    return name if len(name) <= room else f"..{name[len(name) - room + 2 :]}"


def _indented(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False
    )
