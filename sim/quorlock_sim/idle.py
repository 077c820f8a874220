"""The rule `idle` in worlds with faults: no process waits for long for a lock that it could have.

A process could have a lock if it runs, if it has connections to a quorum of nodes that serve it in
time, and if a quorum of these has no key that stands in the way.  `IdleWatch` measures how long
that lasts; `_longest` says how long it may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from quorlock._core import fence as fencing
from quorlock._core.places import is_reservation
from quorlock._core.tally import quorum
from quorlock._core.time import NS_PER_MS
from quorlock._protocol.encoding import COUNTER, MARKER
from quorlock_sim.clock import NEVER
from quorlock_sim.history import Violation
from quorlock_sim.plan import ANY
from quorlock_sim.server import is_mark

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorlock_sim.client import Process, SimFlow
    from quorlock_sim.network import Link
    from quorlock_sim.server import SimServer
    from quorlock_sim.world import World

# The longest time until the first of a queue looks; those behind it look less often, by the number
# of places before them, of which so many count.  A line waits for as long for a lease that a caller
# of its process had, and that ended without a release.
LOOK = 500 * NS_PER_MS
AHEAD_MAX = 4
# The longest patience of waiters that have split the nodes, and the rounds of two attempts.
PATIENCE = 200 * NS_PER_MS
ROUNDS = 6
# A process that is called, and does not answer: two node timeouts of the reservation, a round, and
# the pause until the next one looks.
ROUNDS_AWAY = 3
PAUSE_AWAY = 21 * NS_PER_MS
# The rounds of an attempt; the pause after it is at least as long.
ROUNDS_OF_ATTEMPT = 3

# The longest pause of a waiter for several resources, in which it is in no queue.
PAUSE_OF_SEVERAL = 1_000 * NS_PER_MS

# A message that takes no more than this part of a node timeout is in time: so is the reply to it.
MESSAGES = 2
LOOKS = 5  # of the watch in a node timeout, at most

# A client that waits, and the resource: several have names with "+" between them.
Wait: TypeAlias = "tuple[int, str]"


class Span:
    """A time in which a process could have had the lock.

    Attributes:
        since: its start.
        longest: how long it may last.
    """

    __slots__ = ("longest", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        self.longest = 0


class IdleWatch:
    """The watch over the waiting callers of one world.

    It looks before an event, but not for all of those that follow each other closely. What it finds
    has been so since the look before, except for keys that have expired in between.

    Attributes:
        waited: the time in which clients that queue have waited for a lock.
        judged: the part of it in which one of them reached a quorum of nodes.
        found: the violations.
    """

    def __init__(self, world: World) -> None:
        self.waited = 0
        self.judged = 0
        self.found: list[Violation] = []
        self._world = world
        self._needed = quorum(world.plan.settings.n)
        self._at = 0  # the look before
        self._next_look = 1
        jobs = [job for workload in world.plan.workloads for job in workload]
        self._is_fenced = any(job.fencing for job in jobs)
        self._spans: dict[Wait, Span] = {}
        self._reached: dict[int, list[int]] = {}  # by client, at this look

    def look(self) -> None:
        """Look at the world as it has been since the event before this one."""
        before, now = self._at, self._world.now
        if now < self._next_look:
            return
        self._at, self._next_look = now, now + self._world.policy.node_timeout // LOOKS
        waits = self._waits()
        self._reached.clear()
        for wait in [wait for wait in self._spans if wait not in waits]:
            self._end(wait, before)
        if not waits:
            return
        self.waited += now - before
        if any(len(self._reaches(client)) >= self._needed for client, _ in waits):
            self.judged += now - before
        free_from = {name: self._free_from(name) for name in {name for _, name in waits}}
        for wait, turns in waits.items():
            since = self._free_since(wait[0], free_from[wait[1]])
            if since > before:
                self._end(wait, before)
            if since < now:
                span = self._spans.setdefault(wait, Span(max(since, before)))
                span.longest = max(span.longest, self._longest(wait, turns))

    def on_granted(self, resource: str) -> None:
        """Record that the lock is granted: it was free until now."""
        for wait in [wait for wait in self._spans if _share(wait[1], resource)]:
            self._end(wait, self._world.now)

    def end(self) -> None:
        """End the watch with the world."""
        for wait in list(self._spans):
            self._end(wait, self._world.now)

    def _end(self, wait: Wait, at: int) -> None:
        span = self._spans.pop(wait, None)
        if span is None or at - span.since <= span.longest:
            return
        client, resource = wait
        text = (
            f"{resource} was free from {span.since / NS_PER_MS:.3f} ms to {at / NS_PER_MS:.3f} ms,"
            f" while c{client} waited, for more than {span.longest / NS_PER_MS:.3f} ms"
        )
        facts = {"from": span.since, "until": at, "client": client}
        self.found.append(Violation("idle", text, span.since, facts))

    def _waits(self) -> dict[Wait, list[SimFlow[Any]]]:
        """Return the acquires that are under way, without those that poll."""
        waits: dict[Wait, list[SimFlow[Any]]] = {}
        for process in self._world.processes:
            for turn in process.turns:
                call = turn.call
                polls = process.waiting.lines is None or call.resource == ANY
                if call.what == "acquire" and not polls:
                    waits.setdefault((process.index, call.resource), []).append(turn)
        return waits

    # --- the nodes that a process reaches ----------------------------------------------------

    def _reaches(self, client: int) -> list[int]:
        """Return the nodes that serve a process in time; none if it does not run."""
        found = self._reached.get(client)
        if found is None:
            found = self._reached[client] = self._find_reached(self._world.processes[client])
        return found

    def _find_reached(self, process: Process) -> list[int]:
        world = self._world
        network, timeout = world.network_profile, world.policy.node_timeout
        is_late = network.shortest + network.spread > timeout // MESSAGES
        if process.paused or process.dead or is_late:
            return []
        served = [server for server in world.servers if self._serves(server, process)]
        if self._is_fenced and served:
            newest = max(map(self._next_fence_ms, served))
            served = [s for s in served if newest <= s.at_ms() + fencing.ahead_ms(world.policy)]
        return [server.index for server in served]

    def _next_fence_ms(self, server: SimServer) -> int:
        """Return the largest fence that a node issues next, as the time that it stands for."""
        counters = [
            int(entry.value) // 1_000
            for key, entry in server.node.keys.items()
            if key.startswith(COUNTER) and entry.value
        ]
        return max([server.at_ms() + self._world.policy.fence_grid_ms, *counters])

    def _serves(self, server: SimServer, process: Process) -> bool:
        """Return whether a node votes for this process, queues and calls it, all in time."""
        if not server.is_well or process.cut_off[server.index] or self._is_new(server):
            return False
        late = self._world.now + self._world.policy.node_timeout // MESSAGES
        return all(_works(ways[server.index], process, late) for ways in process.links)

    def _is_new(self, server: SimServer) -> bool:
        """Return whether the marker of the restart guard keeps a node from voting."""
        policy = self._world.policy
        if policy.restart_guard != "marker":
            return False
        entry = server.node.keys.get(MARKER)
        if entry is None or entry.value is None:
            return True
        return server.at_ms() - int(entry.value.rpartition(b":")[2]) < policy.max_ttl_ms

    # --- keys that stand in the way ----------------------------------------------------------

    def _free_since(self, client: int, free_from: list[int]) -> int:
        """Return when enough nodes that a process reaches have become free; `NEVER` if not."""
        instants = sorted([free_from[node] for node in self._reaches(client)])
        return instants[self._needed - 1] if len(instants) >= self._needed else NEVER

    def _free_from(self, resource: str) -> list[int]:
        """Return the instant at which each node has no key in the way any more; 0: it has none."""
        keys = resource.encode().split(b"+")
        servers = self._world.servers
        return [max([self._freed_at(server, key) for key in keys]) for server in servers]

    def _freed_at(self, server: SimServer, key: bytes) -> int:
        entry = server.node.keys.get(key)
        if entry is None:
            return 0
        if entry.value is None:
            # Readers that have ended keep the key for as long as the last of them.
            standing = [
                end
                for end, token in entry.places
                if is_reservation(token) or self._stands(server, token)
            ]
            until = server.wall.when((int(max(standing)) + 1) * NS_PER_MS) if standing else 0
            return NEVER if until is None else until
        if is_reservation(entry.value):
            # It lasts for longer only if the clock was set back since.
            stands = server.wall.steps()[0] < 0 and not _is_short(server, entry.value, entry.until)
        else:
            stands = self._stands(server, entry.value)
        if not stands:
            return 0
        until = None if entry.until is None else server.wall.when((entry.until + 1) * NS_PER_MS)
        return NEVER if until is None else until

    def _stands(self, server: SimServer, token: bytes) -> bool:
        """Return whether a key stands in the way: no process that runs is about to release it.

        The key of an attempt does not: it is released, or a lease begins.
        """
        world, copy = self._world, (token, server.index)
        if (
            is_mark(token)
            or token in world.foreign
            or copy in world.unowed
            or copy in world.set_late
        ):
            return True
        lease = world.leases.get(token)
        if lease is not None and (lease.ended is None or lease.why != "released"):
            return True
        owner = int(token[1 : token.index(b".")]) if lease is None else lease.client
        is_served = server.index in self._reaches(owner)
        pending_releases = world.processes[owner].nodes[server.index].pending_releases
        return not is_served or token in pending_releases

    # --- the bound ---------------------------------------------------------------------------

    def _longest(self, wait: Wait, turns: Iterable[SimFlow[Any]]) -> int:
        """Return how long a process may wait for a lock that it could have."""
        world, (client, resource) = self._world, wait
        timeout = world.policy.node_timeout
        ahead = world.queues.ahead(world.processes[client], resource)
        longest = LOOK * (1 + min(ahead, AHEAD_MAX)) + PATIENCE + ROUNDS * timeout
        longest += self._away(wait) * (ROUNDS_AWAY * timeout + PAUSE_AWAY)
        if any(turn.is_between_attempts for turn in turns):
            shortest, usual = world.policy.retry_delay
            longest += max(usual, 2 * max(shortest, ROUNDS_OF_ATTEMPT * timeout))
            longest += PAUSE_OF_SEVERAL * ("+" in resource)
        return longest

    def _away(self, wait: Wait) -> int:
        """Return how many other processes may be called first, and do not answer."""
        client, resource = wait
        queued = self._world.queues.clients.items()
        others: set[int] = set()
        for name, clients in queued:
            if _share(name, resource):
                others |= clients
        return sum([len(self._reaches(other)) < self._needed for other in others - {client}])


def _share(one: str, other: str) -> bool:
    """Return whether two sets of resources have one in common."""
    return one == other or not set(one.split("+")).isdisjoint(other.split("+"))


def _works(link: Link | None, process: Process, late: int) -> bool:
    """Return whether requests and replies on a connection come in time, and the node may vote."""
    return (
        link is not None
        and not (link.swallows_requests or link.swallows_replies)
        and link.epoch == link.server.epoch
        and max(link.requests_until, link.replies_until) <= late
        and (link.quarantine is None or link.quarantine.until <= process.now())
    )


def _is_short(server: SimServer, reservation: bytes, until: int | None) -> bool:
    """Return whether a reservation lasts no longer than its place says."""
    return until is not None and until <= server.at_ms() + int(reservation.rpartition(b":")[2])
