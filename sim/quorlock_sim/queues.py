"""The judge of waiting: a free lock is soon granted, in order, and nothing of the gone is left.

Exclusion is judged as ever (`oracle`): queues, calls and reservations are hints.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorlock._core.claims import Shared
from quorlock._core.commands import Release, ScriptedAcquire, Share
from quorlock._core.line import EXCHANGES_MAX
from quorlock._core.places import QUEUE, RESERVED, enlisted_place, is_reservation, is_shared_place
from quorlock._core.tally import quorum
from quorlock._core.time import NS_PER_MS
from quorlock_sim.clock import PPM
from quorlock_sim.history import Violation
from quorlock_sim.idle import ROUNDS
from quorlock_sim.server import NO_SCRIPT, tokens_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock._core.commands import Command
    from quorlock_sim.client import Process
    from quorlock_sim.history import CallRecord, LeaseRecord
    from quorlock_sim.network import Message
    from quorlock_sim.plan import Plan
    from quorlock_sim.server import SimServer
    from quorlock_sim.world import World

# A lock may be free for so long while a caller waits, if there are no faults and all leases are
# released in time: the longest patience of waiters who have split the calls, and a few rounds.
# `idle` has the bound for other worlds.
_IDLE_CALM = 150 * NS_PER_MS
# One turn of a process's line, and the exchange that learns that others wait.
_TURN_MAX = EXCHANGES_MAX + 1


@dataclass(slots=True)
class PlaceRecord:
    """A place in the queues.

    Attributes:
        attempts: how often its caller has asked for the lock; a node removes its place then.
        numbers: its number in the queue of each node that has queued it.
        queued_at: the instant at which a quorum of them had given it its present number, which no
            other one exceeded; None: never.
        is_shared: it is the place of a reader.
    """

    process: Process
    call: CallRecord
    attempts: int = 0
    numbers: dict[int, int] = field(default_factory=dict[int, int])
    queued_at: int | None = None
    is_shared: bool = False
    _settled: int = 0
    _before: dict[int, int] = field(default_factory=dict[int, int])

    def ahead(self, needed: int) -> int:
        """Return how many places were before it on a quorum of nodes; 0 before a quorum replied."""
        known = sorted(self._before.values())
        return known[needed - 1] if len(known) >= needed else 0

    def on_queued(self, node: int, number: int, needed: int, at: int, before: int = 0) -> None:
        """Record its number on a node; it is in its final place when a quorum agrees.

        before: how many places are before it there.
        """
        self.numbers[node], self._before[node] = number, before
        largest = max(self.numbers.values())
        agreed = sum(other == largest for other in self.numbers.values())
        if agreed >= needed and largest != self._settled:
            self._settled, self.queued_at = largest, at


class Queues:
    """The record of a world's queues."""

    def __init__(self, world: World) -> None:
        self.places: dict[bytes, PlaceRecord] = {}
        # By resource: the clients that have had a place.
        self.clients: defaultdict[str, set[int]] = defaultdict(set)
        self.exchanged: set[bytes] = set()  # tokens that replaced another one
        self.handed_on: set[bytes] = set()  # tokens that were to be replaced
        # The end of each, by node, lock and place, as last seen.
        self._reserved: dict[tuple[int, bytes, bytes], int | None] = {}
        # Places that a duplicate queued, or that no attempt removed: the script was forgotten.
        self._unowed: set[tuple[bytes, int]] = set()
        self._world = world

    def enlisted(self, process: Process, place: bytes, call: CallRecord) -> None:
        """Record that a flow has got a place."""
        self.places[place] = PlaceRecord(process, call)
        self.clients[call.resource].add(process.index)

    def ahead(self, process: Process, resource: str) -> int:
        """Return how many places were before that of a process when it looked last."""
        needed = quorum(self._world.policy.n)
        records = [self.places[place] for place in process.waiting.places]
        own = [record.ahead(needed) for record in records if record.call.resource == resource]
        return max(own, default=0)

    def asks(self, command: Command) -> None:
        """Record a round that begins."""
        if isinstance(command, ScriptedAcquire) and command.instead:
            self.exchanged.add(command.token)
            self.handed_on.add(command.instead)
        if isinstance(command, (ScriptedAcquire, Share)):
            record = self.places.get(enlisted_place(command.place))
            if record is not None:
                record.attempts += 1

    def executed(self, server: SimServer, message: Message) -> None:
        """Record that a node has queued a place."""
        command, reply = message.command, message.reply
        if isinstance(command, (ScriptedAcquire, Share)) and command.place and reply is NO_SCRIPT:
            self._unowed.add((command.place, server.index))
        if not isinstance(command, Release):
            return
        for key in command.keys:
            self._check_reserved(server, key)
        if not isinstance(reply, list) or not command.place:
            return
        if message.copy and command.ticket >= 0:
            self._unowed.add((command.place, server.index))
        record, (number, ahead) = self.places.get(enlisted_place(command.place)), reply[2:4]
        if record is not None:
            record.is_shared = is_shared_place(command.place)
        if record is not None and isinstance(number, int) and isinstance(ahead, int) and number:
            needed = quorum(self._world.policy.n)
            record.on_queued(server.index, number, needed, self._world.now, max(0, ahead))

    def _check_reserved(self, server: SimServer, key: bytes) -> None:
        """Check that a lock that was just passed on is reserved for a place with a listener."""
        entry = server.node.keys.get(key)
        for value, until in tokens_at(entry).items() if entry is not None else ():
            if is_reservation(value):
                self._check_one(server, key, value.removeprefix(RESERVED), until)

    def _check_one(self, server: SimServer, key: bytes, place: bytes, until: int | None) -> None:
        if place in places_on(server, key):
            text = f"n{server.index} has called {place.decode()}, and queues it"
            self._world.violated("orphan", text, node=server.index)
        if self._reserved.get((server.index, key, place)) == until:
            return  # by an earlier command
        self._reserved[server.index, key, place] = until
        record = self.places.get(enlisted_place(place))
        if record is not None and record.process.dead and not server.hears(place):
            text = f"n{server.index} reserves {key.decode()} for {place.decode()}, which is dead"
            self._world.violated("orphan", text, node=server.index)

    def heard(self, process: Process, server: SimServer, place: bytes) -> None:
        """Check that a client answers the call that it has just read, if the place is gone."""
        place = enlisted_place(place)
        is_gone = place in self.places and not process.waiting.is_open(place)
        if is_gone and not is_leaving(process, server, place):
            text = f"c{process.index} does not answer a call for {place.decode()}, which is gone"
            self._world.violated("orphan", text, client=process.index, node=server.index)

    # --- what is left ------------------------------------------------------------------------

    def look_for_orphans(self) -> None:
        """Check that no place and no reservation of a caller that is gone is left on a node."""
        world = self._world
        for server in world.servers:
            for key, entry in list(server.node.keys.items()):
                for value, until in tokens_at(entry).items():
                    if value.startswith(RESERVED) and self._is_orphan(server, value, until):
                        name = f"{key.decode()} for too long: {value.decode()}"
                        text = f"n{server.index} reserves {name}"
                        world.violated("orphan", text, node=server.index)
            for resource in world.resources:
                for place in places_on(server, resource.encode()):
                    self._look_at(server, place)

    def _is_orphan(self, server: SimServer, value: bytes, until: int | None) -> bool:
        if until is None:
            return True
        lasts_ms = int(enlisted_place(value).rpartition(b":")[2])
        # A key lasts for longer if the clock was set back.
        return until > server.at_ms() + lasts_ms and server.wall.steps()[0] == 0

    def _look_at(self, server: SimServer, place: bytes) -> None:
        record = self.places.get(enlisted_place(place))
        # A place that a lost connection or a restart leaves is forgotten when it is called.
        if (
            record is None
            or record.process.dead
            or record.process.waiting.is_open(enlisted_place(place))
        ):
            return
        faults = self._world.plan.faults
        if any(fault.kind == "read_only" and fault.node == server.index for fault in faults):
            return  # it took no place out then
        if record.process.has_lost[server.index] or (place, server.index) in self._unowed:
            return
        if is_leaving(record.process, server, place):
            return
        text = f"the place {place.decode()} is left on n{server.index}, and its caller is gone"
        self._world.violated("orphan", text, client=record.process.index, node=server.index)


