"""Sets of resources, contended for under faults, with a witness that asks no node."""

from __future__ import annotations

from tests.servers.scenarios.several import run


def test_no_resource_is_held_twice() -> None:
    """One node at a time is stopped, or is killed and comes back empty."""
    report = run(8.0)
    print(report)
    assert len(report.held) > 100
    assert report.overlaps == []
    assert report.left == {}
    assert report.stops + report.kills >= 2


def test_the_witness_finds_a_lock_on_the_first_only() -> None:
    """The control: without any fault, locks that leave out all but one resource overlap."""
    assert len(run(2.0, control=True, faults=False).overlaps) > 10
