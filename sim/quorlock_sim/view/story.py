"""The facts of a trace: messages with their replies, keys, leases, and faults with their duration.

`diagram` and `page` draw them. The oracle judges: violations are those that the trace contains.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

from quorlock._core.time import NS_PER_MS, NS_PER_S
from quorlock_sim.clock import PPM, Clock
from quorlock_sim.oracle import first_reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Event = dict[str, Any]

# The event that ends a fault, and the faults that it ends.
_PARTED = frozenset({"partition", "one_way_to", "one_way_from"})
ENDS = {
    "restart": frozenset({"crash"}),
    "resume": frozenset({"pause"}),
    "go_on": frozenset({"hang"}),
    "rejoin": _PARTED,
}
# The first last until an event ends them, or to the end of the world, the second for the duration
# in the event. All other faults are momentary.
_LASTING = frozenset({"crash", "pause", "hang", "client_crash"}) | _PARTED
_TIMED = frozenset({"slow", "readonly", "failover", "full"})
_STILL_LASTS = -1
ALL_CLIENTS = -1  # the client of a fault that hits every client


def ms(nanoseconds: int) -> str:
    """Format nanoseconds as milliseconds, to the microsecond: 1,203.4."""
    return f"{nanoseconds / NS_PER_MS:,.3f}".rstrip("0").rstrip(".")


@dataclass(slots=True)
class DrawnMessage:
    """One command to one node, with its executions, replies and losses."""

    sent: Event
    executions: list[Event] = field(default_factory=list[Event])
    replies: list[Event] = field(default_factory=list[Event])
    losses: list[Event] = field(default_factory=list[Event])

    @property
    def forgotten(self) -> bool:
        """True if the node had no such script: the command was not executed, and is sent again."""
        replies = (str(done.get("reply")) for done in self.executions)
        return any(reply.startswith("NOSCRIPT") for reply in replies)

    @property
    def events(self) -> list[Event]:
        """All events of the message, in order."""
        all_of_it = [self.sent, *self.executions, *self.replies, *self.losses]
        return sorted(all_of_it, key=lambda event: event["index"])


@dataclass(slots=True)
class Round:
    """One command to all nodes."""

    client: int
    command: str
    key: str
    token: str
    messages: list[DrawnMessage] = field(default_factory=list[DrawnMessage])

    def takes(self, node: int) -> bool:
        """Return whether a message to this node can belong to the round."""
        asked = [message for message in self.messages if message.sent["node"] == node]
        return not asked or asked[-1].forgotten

    @property
    def first(self) -> int:
        """The index of the first event."""
        return int(self.messages[0].sent["index"])

    @property
    def last(self) -> int:
        """The index of the last event."""
        return int(self.events[-1]["index"])

    @property
    def events(self) -> list[Event]:
        """All events of the round, in order."""
        every = (event for message in self.messages for event in message.events)
        return sorted(every, key=lambda event: event["index"])


@dataclass(slots=True)
class DrawnCall:
    """A client's call of the library, and its result; `ended` is None if it never returned."""

    began: Event
    ended: Event | None = None


@dataclass(slots=True)
class Holding:
    """A key on a node, from its SET to its end, with the reason of its end.

    shared: it is the part of one reader, beside others.
    """

    node: int
    key: str
    token: str
    since: int
    due: int  # the reading of the node's clock at its expiry
    until: int | None = None
    why: str = "still there"
    event: int = 0
    shared: bool = False

    @property
    def place(self) -> tuple[int, str, str]:
        """The node, the key, and the token of a reader."""
        return self.node, self.key, self.token if self.shared else ""


@dataclass(slots=True)
class DrawnLease:
    """A client's lease, with the instants of its request, grant, end of validity and end."""

    client: int
    token: str
    resource: str
    asked: int
    since: int
    until: int
    valid_until: int
    why: str
    event: int
    extensions: list[Event] = field(default_factory=list[Event])


