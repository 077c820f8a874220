"""Check that a trace of the simulated world is a behaviour of the model.

This module maps each line of a trace to an action of the model. redlock.pml decides whether that
action is possible and with which answer, so no rule of Redlock is repeated here: the module makes
a plan, a list of actions with times, and spin searches whether the model can follow it.

    python -m spec.trace world.jsonl      exit 1 and the first line that the model cannot do

Places in queues are skipped, and a key that is reserved for a waiter is absent in the model, which
has no queue: a refusal by such a key is skipped.  An exchange is a release and an acquire.  An
acquire of a token that has been acquired restores a key. A raise changes a fence counter and no
key; it is part of fence.pml and skipped here. Any other command is an error, because its effect on
the keys would be missed.

Other lines are skipped: connections, losses, deadlines, and faults that only delay or lose
messages. The model has no connections, and in it any message may be late or lost. Error replies
change nothing on a node and are not votes, so they are skipped too. A world is refused if a clock
steps or drifts beyond the bound, or if a node comes back with an older memory: the model does not
cover it. Of leases by bare token (extend_by_token) the model has only the effect on the keys.
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

# The effect of each command on a key, and the commands that change no key.
ACTIONS = {"acquire": "SET", "extend": "STRETCH", "release": "RELEASE"}
WITHOUT_KEY = ("inspect", "raise")
REFUSED = ("acquire", "refused")

TAKEN = ("send", "execute", "reply", "outcome", "end", "fault")

# The numbers of actions and answers are read from the model, so that they are defined once.
NUMBERS = {
    name: int(value)
    for name, value in re.findall(
        r"^#define ([A-Z_]+) (\d+)\b", check.MODEL.read_text(), re.MULTILINE
    )
}


class Unknown(Exception):
    """The trace has a command that this module does not know."""


class Refused(Exception):
    """The trace has events that the model does not cover."""


@dataclass(frozen=True)
class Step:
    """One action of the plan, and the line of the trace (from 1) that it comes from."""

    line: int
    action: str
    who: int = 0
    where: int = 0
    answer: str = "REFUSED"  # this is 0: actions that involve no node have no answer
    span: int = 0
    slack: int = 0

    def numbers(self) -> str:
        """Return the step as an initializer in C."""
        codes = NUMBERS[self.action], self.who, self.where, NUMBERS[self.answer]
        return f"{{{', '.join(map(str, (*codes, self.span, self.slack)))}}}"


@dataclass(frozen=True)
class Answer:
    """The model's verdict on a trace."""

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
    """The steps of a trace that concern one resource."""

    world: Line
    key: str
    steps: list[Step] = field(default_factory=list)
    _tokens: dict[str, int] = field(default_factory=dict)
    _rounds: dict[str, Round] = field(default_factory=dict)  # the current one of each token
    _messages: dict[int, tuple[str, Round]] = field(default_factory=dict)
    _calls: dict[tuple[int, str], Line] = field(default_factory=dict)  # the last, by client, token
    _over: set[str] = field(default_factory=set)
    _handed: set[str] = field(default_factory=set)
    _now: int = 0

    def add(self, number: int, line: Line) -> None:
        """Add the steps of one line of the trace."""
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
        """The number of attempts."""
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
            if token:
                yield from self._releases(number, line)
            return
        call = self._calls.get((line["client"], token), {"call": -1})
        asked = command, line["client"], call["call"], line["round"]
        self._messages[line["message"]] = token, asked
        # After NOSCRIPT the EVAL is sent again in its own round, which may be over by then.
        before = self._rounds.get(token)
        if before is None or before[:3] != asked[:3] or before[3] < asked[3]:
            self._rounds[token] = asked
            yield self._round(number, line, call.get("what", ""))

    def _round(self, number: int, line: Line, what: str) -> Step:
        """Return the beginning of a round: its first command is sent."""
        token, ttl = line["token"], line["ttl_ms"] * US_PER_MS
        validity = ttl - self._slack(ttl) - self.world["expiry_resolution"] // NS_PER_US
        if line["command"] == "acquire":
            if token in self._tokens:
                return Step(number, "RESTORED", self._who(token), span=validity)
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
        """Yield the steps of a release; outside a round it is a pending one of a live lease."""
        if line["round"] or line["token"] in self._over:
            yield from self._finish(number, line["token"])
        else:
            yield Step(number, "PEND", self._who(line["token"]), line["node"])

    def _finish(self, number: int, token: str) -> Iterator[Step]:
        if token not in self._over:
            self._over.add(token)
            yield Step(number, "FINISH", self._who(token))

    def _execute(self, number: int, line: Line) -> Iterator[Step]:
        command, reply = line["command"], line["reply"]
        if not self._is_mine(number, line) or is_error(command, reply):
            return
        found = line.get("found")
        if not line["token"] or (found == "reserved" and (command, line["vote"]) == REFUSED):
            return  # it concerns a place in the queue, or a key that is reserved for one
        ttl = line["ttl_ms"] * US_PER_MS
        slack = self._slack(ttl) + self.world["expiry_resolution"] // NS_PER_US
        action = ACTIONS[command]
        if found == "instead" and line["vote"] == "granted":
            yield Step(number, "RELEASE", self._who(line["instead"]), line["node"], "GRANTED")
        who, where, answer = self._who(line["token"]), line["node"], meaning(command, reply, found)
        yield Step(number, action, who, where, answer, ttl, slack)

    def _reply(self, number: int, line: Line) -> Iterator[Step]:
        token, asked = self._messages.get(line["message"], ("", None))
        # A reply names its round; a reply to another round is not a vote.
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
        slack = self._slack(self.world["max_ttl_ms"] * US_PER_MS) + 2  # 2: rounding
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
        """Return whether the command may change this resource's key."""
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


