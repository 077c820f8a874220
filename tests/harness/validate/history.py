"""Reads the records of a run: who held what and when, which calls were made, who came and went.

Follows the files as they grow: `History.follow` takes in what was written since it last looked.
Leaves judging to `judge`.  The vocabulary of the lines is in `tests/harness/traffic/records.py`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

FOR_EVER = 2**63 - 1


@dataclass(slots=True)
class Stay:
    """One time of holding a lock. Instants in ns of the machine's monotonic clock.

    Attributes:
        began: the call that granted it had returned.
        until: its lease may be trusted up to here, as the library last said.
        ended: its holder trusted it no more; None: it never said (killed, or still there).
        given_up: from then on its holder does not rely on the lease: it is about to release it, to
            hand it over or to drop it.
        slept: the holder's machine was suspended then, for an unknown time: a validity promised
            before ends there by its own clock, which counts that time.
        last_still: the latest instant at which `held` was true.
        wrote: its name stood in the resource's file while it was held; None: unknown.
        shortened: an extension brought an earlier end.
    """

    pid: int
    turn: int
    resource: str
    token: str
    began: int
    until: int
    ended: int | None = None
    given_up: int | None = None
    slept: int | None = None
    how: str = ""
    kind: str = ""
    last_still: int = 0
    wrote: bool | None = None
    shortened: bool = False

    @property
    def name(self) -> str:
        """The name in the resource's file."""
        return f"{self.pid}.{self.turn}"

    @property
    def end(self) -> int:
        """The latest instant at which it holds the lock."""
        until = self.until if self.slept is None else min(self.slept, self.until)
        return until if self.ended is None else min(self.ended, until)

    @property
    def slept_within(self) -> bool:
        """The machine was suspended while it was held."""
        return self.slept is not None and (self.ended is None or self.slept < self.ended)

    @property
    def reported_until(self) -> int:
        """The instant before which no other client is granted the lock, even if the holder lost it
        or was killed.
        """
        until = self.until if self.slept is None else min(self.slept, self.until)
        return until if self.given_up is None else min(self.given_up, until)

    def __str__(self) -> str:
        last = "never said" if self.ended is None else f"{self.ended} ({self.how})"
        return (
            f"{self.resource} turn {self.name} {self.kind} token {self.token}:"
            f" {self.began} to {last}, valid until {self.until}"
        )


@dataclass(slots=True)
class Call:
    """One call into the library. `due` is None if it may take for ever, `slack` what it may be
    late.
    """

    pid: int
    who: str
    verb: str
    asked: int
    due: int | None
    slack: int
    returned: int | None = None
    stalled: int = 0
    outcome: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def overdue(self) -> int:
        """The time by which it ended after its deadline, without pauses of its process, in ns."""
        if self.due is None or self.returned is None:
            return 0
        return max(0, self.returned - self.due - self.stalled)

    @property
    def late(self) -> int:
        """The time by which it ended after its deadline, if a busy machine does not explain that,
        or 0.
        """
        return self.overdue if self.overdue > self.slack else 0

    @property
    def seconds(self) -> float:
        """The duration in seconds; 0.0 if it did not end."""
        return 0.0 if self.returned is None else (self.returned - self.asked) / 1e9

    def __str__(self) -> str:
        said = f"{self.outcome} after {self.seconds:.3f} s" if self.returned else "no answer"
        return f"process {self.pid}, {self.who}: {self.verb} at {self.asked}: {said} {self.facts}"


@dataclass
class Process:
    """One process of the traffic."""

    pid: int
    face: str = ""
    workers: int = 0
    began: int = 0
    left: int | None = None  # when it said bye
    memory_kb: int = 0