def is_leaving(process: Process, server: SimServer, place: bytes) -> bool:
    """Return whether a release with this place is in flight."""
    links = [ways[server.index] for ways in process.links]
    return any(
        isinstance(request.command, Release)
        and enlisted_place(request.command.place) == enlisted_place(place)
        for link in links
        if link is not None
        for request in link.pipeline.pending
    )


def places_on(server: SimServer, key: bytes) -> list[bytes]:
    """Return the places in a node's queue, in any order."""
    entry = server.node.alive(QUEUE + key, server.at_ms())
    return [] if entry is None else [place for _, place in entry.places]


# --- idle time -------------------------------------------------------------------------------


def violations(world: World) -> Iterator[Violation]:
    """Yield the violations of the promises about waiting."""
    plan = world.plan
    yield from world.idle_watch.found
    silent = {*plan.deaf, *(node for node, _ in plan.denied)}
    if len(silent) > world.policy.n - quorum(world.policy.n) or not is_calm(plan):
        return  # the callers poll, or there are faults
    if not plan.pollers:
        if not any(job.also for jobs in plan.workloads for job in jobs):
            # Else a caller that waits for several at once may let a free one idle.
            yield from _idle_without_faults(world)
        if not silent:
            yield from _passes(world)


def is_calm(plan: Plan) -> bool:
    """Return whether there is no fault, and every reply comes in time."""
    network, timeout = plan.network_profile, plan.settings.node_timeout
    is_swift = not network.tail and network.shortest + network.spread <= timeout // 3
    return is_swift and not plan.faults and plan.aim is None


