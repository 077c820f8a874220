"""The oracle of simulated worlds: checks that the promises were kept while their assumptions held.

It reads true time and all clocks, which no client and no node can.  Whether the assumptions held (a
bound on drift, no jumps, no memory lost) follows from the clocks and the nodes' memory, never from
the name of the scenario.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from quorlock._core.claims import Shared
from quorlock._core.time import NS_PER_MS
from quorlock_sim import oracle_fences, queues
from quorlock_sim.clock import NEVER, PPM
from quorlock_sim.history import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock_sim.client import Process
    from quorlock_sim.clock import Clock
    from quorlock_sim.history import CallRecord, LeaseRecord
    from quorlock_sim.world import World

# Every promise, with its assumptions in parentheses.
RULES = {
    "overlap": "no two leases on one resource are valid at the same instant, unless they share it"
    " (assumes the clocks and the memory)",
    "told": "no other client is granted a lock before the end of a validity that a holder was"
    " promised, unless that holder released it or handed it over (assumes the clocks and the"
    " memory)",
    "permits": "no more leases on the resources of a semaphore are valid at the same instant than"
    " it has permits (assumes the clocks and the memory)",
    "verdict": "an outcome agrees with the nodes' executions and replies",
    "cover": "the keys of a renewed lease last as long as it may be trusted, on a majority"
    " (assumes the clocks and the memory)",
    "deletion": "no release deletes a key that a valid lease needs for its majority (assumes the"
    " clocks and the memory), and no mark of work that is done replaces another's key",
    "afterlife": "nothing is sent to renew a lease that is over",
    "limit": "no lease is renewed beyond its max_hold",
    "silence": "the loss of a renewed lease is reported before its end (assumes a steady clock)",
    "resurrection": "a lease that has ended is never valid again",
    "deadline": "every call ends within its deadlines (assumes a steady clock)",
    "patience": "no acquire gives up before its timeout if the nodes that reply, and those that the"
    " restart guard keeps from voting, are a majority",
    "exception": "no unexpected exception is raised",
    "endless": "no flow runs without end",
    "leftover": "no key of a finished attempt or lease is left on a running node (assumes, for"
    " requests that arrive late, a clock that does not jump ahead)",
    "fence": "no two leases have the same fence, and an attempt that starts after a grant gets a"
    " larger one (assumes that nodes that forgot are quarantined)",
    "idle": "no process waits for long for a lock that it could have: it runs, a quorum of nodes"
    " serves it, and a quorum of them has no key of another holder (assumes the clocks)",
    "passes": "no later caller passes one that a majority has queued, but for each lease that ends"
    " without a release, and for a bounded number of hand-overs inside a process",
    "orphan": "no place and no reservation of a caller that is gone is left on a node",
    "liveness": "after recovery, a free lock is granted to one of the clients that ask for it",
}


# The losses of keys that a restart guard detects, by their first words.
GUARDED: dict[str | None, tuple[str, ...]] = {
    "uptime": ("restart", "failover"),
    "marker": ("restart", "failover", "unseen failover", "flush"),
    None: (),
}


class Interval(NamedTuple):
    """The time in which a lease may have been trusted: true instants, `until` excluded."""

    since: int
    until: int
    lease: LeaseRecord


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The assumptions of Redlock that this world broke, in words."""

    clocks: tuple[str, ...]
    memory: tuple[str, ...]

    @property
    def intact(self) -> bool:
        """True if all assumptions held."""
        return not self.clocks and not self.memory


@dataclass(frozen=True, slots=True)
class Judgement:
    """The oracle's judgement of a world.

    Attributes:
        violations: promises that were broken although their assumptions held.
        excused: the number of overlaps, if the assumptions did not hold.
        winners: the number of clients that were granted a lock.
        disturbed: a fault occurred during an attempt.
    """

    violations: tuple[Violation, ...]
    excused: int
    assumptions: Assumptions
    intervals: tuple[Interval, ...]
    winners: int
    disturbed: bool


def judge(world: World, *, excuse_memory: bool = True) -> Judgement:
    """Judge a world that has ended.

    Args:
        world: the world.
        excuse_memory: ignore overlaps if a node lost keys that it should have kept.
    """
    history = world.history
    taken = assumptions(world)
    intervals = tuple(interval(lease, world) for lease in history.leases)
    overlaps = tuple(_clashes(intervals))
    excused = bool(taken.clocks) or (bool(taken.memory) and excuse_memory)
    counted = (
        ()
        if excused
        else (
            *map(_overlap, overlaps),
            *_crowds(intervals, world),
            *_told(world),
            *history.uncovered,
        )
    )
    fences = oracle_fences.violations(world)
    waiting = queues.violations(world) if not taken.clocks else ()
    found = [
        *history.found,
        *counted,
        *fences,
        *waiting,
        *_late(world),
        *_silent(world),
        *_dead(world),
    ]
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
    """Return the assumptions about clocks and memory that the world broke."""
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
    """Yield the clock faults that can end a quarantine before all leases have ended.

    One client waits max_ttl * (1 + drift) on its clock; another trusts ttl * (1 - drift) on its
    own. A jump forward ends the wait early.
    """
    slowest = min(clock.paces()[0] for clock in clients)
    fastest = max(clock.paces()[1] for clock in clients)
    if fastest * (PPM - drift_ppm) > slowest * (PPM + drift_ppm):
        yield f"clocks drift beyond the bound: client {fastest} against client {slowest} ppm"
    forward = max(clock.steps()[1] for clock in clients)
    if forward > 0:
        yield f"a client's clock jumped forward by {forward / NS_PER_MS:.3f} ms"


