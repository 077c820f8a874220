"""Instants and durations: whole nanoseconds. Leaves the reading of clocks to the drivers.

An *instant* counts from an arbitrary start on one clock that never steps and that counts
suspended time; a *duration* is the difference of two.  Whole numbers, since sums of floats
drift and compare badly.  Seconds (float, timedelta) exist at the public edge only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

Instant = int
Duration = int

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

# An instant before all others: what `valid_until` drops to when a lease ends.
PAST: Instant = 0
# And one after all others: three centuries of nanoseconds.
FOR_EVER: Instant = 2**63 - 1

# 2 ms: Redis expires keys with a resolution of 1 ms, and we round once more
# (Redlock page, "Safety arguments": MIN_VALIDITY = TTL-(T2-T1)-CLOCK_DRIFT).
EXPIRY_RESOLUTION: Duration = 2 * NS_PER_MS

# A loss is told so long before the validity ends, or a twentieth of the ttl: timers are late, and
# who is told has to stop in time.
NOTICE_MAX: Duration = 100 * NS_PER_MS
NOTICE = 20


def from_seconds(seconds: float | timedelta) -> Duration:
    """Nanoseconds of a duration given in seconds or as a timedelta."""
    if isinstance(seconds, (int, float)):
        return round(seconds * NS_PER_S)
    # A timedelta, exactly: it counts whole microseconds. Its class is not asked for, so that
    # `import quorlock` does not load datetime.
    whole = (seconds.days * 86_400 + seconds.seconds) * NS_PER_S
    return whole + seconds.microseconds * 1_000


def to_seconds(nanoseconds: int) -> float:
    """Seconds of a duration in nanoseconds."""
    return nanoseconds / NS_PER_S


def drift(ttl: Duration, drift_factor: float) -> Duration:
    """How much earlier than a node we call a lease over: clocks differ, expiry is coarse."""
    return round(ttl * drift_factor) + EXPIRY_RESOLUTION


def notice(ttl_ms: int) -> Duration:
    """How long before the end of its validity the loss of a lease is told."""
    return min(ttl_ms * NS_PER_MS // NOTICE, NOTICE_MAX)
