"""The long run of waiters: some seconds of it, and that it sees workers that break a rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.faults import Site, sites
from tests.servers.waiting_soak import WaitingSoak


@pytest.fixture
def nodes() -> Iterator[list[Site]]:
    """Five nodes of the test, which may die."""
    with sites(5) as started:
        yield started


def test_a_few_seconds_of_it(nodes: list[Site], tmp_path: Path, seed: int) -> None:
    """Nothing is wrong, and nothing is left; nodes and waiters had faults."""
    result = WaitingSoak(nodes, tmp_path, seed).run(4.0)
    print(result)
    assert not result.wrongs
    assert result.faults.total() > 2
    assert sum(cell.grants for cell in result.cells) > 200


@pytest.mark.parametrize(("control", "seconds"), [("quorum", 1.0), ("validity", 3.0)])
def test_it_finds_two_holders(
    nodes: list[Site], tmp_path: Path, control: str, seconds: float, seed: int
) -> None:
    """Workers that ask for one vote, or trust a lease for too long, are found."""
    result = WaitingSoak(nodes, tmp_path, seed, control).run(seconds)
    print(result)
    assert any("overlaps" in wrong for wrong in result.wrongs)