def _may_refuse_fences(plan: Plan) -> bool:
    """Return whether fences are wanted, and the nodes' clocks may be too far apart for them."""
    is_fenced = any(job.fencing for workload in plan.workloads for job in workload)
    apart = max(plan.node_offsets) - min(plan.node_offsets)
    return is_fenced and apart > plan.settings.max_ttl_ms * NS_PER_MS // 4


def _idle_without_faults(world: World) -> Iterator[Violation]:
    if _may_refuse_fences(world.plan):
        return
    longest = world.idle_max or _IDLE_CALM + ROUNDS * world.policy.node_timeout
    for resource in world.resources:
        if _unreleased(world, resource, 0, world.now):
            continue
        for since, until in idle(world, resource):
            if until - since > longest:
                text = (
                    f"{resource} was free from {since / NS_PER_MS:.3f} ms to"
                    f" {until / NS_PER_MS:.3f} ms, while a caller waited"
                )
                yield Violation("idle", text, since, {"from": since, "until": until})


def idle(world: World, resource: str) -> Iterator[tuple[int, int]]:
    """Yield the intervals in which a caller waits, and no lease explains it."""
    busy = sorted(
        (lease.since, _key_until(lease, world))
        for lease in world.history.leases
        if lease.resource == resource
    )
    waits = sorted(
        (call.began, world.now if call.ended is None else call.ended)
        for call in world.history.calls
        if call.resource == resource and _waits(call, world)
    )
    for begin, end in _merged(waits):
        at = begin
        for since, until in busy:
            if at < min(since, end):
                yield at, min(since, end)
            at = max(at, until)
        if at < end:
            yield at, end


def _waits(call: CallRecord, world: World) -> bool:
    is_poller = call.client in world.plan.pollers
    return call.what == "acquire" and not is_poller and call.outcome not in ("", "crashed")