def _clock_faults(clients: list[Clock], nodes: list[Clock], drift_ppm: int) -> Iterator[str]:
    """Yield the clock faults that can end keys on the nodes before their lease on its client.

    The client trusts ttl * (1 - drift) on its clock, the key lives ttl on the node's. So no node
    may be faster than 1 / (1 - drift) times any client.  No node's clock may jump forward (keys
    expire early), no client's back (leases last longer). Other jumps affect only liveness.
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


def interval(lease: LeaseRecord, world: World) -> Interval:
    """Return the time in which the holder may have trusted the lease, up to its local end."""
    until = _told_until(lease, world)
    if lease.ended is not None:
        until = min(until, lease.ended)
    return Interval(lease.since, until, lease)


def _told_until(lease: LeaseRecord, world: World) -> int:
    """Return the end of the longest validity that the holder was promised, in true time."""
    clock = world.processes[lease.client].clock
    return max(first_reading(clock, promise, since) for since, promise in lease.promises)


def first_reading(clock: Clock, reading: int, since: int) -> int:
    """Return the first true instant from `since` on at which the clock has this reading."""
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
        # From the start of the piece: counting from `begin` could round to a ns late.
        at = max(begin, piece.since - (-left * PPM // piece.pace))
        if end is None or at < end:
            return at
    return NEVER  # it stands still


def _clashes(intervals: tuple[Interval, ...]) -> Iterator[tuple[Interval, Interval]]:
    """Yield pairs of intervals that share a key, of which the second begins during the first."""
    # By key, and whether it is shared: readers clash with those that hold it alone.
    open_: dict[tuple[bytes, bool], Interval] = {}
    for one in sorted(intervals, key=lambda i: (i.since, i.until)):
        if one.until <= one.since:
            continue
        is_shared = type(one.lease.claim) is Shared
        for key in one.lease.claim.keys:
            against = (False,) if is_shared else (False, True)
            others = [open_[key, kind] for kind in against if (key, kind) in open_]
            yield from ((other, one) for other in others if one.since < other.until)
            last = open_.get((key, is_shared))
            if last is None or one.until > last.until:
                open_[key, is_shared] = one


def _crowds(intervals: tuple[Interval, ...], world: World) -> Iterator[Violation]:
    """Yield the instants at which more leases are valid than there are permits."""
    permits = len(world.resources)
    if not any(job.any_of for workload in world.plan.workloads for job in workload):
        return
    inside: list[Interval] = []
    for one in sorted(intervals, key=lambda i: (i.since, i.until)):
        if one.until <= one.since:
            continue
        inside = [other for other in inside if one.since < other.until]
        inside.append(one)
        if len(inside) > permits:
            tokens = [other.lease.token.decode() for other in inside]
            text = f"{len(inside)} leases are valid of {permits} permits: {', '.join(tokens)}"
            yield Violation("permits", text, one.since, {"tokens": tokens, "from": one.since})


def _told(world: World) -> Iterator[Violation]:
    """Yield grants within a promised validity, also after the holder's loss or death.

    A promise ends when its holder releases the lease or hands it over.
    """
    told: list[Interval] = []
    for lease in world.history.leases:
        until = _told_until(lease, world)
        if lease.given_up is not None:
            until = min(until, lease.given_up)
        told.append(Interval(lease.since, until, lease))
    for first, second in _clashes(tuple(told)):
        a, b = first.lease, second.lease
        if a.ended is not None and a.ended <= second.since:  # otherwise it is an overlap
            text = (
                f"{b.token.decode()} of c{b.client} was granted {a.resource} at"
                f" {second.since / NS_PER_MS:.3f} ms, but c{a.client} was promised that"
                f" {a.token.decode()} is valid until {first.until / NS_PER_MS:.3f} ms"
            )
            tokens = [a.token.decode(), b.token.decode()]
            facts = {"tokens": tokens, "from": second.since, "until": first.until}
            yield Violation("told", text, second.since, facts)


def _overlap(pair: tuple[Interval, Interval]) -> Violation:
    first, second = pair
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
    """Yield the renewed leases that expired without a report to their holder before that."""
    for lease in world.history.leases:
        process = world.processes[lease.client]
        if not lease.renewed or lease.why not in ("", "lost") or len(process.clock.pieces) > 1:
            continue
        since, promise = lease.promises[-1]
        end = first_reading(process.clock, promise, since)
        if lease.told is not None and lease.told < end:
            continue
        if end <= lease.since:
            continue  # its holder was paused before it read the grant
        # A process that was paused during the last moments could not report the loss.
        if process.dead or process.delayed(since, end):
            continue
        told = "never" if lease.told is None else f"only at {lease.told / NS_PER_MS:.3f} ms"
        text = f"{lease.token.decode()} ended at {end / NS_PER_MS:.3f} ms, reported {told}"
        yield Violation("silence", text, end, {"client": lease.client, "token": lease.token})


def _excuse(process: Process, call: CallRecord) -> int:
    """Return the duration of pauses during the call, on the client's clock."""
    assert call.ended is not None
    delayed = process.delayed(call.began, call.ended)
    return delayed * process.clock.paces()[1] // PPM + 1


def _lateness(call: CallRecord, how: str) -> Violation:
    text = f"{call.what} of c{call.client}, begun at {call.began / NS_PER_MS:.3f} ms, {how}"
    at = call.began if call.ended is None else call.ended
    return Violation("deadline", text, at, {"client": call.client, "call": call.number})


def _dead(world: World) -> Iterator[Violation]:
    contest = [call for call in world.history.calls if call.what == "contest"]
    if contest and not any(call.outcome == "granted" for call in contest):
        outcomes = ", ".join(f"c{call.client}: {call.outcome or 'no end'}" for call in contest)
        text = f"no fault lasted, {len(contest)} asked for a free lock, none got it ({outcomes})"
        yield Violation("liveness", text, contest[0].began, {})
