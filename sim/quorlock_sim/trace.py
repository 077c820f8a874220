"""The trace of a world, one event a line: for readers, the views and the formal model.

It is written as JSON lines with sorted keys and integers only, so that the same world gives the
same bytes everywhere.  Instants are true time in ns since the start of the world.
docs/contributing/simulation.md describes the kinds of lines.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from quorlock._core.commands import (
    ACQUIRES,
    AcquireAny,
    Extend,
    Inspect,
    IssueFence,
    Keep,
    Look,
    Publish,
    Release,
    ScriptedAcquire,
    Share,
    Subscribe,
)
from quorlock._core.places import is_reservation
from quorlock._core.results import Acquired, Extended, ExtendFailed, ReleaseResult
from quorlock._core.time import EXPIRY_RESOLUTION
from quorlock._core.votes import WORDS
from quorlock_sim.server import has_granted

if TYPE_CHECKING:
    from quorlock._core.commands import Command
    from quorlock._core.votes import Answer
    from quorlock._protocol.pipeline import PendingRequest
    from quorlock.testing.fake_node import Reply
    from quorlock_sim.client import SimFlow
    from quorlock_sim.history import CallRecord, LeaseRecord
    from quorlock_sim.network import Link, Message
    from quorlock_sim.oracle import Judgement
    from quorlock_sim.server import SimServer
    from quorlock_sim.world import World

Line = dict[str, Any]

# The reply of a node that has executed the command.
_YES: dict[type, object] = {Extend: 1, Keep: 1, Release: -3}
# These concern no lock.
_PREPARING = (Subscribe, Publish)
# Names of commands that differ from their class's.
_NAMES: dict[type, str] = {
    **dict.fromkeys((ScriptedAcquire, AcquireAny, Share), "acquire"),
    Look: "release",
}


class Trace:
    """The lines of a trace, in order of the events."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._world: World | None = None

    def text(self) -> str:
        """Return the trace as JSON lines."""
        dumps = json.dumps
        lines = (dumps(line, sort_keys=True, separators=(",", ":")) for line in self.lines)
        return "".join(f"{line}\n" for line in lines)

    def _write(self, kind: str, **facts: Any) -> None:
        assert self._world is not None
        self.lines.append({"kind": kind, "at": self._world.now, **facts})

    def begin(self, world: World) -> None:
        """Write the first line, which describes the world."""
        self._world = world
        plan, settings = world.plan, world.plan.settings
        self._write(
            "world",
            version=1,
            seed=plan.seed,
            scenario=plan.scenario,
            n=settings.n,
            clients=plan.clients,
            resources=list(plan.resources),
            ttl_ms=settings.max_ttl_ms,
            max_ttl_ms=settings.max_ttl_ms,
            node_timeout=settings.node_timeout,
            drift_ppm=settings.drift_ppm,
            expiry_resolution=EXPIRY_RESOLUTION,
            client_paces=list(plan.client_paces),
            node_paces=list(plan.node_paces),
        )

    # --- connections and messages ------------------------------------------------------------

    def connected(self, link: Link) -> None:
        """Record a connection that may vote."""
        self._write("connect", client=link.process.index, **_ends(link))

    def disconnected(self, link: Link) -> None:
        """Record the loss of a connection, as the client sees it."""
        self._write("disconnect", client=link.process.index, why="lost", **_ends(link))

    def send(self, message: Message) -> None:
        """Record that a client sends a command."""
        if type(message.command) in _PREPARING:
            return
        self._write("send", **_about(message), round=message.round, **_ends(message.link))

    def executed(self, server: SimServer, message: Message) -> None:
        """Record that a node executes a command."""
        if type(message.command) in _PREPARING:
            return
        reply = _shown(message.reply)
        # A release that is done is -3; for a place it is the first of a list.
        verdict: Any = reply
        if type(reply) is list:
            verdict = verdict[0]
        is_acquire = isinstance(message.command, (*ACQUIRES, IssueFence))
        yes = _YES.get(type(message.command))
        is_done = has_granted(message.reply) if is_acquire else verdict == yes
        self._write(
            "execute",
            **_about(message),
            node=server.index,
            wall_ms=server.at_ms(),
            reply=reply,
            vote="granted" if is_done else "refused",
            copy=message.copy,
            **_found(message),
            **_taken(message, verdict),
        )

    def heard(self, message: Message, request: PendingRequest, answer: Answer) -> None:
        """Record that a client reads a reply."""
        if type(message.command) in _PREPARING:
            return
        self._write(
            "reply",
            client=message.link.process.index,
            node=message.link.server.index,
            message=message.number,
            round=request.round,
            vote=answer.vote.value,
            cause=WORDS[answer.code],
            heard=not request.receiver.over,
        )

    def loses(self, message: Message, what: str) -> None:
        """Record that a message will never arrive."""
        if type(message.command) in _PREPARING or message.number == 0:
            return
        self._write("lose", message=message.number, what=what)

    def pushed(self, link: Link, place: bytes, key: bytes) -> None:
        """Record that a client reads a call of a node."""
        who = {"client": link.process.index, "node": link.server.index}
        self._write("push", place=place.decode(), key=key.decode(), **who)

    # --- calls and leases --------------------------------------------------------------------

    def called(self, call: CallRecord) -> None:
        """Record a client's call."""
        facts = {"token": call.token.decode()} if call.token else {}
        self._write(
            "call",
            client=call.client,
            call=call.number,
            what=call.what,
            resource=call.resource,
            **facts,
        )

    def elapsed(self, turn: SimFlow[Any]) -> None:
        """Record that a deadline in a call has passed."""
        self._write("elapsed", client=turn.process.index, call=turn.call.number)

    def returned(self, call: CallRecord, outcome: Any) -> None:
        """Record the return of a call."""
        self._write(
            "outcome",
            client=call.client,
            call=call.number,
            what=call.what,
            outcome=call.outcome,
            **self._facts(call, outcome),
        )

    def _facts(self, call: CallRecord, outcome: Any) -> Line:
        if isinstance(outcome, (Acquired, Extended)):
            token = outcome.token if isinstance(outcome, Acquired) else call.token
            return {
                "token": token.decode(),
                "valid_until": self._true(call.client, outcome.valid_until),
                "votes": [answer.vote.value for answer in outcome.answers],
            }
        if isinstance(outcome, (ReleaseResult, ExtendFailed)):
            votes = [answer.vote.value for answer in outcome.answers]
            return {"token": call.token.decode(), "votes": votes}
        return {"error": str(outcome)} if isinstance(outcome, Exception) else {}

    def _true(self, client: int, reading: int) -> int | None:
        """Return the true instant of a client's reading at the clock's present rate."""
        assert self._world is not None
        return self._world.processes[client].clock.when(reading)

    def ended(self, lease: LeaseRecord) -> None:
        """Record the local end of a lease."""
        self._write("end", client=lease.client, token=lease.token.decode(), why=lease.why)

    def fault(self, what: str, facts: Line) -> None:
        """Record a fault, or its end."""
        self._write("fault", what=what, **facts)

    # --- the end -----------------------------------------------------------------------------

    def finish(self, judgement: Judgement) -> None:
        """Write the judgement: every lease's interval in true time, and the violations."""
        for interval in judgement.intervals:
            lease = interval.lease
            facts = {
                "since": interval.since,
                "until": interval.until,
                "why": lease.why or "ran out",
            }
            names = {"token": lease.token.decode(), "resource": lease.resource}
            self._write("lease", client=lease.client, **names, **facts)
        for violation in judgement.violations:
            facts = {name: _plain(fact) for name, fact in violation.facts.items()}
            self._write(
                "violation", rule=violation.rule, text=violation.text, instant=violation.at, **facts
            )
        taken = judgement.assumptions
        why = [*taken.clocks, *taken.memory]
        self._write("end_of_world", assumptions_intact=taken.intact, why=why)


