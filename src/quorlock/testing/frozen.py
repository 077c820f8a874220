"""The state of a small world as plain data, so that two ways to one state can be seen to be one.

What a suspended flow is, is known in full: its place in the code and its local variables (flows
wait in plain statements, never in the midst of a `for` or of an expression; how far a worker has
come with its jobs is told by its calls).  Whatever is not named in `_OMITTED` belongs to the state;
what is named there has its reason.
"""

# pyright: basic
# It takes objects of any type apart; strict typing has nothing to hold on to here.

from __future__ import annotations

import marshal
from collections import deque
from enum import Enum
from hashlib import blake2b
from types import FunctionType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any

from quorlock._core.commands import Acquire, Extend, Inspect, Release
from quorlock._core.effects import Receipt, Replied
from quorlock._core.outcomes import Answer
from quorlock._core.policy import Policy
from quorlock._core.quorum import Tally
from quorlock._core.redlock import Request
from quorlock._wire.conversation import Conversation, Question
from quorlock.testing.history import Call, Lease
from quorlock.testing.network import Link, Message
from quorlock.testing.plan import Job
from quorlock.testing.process import Dicey, Payment, Process, Turn
from quorlock.testing.server import Server
from quorlock.testing.worker import Worker
from quorlock.testing.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock.testing.choices import Choice, ChosenWorld, Way

# By class: what is left out of an object, and why it may be.
_OMITTED: dict[type, frozenset[str]] = {
    # The same all the time, or told elsewhere. A process: its connections are told as ways, its
    # pauses are for the judge of deadlines, and connecting takes as long as is chosen.
    Process: frozenset(
        ("world", "index", "policy", "elapsed", "wall", "clock", "dice", "links", "_pauses")
    )
    | {"_back_off", "cut_off", "_frozen_until"},
    # A turn: `_done` is its worker; `call` is told by its client's number.
    # Old timers are told by not being there. Votes are told in the order of the nodes.
    Turn: frozenset(("process", "call", "votes", "_done", "_timer")),
    # A server: its clock never changes here.
    Server: frozenset(("world", "index", "wall")),
    # A worker: its turn is among those of its process.
    Worker: frozenset(("world", "process", "turn", "_jobs")),
    # A conversation: the reader has nothing unread between two choices, and nobody asks here how
    # long a node has been silent.
    Conversation: frozenset(("_reader", "_secret", "_patience", "_silent_since", "questions"))
    | {"_unread", "unsent"},
}


class Naming:
    """Which name each node goes by: `of` says it for every node, `nodes` is the way back."""

    def __init__(self, nodes: list[int]) -> None:
        self.nodes = nodes
        self.of = [nodes.index(node) for node in range(len(nodes))]

    def given(self, choice: Choice) -> Choice:
        """A choice under the new names."""
        return choice if choice.node < 0 else choice._replace(node=self.of[choice.node])

    def taken(self, choice: Choice) -> Choice:
        """And under the old ones again."""
        return choice if choice.node < 0 else choice._replace(node=self.nodes[choice.node])

    def mask(self, bits: int) -> int:
        """A set of nodes, a bit for each."""
        return sum(1 << self.of[node] for node in range(len(self.of)) if bits >> node & 1)

    def row(self, items: Any) -> list[Any]:
        """What stands in the order of the nodes."""
        return [items[node] for node in self.nodes]


_naming = Naming([])


def rename(world: ChosenWorld) -> Naming:
    """Names for the nodes that do not depend on their order, as far as that is cheap."""
    global _naming  # noqa: PLW0603
    servers = world.servers
    _naming = Naming(list(range(len(servers))))
    columns: list[Any] = [[_server(server)] for server in servers]
    for way in sorted(world.ways.values(), key=_place):
        client, node, bundle, life = way.at
        columns[node].append((client, bundle, life, _on_way(way)))
    for process in world.processes:
        for turn in process.turns:
            for column, vote in zip(columns, _votes(turn), strict=True):
                column.append(vote)
    keys = [marshal.dumps(column, 2) for column in columns]
    _naming = Naming(sorted(range(len(servers)), key=keys.__getitem__))
    return _naming


def digest(world: ChosenWorld, naming: Naming) -> bytes:
    """128 bits of the state: two states in a million million million share them by chance."""
    # Version 2 of marshal writes equal values as equal bytes (later ones refer back by identity).
    return _digest(state(world, naming))


def _digest(facts: Any) -> bytes:
    return blake2b(marshal.dumps(facts, 2), digest_size=16).digest()


