"""Instants and durations in whole nanoseconds; drivers read the clock.

An *instant* counts from an arbitrary start on one clock that never steps and that counts suspended
time; a *duration* is the difference of two.  Integers, because sums of floats drift and compare
badly.  Seconds (float, timedelta) exist at the public edge only.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

Instant = int
Duration = int

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

# Before all other instants: the `valid_until` of a lease that has ended.
PAST: Instant = 0
# After all other instants: three centuries of nanoseconds.
FOR_EVER: Instant = 2**63 - 1

# 2 ms: Redis expires keys with a resolution of 1 ms, and our own rounding adds another
# (Redlock page, "Safety arguments": MIN_VALIDITY = TTL-(T2-T1)-CLOCK_DRIFT).
EXPIRY_RESOLUTION: Duration = 2 * NS_PER_MS

# A loss is reported min(100 ms, ttl / 20) before the validity ends: timers fire late, and the
# holder needs time to stop.
NOTICE_MAX: Duration = 100 * NS_PER_MS
NOTICE = 20


def from_seconds(seconds: float | timedelta) -> Duration:
    """Convert seconds or a timedelta to nanoseconds."""
    if isinstance(seconds, (int, float)):
        return round(seconds * NS_PER_S)
    # A timedelta, converted exactly: it counts whole microseconds. No isinstance check, so that
    # `import quorlock` does not load datetime.
    whole = (seconds.days * 86_400 + seconds.seconds) * NS_PER_S
    return whole + seconds.microseconds * 1_000


def to_seconds(nanoseconds: int) -> float:
    """Convert nanoseconds to seconds."""
    return nanoseconds / NS_PER_S


def drift(ttl: Duration, drift_factor: float) -> Duration:
    """Return how much shorter than its ttl a lease is trusted: clocks differ, expiry is coarse."""
    return round(ttl * drift_factor) + EXPIRY_RESOLUTION


@functools.lru_cache(maxsize=64)
def interned(duration: Duration) -> Duration:
    """Return the same object for equal durations: leases of one ttl share theirs."""
    return duration


@functools.lru_cache
def validity(ttl: Duration, drift_factor: float) -> Duration:
    """Return how long a lease is trusted, from before its first byte."""
    return ttl - drift(ttl, drift_factor)


def notice(ttl_ms: int) -> Duration:
    """Return how long before the end of its validity a loss is reported."""
    return min(ttl_ms * NS_PER_MS // NOTICE, NOTICE_MAX)
