"""Judges what happened in a world: were the promises kept, and may they be asked for at all?

Knows true time and all clocks, which nobody in the world does.  Whether the assumptions held (a
bound on drift, no jumps, no memory lost) is read off the clocks and the nodes' memory themselves,
never off the scenario's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from quorlock._core.time import NS_PER_MS
from quorlock.testing import fences as fences_of
from quorlock.testing.clock import PPM
from quorlock.testing.history import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock.testing.clock import Clock
    from quorlock.testing.history import Call, Lease
    from quorlock.testing.process import Process
    from quorlock.testing.world import World

# Every promise, and what it takes for granted ("" is nothing at all).
RULES = {
    "overlap": "no two leases on one resource are valid at the same instant (assumes the clocks"
    " and the memory)",
    "verdict": "an outcome agrees with what the nodes did and said",
    "cover": "the keys of a renewed lease last as long as it may be trusted, on a majority"
    " (assumes the clocks and the memory)",
    "afterlife": "nothing is sent to renew a lease that is over",
    "limit": "no lease is renewed beyond its max_hold",
    "silence": "a renewed lease that is lost is told so before it ends (assumes a steady clock)",
    "resurrection": "a lease that is over never comes back",
    "deadline": "every call ends within its deadlines (assumes a steady clock)",
    "exception": "nothing comes out that nobody expects",
    "endless": "nobody goes round in circles",
    "leftover": "nothing of a finished attempt or lease is left on a node that lives (assumes, for"
    " what arrives late, a clock that does not jump ahead)",
    "fence": "no two leases have the same fence, and who asks after another was granted has the"
    " larger one (assumes that nodes that forgot keep out)",
    "liveness": "when all is well again, somebody gets the lock",
}


# What a restart guard catches of what makes nodes forget, by the first words of it.
GUARDED: dict[str | None, tuple[str, ...]] = {
    "uptime": ("restart",),
    "marker": ("restart", "flush"),
    None: (),
}


class Interval(NamedTuple):
    """When a lease may have been trusted, in true time: from, up to and without."""

    since: int
    until: int
    lease: Lease


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What Redlock takes for granted, and whether this world kept to it; why not, in words."""

    clocks: tuple[str, ...]
    memory: tuple[str, ...]

    @property
    def intact(self) -> bool:
        """All of them held."""
        return not self.clocks and not self.memory


@dataclass(frozen=True, slots=True)
class Judgement:
    """A world, judged.

    Attributes:
        violations: promises that were not kept although their assumptions held.
        excused: overlaps where the assumptions did not hold.
        winners: how many clients were granted a lock.
        disturbed: a fault came while an attempt was under way.
    """

    violations: tuple[Violation, ...]
    excused: int
    assumptions: Assumptions
    intervals: tuple[Interval, ...]
    winners: int
    disturbed: bool


def judge(world: World, *, excuse_memory: bool = True) -> Judgement:
    """The whole judgement of a world that has come to its end.

    excuse_memory: an overlap does not count where a node lost what it had promised to keep.
    """
    history = world.history
    taken = assumptions(world)
    intervals = tuple(interval(lease, world) for lease in history.leases)
    overlaps = tuple(_overlaps(intervals))
    excused = bool(taken.clocks) or (bool(taken.memory) and excuse_memory)
    counted = () if excused else (*overlaps, *history.uncovered)
    fences = fences_of.violations(world)
    found = [*history.found, *counted, *fences, *_late(world), *_silent(world), *_dead(world)]
    return Judgement(
        violations=tuple(found),
        excused=len(overlaps) if excused else 0,
        assumptions=taken,
        intervals=intervals,
        winners=len({lease.client for lease in history.leases}),
        disturbed=history.faults_during_an_attempt > 0,
    )


# --- assumptions -----------------------------------------------------------------------------


def assumptions(world: World) -> Assumptions:
    """Whether clocks and memory were as Redlock needs them."""
    clients = [process.elapsed for process in world.processes]
    nodes = [server.wall for server in world.servers]
    forgotten = world.history.forgotten
    caught = GUARDED[world.policy.restart_guard]
    memory = tuple(
        f"n{node} lost keys by {how}" for _, node, how in forgotten if not how.startswith(caught)
    )
    drift = world.plan.settings.drift_ppm
    clocks = [*_clock_faults(clients, nodes, drift)]
    if forgotten:
        clocks += _guard_faults(clients, drift)
    return Assumptions(tuple(clocks), memory)


def _guard_faults(clients: list[Clock], drift_ppm: int) -> Iterator[str]:
    """A node that forgot keeps out, by one client's clock, until leases end by another's.

    The one waits max_ttl * (1 + drift), the other trusts ttl * (1 - drift); and a jump forward
    ends the waiting early.
    """
    slowest = min(clock.paces()[0] for clock in clients)
    fastest = max(clock.paces()[1] for clock in clients)
    if fastest * (PPM - drift_ppm) > slowest * (PPM + drift_ppm):
        yield f"clocks drift beyond the bound: client {fastest} against client {slowest} ppm"
    forward = max(clock.steps()[1] for clock in clients)
    if forward > 0:
        yield f"a client's clock jumped forward by {forward / NS_PER_MS:.3f} ms"


