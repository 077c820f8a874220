"""Times and counts of cycles in the child process. The works define what a cycle is."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

NS_PER_US = 1000


def percentile(ordered: list[int], share: float) -> int:
    """Return the percentile `share` of an ordered list (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class Meter:
    """The measured part of one run: `start()`, cycles, `stop()`, `result()`.

    The time of every cycle is kept (ns), so that percentiles are exact. The CPU time is that of
    this process with all its threads, user and system.
    """

    samples: list[int] = field(default_factory=list[int])
    errors: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0
    cpu_ns: int = 0

    def start(self) -> None:
        """Start to measure and discard the warm-up."""
        self.samples.clear()
        self.errors.clear()
        self._cpu_began = time.process_time_ns()
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Stop to measure."""
        self.seconds = time.perf_counter() - self._began
        self.cpu_ns = time.process_time_ns() - self._cpu_began

    def error(self, error: BaseException) -> None:
        """Count a failed cycle, by the type of its error and the first words."""
        self.errors[f"{type(error).__name__}: {error}"[:120]] += 1

    def result(self, **own: Any) -> dict[str, Any]:
        """Return the result of a work; times are in microseconds, or None if no cycle completed."""
        ordered = sorted(self.samples)
        cycles = len(ordered)

        def at(share: float) -> float | None:
            return percentile(ordered, share) / NS_PER_US if ordered else None

        return {
            "cycles": cycles,
            "seconds": self.seconds,
            "per_s": cycles / self.seconds if self.seconds else 0.0,
            "p50_us": at(0.50),
            "p99_us": at(0.99),
            "worst_us": at(1.0),
            "cpu_us": self.cpu_ns / NS_PER_US / cycles if cycles else None,
            "errors": sum(self.errors.values()),
            "error_kinds": dict(self.errors.most_common(3)),
            **own,
        }