def _ends(link: Link) -> Line:
    return {"node": link.server.index, "connection": link.number}


def _about(message: Message) -> Line:
    command = message.command
    token = "" if isinstance(command, Inspect) else command.token.decode()
    return {
        "client": message.link.process.index,
        "message": message.number,
        "command": _name(command),
        "key": command.key.decode(),
        **_also(command),
        **_places(command),
        "token": token,
        "ttl_ms": command.ttl_ms if isinstance(command, (*ACQUIRES, Extend)) else 0,
        **_kept(command),
    }


def _name(command: Command) -> str:
    return _NAMES.get(type(command)) or type(command).__name__.lower()


def _shown(reply: Reply) -> Any:
    if isinstance(reply, bytes):
        return reply.decode()
    return [_shown(part) for part in reply] if isinstance(reply, list) else reply


def _plain(fact: Any) -> Any:
    return fact.decode() if isinstance(fact, bytes) else fact


def _also(command: Command) -> Line:
    """Return the further keys of a command, if it has any, or that its key is shared."""
    if isinstance(command, Share):
        return {"shared": True}
    also: tuple[bytes, ...] = getattr(command, "also", ())
    return {"also": [key.decode() for key in also]} if also else {}


def _kept(command: Command) -> Line:
    """Return the mark that replaces the token, and its life, of a command that keeps a lock."""
    if isinstance(command, Keep):
        return {"mark": command.mark.decode(), "ttl_ms": command.kept_ms}
    return {}


def _taken(message: Message, verdict: Any) -> Line:
    """Return which of its keys a command has taken that takes any one of them."""
    command, reply = message.command, message.reply
    if isinstance(command, AcquireAny) and verdict == 1 and isinstance(reply, list):
        number = reply[3]
        assert isinstance(number, int)
        return {"taken": (command.key, *command.also)[number].decode()}
    return {}


def _places(command: Command) -> Line:
    """Return what a command says about the queue, if it does."""
    if isinstance(command, Release) and command.place:
        return {"place": command.place.decode(), "ticket": command.ticket}
    if isinstance(command, Share) and command.place:
        return {"place": command.place.decode()}
    if isinstance(command, ScriptedAcquire) and (command.place or command.instead):
        return {"place": command.place.decode(), "instead": command.instead.decode()}
    return {}


def _found(message: Message) -> Line:
    """Return what the command found at the key, where the reply does not say it."""
    command, holder = message.command, message.found
    if isinstance(command, Inspect) or not (_places(command) or is_reservation(holder)):
        return {}
    if is_reservation(holder):
        return {"found": "reserved"}
    if isinstance(command, ScriptedAcquire) and command.instead and holder == command.instead:
        return {"found": "instead"}
    return (
        {"found": "other" if holder else "absent"} if holder != command.token else {"found": "own"}
    )
