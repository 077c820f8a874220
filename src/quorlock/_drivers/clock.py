"""The clock of the drivers: nanoseconds that never step and that count suspended time (rule 7).

Linux: CLOCK_BOOTTIME. CLOCK_MONOTONIC stands still while the machine is suspended, and a lease does
not. macOS: CLOCK_MONOTONIC, which counts sleep there; `time.monotonic` does not. Elsewhere: the
monotonic clock. The wall clock is never used, since it steps.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from quorlock._core.time import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.time import Duration, Instant


def _best_clock() -> Callable[[], int]:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)
    return time.monotonic_ns


now: Callable[[], int] = _best_clock()

# Timers of locks, of poll and of event loops stand still while the machine is suspended. No sleep
# is longer than this, so a loss is reported within this time after the machine resumes.
SLEEP_MAX: Duration = 500 * NS_PER_MS


def sleep_seconds(until: Instant) -> float:
    """Return the seconds to sleep before the clock is read again: until then, SLEEP_MAX at most."""
    return max(0, min(until - now(), SLEEP_MAX)) / NS_PER_S


def sleep_ms(until: Instant) -> int:
    """Return `sleep_seconds` in ms for poll, rounded up: a poll that ends early is repeated."""
    return -(-max(0, min(until - now(), SLEEP_MAX)) // NS_PER_MS)