def state(world: ChosenWorld, naming: Naming) -> Any:
    """All of it, under the names that the nodes go by."""
    global _naming  # noqa: PLW0603
    _naming = naming
    of = naming.of
    return (
        world.now,
        (world.jumps, world.slips, world.crashes, world.breaks, world.pauses, world.begun),
        sorted((client, of[node], *rest) for (client, node, *rest) in _lives(world)),
        sorted((of[node], at) for node, at in world.down_since.items()),
        sorted(world.resting),
        sorted((client, of[node], bundle) for client, node, bundle in world.away),
        [_timer(timer) for timer in sorted(world.live_timers())],
        sorted((_named(way), _way(way)) for way in world.ways.values()),
        [_server(server) for server in _naming.row(world.servers)],
        [_process(process) for process in world.processes],
        [_fields(worker) for worker in world.workers],
        _facts(world),
    )


def outcome(world: ChosenWorld, naming: Naming) -> bytes:
    """What a world has come to in the end, as far as anybody can tell; as a digest."""
    global _naming  # noqa: PLW0603
    _naming = naming
    return _digest(
        (
            [_server(server)[1:] for server in _naming.row(world.servers)],
            _facts(world),
            sorted({found.rule for found in world.history.found}),
        )
    )


def _facts(world: ChosenWorld) -> Any:
    """What the judge will look at. A lease that is over cannot overlap with any to come."""
    history, of, mask = world.history, _naming.of, _naming.mask
    alive = {turn.command.token for p in world.processes for turn in p.turns if turn.command}  # type: ignore[union-attr]
    calls = [[] for _ in world.processes]  # type: ignore[var-annotated]
    for call in history.calls:
        late = max(0, call.late_by)
        open_ = None if call.ended is not None else (call.read, call.allowed)
        calls[call.client].append((call.what, call.outcome, late, open_))
    held = [
        (lease.token, lease.since, tuple(lease.promises))
        for lease in history.leases
        if lease.ended is None and world.end_of(lease) > world.now
    ]
    return (
        calls,
        sorted(held),
        sorted((token, mask(bits)) for token, bits in world.executed_on.items() if token in alive),
        sorted((t, of[n], at) for (t, n), at in world.extended_at.items() if t in alive),
        sorted((token, of[node]) for token, node in world.unowed),
        len(history.found),
    )


# --- its parts -------------------------------------------------------------------------------


def _place(way: Way) -> tuple[int, int, int, int]:
    return way.at


def _named(way: Way) -> tuple[int, int, int, int]:
    client, node, bundle, life = way.at
    return client, _naming.of[node], bundle, life


def _lives(world: ChosenWorld) -> Any:
    return ((*place, life) for place, life in world.lives.items() if life > 1)


def _on_way(way: Way) -> Any:
    return (
        [_message(message) for message in way.requests],
        [message and _message(message) for message in way.replies],
    )


def _way(way: Way) -> Any:
    link = way.link
    return (
        -1 if way.broke_at is None else way.broke_at,
        link.lost,
        link.epoch,
        _fields(link.conversation),
        [_question(question) for question in link.conversation.questions],
        _on_way(way),
    )


def _message(message: Message) -> Any:
    return frozen(message.command), message.in_full, frozen(message.reply)


def _question(question: Question) -> Any:
    """Of one that nobody waits for any more it does not matter who did."""
    if question.asker.over:
        return frozen(question.command), question.in_full
    return (
        *(frozen(question.command), question.in_full, question.round),
        frozen(question.asker),
    )


def _server(server: Server) -> Any:
    """With the keys that are still alive, whose value is the token."""
    at, node = server.at_ms(), server.node
    keys = [
        (key, entry.value, entry.until)
        for key, entry in node.keys.items()
        if entry.until is None or entry.until >= at
    ]
    return server.up, sorted(keys), sorted(node.known), server.epoch, server.memory


def _process(process: Process) -> Any:
    turns = [(_number(turn.call), _fields(turn), _votes(turn)) for turn in process.turns]
    dice = vars(process.dice)
    debts = [_fields(debts) for debts in _naming.row(process.debts)]
    paying = [frozen(due) for due in _naming.row(vars(process)["_paying"])]
    chance = (vars(process.chance)["_count"], frozen(dice))
    return _fields(process, "turns", "chance", "debts", "_paying"), debts, paying, turns, chance


def _votes(turn: Turn[Any]) -> Any:
    votes = turn.votes
    return [votes[node].name if node in votes else "" for node in _naming.nodes]


def _number(call: Call) -> int:
    """A call's number would tell in which order the clients called; this only tells which."""
    return call.client


def _timer(timer: Any) -> Any:
    what = timer.what
    if timer.act.__qualname__ == "Process._act":
        what = (what[0], _naming.of[what[1]])  # to pay a node
    elif what[1].__qualname__ == "Process._pay_again":
        until, bell, (node, due) = what
        what = (until, bell, (_naming.of[node], due))
    elif what[1].__qualname__ == "Turn._ring":
        what = what[:2]
    return timer.at, timer.client, frozen(timer.act), frozen(what)


# --- anything --------------------------------------------------------------------------------