def is_error(command: str, reply: object) -> bool:
    """Return whether the reply is an error or from a quarantined node: no key was changed."""
    if isinstance(reply, list):  # acquire.lua: status, the node's time, a number
        return command == "acquire" and int(reply[0]) < 0
    return isinstance(reply, str) and reply != "OK"


# An acquire of a waiter, or in an exchange, is granted in four ways: see scripts/acquire.lua.
_GRANTS = {("extend", 1), ("release", -3), *(("acquire", number) for number in (-3, -4, -5, -6))}


def meaning(command: str, reply: object, found: str | None = None) -> str:
    """Translate a node's reply into an answer of the model.

    found: what the command found at the key, where it is not in the reply.  A key that is reserved
    for a waiter is absent in the model.
    """
    if found is not None and command != "acquire":
        return {"own": "GRANTED", "other": "REFUSED"}.get(found, "ABSENT")
    if isinstance(reply, list):
        return "GRANTED" if reply[0] == 1 else "REFUSED"
    if reply == "OK" or (command, reply) in _GRANTS:
        return "GRANTED"
    return "ABSENT" if (command, reply) in (("extend", -1), ("release", -2)) else "REFUSED"


def refuse_strange(world: Line, fault: Line) -> None:
    """Raise Refused for a fault that the model does not have."""
    what = fault["what"]
    if what == "foreign":
        raise Refused("another library takes the lock, and the model has none")
    if what == "step":
        raise Refused(
            "a clock steps, and the model's clocks do not (but for the case 'clock jump')"
        )
    if what == "drift" and abs(fault["pace"] - PPM) > world["drift_ppm"]:
        raise Refused("a clock drifts by more than the bound")
    if fault.get("memory") not in (None, "lost", "kept"):
        raise Refused("a node comes back with an older memory, and the model's lose all or nothing")


def plans(lines: Sequence[Line]) -> Iterator[Plan]:
    """Yield one plan for each resource; keys are independent."""
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
    """Let spin search whether the model can take all steps of the plan in order."""
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
    "CRASH": 1, "DRIFT": 1, "PENDING_RELEASES": 1, "SLOTS": 1,
    "RESTORE": 1,
}  # fmt: skip


def words(step: Step) -> str:
    """Describe a step."""
    if step.action in ("SET", "STRETCH", "RELEASE"):
        return f"{step.action} on node {step.where} answered {step.answer} (attempt {step.who})"
    return f"{step.action} (attempt {step.who})"


def is_sound(lines: Sequence[Line]) -> bool:
    """Return whether the world kept to Redlock's assumptions, so that exclusion must hold."""
    return bool(lines[-1].get("assumptions_intact", False))


def accept(lines: Sequence[Line]) -> Answer:
    """Return the first rejection of a whole trace, or an acceptance."""
    steps = 0
    for plan in plans(lines):
        with tempfile.TemporaryDirectory(prefix="quorlock-spec-") as folder:
            answer = follow(plan, exclusion=is_sound(lines), folder=Path(folder))
        if not answer.accepted:
            return answer
        steps += answer.steps
    return Answer(accepted=True, steps=steps)


def main(given: Sequence[str] = tuple(sys.argv[1:])) -> int:
    """Check traces and print the verdicts; return the exit status."""
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
            print(f"{name}: unknown: {unknown}")
            worst = 1
            continue
        print(f"{name}: {answer}")
        worst = max(worst, int(not answer.accepted))
    return worst


if __name__ == "__main__":
    sys.exit(main())
