"""A small world in which nothing is drawn by chance: what happens next is chosen from outside.

The shipped flows run as in `world`, but messages, time, crashes and breaks wait until somebody
chooses them, one at a time.  Messages keep their order on each connection and have none between
connections; time stands still except where a choice moves it, so every message may be early or
late.  Leaves which choices are made, and which need not be tried, to `explore`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from quorlock._core.time import NS_PER_MS, NS_PER_S
from quorlock.testing.checker import first_reading, judge
from quorlock.testing.clock import PPM
from quorlock.testing.network import Link, Weather
from quorlock.testing.node import Error
from quorlock.testing.plan import Job, Plan, Settings
from quorlock.testing.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorlock._core.outcomes import Granted
    from quorlock.testing.checker import Judgement
    from quorlock.testing.history import Call, Lease
    from quorlock.testing.network import Message
    from quorlock.testing.process import Process, Turn
    from quorlock.testing.server import Server
    from quorlock.testing.trace import Trace

NODE_TIMEOUT = 10 * NS_PER_MS
TTL_MS = 200
# Two rounds, and a little: the second attempt begins when the first must be over.
_TWO_ATTEMPTS = 2 * NODE_TIMEOUT + NS_PER_MS
# The last steps of a world are few; so many go round in circles.
_STEPS_MAX = 10_000
MEMORIES = ("kept", "quarantine", "lost")


@dataclass(frozen=True, slots=True)
class Small:
    """How small a world is.

    Attributes:
        attempts: 1 asks once, 2 asks once more after a while (`acquire` with a timeout).
        turns: how often each client wants the lock.
        bundles: connections of each client to each node; its calls use them by turns.
        jumps: so often time moves on to the next instant at which something is due: a deadline,
            the end of a lease, of a key, of a quarantine. Where there are timeouts: to the end
            of a quarantine only.
        slips: so often it moves half of the way there.
        crashes: nodes that crash and restart, `memory` says with what: "kept"; "quarantine":
            empty, after max_ttl; "lost": empty, at any time.
        breaks: connections that break, with what was under way arriving late or never.
        pauses: clients that stand still for as long as is chosen.
        extension_ms: a lease is extended once by so much; 0: it is not.
        timeouts: so often each client's patience ends: its own clock steps to the deadline of
            its round, whatever anybody else is about. All orders of answers and deadlines are
            there without true time moving on; no key and no lease runs out.
    """

    nodes: int = 3
    clients: int = 2
    attempts: int = 1
    turns: int = 1
    bundles: int = 1
    jumps: int = 4
    slips: int = 0
    crashes: int = 0
    breaks: int = 0
    pauses: int = 0
    memory: str = "kept"
    extension_ms: int = 0
    timeouts: int = 0

    def plan(self) -> Plan:
        """The world's plan: clocks at the very bound of the drift, everything else the same."""
        job = Job(
            after=1,
            resource=0,
            ttl_ms=TTL_MS,
            once=self.attempts == 1,
            timeout=_TWO_ATTEMPTS,
            hold=2 if self.extension_ms else 1,
            extensions=((1, self.extension_ms),) if self.extension_ms else (),
        )
        return Plan(
            seed=0,
            scenario="explore",
            settings=Settings(
                n=self.nodes,
                max_ttl_ms=TTL_MS,
                node_timeout=NODE_TIMEOUT,
                retry_delay=(NS_PER_S, NS_PER_S),  # cut short by the timeout: the same every time
                outage_timeout=NS_PER_S,
                restart_guard=None,  # who forgets stays down for as long: see `memory`
            ),
            weather=_Still(0, 0, 0, 0),
            careers=((job,) * self.turns,) * self.clients,
            bundles=(self.bundles,) * self.clients,
            client_paces=(990_000,) * self.clients,
            node_paces=(PPM,) * self.nodes,
            client_offsets=(NS_PER_S,) * self.clients,
            # Each key ends a moment after its ttl: the millisecond that it ends in has just begun.
            node_offsets=(NS_PER_MS - 1,) * self.nodes,
        )


class _Still(Weather):
    """Messages take no time of their own: they arrive when it is chosen."""

    def delay(self, dice: Random) -> int:
        del dice
        return 0