@dataclass(slots=True)
class DrawnFault:
    """A fault from `began` to `until`; a momentary one ends at the instant of its start."""

    began: Event
    until: int
    ended: Event | None = None

    @property
    def what(self) -> str:
        """The kind of the fault."""
        return str(self.began["what"])

    @property
    def client(self) -> int | None:
        """The client that it hits, if any; -1: all clients."""
        return self.began.get("client")

    @property
    def node(self) -> int | None:
        """The node that it hits, if any."""
        return self.began.get("node")

    @property
    def momentary(self) -> bool:
        """True if it ends at the instant of its start."""
        return bool(self.until == self.began["at"])

    def is_ended_by(self, event: Event) -> bool:
        """Return whether the event ends this fault."""
        here = self.node == event.get("node") and self.client in (ALL_CLIENTS, event.get("client"))
        return bool(here and self.until == _STILL_LASTS and self.what in ENDS[event["what"]])


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two leases on one resource that were trusted at the same time."""

    first: DrawnLease
    second: DrawnLease
    since: int
    until: int
    judged: bool  # the oracle reports it as a violation

    @property
    def text(self) -> str:
        """The overlap in words."""
        span = f"from {ms(self.since)} ms to {ms(self.until)} ms"
        tokens = f"{self.first.token} and {self.second.token}"
        return f"two valid leases on {self.first.resource} {span}: {tokens}"


class Story:
    """The facts of one trace, which is read once.

    An incomplete trace, or one with events of unknown kinds, yields the facts that it has.
    """

    def __init__(self, trace: Iterable[Event]) -> None:
        self.events = [event | {"index": index} for index, event in enumerate(trace)]
        self._last = self.end
        self.world: Event = {}
        self.messages: dict[int, DrawnMessage] = {}
        self.rounds: list[Round] = []
        self.calls: list[DrawnCall] = []
        self.holdings: list[Holding] = []
        self.leases: list[DrawnLease] = []
        self.faults: list[DrawnFault] = []
        self.violations: list[Event] = []
        self.intact: bool | None = None  # None: the trace does not say
        self.why: list[str] = []
        self._open_rounds: dict[tuple[int, int, str, str], Round] = {}
        self._keys: dict[tuple[int, str, str], Holding] = {}
        self._readers_tokens: set[str] = set()
        self._saved: dict[int, list[Holding]] = {}
        self._clocks: list[Clock] = []
        self._granted: dict[tuple[int, str], list[Event]] = {}
        self._asked: dict[str, int] = {}
        self._open_calls: dict[tuple[int, int], DrawnCall] = {}
        for event in self.events:
            if read := self._readers.get(str(event.get("kind"))):
                read(self, event)
        self._close()
        self.overlaps = self._find_overlaps()

    @property
    def n(self) -> int:
        """The number of nodes."""
        return int(self.world.get("n", 0))

    @property
    def quorum(self) -> int:
        """The number of nodes that must agree."""
        return self.n // 2 + 1

    @property
    def clients(self) -> int:
        """The number of clients."""
        return int(self.world.get("clients", 0))

    @property
    def end(self) -> int:
        """The last instant."""
        return int(self.events[-1]["at"]) if self.events else 0

    @property
    def drift(self) -> int:
        """The drift allowance (ns): the part of a ttl that is not trusted."""
        world = self.world
        ttl = int(world.get("ttl_ms", 0)) * NS_PER_MS
        share = ttl * int(world.get("drift_ppm", 0)) // 1_000_000
        return share + int(world.get("expiry_resolution", 0))

    @property
    def paces(self) -> dict[str, int]:
        """The clocks that are not exact at the start: lane and parts per million."""
        world = self.world
        ends = (("c", world.get("client_paces", ())), ("n", world.get("node_paces", ())))
        return {f"{kind}{i}": p for kind, ps in ends for i, p in enumerate(ps) if p != PPM}

    # --- readers, one for each kind ----------------------------------------------------------

    def _world(self, event: Event) -> None:
        self.world = event
        paces = event.get("node_paces", [PPM] * event["n"])
        # Only differences of a node's clock matter, not its readings.
        self._clocks = [Clock(0, pace) for pace in paces]

    def _call(self, event: Event) -> None:
        self._close_rounds(event["client"])
        self.calls.append(DrawnCall(event))
        self._open_calls[event["call"], event["client"]] = self.calls[-1]

    def _outcome(self, event: Event) -> None:
        if call := self._open_calls.get((event["call"], event["client"])):
            call.ended = event
        if event["outcome"] in ("granted", "extended"):
            self._granted.setdefault((event["client"], event["token"]), []).append(event)

    def _close_rounds(self, client: int) -> None:
        """Close the client's rounds: every call counts its rounds from 1."""
        for place in [place for place in self._open_rounds if place[0] == client]:
            if not any(m.forgotten and not m.replies for m in self._open_rounds[place].messages):
                del self._open_rounds[place]

    def _send(self, event: Event) -> None:
        message = DrawnMessage(event)
        self.messages[event["message"]] = message
        if event["command"] == "acquire":
            self._asked.setdefault(event["token"], event["at"])
        self._round_of(event).messages.append(message)

    def _round_of(self, event: Event) -> Round:
        """Return the round of a send: the open one, unless that has sent to this node already.

        A command that is sent again after NOSCRIPT belongs to the same round.
        """
        client, command, token = event["client"], event["command"], event["token"]
        place = (client, event["round"], command, token)
        found = self._open_rounds.get(place)
        if found is None or event["round"] == 0 or not found.takes(event["node"]):
            found = Round(client, command, event["key"], token)
            self._open_rounds[place] = found
            self.rounds.append(found)
        return found

    def _execute(self, event: Event) -> None:
        if message := self.messages.get(event["message"]):
            message.executions.append(event)
        granted = event["vote"] == "granted"
        several = (event["key"], *event.get("also", ()))
        if event.get("shared"):
            self._readers_tokens.add(event["token"])
        reader = event["token"] if event["token"] in self._readers_tokens else ""
        for key in (event["taken"],) if "taken" in event else several:
            held = self._keys.get((event["node"], key, reader))
            if event["command"] == "release":
                self._after_release(event, held)
            elif granted and event["command"] == "acquire":
                self._take(event, key, held)
            elif granted and event["command"] == "keep":
                self._keep(event, key, held)
            elif granted and held is not None:
                held.due = max(held.due, self._due(event))

    def _due(self, event: Event) -> int:
        # A key exists up to the end of its last millisecond.
        reading = self._clock(event).read(event["at"])
        return reading + (int(event["ttl_ms"]) + 1) * NS_PER_MS

    def _take(self, event: Event, key: str, held: Holding | None) -> None:
        if held is not None and event.get("also") and held.token == event["token"]:
            return  # of several keys, those that were missing are set
        if held is not None and held.shared:
            held.due = max(held.due, self._due(event))
            return
        if held is not None:  # SET NX was granted, so the old key had expired
            is_exchange = event.get("instead") == held.token
            self._drop(held, event["at"], "released" if is_exchange else "expired")
        node, at = event["node"], event["at"]
        taken = Holding(node, key, event["token"], at, self._due(event), event=event["index"])
        taken.shared = bool(event.get("shared"))
        self._hold(taken)

    def _keep(self, event: Event, key: str, held: Holding | None) -> None:
        mark, node, at = event["mark"], event["node"], event["at"]
        if held is not None and held.token != mark:
            self._drop(held, at, "kept")
            self._hold(Holding(node, key, mark, at, self._due(event), event=event["index"]))

    def _hold(self, held: Holding) -> None:
        self._keys[held.place] = held
        self.holdings.append(held)

    def _after_release(self, event: Event, held: Holding | None) -> None:
        if held is None:
            return
        # Of several keys each that has the token is freed, though the vote is about all of them.
        is_freed = event["vote"] == "granted" or isinstance(event.get("reply"), list)
        if is_freed and held.token == event["token"]:
            self._drop(held, event["at"], "released")
        elif event.get("reply") == _ABSENT:
            self._drop(held, event["at"], "expired")

    def _drop(self, held: Holding, at: int, why: str) -> None:
        """End a key at this instant, or at its expiry if that was earlier."""
        expired = first_reading(self._clocks[held.node], held.due, held.since)
        held.until = min(expired, at)
        held.why = "expired" if expired <= at else why
        del self._keys[held.place]

    def _reply(self, event: Event) -> None:
        if message := self.messages.get(event["message"]):
            message.replies.append(event)
            _recall(event, message)

    def _lose(self, event: Event) -> None:
        if message := self.messages.get(event["message"]):
            message.losses.append(event)
            _recall(event, message)

    def _fault(self, event: Event) -> None:
        what, at = event["what"], event["at"]
        if what in ENDS:
            for fault in self.faults:
                if fault.is_ended_by(event):
                    fault.until, fault.ended = at, event
            if event.get("memory", "kept") == "kept":
                return
        until = at + event.get("lasts", 0) if what in _TIMED else at
        self.faults.append(DrawnFault(event, _STILL_LASTS if what in _LASTING else until))
        if act := self._on_nodes.get(what):
            act(self, event)

    def _clock(self, event: Event) -> Clock:
        return self._clocks[int(event["node"])]

    def _step(self, event: Event) -> None:
        if "node" in event:
            self._clock(event).step(event["by"], event["at"])

    def _drift(self, event: Event) -> None:
        if "node" in event:
            self._clock(event).run_at(event["pace"], event["at"])

    def _flush(self, event: Event) -> None:
        self._forget(event, "flushed")

    def _evict(self, event: Event) -> None:
        self._forget(event, "evicted")

    def _forget(self, event: Event, why: str) -> None:
        gone = [held for held in self._keys.values() if held.node == event["node"]]
        for held in gone:
            if event.get("key", held.key) == held.key:
                self._drop(held, event["at"], why)

    def _save(self, event: Event) -> None:
        keys = [held for held in self._keys.values() if held.node == event["node"]]
        self._saved[event["node"]] = [replace(held, until=None) for held in keys]

    def _restart(self, event: Event) -> None:
        """Replace a node's keys: a new process has none, or those on disk."""
        node = event["node"]
        crash = next((f for f in reversed(self.faults) if f.ended is event), None)
        lost_at = crash.began if crash else event
        self._forget(lost_at | {"node": node}, "forgotten in the crash")
        if event["memory"] == "lost":
            self._saved[node] = []
        for held in self._saved.get(node, []):
            if self._clock(event).read(event["at"]) < held.due:
                self._hold(replace(held, since=event["at"], event=event["index"]))

    def _lease(self, event: Event) -> None:
        since, until = event["since"], min(event["until"], self._last)
        granted = self._granted.get((event["client"], event["token"]), [])
        counted = [e for e in granted if since <= e["at"] <= max(since, event["until"])]
        promised = [e["valid_until"] for e in counted if e.get("valid_until") is not None]
        self.leases.append(
            DrawnLease(
                client=event["client"],
                token=event["token"],
                resource=event["resource"],
                asked=self._asked_at(event),
                since=since,
                until=until,
                valid_until=min(max(promised, default=until), self._last + _SEEN_BEYOND),
                why=event["why"],
                event=counted[0]["index"] if counted else event["index"],
                extensions=[e for e in counted if e["outcome"] == "extended" and e["at"] > since],
            )
        )

    def _asked_at(self, event: Event) -> int:
        """Return the start of the lease's round; an adopted lease starts with an extension."""
        since = int(event["since"])
        heir = any(lease.token == event["token"] for lease in self.leases)
        return since if heir else self._asked.get(event["token"], since)

    def _violation(self, event: Event) -> None:
        self.violations.append(event)

    def _end_of_world(self, event: Event) -> None:
        self.intact = event["assumptions_intact"]
        reasons: Counter[str] = Counter(event.get("why", []))
        self.why = [
            reason if count == 1 else f"{reason} ({count} times)"
            for reason, count in reasons.items()
        ]

    _readers: ClassVar[dict[str, Callable[[Story, Event], None]]] = {
        "world": _world,
        "call": _call,
        "outcome": _outcome,
        "send": _send,
        "execute": _execute,
        "reply": _reply,
        "lose": _lose,
        "fault": _fault,
        "lease": _lease,
        "violation": _violation,
        "end_of_world": _end_of_world,
    }
    # The effect of a fault on a node's clock and keys.
    _on_nodes: ClassVar[dict[str, Callable[[Story, Event], None]]] = {
        "step": _step,
        "drift": _drift,
        "flush": _flush,
        "failover": _flush,
        "evict": _evict,
        "save": _save,
        "restart": _restart,
    }

    # --- at the end --------------------------------------------------------------------------

    def _find_overlaps(self) -> list[Overlap]:
        # Either all overlaps of a world are violations, or none.
        judged = any(event["rule"] == "overlap" for event in self.violations)
        pairs = combinations(sorted(self.leases, key=lambda lease: lease.since), 2)
        return [
            Overlap(first, second, second.since, min(first.until, second.until), judged)
            for first, second in pairs
            if first.resource == second.resource
            if not {first.token, second.token} <= self._readers_tokens
            if second.since < min(first.until, second.until)
        ]

    def _close(self) -> None:
        """End the faults and keys that last beyond the end of the trace."""
        for fault in self.faults:
            if fault.until == _STILL_LASTS:
                # At the final recovery of the world, some faults end without an event.
                length = fault.began.get("lasts", self.end)
                fault.until = min(self.end, fault.began["at"] + length)
        for held in list(self._keys.values()):
            self._drop(held, self.end, "still there")


_ABSENT = -2  # what release.lua returns when the key is not there
_SEEN_BEYOND = 3_600 * NS_PER_S  # a lease may outlast its world; the picture is cut here


def _recall(event: Event, message: DrawnMessage) -> None:
    """Add the message's client, node, command and token to the event."""
    names = ("client", "node", "command", "token")
    event.update({name: message.sent[name] for name in names})
