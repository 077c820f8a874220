"""Permits, contended for under faults, with a witness that asks no node."""

from __future__ import annotations

from tests.servers.scenarios.semaphore import PERMITS, run


def test_never_more_holders_than_permits_nor_one_permit_twice() -> None:
    """One node at a time is stopped, or killed and comes back empty."""
    report = run(8.0)
    print(report)
    assert len(report.held) > 100
    assert (report.too_many, report.twice) == (0, 0)
    assert report.most == PERMITS
    assert report.left == {}
    assert report.stops + report.kills >= 2


def test_the_witness_finds_that_counting_admits_more() -> None:
    """The control: without any fault, nodes that count permits admit one holder more."""
    report = run(4.0, control=True, faults=False)
    print(report)
    assert report.too_many > 0
