"""The results of the measurement, and their summaries."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

Face: TypeAlias = Literal["threads", "tasks"]


class Times(NamedTuple):
    """A summary of durations, in seconds; None if there were none."""

    number: int
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, taken: Sequence[float]) -> Times:
        """Return the summary of these durations."""
        if not taken:
            return cls(0, None, None, None, None)
        ordered = sorted(taken)
        p50, p90, p99 = (percentile(ordered, share) for share in (50, 90, 99))
        return cls(len(ordered), p50, p90, p99, ordered[-1])


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the percentile by nearest rank."""
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


class BenchNodeFacts(NamedTuple):
    """The results of one node."""

    node: str  # its address
    error: str  # the reason why it does not vote; "" if it does
    round_trip: Times  # of a request to this node alone
    in_quorum: float | None  # the share of acquires with its grant among those waited for


class Verbs(NamedTuple):
    """The durations of one caller's verbs, in seconds."""

    acquire: list[float]
    extend: list[float]
    release: list[float]
    yes: list[int]  # for each node, how often its grant was among those that acquire waited for
    cpu: float  # the share of the time that this process was on a CPU


class BenchRate(NamedTuple):
    """The rate of many callers: cycles of acquire and release, each on its own locks."""

    face: Face
    callers: int
    per_second: float
    cpu: float


class Contention(NamedTuple):
    """The results of contenders for one resource."""

    contenders: int
    per_second: float  # the turns of all together
    busy: float  # the share of the time that one of them held the lock
    wait: Times  # until the lock was acquired, or until the end if it never was
    fewest: int  # turns of one contender
    most: int


class Troubles:
    """Counts of errors, lost leases and overlaps, from any thread."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.lost: int = 0
        self.overlaps: int = 0
        self._lock = threading.Lock()

    def failed(self, error: Exception) -> None:
        """Count an error of a call that should have won."""
        name = type(error).__name__
        with self._lock:
            self.errors[name] += 1
            self.examples.setdefault(name, str(error))

    def slipped(self) -> None:
        """Count a lease that ended before it was released."""
        with self._lock:
            self.lost += 1

    def met(self) -> None:
        """Count two leases that were held at once on the same resource."""
        with self._lock:
            self.overlaps += 1


class Measured(NamedTuple):
    """All results; `seconds` is the duration, `quorum` the number of nodes that must grant."""

    seconds: float
    quorum: int
    ttl: float
    nodes: list[BenchNodeFacts]
    one: Verbs
    rates: list[BenchRate]
    contention: Contention
    troubles: Troubles
