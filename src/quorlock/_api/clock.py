"""The public clock, in seconds; `_drivers.clock` chooses the system clock."""

from __future__ import annotations

from quorlock._core.time import to_seconds
from quorlock._drivers import clock


def now() -> float:
    """Return the time, in seconds, of the clock of `Lease.valid_until`.

    The clock never steps and counts suspended time.
    """
    return to_seconds(clock.now())
