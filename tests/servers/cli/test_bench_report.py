"""The report of `bench`: plots, messages, overlaps."""

from __future__ import annotations

import re
from typing import Any

import pytest

from quorlock._cli.bench.facts import (
    BenchNodeFacts,
    BenchRate,
    Contention,
    Measured,
    Times,
    Troubles,
    Verbs,
)
from quorlock._cli.bench.plot import bar, histogram, ms
from quorlock._cli.bench.report import as_text, words
from quorlock._cli.bench.tasks import CriticalSection


def node(name: str, trip: float | None = 0.001, error: str = "") -> BenchNodeFacts:
    return BenchNodeFacts(name, error, Times.of([] if trip is None else [trip]), 0.6)


def rate(face: Any, callers: int, per_second: float, cpu: float = 0.5) -> BenchRate:
    return BenchRate(face, callers, per_second, cpu)


RATES = [rate("threads", 1, 500), rate("tasks", 1, 400), rate("tasks", 64, 9000, 0.97)]


def measured(*nodes: BenchNodeFacts, quorum: int = 3, **changes: Any) -> Measured:
    verbs = Verbs([0.002, 0.003], [0.002], [0.001], [2] * len(nodes), 0.4)
    contention = Contention(8, 30.5, 0.61, Times.of([0.1]), 2, 4)
    facts = Measured(5.0, quorum, 2.0, list(nodes), verbs, RATES, contention, Troubles())
    return facts._replace(**changes)


FIVE = [node(name) for name in "abcde"]


# --- plots -----------------------------------------------------------------------------------


def test_the_longest_bar_fills_its_width() -> None:
    """And what is there at all is seen."""
    assert [bar(value, 1000, 20) for value in (0, 1, 500, 1000)] == ["", "#", "#" * 10, "#" * 20]


@pytest.mark.parametrize(
    "taken",
    [
        [0.001],
        [0.001] * 1000,
        [0.001 * (1 + number / 100) for number in range(1000)],
        [2e-5 * 1.01**number for number in range(1500)],
        [0.001] * 99 + [5.0],
        [0.00027, 0.00033],
    ],
    ids=["one", "all equal", "even", "all scales", "an outlier", "on the edges"],
)
def test_a_histogram_counts_each_once(taken: list[float]) -> None:
    """The histogram has few rows, ascending, of the requested width."""
    lines = histogram(taken, 70)
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 70
    found = [re.fullmatch(r" +to ([\d.,e-]+) ms +([\d,]+) *(#*)", line) for line in lines]
    ends = [float(match[1].replace(",", "")) for match in found if match]
    counts = [int(match[2].replace(",", "")) for match in found if match]
    assert ends == sorted(ends)
    assert len(counts) == len(lines)
    assert sum(counts) == len(taken)
    assert ends[-1] >= max(taken) * 1e3 * 0.99


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (4.1e-5, "0.041 ms"),
        (0.00123, "1.23 ms"),
        (0.0123, "12.3 ms"),
        (1.5, "1,500 ms"),
    ],
)
def test_milliseconds(seconds: float | None, text: str) -> None:
    assert ms(seconds) == text


def test_percentiles() -> None:
    times = Times.of([number / 100 for number in range(100, 0, -1)])
    assert times == (100, 0.5, 0.9, 0.99, 1.0)
    assert Times.of([]) == (0, None, None, None, None)


# --- words -----------------------------------------------------------------------------------


def said(facts: Measured) -> str:
    return "\n".join(words(facts))


def test_the_quorum_waits_for_its_slowest() -> None:
    """The third fastest of five decides; one that is far slower is named."""
    trips = {"a": 0.0004, "b": 0.0011, "c": 0.0012, "d": 0.0013, "e": 0.02}
    text = said(measured(*(node(name, trip) for name, trip in trips.items())))
    assert "waits for 3 of 5 nodes, of which the slowest is c. It answers a GET in 1.20 ms" in text
    assert "So the nodes and the network set the pace" in text
    assert "e takes 17 times as long; no round waits for it while 3 others reply." in text
    assert "d takes" not in text