def _merged(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    begin = end = 0
    for since, until in spans:
        if since > end:
            if begin < end:
                yield begin, end
            begin, end = since, until
        else:
            begin, end = (since, until) if begin == end else (begin, max(end, until))
    if begin < end:
        yield begin, end


def _key_until(lease: LeaseRecord, world: World) -> int:
    """Return the last instant at which keys of a lease may stand in the way."""
    lasts = lease.ttl_ms * NS_PER_MS
    last = max(at for at, _ in lease.promises)
    slowest = min(server.wall.paces()[0] for server in world.servers)
    # The keys were set, or extended, until the promise was counted.
    until = last + lasts * PPM // max(1, slowest) + world.policy.node_timeout + NS_PER_MS
    if lease.ended is not None and lease.why == "released":
        return min(lease.ended, until)
    # A mark may be on a majority, also if its client has crashed or read no reply.
    return until + world.policy.max_ttl * (lease.why == "kept")


# --- order -----------------------------------------------------------------------------------


def _passes(world: World) -> Iterator[Violation]:
    """Yield the waiters that later arrivals passed, in a world without faults."""
    places = world.queues.places.values()
    queued = {p.call.number: p for p in places if p.queued_at is not None}
    calls = [call for call in world.history.calls if call.what in ("acquire", "try_acquire")]
    granted = [call for call in calls if call.outcome == "granted" and call.ended is not None]
    handed_on, readers = _handed_on(world), _readers(world)
    for call in calls:
        place = queued.get(call.number)
        if place is None or place.queued_at is None or call.ended is None:
            continue
        since = place.queued_at
        meanwhile = [
            other
            for other in granted
            if other.resource == call.resource
            and since < (other.ended or 0) < call.ended
            # Readers that wait are granted together, in any order.
            and not (place.is_shared and other.number in readers)
        ]
        ahead = [other for other in meanwhile if other.number not in handed_on]
        passed = sum(other.began > since for other in ahead)
        lost = place.attempts - (call.outcome == "granted" and place.attempts > 0)
        allowed = _unreleased(world, call.resource, since, call.ended) + lost
        if passed > allowed:
            text = (
                f"{passed} later callers passed c{call.client}, which had queued for"
                f" {call.resource} at {since / NS_PER_MS:.3f} ms"
            )
            yield Violation("passes", text, since, {"client": call.client})
        for client in {other.client for other in meanwhile} - {call.client}:
            turns = sum(o.client == client and o.number in handed_on for o in meanwhile)
            if turns > 2 * _TURN_MAX:
                text = (
                    f"c{client} had {call.resource} {turns} times in a row by handing it on,"
                    f" while c{call.client} was queued"
                )
                yield Violation("passes", text, since, {"client": client})


def _handed_on(world: World) -> set[int]:
    """Return the numbers of the calls whose lease replaced another one."""
    by_token = world.queues.exchanged
    since = {(x.client, x.resource, x.since) for x in world.history.leases if x.token in by_token}
    return {c.number for c in world.history.calls if (c.client, c.resource, c.ended) in since}


def _readers(world: World) -> set[int]:
    """Return the numbers of the calls that were granted a lease which shares its lock."""
    shared = [lease for lease in world.history.leases if type(lease.claim) is Shared]
    since = {(lease.client, lease.resource, lease.since) for lease in shared}
    return {c.number for c in world.history.calls if (c.client, c.resource, c.ended) in since}


def _unreleased(world: World, resource: str, since: int, until: int) -> int:
    """Return the number of leases that ended without a release in that time."""
    return sum(
        lease.resource == resource
        and not _is_released_in_time(lease, world)
        and lease.since < until
        and _key_until(lease, world) > since
        for lease in world.history.leases
    )


def _is_released_in_time(lease: LeaseRecord, world: World) -> bool:
    """Return whether a release came to the nodes before the keys had expired there."""
    until = world.processes[lease.client].clock.when(lease.promises[-1][1]) or 0
    ended = lease.ended
    return (
        lease.why == "released" and ended is not None and ended + world.policy.node_timeout < until
    )
