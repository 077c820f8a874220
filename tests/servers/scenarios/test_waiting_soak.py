"""The long run of waiters: some seconds of it, and that it sees workers that break a rule."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.faults import Site, sites
from tests.servers.scenarios.crowd import UNTIL, Cells
from tests.servers.waiting_soak import WaitingSoak

# A worker whose lease on lock 0 is always over, and that on lock 1 never.
_TURNS = """
import sys
from tests.servers.scenarios.crowd import UNTIL, Cells
cells = Cells(sys.argv[1])
for _ in range(100_000):
    for resource, until in ((0, 1.0), (1, 9e9)):
        cells.put(0, UNTIL + resource, until)
        cells.put(0, UNTIL + resource, 0.0)
"""


@pytest.fixture
def nodes() -> Iterator[list[Site]]:
    """Five nodes of the test, which may die."""
    with sites(5) as started:
        yield started


def test_a_reader_confuses_no_turns(tmp_path: Path) -> None:
    """A worker reads values of one turn of another, wherever the scheduler suspends it."""
    path = str(tmp_path / "cells")
    Cells.create(path, 2)
    cells, seen = Cells(path), {0: set[float](), 1: set[float]()}
    with subprocess.Popen([sys.executable, "-c", _TURNS, path]) as worker:
        while worker.poll() is None:
            for resource, values in seen.items():
                values.update(cells.others(1, UNTIL + resource).values())
    assert worker.returncode == 0
    assert seen == {0: {1.0}, 1: {9e9}}


def test_a_few_seconds_of_it(nodes: list[Site], tmp_path: Path, seed: int) -> None:
    """Nothing is wrong, and nothing is left; nodes and waiters had faults."""
    result = WaitingSoak(nodes, tmp_path, seed).run(4.0, faults=3)
    print(result)
    assert not result.wrongs
    assert sum(cell.grants for cell in result.cells) > 200


@pytest.mark.parametrize(("control", "seconds"), [("quorum", 1.0), ("validity", 3.0)])
def test_it_finds_two_holders(
    nodes: list[Site], tmp_path: Path, control: str, seconds: float, seed: int
) -> None:
    """Workers that ask for one vote, or trust a lease for too long, are found."""
    result = WaitingSoak(nodes, tmp_path, seed, control).run(seconds)
    print(result)
    assert any("overlaps" in wrong for wrong in result.wrongs)
