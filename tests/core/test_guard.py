"""The restart guard's reckoning: how long a node keeps out, whatever its clock says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorlock._core.guard import Quarantine, kept_out, quarantine
from quorlock._core.outcomes import Cause, Vote
from quorlock._core.time import NS_PER_MS, NS_PER_S, drift

NOW = 1_000 * NS_PER_S
MAX_TTL = 30 * NS_PER_S
WHOLE = MAX_TTL + drift(MAX_TTL, 0.01)  # 30.302 s


def until(uptime_s: int | None, *, factor: float = 0.01) -> float | None:
    """Seconds from now on."""
    kept = quarantine(uptime_s, NOW, MAX_TTL, factor)
    return None if kept is None else (kept.until - NOW) / NS_PER_S


@pytest.mark.parametrize(
    ("uptime_s", "left"),
    [(0, 30.302), (1, 30.302), (2, 29.302), (30, 1.302), (31, 0.302), (32, None), (10**6, None)],
)
def test_a_second_less_than_it_says_counts(uptime_s: int, left: float | None) -> None:
    """Servers subtract whole seconds of the wall clock."""
    assert until(uptime_s) == left


@pytest.mark.parametrize("uptime_s", [-1, -3_600, None, 10 * 365 * 86_400, 56 * 365 * 86_400])
def test_whoever_cannot_tell_may_have_come_up_just_now(uptime_s: int | None) -> None:
    """A clock that was set back, or from 1970 on; a server that says nothing of it."""
    assert until(uptime_s) == 30.302
    kept = quarantine(uptime_s, NOW, MAX_TTL, 0.01)
    assert kept is not None
    assert kept.since is None
    answer = kept_out(kept, NOW)
    assert answer is not None
    assert answer.text.startswith("does not tell since when it is up, votes again in 31 s; ")


def test_without_drift_the_resolution_of_expiry_remains() -> None:
    assert until(0, factor=0.0) == 30.002


@given(
    born=st.integers(0, 10**12),
    age=st.integers(0, 60 * NS_PER_S),
    late=st.integers(0, NS_PER_S),
    slow=st.floats(0.0, 0.05),
    fast=st.floats(0.0, 0.05),
)
def test_never_before_the_last_lease_is_over(
    born: int, age: int, late: int, slow: float, fast: float
) -> None:
    """Whatever the second in which the server came up, however late its answer, and with our clock
    as fast against the nodes as the holder's is slow: the lease that was granted as it crashed is
    over.
    """
    factor = max(slow, fast)
    told = (born + age) // NS_PER_S - born // NS_PER_S
    kept = quarantine(told, NOW, MAX_TTL, factor)
    # True time, from when the process came up: the crash was before that.
    votes = age + late + (0 if kept is None else int((kept.until - NOW) / (1 + fast)))
    lease_over = (MAX_TTL - drift(MAX_TTL, factor)) / (1 - slow)
    assert votes >= lease_over - 1


def test_the_words() -> None:
    kept = quarantine(3, NOW, MAX_TTL, 0.01)
    assert kept is not None
    answer = kept_out(kept, NOW)
    assert answer is not None
    assert (answer.vote, answer.cause) == (Vote.UNKNOWN, Cause.RESTARTED)
    assert answer.reason == (
        "restarted 3 s ago, votes again in 29 s;"
        " restart_guard=None where nodes are born empty (tests, CI)"
    )
    kinds = (answer.is_lock_answer, answer.is_fault, answer.is_lasting, answer.is_done)
    assert kinds == (False,) * 4
    later = kept_out(kept, NOW + 5 * NS_PER_S)
    assert later is not None
    assert later.text.startswith("restarted 8 s ago, votes again in 24 s; ")


def test_it_ends_at_the_instant() -> None:
    kept = Quarantine(NOW, NOW + 5)
    assert kept_out(kept, NOW + 4) is not None
    assert kept_out(kept, NOW + 5) is None
    last = kept_out(kept, NOW + 5 - NS_PER_MS)
    assert last is not None
    assert "votes again in 1 s" in last.text
