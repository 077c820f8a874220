"""Clocks of the simulated world: whole numbers, exact inverses, and a past that can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorlock_sim.clock import PPM, Clock
from quorlock_sim.oracle import first_reading

INSTANTS = st.integers(0, 10**13)
PACES = st.sampled_from([PPM, 990_000, 1_010_000, 999_999, 1, 0]) | st.integers(0, 2 * PPM)
LENGTHS = st.integers(0, 10**10)
# Changes: after so long, another pace or a jump.
CHANGES = st.lists(
    st.tuples(
        LENGTHS,
        st.tuples(st.just("pace"), PACES)
        | st.tuples(st.just("step"), st.integers(-(10**10), 10**10)),
    ),
    max_size=6,
)
# The same so small that every instant can be looked at.
SMALL_CHANGES = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.tuples(st.just("pace"), st.sampled_from([0, PPM // 3, PPM // 2, 990_000, PPM, 2 * PPM]))
        | st.tuples(st.just("step"), st.integers(-9, 9)),
    ),
    max_size=5,
)


def changed(clock: Clock, changes: list[tuple[int, tuple[str, int]]]) -> int:
    """Let all that happen to a clock; the instant of the last change."""
    now = 0
    for after, (what, amount) in changes:
        now += after
        if what == "pace":
            clock.run_at(amount, now)
        else:
            clock.step(amount, now)
    return now


# --- reading ----------------------------------------------------------------------------------


def test_an_ideal_clock_reads_true_time() -> None:
    assert Clock().read(123_456_789_012_345_678) == 123_456_789_012_345_678


def test_a_fast_a_slow_and_a_stopped_clock() -> None:
    assert Clock(pace=1_010_000).read(1_000_000) == 1_010_000
    assert Clock(5, 990_000).read(1_000_000) == 990_005
    assert Clock(7, 0).read(10**18) == 7


def test_a_fraction_of_a_ns_is_cut_off() -> None:
    clock = Clock(pace=990_000)
    assert [clock.read(true) for true in (0, 1, 2, 100)] == [0, 0, 1, 99]


@given(offset=INSTANTS, pace=PACES, since=INSTANTS, later=LENGTHS)
def test_a_clock_never_goes_back_by_itself(offset: int, pace: int, since: int, later: int) -> None:
    clock = Clock(offset, pace)
    assert type(clock.read(since)) is int
    assert clock.read(since) <= clock.read(since + later)


@given(offset=INSTANTS, pace=PACES, changes=CHANGES, ahead=LENGTHS)
def test_when_is_the_first_instant_that_reads_as_much(
    offset: int, pace: int, changes: list[tuple[int, tuple[str, int]]], ahead: int
) -> None:
    clock = Clock(offset, pace)
    now = changed(clock, changes)
    reading = clock.read(now) + ahead
    at = clock.when(reading)
    if at is None:
        assert clock.pace == 0
        assert ahead > 0
        return
    assert type(at) is int
    assert at >= now
    assert clock.read(at) >= reading
    assert at == now or clock.read(at - 1) < reading


def test_a_stopped_clock_never_gets_there() -> None:
    assert Clock(7, 0).when(8) is None
    assert Clock(7, 0).when(7) == 0


def test_what_a_step_went_over_was_reached_at_the_step() -> None:
    clock = Clock()
    clock.step(100, 50)
    assert clock.when(120) == 50
    assert clock.when(150) == 50
    assert clock.when(151) == 51


# --- changes ----------------------------------------------------------------------------------


def test_a_change_of_pace_is_no_jump() -> None:
    clock = Clock(1_000)
    clock.run_at(500_000, 100)
    assert clock.read(100) == 1_100
    assert clock.read(300) == 1_200
    assert clock.pace == 500_000
    assert clock.steps() == (0, 0)
    assert clock.paces() == (500_000, PPM)


def test_steps_forward_and_back() -> None:
    clock = Clock()
    clock.step(40, 10)
    clock.step(-70, 20)
    clock.step(5, 30)
    assert (clock.read(30), clock.read(35)) == (5, 10)
    assert clock.steps() == (-70, 40)
    assert [tuple(piece) for piece in clock.pieces] == [
        (0, 0, PPM),
        (10, 50, PPM),
        (20, -10, PPM),
        (30, 5, PPM),
    ]


@given(
    pace=PACES, changes=st.lists(st.tuples(LENGTHS, st.tuples(st.just("pace"), PACES)), max_size=6)
)
def test_changes_of_pace_alone_never_look_like_a_step(
    pace: int, changes: list[tuple[int, tuple[str, int]]]
) -> None:
    clock = Clock(pace=pace)
    changed(clock, changes)
    assert clock.steps() == (0, 0)


# --- looking back -----------------------------------------------------------------------------


@given(offset=INSTANTS, pace=PACES, changes=CHANGES, after=LENGTHS)
def test_the_past_reads_as_it_was_read_then(
    offset: int, pace: int, changes: list[tuple[int, tuple[str, int]]], after: int
) -> None:
    clock = Clock(offset, pace)
    now, seen = 0, {0: offset}
    for length, (what, amount) in changes:
        seen[now + length // 2] = clock.read(now + length // 2)
        now += length
        if what == "pace":
            clock.run_at(amount, now)
        else:
            clock.step(amount, now)
        seen[now] = clock.read(now)
    seen[now + after] = clock.read(now + after)
    assert {at: clock.read_back(at) for at in seen} == seen


@given(changes=SMALL_CHANGES, reading=st.integers(-20, 60), since=st.integers(0, 60))
def test_the_oracle_finds_the_first_instant_of_a_reading(
    changes: list[tuple[int, tuple[str, int]]], reading: int, since: int
) -> None:
    """Against looking at every instant, one after the other."""
    clock = Clock()
    end = changed(clock, changes) + 500  # at a third of its pace it has come far by then
    found = first_reading(clock, reading, since)
    looked = (at for at in range(since, end) if clock.read_back(at) >= reading)
    assert found == next(looked, 1 << 62)


@pytest.mark.parametrize("pace", [990_000, 1_009_999, 333_333])
def test_the_oracle_counts_from_the_clocks_own_beginning(pace: int) -> None:
    """The oracle does not count from an instant between two ticks of the clock, which would be a ns
    late.
    """
    clock = Clock(pace=pace)
    for since in range(50):
        at = first_reading(clock, clock.read(since) + 1, since)
        assert clock.read(at - 1) < clock.read(since) + 1 <= clock.read(at)
