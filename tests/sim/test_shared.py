"""Locks that are shared, where a node fails between the call of a reader and its attempt."""

from __future__ import annotations

import pytest

from tests.sim.small import MS, TRIP, fault, job, plan, see

HELD = 50 * MS
WAIT = {"timeout": 20_000 * MS, "hold": 20 * MS}


@pytest.mark.parametrize("kind", ["crash_lost", "flush"])
@pytest.mark.parametrize("nodes", [(0,), (0, 1, 2)], ids=["one", "all"])
def test_nodes_fail_while_a_lock_passes_to_readers(kind: str, nodes: tuple[int, ...]) -> None:
    """Two readers are called together; a writer and a third reader wait behind them.

    The nodes fail at every trip of a message, from before the release until all have been granted.
    """
    for at in range(HELD - 4 * TRIP, HELD + 20 * TRIP, TRIP):
        seen = see(
            plan(
                [job(hold=HELD)],
                [job(after=5 * MS, shared=True, **WAIT)],
                [job(after=6 * MS, shared=True, **WAIT)],
                [job(after=8 * MS, **WAIT)],
                [job(after=9 * MS, shared=True, **WAIT)],
                faults=[fault(kind, at, node=node, lasts=2 * TRIP) for node in nodes],
                lasts=3_000 * MS,
            )
        )
        assert seen.rules == set(), (at, seen.judgement.violations)
        assert len(seen.all("outcome", what="acquire", outcome="granted")) == 5, at
