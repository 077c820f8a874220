"""Readers and writers, under faults, with a witness that asks no node."""

from __future__ import annotations

from tests.servers.scenarios.shared import run


def test_no_writer_beside_another() -> None:
    """One node at a time is stopped, or killed and comes back empty."""
    report = run(8.0)
    print(report)
    assert report.reads > 100
    assert report.writes > 20
    assert report.clashes == 0
    assert report.most > 1
    assert report.left == {}
    assert report.stops + report.kills >= 2


def test_the_witness_finds_that_counting_lets_a_writer_in() -> None:
    """The control: without any fault, nodes that count readers let a writer in beside them."""
    report = run(4.0, control=True, faults=False)
    print(report)
    assert report.clashes > 0
