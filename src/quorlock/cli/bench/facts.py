"""What was measured. Facts and how they are condensed; no procedure."""

from __future__ import annotations

import math
import threading
from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Face: TypeAlias = Literal["threads", "tasks"]


class Times(NamedTuple):
    """Of so many things that took time, in seconds; None where there was none."""

    number: int
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, taken: Sequence[float]) -> Times:
        """Condensed."""
        if not taken:
            return cls(0, None, None, None, None)
        ordered = sorted(taken)
        p50, p90, p99 = (percentile(ordered, share) for share in (50, 90, 99))
        return cls(len(ordered), p50, p90, p99, ordered[-1])


def percentile(ordered: Sequence[float], share: float) -> float:
    """By nearest rank: the smallest value that is not below so many per cent of them."""
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


class NodeFacts(NamedTuple):
    """One node.

    Attributes:
        node: its address.
        error: why it does not vote; "" if it does.
        round_trip: of a question to it alone.
        in_quorum: in what share of the acquires its yes was among those that were waited for.
    """

    node: str
    error: str
    round_trip: Times
    in_quorum: float | None


class Verbs(NamedTuple):
    """What one caller's verbs took each time.

    Attributes:
        acquire, extend, release: seconds.
        yes: for each node, how often its yes was among those that acquire waited for.
        cpu: the share of the time that our process was on a CPU.
    """

    acquire: list[float]
    extend: list[float]
    release: list[float]
    yes: list[int]
    cpu: float


class Rate(NamedTuple):
    """What so many callers did together: cycles of acquire and release, each on its own locks."""

    face: Face
    callers: int
    per_second: float
    cpu: float


class Contention(NamedTuple):
    """What contenders for one resource did.

    Attributes:
        contenders: how many.
        per_second: turns of all together.
        busy: the share of the time that one of them had it.
        wait: from asking to having it; also of who still waited in the end.
        fewest, most: turns of one contender.
    """

    contenders: int
    per_second: float
    busy: float
    wait: Times
    fewest: int
    most: int


class Troubles:
    """What did not go as it should; from any thread."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.lost = 0
        self.overlaps = 0
        self._lock = threading.Lock()

    def failed(self, error: Exception) -> None:
        """It was raised by a call that should have won."""
        name = type(error).__name__
        with self._lock:
            self.errors[name] += 1
            self.examples.setdefault(name, str(error))

    def slipped(self) -> None:
        """A lease was over before it was given back."""
        with self._lock:
            self.lost += 1

    def met(self) -> None:
        """Two held the same at once."""
        with self._lock:
            self.overlaps += 1


class Measured(NamedTuple):
    """All of it; `seconds` is what it took, `quorum` how many of the nodes must agree."""

    seconds: float
    quorum: int
    ttl: float
    nodes: list[NodeFacts]
    one: Verbs
    rates: list[Rate]
    contention: Contention
    troubles: Troubles
