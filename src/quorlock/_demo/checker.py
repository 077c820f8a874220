"""The independent check: a log of the critical sections, and its analysis.

It trusts neither the lock nor the workers' own counts, and connects to no node.

Every worker appends one line for each step, with one write to a file opened with O_APPEND, so that
lines never mix: `begin worker 3 81723049` and `end worker 3 81729152` (one addition made) or `left
worker 3 81729152` (none made). The number is CLOCK_MONOTONIC in nanoseconds, which all processes of
one machine share. It is read inside the section, at either end.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quorlock._demo.counter import Counter

_LINE = re.compile(r"(begin|end|left) worker (\d+) (\d+)\n")


class Log:
    """The log, opened by one worker."""

    def __init__(self, path: str, worker: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._worker = worker

    def write(self, word: str) -> None:
        """Record a step: begin, end (one addition made), or left (none made)."""
        line = f"{word} worker {self._worker} {time.monotonic_ns()}\n"
        os.write(self._file, line.encode())

    def close(self) -> None:
        os.close(self._file)


@dataclass(frozen=True)
class Section:
    """One pass through the critical section."""

    worker: int
    began: int
    ended: int
    added: bool


@dataclass(frozen=True)
class CheckResult:
    """The result of the check."""

    additions: int  # how many were made
    counter: int  # the final value in the file
    overlaps: int  # sections that began while another had not ended
    unreadable: int  # lines that cannot be parsed
    unfinished: int  # sections that began and never ended
    longest_pause: float  # between two sections, in seconds

    @property
    def lost(self) -> int:
        """Return the number of additions that are not in the counter."""
        return self.additions - self.counter

    @property
    def passed(self) -> bool:
        faults = (self.lost, self.overlaps, self.unreadable, self.unfinished)
        return self.additions > 0 and not any(faults)


def check_log(log_path: str, counter_path: str) -> CheckResult:
    """Read both files once all workers have ended."""
    with Path(log_path).open(encoding="ascii", errors="replace", newline="\n") as lines:
        sections, unreadable, unfinished = read(lines)
    overlaps, pause = sweep(sections)
    return CheckResult(
        additions=sum(section.added for section in sections),
        counter=Counter.said(counter_path),
        overlaps=overlaps,
        unreadable=unreadable,
        unfinished=unfinished,
        longest_pause=pause / 1e9,
    )


def read(lines: Iterable[str]) -> tuple[list[Section], int, int]:
    """Return the sections that ended, and counts of unreadable lines and unfinished sections."""
    sections: list[Section] = []
    inside: dict[int, int] = {}
    unreadable = unfinished = 0
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:  # or a truncated line: the newline is its last byte
            unreadable += 1
            continue
        word, worker, instant = match[1], int(match[2]), int(match[3])
        if word == "begin":
            unfinished += worker in inside
            inside[worker] = instant
        elif worker in inside:
            sections.append(Section(worker, inside.pop(worker), instant, added=word == "end"))
        else:
            unreadable += 1  # an end without a beginning
    return sections, unreadable, unfinished + len(inside)


def sweep(sections: Iterable[Section]) -> tuple[int, int]:
    """Return the number of overlaps and the longest pause in ns."""
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
