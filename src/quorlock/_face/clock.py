"""The public clock, in seconds. Leaves which clock that is to `_drivers.clock`."""

from __future__ import annotations

from quorlock._core.time import to_seconds
from quorlock._drivers import clock


def now() -> float:
    """Seconds of the clock in which `Lease.valid_until` is given; it counts suspended time."""
    return to_seconds(clock.now())
