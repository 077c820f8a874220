"""A small world without random events: the caller chooses the next event.

The shipped flows run as in `world`, but messages, time, crashes and breaks wait until the caller
chooses one of them.  Messages keep their order on each connection and have none between
connections. Time only advances by a choice, so every message may be early or late.  `directed` has
the sequences of choices.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from quorlock._core.time import NS_PER_MS, NS_PER_S
from quorlock_sim.clock import PPM
from quorlock_sim.network import Link, NetworkProfile
from quorlock_sim.oracle import first_reading, judge
from quorlock_sim.plan import Job, Plan, Settings
from quorlock_sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorlock._core.results import Acquired
    from quorlock_sim.client import Process, SimFlow
    from quorlock_sim.history import LeaseRecord
    from quorlock_sim.network import Message
    from quorlock_sim.oracle import Judgement
    from quorlock_sim.server import SimServer
    from quorlock_sim.trace import Trace

NODE_TIMEOUT = 10 * NS_PER_MS
TTL_MS = 200
# Two rounds and a margin: the second attempt starts when the first must be over.
_TWO_ATTEMPTS = 2 * NODE_TIMEOUT + NS_PER_MS
# The final steps of a world are few; with this many, it never ends.
_STEPS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class SmallWorld:
    """The bounds of a small world.

    Attributes:
        nodes: the number of nodes.
        clients: the number of clients.
        attempts: 1: one attempt; 2: a second one after a while (`acquire` with a timeout).
        connection_sets: connections of each client to each node; its calls alternate between them.
        jumps: the number of advances of time to the next instant at which something is due: a
            deadline, the end of a lease, of a key, of a quarantine.
        slips: the number of advances by half of that.
        crashes: the number of crashes and restarts of nodes.
        breaks: the number of connections that break; requests in flight arrive late or never.
        pauses: the number of pauses of clients, each as long as is chosen.
        memory: the keys after a restart: "kept"; "quarantine": none, after max_ttl; "lost": none,
            at any time.
        extension_ms: the ttl of one extension of each lease; 0: no extension.
        timeout_ms: how long a client waits for the lock; 0: time for the attempts.
        idle_ms: how long the lock may be free while a client waits; 0: as in any world.
    """

    nodes: int = 3
    clients: int = 2
    attempts: int = 1
    connection_sets: int = 1
    jumps: int = 4
    slips: int = 0
    crashes: int = 0
    breaks: int = 0
    pauses: int = 0
    memory: str = "kept"
    extension_ms: int = 0
    timeout_ms: int = 0
    idle_ms: int = 0

    def plan(self) -> Plan:
        """Return the plan of the world, with clients' clocks exactly at the drift bound."""
        job = Job(
            after=1,
            resource=0,
            ttl_ms=TTL_MS,
            once=self.attempts == 1,
            timeout=self.timeout_ms * NS_PER_MS or _TWO_ATTEMPTS,
            hold=2 if self.extension_ms else 1,
            extensions=((1, self.extension_ms),) if self.extension_ms else (),
        )
        return Plan(
            seed=0,
            scenario="directed",
            settings=Settings(
                n=self.nodes,
                max_ttl_ms=TTL_MS,
                node_timeout=NODE_TIMEOUT,
                retry_delay=(NS_PER_S, NS_PER_S),  # cut short by the timeout: the same every time
                outage_timeout=NS_PER_S,
                restart_guard=None,  # `memory` says how long a node that forgets stays down
            ),
            network_profile=_Still(0, 0, 0, 0),
            workloads=((job,),) * self.clients,
            connection_sets=(self.connection_sets,) * self.clients,
            client_paces=(990_000,) * self.clients,
            node_paces=(PPM,) * self.nodes,
            client_offsets=(NS_PER_S,) * self.clients,
            # Each key ends shortly after its ttl: the millisecond that it ends in has just begun.
            node_offsets=(NS_PER_MS - 1,) * self.nodes,
        )


class _Still(NetworkProfile):
    """A network without delays: messages arrive when the caller chooses."""

    def delay(self, dice: Random) -> int:
        del dice
        return 0


class _ByTurns(Random):
    """A generator that alternates between two values, so that calls alternate connections."""

    def __init__(self) -> None:
        super().__init__(0)
        self.upper = True

    def random(self) -> float:
        self.upper = not self.upper
        return 0.5 if self.upper else 0.0


class Choice(NamedTuple):
    """One possible next event; fields that do not apply are -1.

    Attributes:
        kind: a name in `KINDS`.
        life: the number of the connection among those of its client, node and connection set.
    """

    kind: str
    client: int = -1
    node: int = -1
    connection_set: int = -1
    life: int = -1

    def __str__(self) -> str:
        places = [f"c{self.client}"] * (self.client >= 0) + [f"n{self.node}"] * (self.node >= 0)
        way = (
            f" ({self.connection_set}.{self.life})"
            if self.connection_set > 0 or self.life > 0
            else ""
        )
        return " ".join((self.kind, *places)) + way


# The meaning of each kind of choice.
KINDS = {
    "begin": "a client calls for the lock",
    "go": "a holder continues: it extends, or releases",
    "request": "the oldest request on a connection reaches its node",
    "reply": "the oldest reply on a connection, or its end, reaches the client",
    "connect": "a client reconnects",
    "crash": "a node crashes",
    "restart": "a node that crashed restarts",
    "break": "a connection breaks",
    "pause": "a client is paused",
    "resume": "a paused client continues",
    "time": "time advances until something is due",
    "slip": "time advances by half of that",
}


class Way:
    """One connection with its undelivered messages; None in `replies` is its end."""

    __slots__ = ("at", "broke_at", "link", "replies", "requests")

    def __init__(self, link: Link, at: tuple[int, int, int, int]) -> None:
        self.link = link
        self.at = at  # client, node, connection set, life
        self.requests: deque[Message] = deque()
        self.replies: deque[Message | None] = deque()
        self.broke_at: int | None = None


class Timer(NamedTuple):
    """A timer; those of one instant are ordered by client, then by creation."""

    at: int
    client: int
    serial: int
    act: Callable[[Any], None]
    what: Any


class ChosenWorld(World):
    """A world that is driven by choices.

    The caller gets `choices`, `perform`s one of them, and so on until there are none; then it
    calls `conclude`.
    """

    def __init__(self, small: SmallWorld, trace: Trace | None = None) -> None:
        self.small = small
        self.ways: dict[Link, Way] = {}
        self.lives: dict[tuple[int, int, int], int] = {}
        self.timers: list[Timer] = []
        self.resting: dict[int, Callable[[Any], None]] = {}
        self.away: dict[tuple[int, int, int], None] = {}
        self.down_since: dict[int, int] = {}
        self.begun = 0
        self.jumps, self.slips = small.jumps, small.slips
        self.crashes, self.breaks, self.pauses = small.crashes, small.breaks, small.pauses
        super().__init__(small.plan(), trace)
        self.idle_max = small.idle_ms * NS_PER_MS or None
        self._begin()

    def _process(self, index: int) -> Process:
        process = super()._process(index)
        process.rng = process.entropy.rng = _ByTurns()
        return process

    def _begin(self) -> None:
        if self.trace is not None:
            self.trace.begin(self)
        for process in self.processes:
            for connection_set in range(len(process.links)):
                for index in range(self.policy.n):
                    process.connect(connection_set, index)
        for worker in self.workers:
            worker.begin()

    # --- events that wait for a choice -------------------------------------------------------

    def link(self, process: Process, connection_set: int, index: int) -> Link:
        """Return a new connection, without messages."""
        link = super().link(process, connection_set, index)
        place = (process.index, index, connection_set)
        life = self.lives.get(place, 0)
        self.lives[place] = life + 1
        self.ways[link] = Way(link, (*place, life))
        return link

    def schedule(self, instant: int, act: Callable[[Any], None], what: Any) -> None:
        """Messages and pauses of any length wait to be chosen; deadlines wait for their time."""
        name = act.__qualname__
        if name == "SimServer.arrive":
            self._under_way(what)
        elif name == "Link._arrived":
            self.ways[what.link].replies.append(what)
        elif name == "Process._act" and self._waits(*what):
            pass
        elif name == "SimServer.on_closed":
            act(what)
        else:
            self._serial += 1
            client = act.__self__.index  # type: ignore[attr-defined]
            self.timers.append(Timer(instant, client, self._serial, act, what))

    def _under_way(self, message: Message) -> None:
        link = message.link
        if link.epoch == link.server.epoch:
            self.ways[link].requests.append(message)
        else:
            self.loses(message, "request")  # its node is dead; the client does not know that yet

    def _waits(self, act: Callable[[Any], None], what: Any) -> bool:
        if act.__qualname__ == "SimWorker._go_on":
            self.resting[act.__self__.process.index] = act  # type: ignore[attr-defined]
            return True
        if act.__qualname__ == "Process._try":
            connection_set, index = what
            self.away[act.__self__.index, index, connection_set] = None  # type: ignore[attr-defined]
            return True
        return False

    # --- choices -----------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        """Return all possible next events, always in the same order."""
        return [
            *(*self._of_ways(), *self._of_nodes(), *self._of_work(), *self._of_clients()),
            *self._of_time(),
        ]

    def _of_work(self) -> Iterator[Choice]:
        for client in sorted(self.resting, reverse=True):
            # Clients are interchangeable, so they begin in order.
            if client <= self.begun and not self.processes[client].paused:
                holds = self.workers[client].lease is not None
                yield Choice("go" if holds else "begin", client)

    def _of_clients(self) -> Iterator[Choice]:
        for process in self.processes:
            if process.paused:
                yield Choice("resume", process.index)
            elif self.pauses:
                yield Choice("pause", process.index)

    def _of_ways(self) -> Iterator[Choice]:
        for way in sorted(self.ways.values(), key=lambda way: way.at):
            if way.replies:
                yield Choice("reply", *way.at)
            if way.requests and self._still_comes(way):
                yield Choice("request", *way.at)
            if self.breaks and not way.link.lost and not self.processes[way.at[0]].paused:
                yield Choice("break", *way.at)
        for client, node, connection_set in sorted(self.away):
            if self.servers[node].up and not self.processes[client].paused:
                yield Choice("connect", client, node, connection_set)

    def _still_comes(self, way: Way) -> bool:
        """Return whether requests of a broken connection may still arrive (within max_ttl)."""
        return way.broke_at is None or self.now < way.broke_at + self.policy.max_ttl

    def _of_nodes(self) -> Iterator[Choice]:
        for server in self.servers:
            if server.up and self.crashes:
                yield Choice("crash", node=server.index)
            elif not server.up and self.now >= self._back_from(server):
                yield Choice("restart", node=server.index)

    def _back_from(self, server: SimServer) -> int:
        since = self.down_since[server.index]
        # The millisecond in which the last key ends must be over, too.
        return since + self.policy.max_ttl + NS_PER_MS if self.small.memory == "quarantine" else 0

    def _of_time(self) -> Iterator[Choice]:
        due = self.next_due() if self.jumps or self.slips else None
        if due is not None and self.jumps:
            yield Choice("time")
        if due is not None and self.slips and due - self.now > 1:
            yield Choice("slip")

    def next_due(self) -> int | None:
        """Return the next instant at which something is due."""
        instants = [self._back_from(server) for server in self.servers if not server.up]
        instants += self._deadlines()
        instants += self._ends_of_keys()
        instants += self._ends_of_leases()
        return min((instant for instant in instants if instant > self.now), default=None)

    def _deadlines(self) -> Iterator[int]:
        return (timer.at for timer in self.live_timers())

    def live_timers(self) -> list[Timer]:
        """Return the timers that are still awaited."""
        self.timers = [timer for timer in self.timers if not _is_stale(timer)]
        return self.timers

    def _ends_of_keys(self) -> Iterator[int]:
        for server in self.servers:
            for entry in server.node.keys.values():
                if entry.until is not None:
                    at = server.wall.when((entry.until + 1) * NS_PER_MS)
                    if at is not None:
                        yield at

    def _ends_of_leases(self) -> Iterator[int]:
        return (self.end_of(lease) for lease in self.history.leases if lease.ended is None)

    def end_of(self, lease: LeaseRecord) -> int:
        """Return the true instant at which the lease ends by its holder's clock."""
        clock = self.processes[lease.client].clock
        return first_reading(clock, lease.promises[-1][1], lease.since)

    # --- performing a choice -----------------------------------------------------------------

    def perform(self, choice: Choice) -> None:
        """Perform a choice, and all that follows from it without another choice."""
        _DEEDS[choice.kind](self, choice)
        self._settle()

    def _way(self, choice: Choice) -> Way:
        return next(way for way in self.ways.values() if way.at == choice[1:])

    def _go(self, choice: Choice) -> None:
        self.begun = max(self.begun, choice.client + 1)
        self.resting.pop(choice.client)(None)

    def _request(self, choice: Choice) -> None:
        way = self._way(choice)
        way.link.server.arrive(way.requests.popleft())
        self._forget(way)

    def _reply(self, choice: Choice) -> None:
        self._deliver(self._way(choice))

    def _deliver(self, way: Way) -> None:
        message = way.replies.popleft()
        if message is None:
            self._hang_up(way)
        else:
            way.link.process.hears(way.link, message)

    def _hang_up(self, way: Way) -> None:
        process = way.link.process
        if process.paused:
            process.later(0, self._hang_up, way)
            return
        way.broke_at = self.now
        process.loses(way.link)
        way.replies.clear()
        self._forget(way)

    def _forget(self, way: Way) -> None:
        if way.link.lost and not way.requests:
            del self.ways[way.link]

    def _connect(self, choice: Choice) -> None:
        client, node, connection_set = choice[1:4]
        del self.away[client, node, connection_set]
        self.processes[client].connect(connection_set, node)

    def _break(self, choice: Choice) -> None:
        self.breaks -= 1
        self.tell("break", client=choice.client, node=choice.node, late_by=0)
        self._hang_up(self._way(choice))

    def _crash(self, choice: Choice) -> None:
        self.crashes -= 1
        server = self.servers[choice.node]
        self.down_since[choice.node] = self.now
        server.crash("kept" if self.small.memory == "kept" else "lost")
        self.tell("crash", node=choice.node, memory=server.memory, lasts=self.policy.max_ttl)
        for way in [way for way in self.ways.values() if way.at[1] == choice.node]:
            for message in way.requests:
                self.loses(message, "request")
            way.requests.clear()
            if not way.link.lost:
                way.replies.append(None)
            self._forget(way)

    def _restart(self, choice: Choice) -> None:
        server = self.servers[choice.node]
        del self.down_since[choice.node]
        before = dict(server.node.keys)
        server.restart(server.memory)
        self.tell("restart", node=server.index, memory=server.memory)
        self.forgot(server, before, f"restart ({server.memory})")

    def _pause(self, choice: Choice) -> None:
        self.pauses -= 1
        self.processes[choice.client].stop()
        self.tell("pause", client=choice.client, lasts=0)

    def _resume(self, choice: Choice) -> None:
        self.tell("resume", client=choice.client)
        self.processes[choice.client].go_on()

    def _time(self, _: Choice) -> None:
        self.jumps -= 1
        self._pass(self.next_due())

    def _slip(self, _: Choice) -> None:
        self.slips -= 1
        due = self.next_due()
        assert due is not None
        self._pass(self.now + (due - self.now) // 2)

    def _pass(self, until: int | None) -> None:
        assert until is not None
        # Timers that are due before `until` fire at their instants.
        while (due := min(self._deadlines(), default=until)) < until:
            self.now = max(self.now, due)
            self._settle()
        self.now = until
        for way in list(self.ways.values()):
            if not self._still_comes(way):
                self._never(way)

    def _never(self, way: Way) -> None:
        for message in way.requests:
            self.loses(message, "request")
        way.requests.clear()
        self._forget(way)

    # --- consequences without a choice -------------------------------------------------------

    def _settle(self) -> None:
        while self._ring():
            pass

    def _ring(self) -> bool:
        due = [timer for timer in self.timers if timer.at <= self.now]
        if not due:
            return False
        first = min(due)
        self.timers.remove(first)
        first.act(first.what)
        return True

    # --- promises ----------------------------------------------------------------------------

    def lease(self, process: Process, granted: Acquired, resource: str) -> LeaseRecord:
        """Record a won lock; no other client may hold it at this instant."""
        lease = super().lease(process, granted, resource)
        for other in self.history.leases[:-1]:
            if other.ended is None and self.now < self.end_of(other):
                self._overlap(other, lease)
        return lease

    def _overlap(self, other: LeaseRecord, lease: LeaseRecord) -> None:
        text = (
            f"c{lease.client} is granted {lease.token.decode()} while c{other.client} holds"
            f" {other.token.decode()}"
        )
        tokens = [other.token.decode(), lease.token.decode()]
        self.violated("overlap", text, tokens=tokens)

    def conclude(self) -> Judgement:
        """Run the world to its end without further faults, and judge it."""
        self.crashes = self.breaks = self.pauses = self.jumps = self.slips = 0
        for way in list(self.ways.values()):
            if way.broke_at is not None:
                self._never(way)
        for _ in range(_STEPS_MAX):
            if not self._next_step():
                break
        else:
            self.violated("endless", "without further faults the world does not end")
        self._look_for_leftovers(None)
        # A node that forgets is no excuse here: it stays down for the quarantine.
        return judge(self, excuse_memory=False)

    def _next_step(self) -> bool:
        choices = self.choices()
        if choices:
            self.perform(choices[0])
            return True
        waits = [timer.at for timer in self.live_timers()]
        waits += [self._back_from(server) for server in self.servers if not server.up]
        if not waits:
            return False
        self._pass(max(self.now, min(waits)))
        self._settle()
        return True


_DEEDS: dict[str, Callable[[ChosenWorld, Choice], None]] = {
    kind: getattr(ChosenWorld, "_go" if kind == "begin" else f"_{kind}") for kind in KINDS
}


def _is_of_a_call(timer: Timer) -> bool:
    act = timer.act.__qualname__
    return act == "Process._run_timers" and timer.what[1].__qualname__ == "SimFlow._on_timer"


def _is_stale(timer: Timer) -> bool:
    """Return whether the flow that set the timer no longer waits for it."""
    if not _is_of_a_call(timer):
        return False
    _, act, what = timer.what
    turn: SimFlow[Any] = act.__self__
    present: object = vars(turn)["_timer"]
    return turn.over or present != what
