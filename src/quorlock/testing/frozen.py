"""The state of a small world as plain data, so that two ways to one state can be seen to be one.

What a suspended flow is, is known in full: its place in the code and its local variables (the
flows wait in plain statements only, never in the midst of a `for` or of an expression).  Whatever
is not named in `_OMITTED` belongs to the state; what is named there has its reason.
"""

from __future__ import annotations

import marshal
from collections import deque
from enum import Enum
from hashlib import blake2b
from types import FunctionType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any

from quorlock._core.outcomes import Answer
from quorlock._core.policy import Policy
from quorlock._wire.conversation import Conversation, Question
from quorlock.testing.history import Call, Lease
from quorlock.testing.network import Link, Message
from quorlock.testing.process import Dicey, Payment, Process, Turn
from quorlock.testing.server import Server
from quorlock.testing.worker import Worker
from quorlock.testing.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock.testing.choices import ChosenWorld, Way

# By class: what is left out of an object, and why it may be.
_OMITTED: dict[type, frozenset[str]] = {
    # The same all the time, or told elsewhere. A process: its connections are told as ways, its
    # pauses are for the judge of deadlines, and connecting takes as long as is chosen.
    Process: frozenset(
        ("world", "index", "policy", "elapsed", "wall", "clock", "dice", "links", "_pauses")
    )
    | {"_back_off", "cut_off", "_frozen_until"},
    # A turn: `_done` is its worker; `call` is told by its client's number.
    Turn: frozenset(("process", "call", "_done")),
    # A server: its clock never changes here.
    Server: frozenset(("world", "index", "wall")),
    # A worker: its turn is among those of its process.
    Worker: frozenset(("world", "process", "turn", "_jobs")),
    # A conversation: the reader has nothing unread between two choices, and nobody asks here how
    # long a node has been silent.
    Conversation: frozenset(("_reader", "_secret", "_patience", "_silent_since", "questions"))
    | {"_unread", "unsent"},
}


def digest(world: ChosenWorld) -> bytes:
    """128 bits of the state: two states in a million million million share them by chance."""
    # Version 2 of marshal writes equal values as equal bytes (later ones refer back by identity).
    return blake2b(marshal.dumps(state(world), 2), digest_size=16).digest()


def state(world: ChosenWorld) -> Any:
    """All of it."""
    return (
        world.now,
        (world.jumps, world.slips, world.crashes, world.breaks, world.pauses, world.begun),
        sorted(world.lives.items()),
        sorted(world.down_since.items()),
        sorted(world.resting),
        sorted(world.away),
        [_timer(timer) for timer in sorted(world.live_timers())],
        [_way(way) for way in sorted(world.ways.values(), key=_place)],
        [_server(server) for server in world.servers],
        [_process(process) for process in world.processes],
        [_fields(worker) for worker in world.workers],
        _facts(world),
    )


def outcome(world: ChosenWorld) -> Any:
    """What a world has come to in the end, as far as anybody can tell."""
    return (
        [_server(server)[1:] for server in world.servers],
        _facts(world),
        sorted({found.rule for found in world.history.found}),
    )


def _facts(world: ChosenWorld) -> Any:
    """What the judge will look at. A lease that is over cannot overlap with any to come."""
    history = world.history
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
        sorted((token, mask) for token, mask in world.executed_on.items() if token in alive),
        sorted((*what, at) for what, at in world.extended_at.items() if what[0] in alive),
        sorted(world.unowed),
        len(history.found),
    )


# --- its parts -------------------------------------------------------------------------------


def _place(way: Way) -> tuple[int, int, int, int]:
    return way.at


def _way(way: Way) -> Any:
    link = way.link
    return (
        way.at,
        way.broke_at,
        link.lost,
        link.run_id,
        _fields(link.conversation),
        [_question(question) for question in link.conversation.questions],
        [_message(message) for message in way.requests],
        [message and _message(message) for message in way.replies],
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
    """With the keys that are still alive."""
    at, node = server.at_ms(), server.node
    keys = [
        (key, entry.value, entry.until)
        for key, entry in node.keys.items()
        if entry.until is None or entry.until >= at
    ]
    return server.up, sorted(keys), sorted(node.known), server.epoch, server.memory


def _process(process: Process) -> Any:
    turns = [(_number(turn.call), _fields(turn)) for turn in process.turns]
    dice = vars(process.dice)
    return _fields(process, "turns", "chance"), turns, vars(process.chance)["_count"], frozen(dice)


def _number(call: Call) -> int:
    """A call's number would tell in which order the clients called; this only tells which."""
    return call.client


def _timer(timer: Any) -> Any:
    return timer.at, timer.client, frozen(timer.act), frozen(timer.what)


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
    return [frozen(getattr(value, name)) for name in names if name not in omitted]


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


_ANSWERS: dict[Answer, Any] = {}


def _answer(value: Answer) -> Any:
    known = _ANSWERS.get(value)
    if known is None:
        facts = (value.cause.name, value.text, value.ttl_left_ms, value.holder)
        known = _ANSWERS[value] = (value.vote.name, *facts)
    return known


def _payment(value: Payment) -> Any:
    facts = vars(value)
    return "payment", facts["_token"], frozen(facts["_link"])


_HOW: dict[type, Callable[[Any], Any]] = {
    Answer: _answer,
    # One for all: it never changes.
    Policy: lambda _: "policy",
    World: lambda _: "world",
    Process: lambda process: process.index,
    Worker: lambda worker: worker.process.index,
    Server: lambda server: server.index,
    Link: lambda link: (link.process.index, link.server.index, link.bundle, link.run_id),
    Turn: lambda turn: (turn.process.index, turn.over),
    Call: _number,
    Payment: _payment,
    Dicey: lambda _: "chance",
    Lease: lambda lease: (lease.token, lease.ended),
    GeneratorType: _generator,
    MethodType: lambda act: (act.__qualname__, frozen(act.__self__)),
    FunctionType: lambda act: act.__qualname__,
    tuple: _sequence,
    list: _sequence,
    deque: _sequence,
    dict: _mapping,
    set: lambda value: sorted(map(frozen, value)),
    frozenset: lambda value: sorted(map(frozen, value)),
    bytes: bytes,
    str: str,
    int: int,
}
