"""Long leases, and nodes with faults at their release: no key may stay.

With a ttl of 20 s nothing expires during the test, so a missing key was released: first thing on
the next connection, or repeatedly until the node has confirmed it. Assumed: the node keeps its
memory, and its fault ends while the client lives.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.faults import FAULTS, Fault, sites
from tests.harness.traffic.settings import BLOCKING, MIXED, Settings
from tests.servers.scenarios.scenario import KEPT_OUT, started

# Who lets a lease run out, or hands it to one who never comes, leaves keys on purpose; who closes a
# Redlock waits a bounded time for nodes that do not answer. Who renews holds up to three ttls.
ON_PURPOSE = ("expire", "hand over", "adopt", "long", "close", "renew")
LONG = Settings(
    (),
    "",
    BLOCKING,
    4,
    0,
    ttls=(20.0,),
    max_ttl=20.0,
    kinds={kind: weight for kind, weight in MIXED.items() if kind not in ON_PURPOSE},
)
AT_ONCE = 2
KEEPING = [fault for fault in FAULTS if not fault.loses_memory]
# After these clients keep the node out for 20 s. They come alone, so that no other fault has to
# wait for that.
LASTING = [fault for fault in KEEPING if fault.name in KEPT_OUT]
GROUPS = [[fault for fault in KEEPING if fault not in LASTING], LASTING]


@pytest.mark.parametrize("group", GROUPS, ids=["node votes again", "node is kept out"])
def test_no_key_stays(group: list[Fault], tmp_path: Path, seed: int) -> None:
    """Traffic that gives everything back, two of five nodes at fault: in the end all are empty."""
    with sites(5) as five, started(five, tmp_path, seed, LONG) as scenario:
        for first in range(0, len(group), AT_ONCE):
            pair, last = group[first:][:AT_ONCE], first + AT_ONCE >= len(group)
            assert last or group is not LASTING
            scenario.inflict(*zip(pair, five[first % 4 :], strict=False), seconds=0.4, last=last)
        verdict = scenario.finish()
    print(scenario.history.turns())
    assert verdict.content, str(verdict)