def test_on_one_machine_it_is_the_machine() -> None:
    text = said(measured(*(node(name, 0.00004) for name in "abcde")))
    assert "So this machine sets the pace" in text
    noise = measured(
        *(node(name, trip) for name, trip in zip("abc", (1e-5, 1e-5, 9e-5), strict=True)), quorum=2
    )
    assert "times as long" not in said(noise)


def test_one_node_is_waited_for() -> None:
    text = said(measured(node("a"), quorum=1))
    assert "One caller: a round waits for a. " in text


def test_nodes_that_do_not_vote_are_counted_out() -> None:
    """A node that answers and does not vote is excluded as well."""
    out = [node("d", None, "Connection refused"), node("e", error="restarted")]
    text = said(measured(*FIVE[:3], *out))
    assert "2 of 5 nodes did not vote: none of the others may fail." in text
    assert "1 more may fail" in said(measured(*FIVE[:4], out[0]))
    # Too few now: nothing is said of what a quorum takes.
    assert "One caller" not in said(measured(*FIVE[:2], FIVE[2]._replace(error="x"), *out))


def test_many_callers_are_bound_by_python_or_not() -> None:
    text = said(measured(*FIVE))
    assert "9,000 per s with 64 tasks, against 500 with 1 thread." in text
    assert "97% of the time: that is what bounds it" in text
    idle = [rate("threads", 1, 500), rate("tasks", 64, 90)]
    assert "50% of the time; the rest it waited" in said(measured(*FIVE, rates=idle))
    alone = said(measured(*FIVE, rates=RATES[2:]))  # --tasks 64, or more than threads can be
    assert "9,000 per s with 64 tasks. This process" in alone


def test_failures_are_reported() -> None:
    troubles = Troubles()
    troubles.failed(ValueError("not so"))
    troubles.failed(ValueError("nor so"))
    troubles.slipped()
    troubles.met()
    text = as_text(measured(*FIVE, troubles=troubles))
    assert "2 x ValueError, such as: not so" in text
    assert "leases lost, over before they were released: 1" in text
    assert "overlaps, two that held the same lock at once: 1" in text


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_it_is_as_wide_as_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within reason; also with names that are too long for it, and with nothing to show."""
    monkeypatch.setenv("COLUMNS", str(columns))
    long = [node(f"/a/folder/of/a/long/name/{'x' * 40}/{number}.sock") for number in range(5)]
    long[1] = long[1]._replace(error="it is broken " * 20, round_trip=Times.of([]))
    nothing = Verbs([], [], [], [0] * 5, 0.0)
    idle = [rate("threads", 64, 0), rate("tasks", 1000, 0)]
    waited = Contention(8, 0.0, 0.0, Times.of([]), 0, 0)
    facts = measured(*long)
    for one in (facts, facts._replace(one=nothing, rates=idle, contention=waited)):
        lines = as_text(one).splitlines()
        assert max(map(len, lines)) <= max(72, min(columns, 100))
        assert any("4.sock" in line for line in lines)


# --- who meets whom --------------------------------------------------------------------------


class Held:
    """The part of a lease that the section uses."""

    def __init__(self, held: bool) -> None:
        self.held = held


def test_two_holders_at_once_are_an_overlap() -> None:
    """Two holders do not overlap if the first one's lease was over by the clock."""
    for first_held, met in ((True, 1), (False, 0)):
        troubles = Troubles()
        section = CriticalSection(troubles)
        first, second, third = Held(first_held), Held(True), Held(True)
        section.enter(first)  # type: ignore[arg-type]
        section.enter(second)  # type: ignore[arg-type]
        section.leave(first)  # type: ignore[arg-type]
        section.leave(second)  # type: ignore[arg-type]
        section.enter(third)  # type: ignore[arg-type]
        assert troubles.overlaps == met
