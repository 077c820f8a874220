"""The record that a process keeps of its work: one line of JSON for each step.

Every line is one write to a file opened with O_APPEND, so that lines of threads never mix and
kill -9 loses nothing but, at the worst, the end of the last line.  Instants are CLOCK_MONOTONIC in
nanoseconds, which all processes of one machine share.  The vocabulary of the lines:

    hello     the process begins: pid, face, workers
    asks      a call into the library begins: call, verb, due (it should have ended then; null: no
              matter when), slack (ns that it may be late on a busy machine)
    returned  that call has ended: outcome, stalled (ns for which the process was stopped in it)
    begin     a worker has the lock from here: turn, kind, resource, token (a digest), until
    still     a check said that it holds the lock at `at`, and may trust it until `until`
    extended  it may trust the lock until a later instant: until
    wrote     it wrote its turn into the resource's file; late: the lease was over after that
    met       it found another's turn in that file while `held` was true: found
    end       it trusts the lock no more: how
    gives up  it relies on its lease no more: it releases, hands over or drops the lease next
    defect    something came out of the library that never should: text
    slept     the machine of that process was suspended: noted by the one that did it
    bye       the process has closed everything and ends: memory_kb, the most it had

`tests.harness.validate` interprets them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import quorlock


def instant() -> int:
    """Now, by the clock of the records."""
    return time.monotonic_ns()


def _offset() -> int:
    """Return how far the library's clock leads ours; constant unless the machine sleeps."""
    found = []
    for _ in range(20):
        before = instant()
        theirs = round(quorlock.now() * 1e9)
        found.append((instant() - before, theirs - before))
    return min(found)[1]


def digest(token: str) -> str:
    """Return a digest that distinguishes tokens without revealing them."""
    return hashlib.sha256(token.encode()).hexdigest()[:12]


class Record:
    """One process's file."""

    def __init__(self, folder: str, label: str, asleep: Callable[[], int] | None = None) -> None:
        path = Path(folder, f"{os.getpid()}-{label}.jsonl")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._numbers = itertools.count(1)
        self._asleep = asleep or (lambda: 0)
        self._offset = _offset() - self._asleep()

    def note(self, what: str, at: int | None = None, **facts: object) -> None:
        """One line. at: when it happened, if not now."""
        line = {"what": what, "at": instant() if at is None else at, "pid": os.getpid(), **facts}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def number(self) -> int:
        """A new one, for a call or a turn of this process."""
        return next(self._numbers)

    def until(self, lease: Any) -> int:
        """A lease's `valid_until`, by the clock of the records; long past if it is over."""
        while True:
            slept = self._asleep()
            valid_until: float = lease.valid_until
            if slept == self._asleep():  # else it was suspended between the two
                return round(valid_until * 1e9) - self._offset - slept

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
