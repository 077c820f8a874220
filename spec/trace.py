"""Checks a trace of the simulated world against the model: is it something that the model can do?

Owns which line of a trace is which action of the model; leaves it to redlock.pml whether that
action is possible, and with which answer.  So nothing of Redlock is written here a second time:
this makes a plan, a list of actions with times, and asks spin whether the model can follow it.

    python -m spec.trace world.jsonl      exit 1 and the first line that the model cannot do

An acquire of a token that has been acquired is a top-up. A raise touches the counter of fences and
no key: fence.pml has it, and here it is skipped. A command that is none of these is an error, for
what it does to the keys would be missed.

Lines of other kinds are skipped (connections, losses, deadlines, faults that only delay or lose
messages): the model has no connections, and whatever arrives late or never is free in it.
Answers that are errors change nothing on a node and are no votes: skipped, too.  A world with
clocks that step or err beyond the bound, or with a node that comes back with an older memory, is
refused: the model says nothing about it.  Leases by bare token (extend_by_token) are not in the
model, only what they do to the keys.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Line = dict[str, Any]

Round = tuple[str, int, int, int]  # command, client, its call, the round of that call

NS_PER_US = 1_000
US_PER_MS = 1_000
PPM = 1_000_000
TOKENS_MAX = 2_000

# What a command does to a key; and those that leave all keys alone.
ACTIONS = {"acquire": "SET", "extend": "STRETCH", "release": "RELEASE"}
WITHOUT_KEY = ("inspect", "raise")

TAKEN = ("send", "execute", "reply", "outcome", "end", "fault")

# The model's names of actions and answers are read from the model, so there is one list of them.
NUMBERS = {
    name: int(value)
    for name, value in re.findall(
        r"^#define ([A-Z_]+) (\d+)\b", check.MODEL.read_text(), re.MULTILINE
    )
}


class Unknown(Exception):
    """The trace holds a command that this reader has never heard of: it must be taught."""


class Refused(Exception):
    """The trace holds what the model has no word for; it says nothing about it."""


@dataclass(frozen=True)
class Step:
    """One action of the plan, and the line of the trace (from 1) that it stands for."""

    line: int
    action: str
    who: int = 0
    where: int = 0
    answer: str = "REFUSED"  # which is 0: what is asked of no node is answered by none
    span: int = 0
    slack: int = 0

    def numbers(self) -> str:
        """As C."""
        codes = NUMBERS[self.action], self.who, self.where, NUMBERS[self.answer]
        return f"{{{', '.join(map(str, (*codes, self.span, self.slack)))}}}"


@dataclass(frozen=True)
class Answer:
    """What the model says of a trace."""

    accepted: bool
    steps: int
    line: int = 0
    text: str = ""

    def __str__(self) -> str:
        if self.accepted:
            return f"accepted: {self.steps} steps are a behaviour of the model"
        return f"rejected at line {self.line}: {self.text}"


# --- from lines to steps ---------------------------------------------------------------------


@dataclass
class Plan:
    """The steps of one resource's share of a trace."""

    world: Line
    key: str
    steps: list[Step] = field(default_factory=list)
    _tokens: dict[str, int] = field(default_factory=dict)
    _rounds: dict[str, Round] = field(default_factory=dict)  # the present one of each token
    _messages: dict[int, tuple[str, Round]] = field(default_factory=dict)
    _calls: dict[tuple[int, str], Line] = field(default_factory=dict)  # the last, by client, token
    _over: set[str] = field(default_factory=set)
    _handed: set[str] = field(default_factory=set)
    _now: int = 0

    def add(self, number: int, line: Line) -> None:
        """What this line of the trace asks of the model."""
        if line["kind"] == "call":
            self._calls[line["client"], line.get("token", "")] = line
        elif line["kind"] in TAKEN:
            self._take(number, line)

    def _take(self, number: int, line: Line) -> None:
        steps = list(getattr(self, f"_{line['kind']}")(number, line))
        if steps:
            self._pass_time(number, line["at"] // NS_PER_US)
        self.steps += steps

    @property
    def tokens(self) -> int:
        """How many attempts there are."""
        return len(self._tokens)

    def _pass_time(self, number: int, now: int) -> None:
        if now > self._now:
            self.steps.append(Step(number, "TICK", span=now - self._now))
        self._now = now

    def _send(self, number: int, line: Line) -> Iterator[Step]:
        token, command = line["token"], line["command"]
        if not self._is_mine(number, line):
            return
        if command == "release":
            yield from self._releases(number, line)
            return
        call = self._calls.get((line["client"], token), {"call": -1})
        asked = command, line["client"], call["call"], line["round"]
        self._messages[line["message"]] = token, asked
        # EVAL after NOSCRIPT goes out again in its own round, which may be over by then.
        before = self._rounds.get(token)
        if before is None or before[:3] != asked[:3] or before[3] < asked[3]:
            self._rounds[token] = asked
            yield self._round(number, line, call.get("what", ""))

    def _round(self, number: int, line: Line, what: str) -> Step:
        """A round begins with the first command of it that leaves."""
        token, ttl = line["token"], line["ttl_ms"] * US_PER_MS
        validity = ttl - self._slack(ttl) - self.world["expiry_resolution"] // NS_PER_US
        if line["command"] == "acquire":
            if token in self._tokens:
                return Step(number, "TOPPED_UP", self._who(token), span=validity)
            if len(self._tokens) == TOKENS_MAX:
                raise Refused(f"more than {TOKENS_MAX} attempts: give a shorter world")
            who = self._tokens.setdefault(token, len(self._tokens))
            return Step(number, "BEGIN", who, span=validity)
        action = "EXTEND_SENT"
        if token in self._handed:
            action = "ADOPT"
        elif what == "extend_by_token" or token in self._over:
            action = "STRETCH_SENT"
        return Step(number, action, self._who(token), span=validity)

    def _releases(self, number: int, line: Line) -> Iterator[Step]:
        """A release that belongs to no round of a call pays a debt; the lease may go on."""
        if line["round"] or line["token"] in self._over:
            yield from self._finish(number, line["token"])
        else:
            yield Step(number, "OWE", self._who(line["token"]), line["node"])

    def _finish(self, number: int, token: str) -> Iterator[Step]:
        if token not in self._over:
            self._over.add(token)
            yield Step(number, "FINISH", self._who(token))

    def _execute(self, number: int, line: Line) -> Iterator[Step]:
        command, reply = line["command"], line["reply"]
        if not self._is_mine(number, line) or is_error(reply):
            return
        ttl = line["ttl_ms"] * US_PER_MS
        slack = self._slack(ttl) + self.world["expiry_resolution"] // NS_PER_US
        action = ACTIONS[command]
        who, where, answer = self._who(line["token"]), line["node"], meaning(command, reply)
        yield Step(number, action, who, where, answer, ttl, slack)

    def _reply(self, number: int, line: Line) -> Iterator[Step]:
        token, asked = self._messages.get(line["message"], ("", None))
        # A reply names its round: of another round it is no vote.
        if line["vote"] == "granted" and asked is not None and self._rounds[token] == asked:
            yield Step(number, "REPLY", self._who(token), line["node"])

    def _outcome(self, number: int, line: Line) -> Iterator[Step]:
        token = line.get("token")
        if token not in self._tokens or line.get("valid_until") is None:
            return
        action = "WIN"
        if line["outcome"] == "extended":
            action = "ADOPTED" if token in self._handed else "EXTENDED"
            self._handed.discard(token)
        left = -(-line["valid_until"] // NS_PER_US) - line["at"] // NS_PER_US
        slack = self._slack(self.world["max_ttl_ms"] * US_PER_MS) + 2  # and the roundings
        yield Step(number, action, self._who(token), span=left, slack=slack)

    def _end(self, number: int, line: Line) -> Iterator[Step]:
        token = line["token"]
        if token not in self._tokens or token in self._over:
            return
        if line["why"] == "handed over":
            self._handed.add(token)
            yield Step(number, "HANDED_OVER", self._who(token))
        else:
            yield from self._finish(number, token)

    def _fault(self, number: int, line: Line) -> Iterator[Step]:
        refuse_strange(self.world, line)
        loses = line["what"] == "flush" or line.get("memory") == "lost"
        if loses or (line["what"] == "evict" and line["key"] == self.key):
            yield Step(number, "CRASHED", where=line["node"])

    def _is_mine(self, number: int, line: Line) -> bool:
        """It is about this resource's key, and may change it."""
        command = line["command"]
        if command not in ACTIONS and command not in WITHOUT_KEY:
            raise Unknown(f"line {number}: the command {command!r}")
        return command in ACTIONS and bool(line["key"] == self.key)

    def _who(self, token: str) -> int:
        if token not in self._tokens:
            raise Refused(f"the token {token!r} was never acquired in this trace")
        return self._tokens[token]

    def _slack(self, ttl: int) -> int:
        return int(ttl * self.world["drift_ppm"] // PPM)


def is_error(reply: object) -> bool:
    """A node that could not do what it was asked, or is kept out; it changed nothing."""
    if isinstance(reply, list):  # acquire.lua: what, its clock, a number
        return int(reply[0]) < 0
    return isinstance(reply, str) and reply != "OK"


def meaning(command: str, reply: object) -> str:
    """A node's answer in the model's words."""
    if isinstance(reply, list):
        return "GRANTED" if reply[0] == 1 else "REFUSED"
    if reply == "OK" or (command, reply) in (("extend", 1), ("release", -3)):
        return "GRANTED"
    return "ABSENT" if (command, reply) in (("extend", -1), ("release", -2)) else "REFUSED"


def refuse_strange(world: Line, fault: Line) -> None:
    """Faults that the model does not have."""
    what = fault["what"]
    if what == "step":
        raise Refused(
            "a clock steps, and the model's clocks do not (but for the case 'clock jump')"
        )
    if what == "drift" and abs(fault["pace"] - PPM) > world["drift_ppm"]:
        raise Refused("a clock drifts by more than the bound")
    if fault.get("memory") not in (None, "lost", "kept"):
        raise Refused("a node comes back with an older memory, and the model's lose all or nothing")


def plans(lines: Sequence[Line]) -> Iterator[Plan]:
    """One plan for each resource: keys do not touch each other."""
    world = lines[0]
    if world.get("kind") != "world" or world.get("version") != 1:
        raise Refused("this is no trace of version 1: its first line must be of the kind 'world'")
    for key in world["resources"]:
        plan = Plan(world, key)
        for number, line in enumerate(lines, 1):
            plan.add(number, line)
        if plan.tokens:
            yield plan


# --- asking the model ------------------------------------------------------------------------

HEADER = """\
/* made by spec/trace.py */
static const struct {{ int what, who, where, answer, span, slack; }} plan[] = {{
{steps},
{{0, 0, 0, 0, 0, 0}} }};
static int furthest = -1;
"""


def follow(plan: Plan, *, exclusion: bool, folder: Path) -> Answer:
    """Whether the model can take all steps of the plan, one after the other."""
    steps = ",\n".join(step.numbers() for step in plan.steps)
    (folder / "plan.h").write_text(HEADER.format(steps=steps))
    flags = {"N": plan.world["n"], "CLIENTS": plan.tokens, "EXCLUSION": int(exclusion)}
    check.compile_model(
        [f"-D{name}={value}" for name, value in {**flags, **FOLLOWED}.items()],
        SEARCH,
        folder,
        check.MODEL,
    )
    output = check.run(["./pan", "-E", "-m1000000"], folder)
    violated = "assertion violated" in output
    if not violated:
        check.no_gap(output)
    reached = max(int(number) for number in re.findall(r"^reached (\d+)$", output, re.MULTILINE))
    if reached == len(plan.steps):
        return Answer(accepted=True, steps=reached)
    step = plan.steps[reached]
    if violated:
        return Answer(False, reached, step.line, "two leases would be valid at the same instant")
    return Answer(False, reached, step.line, f"the model cannot do this: {words(step)}")


SEARCH = ["-O0", "-DNOREDUCE", "-DVECTORSZ=262144"]
FOLLOWED = {
    "PLAN": 1, "REPLIES": 1, "TWICE_SENT": 1, "EXTEND": 1, "BY_TOKEN": 1, "HAND_OVER": 1,
    "CRASH": 1, "DRIFT": 1, "DEBTS": 1, "SLOTS": 1,
    "TOP_UP": 1,
}  # fmt: skip


def words(step: Step) -> str:
    """A step as a reader understands it."""
    if step.action in ("SET", "STRETCH", "RELEASE"):
        return f"{step.action} on node {step.where} answered {step.answer} (attempt {step.who})"
    return f"{step.action} (attempt {step.who})"


def is_sound(lines: Sequence[Line]) -> bool:
    """The world kept to what Redlock takes for granted, so exclusion must hold."""
    return bool(lines[-1].get("assumptions_intact", False))


def accept(lines: Sequence[Line]) -> Answer:
    """What the model says of a whole trace: the first rejection, or that it has none."""
    steps = 0
    for plan in plans(lines):
        with tempfile.TemporaryDirectory(prefix="quorlock-spec-") as folder:
            answer = follow(plan, exclusion=is_sound(lines), folder=Path(folder))
        if not answer.accepted:
            return answer
        steps += answer.steps
    return Answer(accepted=True, steps=steps)


def main(given: Sequence[str] = tuple(sys.argv[1:])) -> int:
    """Read traces, tell what the model says of them."""
    if lacks := check.missing():
        print(check.INSTALL.format(missing=", ".join(lacks)), file=sys.stderr)
        return 2
    worst = 0
    for name in given:
        lines = [json.loads(line) for line in Path(name).read_text().splitlines()]
        try:
            answer = accept(lines)
        except Refused as refused:
            print(f"{name}: not judged: {refused}")
            continue
        except Unknown as unknown:
            print(f"{name}: not understood: {unknown}")
            worst = 1
            continue
        print(f"{name}: {answer}")
        worst = max(worst, int(not answer.accepted))
    return worst


if __name__ == "__main__":
    sys.exit(main())
