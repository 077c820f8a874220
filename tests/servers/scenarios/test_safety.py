"""A minority of nodes is faulted at any time: no two clients hold one lock, and work continues.

Assumed, as in Redlock: never a majority at once, clocks of equal speed within the bound, and no
node that forgets a key early. The guard covers restarts; a node that forgets in another way is made
unreachable for `max_ttl` by its proxy (see `scenario`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.faults import FAULTS, Fault, Site, sites
from tests.harness.traffic.settings import ASYNCIO, BLOCKING, Settings
from tests.servers.scenarios.scenario import Act, Scenario, play, started

SLOW_SECONDS = 3.0
SECONDS = 0.6  # each fault is in force for
AT_ONCE = 2  # of five: a minority
GROUPS = [FAULTS[start : start + 6] for start in range(0, len(FAULTS), 6)]


def name_of(group: tuple[Fault, ...]) -> str:
    return ", ".join(fault.name for fault in group)


@pytest.mark.parametrize("group", GROUPS, ids=name_of)
def test_no_overlap_and_work_continues(group: tuple[Fault, ...], tmp_path: Path, seed: int) -> None:
    """Two faults at once hit two of five nodes, always other ones, under both APIs' traffic. Each
    fault is proved to be in force during calls, and both APIs get locks.
    """
    with sites(5) as five, started(five, tmp_path, seed) as scenario:
        for first in range(0, len(group), AT_ONCE):
            pairs = list(zip(group[first:][:AT_ONCE], places(five, first), strict=False))
            acts = scenario.inflict(*pairs, seconds=SECONDS)
            assert {act.fault for act in acts} == {fault.name for fault, _ in pairs}
            for act in acts:
                went_on(scenario, act)
        verdict = scenario.finish()
    assert verdict.content, str(verdict)


# Short leases at few resources, many of which are held to the last moment.
TO_THE_END = Settings(
    (), "", BLOCKING, 4, 0, resources=("r0", "r1"), ttls=(0.4,), kinds={"expire": 3, "hold": 2}
)


def test_all_nodes_are_slow_but_in_time(tmp_path: Path, seed: int) -> None:
    """A round takes half a node_timeout: a validity that counted from the answer, or that left the
    round out, would reach into the next holder's. (Assumed: nothing that is broken here.)
    """
    with sites(5) as five, started(five, tmp_path, seed, TO_THE_END) as scenario:
        play([scenario.slow_network(SLOW_SECONDS)])
        went_on(scenario, scenario.acts[-1])
        verdict = scenario.finish()
    expired = sum(stay.how == "expired" for stay in scenario.history.stays.values())
    print(f"{expired} leases were held until they ran out")
    assert expired
    assert verdict.content, str(verdict)


def places(five: list[Site], first: int) -> list[Site]:
    """Two nodes, other ones each time."""
    return [five[(first + offset) % 5] for offset in range(AT_ONCE)]


def went_on(scenario: Scenario, act: Act) -> None:
    """Calls were under way during the fault, and both faces got locks."""
    calls = scenario.under_way(act)
    grants = scenario.history.grants(act.since, act.until)
    print(f"{len(calls)} calls, grants {dict(grants)}; {act}")
    assert calls
    assert not act.trouble
    assert set(grants) == {BLOCKING, ASYNCIO}, f"{act}: grants {grants}"