class History:
    """All that was written so far.

    keep_calls=False: for long runs; calls that ended in time and well are counted and forgotten.
    """

    def __init__(self, folder: str | Path, *, keep_calls: bool = True) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()  # how often each verb came to what
        self.overdue: Counter[str] = Counter()  # ns, of the latest call of each verb
        self._keep_calls = keep_calls
        self._sleeps: defaultdict[int, list[int]] = defaultdict(list)
        self.stays: dict[tuple[int, int], Stay] = {}
        self.calls: dict[tuple[int, int], Call] = {}
        self.processes: dict[int, Process] = {}
        self.meetings: list[tuple[int, Stay, str]] = []
        self.defects: list[str] = []
        self.unreadable: list[str] = []
        self._folder = Path(folder)
        self._files: dict[Path, _Tail] = {}

    def follow(self) -> History:
        """Take in what was written since the last look."""
        for path in sorted(self._folder.glob("*.jsonl")):
            tail = self._files.setdefault(path, _Tail(path))
            for line in tail.lines():
                self._read(line, path.name)
        return self

    @property
    def cut(self) -> dict[int, bytes]:
        """Last lines that have no end, by process: it was killed in the middle of one."""
        rests = {path: tail.rest for path, tail in self._files.items() if tail.rest}
        return {int(path.name.partition("-")[0]): rest for path, rest in rests.items()}

    def settled(self, before: int) -> list[Stay]:
        """Stays of which all is known: the files of a run under way are read one after the other,
        so that a later stay may be seen before an earlier one's end.
        """
        return [s for s in self.stays.values() if s.ended is not None or s.until < before]

    def turns(self) -> Counter[str]:
        """Stays by face."""
        return Counter(self.processes[stay.pid].face for stay in self.stays.values())

    def grants(self, since: int, until: int) -> Counter[str]:
        """Stays that began within a span, by face."""
        return Counter(
            self.processes[stay.pid].face
            for stay in self.stays.values()
            if since <= stay.began < until
        )

    def _read(self, line: bytes, where: str) -> None:
        try:
            facts = json.loads(line)
            self._READERS[facts["what"]](self, facts)
        except (ValueError, KeyError, TypeError) as error:
            self.unreadable.append(f"{where}: {line[:200]!r} ({type(error).__name__}: {error})")

    def _hello(self, facts: dict[str, Any]) -> None:
        self.processes[facts["pid"]] = Process(
            facts["pid"], facts["face"], facts["workers"], facts["at"]
        )

    def _bye(self, facts: dict[str, Any]) -> None:
        process = self.processes[facts["pid"]]
        process.left, process.memory_kb = facts["at"], facts.get("memory_kb", 0)

    def _asks(self, facts: dict[str, Any]) -> None:
        given = (facts[name] for name in ("pid", "who", "verb", "at", "due", "slack"))
        self.calls[facts["pid"], facts["call"]] = Call(*given)

    def _returned(self, facts: dict[str, Any]) -> None:
        call = self.calls[facts["pid"], facts["call"]]
        call.returned, call.stalled, call.outcome = facts["at"], facts["stalled"], facts["outcome"]
        known = ("what", "at", "pid", "call", "stalled", "outcome")
        call.facts = {key: value for key, value in facts.items() if key not in known}
        self.outcomes[call.verb, call.outcome] += 1
        self.overdue[call.verb] = max(self.overdue[call.verb], call.overdue)
        if not (self._keep_calls or call.late or call.facts):
            del self.calls[facts["pid"], facts["call"]]

    def _begin(self, facts: dict[str, Any]) -> None:
        key = facts["pid"], facts["turn"]
        self.stays[key] = Stay(
            *key, facts["resource"], facts["token"], began=facts["at"], until=facts["until"]
        )
        self.stays[key].kind = facts.get("kind", "")
        for at in self._sleeps[facts["pid"]]:
            _sleep(self.stays[key], at)

    def _still(self, facts: dict[str, Any]) -> None:
        stay = self._stay(facts)
        stay.last_still = max(stay.last_still, facts["at"])
        stay.until = max(stay.until, facts.get("until", 0))

    def _extended(self, facts: dict[str, Any]) -> None:
        stay = self._stay(facts)
        if facts["until"] < stay.began:
            return  # it was over by the time its holder looked
        stay.shortened = stay.shortened or facts["until"] < stay.until
        stay.until = max(stay.until, facts["until"])

    def _wrote(self, facts: dict[str, Any]) -> None:
        self._stay(facts).wrote = not facts["late"]

    def _met(self, facts: dict[str, Any]) -> None:
        self.meetings.append((facts["at"], self._stay(facts), facts["found"]))

    def _end(self, facts: dict[str, Any]) -> None:
        stay = self._stay(facts)
        stay.ended, stay.how = facts["at"], facts["how"]

    def _gives_up(self, facts: dict[str, Any]) -> None:
        self._stay(facts).given_up = facts["at"]

    def _slept(self, facts: dict[str, Any]) -> None:
        self._sleeps[facts["pid"]].append(facts["at"])
        for stay in self.stays.values():
            if stay.pid == facts["pid"]:
                _sleep(stay, facts["at"])

    def _defect(self, facts: dict[str, Any]) -> None:
        self.defects.append(f"process {facts['pid']}, {facts['who']}: {facts['text']}")

    def _stay(self, facts: dict[str, Any]) -> Stay:
        return self.stays[facts["pid"], facts["turn"]]

    _READERS: ClassVar[dict[str, Any]] = {
        "hello": _hello,
        "bye": _bye,
        "asks": _asks,
        "returned": _returned,
        "begin": _begin,
        "still": _still,
        "extended": _extended,
        "wrote": _wrote,
        "met": _met,
        "end": _end,
        "gives up": _gives_up,
        "slept": _slept,
        "defect": _defect,
    }


def _sleep(stay: Stay, at: int) -> None:
    """A stay that began before its machine slept; of several times the first counts."""
    if stay.began <= at:
        stay.slept = at if stay.slept is None else min(at, stay.slept)


class _Tail:
    """The complete lines that were appended to a file since the last read."""

    def __init__(self, path: Path) -> None:
        self.rest = b""
        self._path = path
        self._read = 0

    def lines(self) -> list[bytes]:
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines
