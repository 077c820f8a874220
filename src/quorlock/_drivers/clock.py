"""Reads the clock: nanoseconds that never step and that count suspended time (rule 7).

CLOCK_BOOTTIME on Linux: CLOCK_MONOTONIC stands still while the machine sleeps, and a lease
does not.  On macOS CLOCK_MONOTONIC counts sleep (time.monotonic does not there).  Elsewhere
the monotonic clock.  Never the wall clock, which steps.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _best_clock() -> Callable[[], int]:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)
    return time.monotonic_ns


now: Callable[[], int] = _best_clock()
