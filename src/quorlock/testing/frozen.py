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
from dis import get_instructions
from enum import Enum
from functools import cache
from hashlib import blake2b
from types import CodeType, FunctionType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

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
    Conversation: frozenset(("_reader", "_secret", "_patience", "silent_since", "questions"))
    | {"_unread", "has_more", "unsent"},
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
# The processes of nodes to which one client is connected, where that is all that matters of them.
_present: frozenset[str] | None = None


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
        world.timeouts,
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


def digest_of_a_client(world: ChosenWorld, naming: Naming) -> bytes:
    """Of a world with nobody in it but one client, its connections and its debts.

    Without what can make no difference any more: how often it was connected before; of which
    process of a node a connection is (a debt only asks whether it is the one that it came from);
    when to pay where nothing is owed; the clock of one who will neither do nor owe anything more.
    """
    global _naming, _present  # noqa: PLW0603
    _naming = naming
    links = [link for bundle in world.processes[0].links for link in bundle if link is not None]
    _present = frozenset(link.run_id for link in links)
    try:
        return _digest(_client(world))
    finally:
        _present = None


def _client(world: ChosenWorld) -> Any:
    process, worker, of = world.processes[0], world.workers[0], _naming.of
    owing = {node for node, debts in enumerate(process.debts) if len(debts)}
    # Where time moves on to whatever is due, it moves to a bell that rings for nobody, too.
    rings = owing if world.small.timeouts else set(of)
    waits = any(way.link.conversation.questions for way in world.ways.values())
    is_done = worker.done and not (process.turns or owing or waits)
    debts, paying, turns, chance = _process(process)[2:]
    return (
        (world.now, world.begun, sorted(world.resting), sorted(of[n] for _, n, _ in world.away)),
        None if is_done else (process.now(), world.timeouts),
        [_timer(timer) for timer in sorted(world.live_timers()) if pays(timer) in (None, *rings)],
        sorted((of[way.at[1]], _way(way)) for way in world.ways.values()),
        (_process(process)[1], debts, turns, chance),
        [due if _naming.nodes[place] in rings else None for place, due in enumerate(paying)],
        _fields(worker),
        _facts(world),
    )


def pays(timer: Any) -> int | None:
    """The node that a timer pays, if it does that."""
    bell = timer.what[1]
    return timer.what[2][0] if getattr(bell, "__qualname__", "") == "Process._pay_again" else None


class Outcome(NamedTuple):
    """What a world has come to, whoever was who: what calls came to, by client; keys left."""

    calls: tuple[tuple[tuple[str, str], ...], ...]
    keys: int
    wrong: tuple[str, ...]


def outcome(world: ChosenWorld) -> Outcome:
    """In the end, as far as anybody can tell."""
    calls = [
        tuple((call.what, call.outcome) for call in world.history.calls if call.client == client)
        for client in range(len(world.processes))
    ]
    keys = sum(len(_server(server)[1]) for server in world.servers)
    wrong = sorted({found.rule for found in world.history.found})
    return Outcome(tuple(sorted(calls)), keys, tuple(wrong))


def _facts(world: ChosenWorld) -> Any:
    """What the judge will look at. A lease that is over cannot overlap with any to come."""
    history, of, mask = world.history, _naming.of, _naming.mask
    commands = [turn.command for process in world.processes for turn in process.turns]
    alive = {command.token for command in commands if command}  # type: ignore[union-attr]
    # Who has set a key is asked at the instant of winning, and never again.
    asking = {command.token for command in commands if type(command) is Acquire}
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
        sorted((token, mask(bits)) for token, bits in world.executed_on.items() if token in asking),
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
        _life(link.run_id),
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
    known = sorted(node.known)
    if not server.up:  # what it will not find again is gone already
        known, keys = [], keys if server.memory == "kept" else []
    return server.up, sorted(keys), known, server.epoch, server.memory


def _process(process: Process) -> Any:
    turns = [(_number(turn.call), _fields(turn), _votes(turn)) for turn in process.turns]
    dice = vars(process.dice)
    debts = [_fields(debts) for debts in _naming.row(process.debts)]
    paying = [frozen(due) for due in _naming.row(vars(process)["_paying"])]
    chance = (vars(process.chance)["_count"], frozen(dice))
    at = process.now()  # its clock may have stepped
    # Nobody guards here (`Small.plan`).
    rest = _fields(process, "turns", "chance", "debts", "_paying", "guards")
    return at, rest, debts, paying, turns, chance


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
        facts_[names.index("run_id")] = _life(value.run_id)
    return facts_


def _life(run_id: str) -> Any:
    """Which of a node's processes this is: its number, or whether it is the present one."""
    return run_id.partition(".")[2] if _present is None else run_id in _present


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
    # The facts of a named tuple are in no slots.
    slots = getattr(kind, "_fields", None) or [
        name for base in kind.__mro__ for name in getattr(base, "__slots__", ())
    ]
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
    dead = _written_next(frame.f_code, frame.f_lasti)
    facts = [(name, frozen(fact)) for name, fact in frame.f_locals.items() if name != dead]
    return value.__name__, frame.f_lasti, facts, frozen(value.gi_yieldfrom)


@cache
def _written_next(code: CodeType, lasti: int) -> str | None:
    """The local variable that takes what a flow waits for: what it held is never read again."""
    after = (one for one in get_instructions(code) if one.offset > lasti)
    first = next((one for one in after if one.opname not in ("RESUME", "CACHE")), None)
    if first is None or not first.opname.startswith("STORE_FAST"):
        return None
    # From Python 3.13 on one instruction may also do what follows.
    return str(first.argval[0] if isinstance(first.argval, tuple) else first.argval)


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


def _lease(value: Lease) -> Any:
    """While it lasts, whom its round has asked: they get the release. How long: see `_facts`."""
    return value.token, value.ended, None if value.ended is not None else frozen(value.receipt)


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
    Link: lambda link: (
        link.process.index,
        _naming.of[link.server.index],
        link.bundle,
        _life(link.run_id),
    ),
    Turn: lambda turn: (turn.process.index, turn.over),
    Call: _number,
    Payment: _payment,
    Dicey: lambda _: "chance",
    Lease: _lease,
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