def frozen(value: Any) -> Any:
    """A value as numbers, bytes, strings and tuples of them."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    how = _HOW.get(kind)
    if how is None:
        how = _HOW[kind] = _way_of_freezing(kind)
    return how(value)


_PLAIN = frozenset((int, bytes, str, bool, type(None), float))


def _way_of_freezing(kind: type) -> Callable[[Any], Any]:
    for base in kind.__mro__:
        if base in _HOW:
            return _HOW[base]
    if issubclass(kind, Enum):
        return lambda value: value.name
    if issubclass(kind, BaseException):
        return repr
    return lambda value: (kind.__name__, _fields(value))


def _fields(value: Any, *omitted: str) -> Any:
    """What an object consists of, in the order of its class."""
    kind = type(value)
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = _names(kind)
    facts = getattr(value, "__dict__", None)
    if facts is not None:
        skipped = _skipped(kind)
        names = tuple(name for name in facts if name not in skipped)
    facts_ = [frozen(getattr(value, name)) for name in names if name not in omitted]
    if "run_id" in names:  # "n2.1": the node is told by the place that it stands in
        facts_[names.index("run_id")] = value.run_id.partition(".")[2]
    return facts_


def _tally(value: Tally) -> Any:
    facts = (value.n, value.round, value.quorum, value.granted, value.pending)
    return facts, [frozen(answer) for answer in _naming.row(value.answers)]


def _receipt(value: Receipt) -> Any:
    return value.round, value.started, value.sent, _naming.mask(value.asked), frozen(value.path)


def _replied(value: Replied) -> Any:
    return value.round, _naming.of[value.node], frozen(value.answer), value.at


def _tuple(value: tuple[Any, ...]) -> Any:
    """Answers stand in the order of the nodes."""
    answers = len(value) == len(_naming.nodes) and all(type(item) is Answer for item in value)
    return [frozen(item) for item in (_naming.row(value) if answers else value)]


_NAMES: dict[type, tuple[str, ...]] = {}


def _names(kind: type) -> tuple[str, ...]:
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    skipped = _skipped(kind)
    return tuple(sorted(name for name in slots if name not in skipped))


def _skipped(kind: type) -> frozenset[str]:
    return next((_OMITTED[base] for base in kind.__mro__ if base in _OMITTED), frozenset())


def _sequence(value: Any) -> Any:
    return [frozen(item) for item in value]


def _mapping(value: Any) -> Any:
    return sorted((frozen(key), frozen(item)) for key, item in value.items())


def _generator(value: Any) -> Any:
    """Where it stands, what it knows, and for whom it waits."""
    frame = value.gi_frame
    if frame is None:
        return "over"
    facts = [(name, frozen(fact)) for name, fact in frame.f_locals.items()]
    return value.__name__, frame.f_lasti, facts, frozen(value.gi_yieldfrom)


# Facts that never change are frozen once; there are few different ones in a small world.
_FACTS: dict[Any, Any] = {}


def _fact(value: Any) -> Any:
    known = _FACTS.get(value)
    if known is None:
        known = _FACTS[value] = (type(value).__name__, _fields(value))
    return known


def _answer(value: Answer) -> Any:
    known = _FACTS.get(value)
    if known is None:
        facts = (value.cause.name, value.text, value.ttl_left_ms, value.holder)
        known = _FACTS[value] = (value.vote.name, *facts)
    return known


def _payment(value: Payment) -> Any:
    facts = vars(value)
    return "payment", facts["_token"], frozen(facts["_link"])


_HOW: dict[type, Callable[[Any], Any]] = {
    Answer: _answer,
    Acquire: _fact,
    Release: _fact,
    Extend: _fact,
    Inspect: _fact,
    Request: _fact,
    Job: _fact,
    # One for all: it never changes.
    Policy: lambda _: "policy",
    World: lambda _: "world",
    Process: lambda process: process.index,
    Worker: lambda worker: worker.process.index,
    Server: lambda server: _naming.of[server.index],
    Tally: _tally,
    Receipt: _receipt,
    Replied: _replied,
    Link: lambda link: (link.process.index, _naming.of[link.server.index], link.bundle, link.epoch),
    Turn: lambda turn: (turn.process.index, turn.over),
    Call: _number,
    Payment: _payment,
    Dicey: lambda _: "chance",
    Lease: lambda lease: (lease.token, lease.ended),
    GeneratorType: _generator,
    MethodType: lambda act: (act.__qualname__, frozen(act.__self__)),
    FunctionType: lambda act: act.__qualname__,
    tuple: _tuple,
    list: _sequence,
    deque: _sequence,
    dict: _mapping,
    set: lambda value: sorted(map(frozen, value)),
    frozenset: lambda value: sorted(map(frozen, value)),
    bytes: bytes,
    str: str,
    int: int,
}
