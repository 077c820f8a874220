"""Writes down what happens in a world, one fact a line: for readers, pages and the formal model.

JSON lines with sorted keys and whole numbers only, so that the same world gives the same bytes
everywhere.  Instants are true time in ns since the world began.  The kinds of lines are described
in docs/simulation.md.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from quorlock._core.commands import (
    ACQUIRES,
    Acquire,
    AcquireByScript,
    Extend,
    Inspect,
    Raise,
    Release,
)
from quorlock._core.outcomes import Extended, Granted, Lost, Released
from quorlock._core.time import EXPIRY_RESOLUTION

if TYPE_CHECKING:
    from quorlock._core.commands import Command
    from quorlock._core.outcomes import Answer
    from quorlock._wire.conversation import Question
    from quorlock.testing.checker import Judgement
    from quorlock.testing.history import Call, Lease
    from quorlock.testing.network import Link, Message
    from quorlock.testing.node import Reply
    from quorlock.testing.process import Turn
    from quorlock.testing.server import Server
    from quorlock.testing.world import World

Line = dict[str, Any]

# What a node replies when it has done what it was asked.
_YES: dict[type, object] = {Acquire: "OK", Extend: 1, Release: -3}
# Names of commands, where they are not their class's.
_NAMES: dict[type, str] = {AcquireByScript: "acquire"}


class Trace:
    """The lines, in the order in which things happened."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._world: World | None = None

    def text(self) -> str:
        """All of it, as JSON lines."""
        dumps = json.dumps
        lines = (dumps(line, sort_keys=True, separators=(",", ":")) for line in self.lines)
        return "".join(f"{line}\n" for line in lines)

    def _write(self, kind: str, **facts: Any) -> None:
        assert self._world is not None
        self.lines.append({"kind": kind, "at": self._world.now, **facts})

    def begin(self, world: World) -> None:
        """The first line: what world this is."""
        self._world = world
        plan, settings = world.plan, world.plan.settings
        self._write(
            "world",
            version=1,
            seed=plan.seed,
            scenario=plan.scenario,
            n=settings.n,
            clients=len(plan.careers),
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
        """A connection that may vote."""
        self._write("connect", client=link.process.index, **_ends(link))

    def disconnected(self, link: Link) -> None:
        """Its loss, as the client sees it."""
        self._write("disconnect", client=link.process.index, why="lost", **_ends(link))

    def send(self, message: Message) -> None:
        """A command leaves."""
        self._write("send", **_about(message), round=message.round, **_ends(message.link))

    def executed(self, server: Server, message: Message) -> None:
        """A node carries a command out."""
        reply = _shown(message.reply)
        # What scripts about fences say begins with 1, then comes the node's clock, then the fence.
        verdict: Any = reply
        if type(reply) is list:
            verdict = verdict[0]
        self._write(
            "execute",
            **_about(message),
            node=server.index,
            wall_ms=server.at_ms(),
            reply=reply,
            vote="granted" if verdict == _yes(message.command) else "refused",
            copy=message.copy,
        )

    def heard(self, message: Message, question: Question, answer: Answer) -> None:
        """A client reads a reply."""
        self._write(
            "reply",
            client=message.link.process.index,
            node=message.link.server.index,
            message=message.number,
            round=question.round,
            vote=answer.vote.value,
            cause=answer.cause.value,
            heard=not question.asker.over,
        )

    def loses(self, message: Message, what: str) -> None:
        """It will never arrive."""
        self._write("lose", message=message.number, what=what)

    # --- calls and leases --------------------------------------------------------------------

    def called(self, call: Call) -> None:
        """A client calls."""
        facts = {"token": call.token.decode()} if call.token else {}
        self._write(
            "call",
            client=call.client,
            call=call.number,
            what=call.what,
            resource=call.resource,
            **facts,
        )

    def elapsed(self, turn: Turn[Any]) -> None:
        """A deadline has passed in a call."""
        self._write("elapsed", client=turn.process.index, call=turn.call.number)

    def returned(self, call: Call, outcome: Any) -> None:
        """A call comes back."""
        self._write(
            "outcome",
            client=call.client,
            call=call.number,
            what=call.what,
            outcome=call.outcome,
            **self._facts(call, outcome),
        )

    def _facts(self, call: Call, outcome: Any) -> Line:
        if isinstance(outcome, (Granted, Extended)):
            token = outcome.token if isinstance(outcome, Granted) else call.token
            return {
                "token": token.decode(),
                "valid_until": self._true(call.client, outcome.valid_until),
                "votes": [answer.vote.value for answer in outcome.answers],
            }
        if isinstance(outcome, (Released, Lost)):
            votes = [answer.vote.value for answer in outcome.answers]
            return {"token": call.token.decode(), "votes": votes}
        return {"error": str(outcome)} if isinstance(outcome, Exception) else {}

    def _true(self, client: int, reading: int) -> int | None:
        """When a client's clock shows that, as things are."""
        assert self._world is not None
        return self._world.processes[client].clock.when(reading)

    def ended(self, lease: Lease) -> None:
        """A lease ends locally."""
        self._write("end", client=lease.client, token=lease.token.decode(), why=lease.why)

    def fault(self, what: str, facts: Line) -> None:
        """Something goes wrong, or is mended."""
        self._write("fault", what=what, **facts)

    # --- the end -----------------------------------------------------------------------------

    def finish(self, judgement: Judgement) -> None:
        """What came of it: every lease's interval in true time, and what is wrong with it."""
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
        "token": token,
        "ttl_ms": command.ttl_ms if isinstance(command, (*ACQUIRES, Extend)) else 0,
    }


def _name(command: Command) -> str:
    return _NAMES.get(type(command)) or type(command).__name__.lower()


def _yes(command: Command) -> object:
    return 1 if isinstance(command, (AcquireByScript, Raise)) else _YES.get(type(command))


def _shown(reply: Reply) -> Any:
    if isinstance(reply, bytes):
        return reply.decode()
    return [_shown(part) for part in reply] if isinstance(reply, list) else reply


def _plain(fact: Any) -> Any:
    return fact.decode() if isinstance(fact, bytes) else fact
