"""Time is whole nanoseconds inside; seconds exist at the edge only."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock._core.config import LONGEST
from quorlock._core.time import (
    EXPIRY_RESOLUTION,
    FOR_EVER,
    NS_PER_MS,
    NS_PER_S,
    PAST,
    drift,
    from_seconds,
    notice,
    to_seconds,
)


@pytest.mark.parametrize(
    ("seconds", "nanoseconds"),
    [
        (0, 0),
        (1, NS_PER_S),
        (0.1, 100_000_000),
        (0.05, 50_000_000),
        (1e-9, 1),
        (0.4e-9, 0),
        (29.999999999, 29_999_999_999),
        (timedelta(0), 0),
        (timedelta(milliseconds=1), NS_PER_MS),
        (timedelta(days=1, seconds=2, microseconds=3), 86_402_000_003_000),
        (timedelta(microseconds=-1), -1_000),
    ],
)
def test_seconds_become_whole_nanoseconds(seconds: float | timedelta, nanoseconds: int) -> None:
    """Decimal seconds that a person writes come out exactly, as ints."""
    assert from_seconds(seconds) == nanoseconds
    assert type(from_seconds(seconds)) is int


@settings(deadline=None)
@given(st.timedeltas())
def test_a_timedelta_is_converted_exactly(delta: timedelta) -> None:
    """No float in between: the longest timedelta keeps its microseconds."""
    assert from_seconds(delta) == 1_000 * (
        (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    )


@settings(deadline=None)
@given(st.integers(0, 30 * 86_400_000))
def test_milliseconds_survive_the_way_there_and_back(milliseconds: int) -> None:
    """Every duration of whole ms up to a month is the same after a float's detour."""
    assert from_seconds(to_seconds(milliseconds * NS_PER_MS)) == milliseconds * NS_PER_MS


@settings(deadline=None)
@given(st.floats(0, LONGEST))
def test_seconds_are_off_by_less_than_a_microsecond(seconds: float) -> None:
    """Beyond a month a float loses nanoseconds, but up to the longest allowed no more."""
    assert abs(from_seconds(seconds) - Fraction(seconds) * NS_PER_S) < 1_000


@settings(deadline=None)
@given(st.integers(0, 10**15), st.floats(0, 1, exclude_max=True))
def test_drift_is_never_less_than_the_expiry_resolution(ttl: int, factor: float) -> None:
    """drift = ttl * factor + 2 ms (Redlock page), in whole ns, and grows with the ttl."""
    assert type(drift(ttl, factor)) is int
    assert drift(ttl, factor) >= EXPIRY_RESOLUTION == 2 * NS_PER_MS
    assert drift(ttl, factor) <= drift(ttl + NS_PER_S, factor)


def test_drift_of_known_ttls() -> None:
    """The example of the docs: 10 s at 0.01 is 102 ms."""
    assert drift(10 * NS_PER_S, 0.01) == 102 * NS_PER_MS
    assert drift(10 * NS_PER_S, 0.0) == 2 * NS_PER_MS
    assert drift(0, 0.5) == 2 * NS_PER_MS


def test_the_lead_time_of_a_loss() -> None:
    """A twentieth of the ttl, and at most a tenth of a second; some for the shortest ttl."""
    assert notice(200) == 10 * NS_PER_MS
    assert notice(2_000) == notice(60_000) == 100 * NS_PER_MS
    assert notice(1) == NS_PER_MS // 20


def test_past_and_for_ever_enclose_all_instants() -> None:
    """No clock reading is outside of them, and FOR_EVER fits 64 bits."""
    century = 100 * 365 * 86_400 * NS_PER_S
    assert PAST < 1 < century < FOR_EVER < 2**63
