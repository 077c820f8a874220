"""The judge of waiting: what counts as a place in a queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from quorlock_sim.clock import Clock
from quorlock_sim.queues import PlaceRecord
from tests.sim.mutation import applied
from tests.sim.small import MS, TRIP, fault, job, plan, see

if TYPE_CHECKING:
    from quorlock_sim.client import Process
    from quorlock_sim.history import CallRecord


def record() -> PlaceRecord:
    return PlaceRecord(cast("Process", None), cast("CallRecord", None))


@pytest.mark.parametrize(
    ("numbers", "queued_at"),
    [
        ([(0, 1), (1, 1)], 2),  # a quorum of three nodes
        ([(0, 1), (1, 2)], None),  # they disagree: one is to be corrected
        ([(0, 1), (1, 2), (0, 2)], 3),
        ([(0, 1), (1, 1), (2, 1)], 2),  # the third one changes nothing
        # A later number than that of the first two: it is the present one when a quorum has it.
        ([(0, 1), (1, 1), (2, 2), (0, 2)], 4),
        ([(0, 2), (1, 1), (2, 1), (0, 1)], 4),  # the first replies had the smaller
    ],
)
def test_a_place_is_queued_when_a_quorum_agrees_on_its_number(
    numbers: list[tuple[int, int]], queued_at: int | None
) -> None:
    place = record()
    for at, (node, number) in enumerate(numbers, 1):
        place.on_queued(node, number, needed=2, at=at)
    assert place.queued_at == queued_at


def test_a_reservation_lasts_for_longer_where_the_clock_was_set_back() -> None:
    """n0 calls c1, whose time is up, and crashes before it reads that c1 leaves.

    Its seed: mixed, 20044664.
    """
    wanted = plan(
        [job(hold=50 * MS)],
        [job(after=5 * MS, timeout=47 * MS)],
        [job(after=400 * MS)],
        faults=[
            fault("crash_kept", 48 * MS + 24 * TRIP, node=0, lasts=100 * MS),
            fault("wall_step", 200 * MS, node=0, amount=-3_000 * MS),
        ],
        lasts=500 * MS,
    )
    wanted = replace(wanted, node_offsets=(10**15,) * 3)
    assert see(wanted).rules == set()
    with applied(((Clock, "steps", lambda _: (0, 0)),)):
        assert see(wanted).rules == {"orphan"}
