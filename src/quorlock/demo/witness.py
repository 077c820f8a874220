"""The outside witness: a log of who was inside the critical section and when, and the judge who
reads it. Trusts neither the lock nor the workers' own counts; knows no node.

Every worker appends one line for each step, with one write to a file opened with O_APPEND, so
that lines never mix: `begin worker 3 81723049` and `end worker 3 81729152` (one addition made) or
`left worker 3 81729152` (none made). The number is CLOCK_MONOTONIC in nanoseconds, which all
processes of one machine share; it is read inside the section, at either end.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quorlock.demo.counter import Counter

if TYPE_CHECKING:
    from collections.abc import Iterable

_LINE = re.compile(r"(begin|end|left) worker (\d+) (\d+)\n")


class Log:
    """The log, as one worker writes it."""

    def __init__(self, path: str, worker: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._worker = worker

    @staticmethod
    def create(path: str) -> None:
        """A new log, empty."""
        Path(path).touch()

    def begin(self) -> None:
        """The worker is inside."""
        self._write("begin")

    def end(self) -> None:
        """It has made its addition and goes."""
        self._write("end")

    def left(self) -> None:
        """It goes without having added."""
        self._write("left")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, word: str) -> None:
        line = f"{word} worker {self._worker} {time.monotonic_ns()}\n"
        os.write(self._file, line.encode())


@dataclass(frozen=True)
class Section:
    """One stay in the critical section."""

    worker: int
    began: int
    ended: int
    added: bool


@dataclass(frozen=True)
class Judgement:
    """What the log and the counter come to.

    Attributes:
        additions: how many were made.
        counter: what the file says in the end.
        overlaps: sections that began while another had not ended.
        unreadable: lines that say nothing.
        unfinished: sections that began and never ended.
        longest_pause: seconds with nobody inside, between two sections.
    """

    additions: int
    counter: int
    overlaps: int
    unreadable: int
    unfinished: int
    longest_pause: float

    @property
    def lost(self) -> int:
        """Additions that were made and are not in the counter."""
        return self.additions - self.counter

    @property
    def content(self) -> bool:
        """Something was done, every line accounts for it, nothing was lost, nobody met."""
        faults = (self.lost, self.overlaps, self.unreadable, self.unfinished)
        return self.additions > 0 and not any(faults)


def judge(log_path: str, counter_path: str) -> Judgement:
    """Read both files once all workers have ended."""
    with Path(log_path).open(encoding="ascii", errors="replace", newline="\n") as lines:
        sections, unreadable, unfinished = read(lines)
    overlaps, pause = sweep(sections)
    return Judgement(
        additions=sum(section.added for section in sections),
        counter=Counter.said(counter_path),
        overlaps=overlaps,
        unreadable=unreadable,
        unfinished=unfinished,
        longest_pause=pause / 1e9,
    )


def read(lines: Iterable[str]) -> tuple[list[Section], int, int]:
    """The sections that ended, how many lines are unreadable and how many sections unfinished."""
    sections: list[Section] = []
    inside: dict[int, int] = {}
    unreadable = unfinished = 0
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:  # a cut line, too: the newline is its last byte
            unreadable += 1
            continue
        word, worker, instant = match[1], int(match[2]), int(match[3])
        if word == "begin":
            unfinished += worker in inside
            inside[worker] = instant
        elif worker in inside:
            sections.append(Section(worker, inside.pop(worker), instant, added=word == "end"))
        else:
            unreadable += 1  # the end of what never began
    return sections, unreadable, unfinished + len(inside)


def sweep(sections: Iterable[Section]) -> tuple[int, int]:
    """Overlaps, and the longest pause in ns, by going through all sections in time."""
    overlaps = pause = 0
    until: int | None = None
    for section in sorted(sections, key=lambda section: section.began):
        if until is None:
            until = section.ended
            continue
        overlaps += section.began < until
        pause = max(pause, section.began - until)
        until = max(until, section.ended)
    return overlaps, pause