class _ByTurns(Random):
    """In place of chance: the two halves by turns, so that calls take the connections by turns."""

    def __init__(self) -> None:
        super().__init__(0)
        self.upper = True

    def random(self) -> float:
        self.upper = not self.upper
        return 0.5 if self.upper else 0.0


class Choice(NamedTuple):
    """One thing that may happen next. What does not apply is -1.

    kind: a name in `KINDS`. life: the connection's number among those of its place.
    """

    kind: str
    client: int = -1
    node: int = -1
    bundle: int = -1
    life: int = -1

    def __str__(self) -> str:
        places = [f"c{self.client}"] * (self.client >= 0) + [f"n{self.node}"] * (self.node >= 0)
        way = f" ({self.bundle}.{self.life})" if self.bundle > 0 or self.life > 0 else ""
        return " ".join((self.kind, *places)) + way


# What each kind of choice means.
KINDS = {
    "begin": "a client asks for the lock",
    "go": "a holder goes on: it extends, or releases",
    "request": "the oldest request on a connection reaches its node",
    "reply": "the oldest reply on a connection, or its end, reaches the client",
    "connect": "a client is connected again",
    "crash": "a node crashes",
    "restart": "and comes back",
    "break": "a connection breaks",
    "pause": "a client stands still",
    "resume": "and goes on",
    "timeout": "a client's round is out of time",
    "time": "time passes until something is due",
    "slip": "half of that time passes",
}


class Way:
    """One connection, and what waits on it to be delivered. None in `replies`: its end."""

    __slots__ = ("at", "broke_at", "link", "replies", "requests")

    def __init__(self, link: Link, at: tuple[int, int, int, int]) -> None:
        self.link = link
        self.at = at  # client, node, bundle, life
        self.requests: deque[Message] = deque()
        self.replies: deque[Message | None] = deque()
        self.broke_at: int | None = None


class Timer(NamedTuple):
    """Something due. At one instant: by client, then in the order of asking."""

    at: int
    client: int
    serial: int
    act: Callable[[Any], None]
    what: Any


class ChosenWorld(World):
    """See the module: `choices`, then `perform` one of them, until there are none: `conclude`.

    eager: replies that nobody waits for any more are read at once, where that changes nothing.
    """

    def __init__(self, small: Small, trace: Trace | None = None, *, eager: bool = True) -> None:
        self.small = small
        self.eager = eager
        self.ways: dict[Link, Way] = {}
        self.lives: dict[tuple[int, int, int], int] = {}
        self.timers: list[Timer] = []
        self.resting: dict[int, Callable[[Any], None]] = {}
        self.away: dict[tuple[int, int, int], None] = {}
        self.down_since: dict[int, int] = {}
        self.begun = 0
        self.jumps, self.slips = small.jumps, small.slips
        self.crashes, self.breaks, self.pauses = small.crashes, small.breaks, small.pauses
        self.timeouts = [small.timeouts] * small.clients
        super().__init__(small.plan(), trace)
        self._begin()

    def _process(self, index: int) -> Process:
        process = super()._process(index)
        process.dice = process.chance.dice = _ByTurns()
        return process

    def _begin(self) -> None:
        if self.trace is not None:
            self.trace.begin(self)
        for process in self.processes:
            for bundle in range(len(process.links)):
                for index in range(self.policy.n):
                    process.connect(bundle, index)
        for worker in self.workers:
            worker.begin()

    # --- what would happen by itself waits here ----------------------------------------------

    def link(self, process: Process, bundle: int, index: int) -> Link:
        """A new connection, with nothing on it."""
        link = super().link(process, bundle, index)
        place = (process.index, index, bundle)
        life = self.lives.get(place, 0)
        self.lives[place] = life + 1
        self.ways[link] = Way(link, (*place, life))
        return link

    def at(self, instant: int, act: Callable[[Any], None], what: Any) -> None:
        """Messages and pauses of any length wait to be chosen; deadlines wait for their time."""
        name = act.__qualname__
        if name == "Server.arrive":
            self._under_way(what)
        elif name == "Link._arrived":
            self.ways[what.link].replies.append(what)
        elif name == "Process._act" and self._waits(*what):
            pass
        else:
            self._serial += 1
            client = act.__self__.index  # type: ignore[attr-defined]
            self.timers.append(Timer(instant, client, self._serial, act, what))

    def _under_way(self, message: Message) -> None:
        link = message.link
        if link.epoch == link.server.epoch:
            self.ways[link].requests.append(message)
        else:
            self.loses(message, "request")  # its node is dead, which the client does not know yet

    def _waits(self, act: Callable[[Any], None], what: Any) -> bool:
        if act.__qualname__ == "Worker._go_on":
            self.resting[act.__self__.process.index] = act  # type: ignore[attr-defined]
            return True
        if act.__qualname__ == "Process._try":
            bundle, index = what
            self.away[act.__self__.index, index, bundle] = None  # type: ignore[attr-defined]
            return True
        return False

    # --- what may happen next ----------------------------------------------------------------

    def choices(self) -> list[Choice]:
        """Everything that may happen now, always in the same order."""
        return [
            *(*self._of_ways(), *self._of_nodes(), *self._of_work(), *self._of_clients()),
            *self._of_time(),
        ]

    def _of_work(self) -> Iterator[Choice]:
        for client in sorted(self.resting, reverse=True):
            # They are all alike, so let them begin in their order.
            if client <= self.begun and not self.processes[client].paused:
                holds = self.workers[client].lease is not None
                yield Choice("go" if holds else "begin", client)

    def _of_clients(self) -> Iterator[Choice]:
        for process in self.processes:
            if process.paused:
                yield Choice("resume", process.index)
            elif self.pauses:
                yield Choice("pause", process.index)
            if self.timeouts[process.index] and self._deadlines_of(process):
                yield Choice("timeout", process.index)

    def _deadlines_of(self, process: Process) -> list[int]:
        """By its own clock."""
        return [
            timer.what[0]
            for timer in self.live_timers()
            if timer.client == process.index and _is_of_a_call(timer)
        ]

    def _of_ways(self) -> Iterator[Choice]:
        for way in sorted(self.ways.values(), key=lambda way: way.at):
            if way.replies:
                yield Choice("reply", *way.at)
            if way.requests and self._still_comes(way):
                yield Choice("request", *way.at)
            if self.breaks and not way.link.lost and not self.processes[way.at[0]].paused:
                yield Choice("break", *way.at)
        for client, node, bundle in sorted(self.away):
            if self.servers[node].up and not self.processes[client].paused:
                yield Choice("connect", client, node, bundle)

    def _still_comes(self, way: Way) -> bool:
        """What was under way when a connection broke arrives within max_ttl (`debts`), or never."""
        return way.broke_at is None or self.now < way.broke_at + self.policy.max_ttl

    def _of_nodes(self) -> Iterator[Choice]:
        for server in self.servers:
            if server.up and self.crashes:
                yield Choice("crash", node=server.index)
            elif not server.up and self.now >= self._back_from(server):
                yield Choice("restart", node=server.index)

    def _back_from(self, server: Server) -> int:
        since = self.down_since[server.index]
        # The millisecond in which the last key ends is to be over too.
        return since + self.policy.max_ttl + NS_PER_MS if self.small.memory == "quarantine" else 0

    def _of_time(self) -> Iterator[Choice]:
        due = self.next_due() if self.jumps or self.slips else None
        if due is not None and self.jumps:
            yield Choice("time")
        if due is not None and self.slips and due - self.now > 1:
            yield Choice("slip")

    def next_due(self) -> int | None:
        """The next instant at which anything ends."""
        instants = [self._back_from(server) for server in self.servers if not server.up]
        if not self.small.timeouts:
            instants += self._deadlines()
            instants += self._ends_of_keys()
            instants += self._ends_of_leases()
        return min((instant for instant in instants if instant > self.now), default=None)

    def _deadlines(self) -> Iterator[int]:
        return (timer.at for timer in self.live_timers())

    def live_timers(self) -> list[Timer]:
        """Deadlines that somebody still waits for."""
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

    def end_of(self, lease: Lease) -> int:
        """When its holder's own clock says that it is over, in true time."""
        clock = self.processes[lease.client].clock
        return first_reading(clock, lease.promises[-1][1], lease.since)

    # --- and happens -------------------------------------------------------------------------

    def perform(self, choice: Choice) -> None:
        """Let it happen, and what follows from it at once."""
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
        client, node, bundle = choice[1:4]
        del self.away[client, node, bundle]
        self.processes[client].connect(bundle, node)

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

    def _timeout(self, choice: Choice) -> None:
        self.timeouts[choice.client] -= 1
        process = self.processes[choice.client]
        clock = process.clock
        by = min(self._deadlines_of(process)) - process.now()
        clock.step(by, self.now)
        self.tell("step", client=process.index, by=by)
        self.timers = [
            timer._replace(at=max(self.now, clock.when(timer.what[0]) or 0))
            if timer.client == process.index and timer.act.__qualname__ == "Process._ring"
            else timer
            for timer in self.timers
        ]

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
        # What is due on the way happens in its time.
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

    # --- what follows at once ----------------------------------------------------------------

    def _settle(self) -> None:
        while self._ring() or (self.eager and self._read()):
            pass

    def _ring(self) -> bool:
        due = [timer for timer in self.timers if timer.at <= self.now]
        if not due:
            return False
        first = min(due)
        self.timers.remove(first)
        first.act(first.what)
        return True

    def _read(self) -> bool:
        """Read a reply that nobody waits for any more: it changes nothing but its own queue.

        Only where its connection will not break any more: a question without an answer becomes
        a debt then. A crash is no matter: replies that were sent come before the end.
        """
        if self.breaks or self.small.bundles > 1:
            return False
        for way in self.ways.values():
            if way.replies and self._is_for_nobody(way):
                self._deliver(way)
                return True
        return False

    def _is_for_nobody(self, way: Way) -> bool:
        message = way.replies[0]
        questions = way.link.conversation.questions
        if message is None or isinstance(message.reply, Error) or way.link.process.paused:
            return False
        return questions[0].asker.over

    # --- promises ----------------------------------------------------------------------------

    def lease(self, process: Process, granted: Granted, resource: str) -> Lease:
        """A lock is won: nobody may hold it at this very instant, in whatever order it came."""
        lease = super().lease(process, granted, resource)
        for other in self.history.leases[:-1]:
            if other.ended is None and self.now < self.end_of(other):
                self._overlap(other, lease)
        return lease

    def _overlap(self, other: Lease, lease: Lease) -> None:
        text = (
            f"c{lease.client} is granted {lease.token.decode()} while c{other.client} holds"
            f" {other.token.decode()}"
        )
        tokens = [other.token.decode(), lease.token.decode()]
        self.violated("overlap", text, tokens=tokens)

    def returned(self, record: Call, process: Process, outcome: Any) -> None:
        """The judge does not ask clocks that stepped; here they stepped to deadlines, no farther.

        So a call that is late by such a clock has waited for a deadline too many.
        """
        super().returned(record, process, outcome)
        if self._is_stepped(record) and record.late_by > 0:
            self.violated("deadline", f"{record.what} of c{record.client} ended too late")

    def _is_stepped(self, call: Call) -> bool:
        process = self.processes[call.client]
        return len(process.clock.pieces) > 1 and not process.delayed(0, self.now)

    def conclude(self) -> Judgement:
        """The rest in fair weather, without a choice; then the whole judgement."""
        self.crashes = self.breaks = self.pauses = self.jumps = self.slips = 0
        self.timeouts = [0] * len(self.timeouts)
        for way in list(self.ways.values()):
            if way.broke_at is not None:
                self._never(way)
        for _ in range(_STEPS_MAX):
            if not self._next_step():
                break
        else:
            self.violated("endless", "no end comes in fair weather")
        self._look_for_leftovers(None)
        for call in self.history.calls:
            if self._is_stepped(call) and call.ended is None:
                self.violated("deadline", f"{call.what} of c{call.client} has never ended")
        # A node that forgets is no excuse here: the quarantine is there for that.
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
    return act == "Process._ring" and timer.what[1].__qualname__ == "Turn._ring"


def _is_stale(timer: Timer) -> bool:
    """Whoever asked for it does not wait any more."""
    if not _is_of_a_call(timer):
        return False
    _, bell, what = timer.what
    turn: Turn[Any] = bell.__self__
    present: object = vars(turn)["_timer"]
    return turn.over or present != what