def _clock_faults(clients: list[Clock], nodes: list[Clock], drift_ppm: int) -> Iterator[str]:
    """A lease must end on its client's clock before its keys do on the nodes'.

    The client trusts ttl * (1 - drift) by its clock, the key lives ttl by the node's: so no node
    may be faster than 1 / (1 - drift) times any client.  No node may jump forward (keys vanish),
    no client back (leases last); the other jumps cost liveness only.
    """
    slowest = min(clock.paces()[0] for clock in clients)
    fastest = max(clock.paces()[1] for clock in nodes)
    if fastest * (PPM - drift_ppm) > slowest * PPM:
        yield f"clocks drift beyond the bound: node {fastest} against client {slowest} ppm"
    back = min(clock.steps()[0] for clock in clients)
    forward = max(clock.steps()[1] for clock in nodes)
    if back < 0:
        yield f"a client's clock jumped back by {-back / NS_PER_MS:.3f} ms"
    if forward > 0:
        yield f"a node's clock jumped forward by {forward / NS_PER_MS:.3f} ms"


# --- mutual exclusion ------------------------------------------------------------------------


def interval(lease: Lease, world: World) -> Interval:
    """While its holder may have trusted it: until its own clock said no, or it gave it up."""
    clock = world.processes[lease.client].clock
    until = max(first_reading(clock, promise, since) for since, promise in lease.promises)
    if lease.ended is not None:
        until = min(until, lease.ended)
    return Interval(lease.since, until, lease)


def first_reading(clock: Clock, reading: int, since: int) -> int:
    """The first true instant, not before `since`, at which a clock shows at least that."""
    for piece, after in zip(clock.pieces, [*clock.pieces[1:], None], strict=True):
        begin = max(piece.since, since)
        end = None if after is None else after.since
        if end is not None and end <= begin:
            continue
        left = reading - piece.reading
        if left <= 0:
            return begin
        if piece.pace == 0:
            continue
        # Counted from where the piece begins: between two ticks it would be a ns late.
        at = max(begin, piece.since - (-left * PPM // piece.pace))
        if end is None or at < end:
            return at
    return 1 << 62  # it stands still


def _overlaps(intervals: tuple[Interval, ...]) -> Iterator[Violation]:
    """Sweep over each resource: whoever begins while another still lasts."""
    open_: dict[str, Interval] = {}
    for one in sorted(intervals, key=lambda i: (i.since, i.until)):
        if one.until <= one.since:
            continue
        resource = one.lease.resource
        other = open_.get(resource)
        if other is not None and one.since < other.until:
            yield _overlap(other, one)
        if other is None or one.until > other.until:
            open_[resource] = one


def _overlap(first: Interval, second: Interval) -> Violation:
    a, b = first.lease, second.lease
    since, until = second.since, min(first.until, second.until)
    text = (
        f"two valid leases on {a.resource} from {since / NS_PER_MS:.3f} ms to"
        f" {until / NS_PER_MS:.3f} ms: {a.token.decode()} of c{a.client} and"
        f" {b.token.decode()} of c{b.client}"
    )
    tokens = [a.token.decode(), b.token.decode()]
    return Violation("overlap", text, since, {"tokens": tokens, "from": since, "until": until})


# --- deadlines and liveness ------------------------------------------------------------------


def _late(world: World) -> Iterator[Violation]:
    for call in world.history.calls:
        process = world.processes[call.client]
        if len(process.elapsed.pieces) > 1:
            continue  # its deadlines were on a clock that jumped, or that changed its pace
        if call.ended is None:
            yield _lateness(call, "has never ended")
        elif call.late_by > 0 and call.late_by > _excuse(process, call):
            yield _lateness(call, f"ended {call.late_by / NS_PER_MS:.3f} ms after its deadline")


def _silent(world: World) -> Iterator[Violation]:
    """A lease that ran out under its holder, who was not told before."""
    for lease in world.history.leases:
        process = world.processes[lease.client]
        if not lease.renewed or lease.why not in ("", "lost") or len(process.clock.pieces) > 1:
            continue
        since, promise = lease.promises[-1]
        end = first_reading(process.clock, promise, since)
        if lease.told is not None and lease.told < end:
            continue
        # Who stands still cannot tell: a pause over its last moments, or until the very end.
        if process.dead or process.delayed(since, end):
            continue
        told = "never" if lease.told is None else f"only at {lease.told / NS_PER_MS:.3f} ms"
        text = f"{lease.token.decode()} was over at {end / NS_PER_MS:.3f} ms, and was told {told}"
        yield Violation("silence", text, end, {"client": lease.client, "token": lease.token})


def _excuse(process: Process, call: Call) -> int:
    """Who stands still cannot be in time: pauses during the call, at the pace of its clock."""
    assert call.ended is not None
    delayed = process.delayed(call.began, call.ended)
    return delayed * process.clock.paces()[1] // PPM + 1


def _lateness(call: Call, how: str) -> Violation:
    text = f"{call.what} of c{call.client}, begun at {call.began / NS_PER_MS:.3f} ms, {how}"
    at = call.began if call.ended is None else call.ended
    return Violation("deadline", text, at, {"client": call.client, "call": call.number})


def _dead(world: World) -> Iterator[Violation]:
    contest = [call for call in world.history.calls if call.what == "contest"]
    if contest and not any(call.outcome == "granted" for call in contest):
        outcomes = ", ".join(f"c{call.client}: {call.outcome or 'no end'}" for call in contest)
        text = f"all was well, {len(contest)} asked for a free lock and nobody got it ({outcomes})"
        yield Violation("liveness", text, contest[0].began, {})
