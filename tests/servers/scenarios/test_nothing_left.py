"""Leases that live long, and nodes that are at fault when they are given back: no key may stay.

With a ttl of 20 s nothing goes by itself while we look, so what is gone was given back: first thing
on the next connection, or again and again until the node has said so.  Assumed: the node keeps its
memory, and its fault ends while the client lives.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.faults import FAULTS, Fault, sites
from tests.servers.scenarios.stage import staged
from tests.servers.traffic.settings import BLOCKING, MIXED, Settings

# Who lets a lease run out, or hands it to one who never comes, leaves keys on purpose; who closes a
# Redlock waits a bounded time for nodes that do not answer.
ON_PURPOSE = ("expire", "hand over", "adopt", "long", "close")
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
KEEPING = [fault for fault in FAULTS if not fault.loses_memory]
AT_ONCE = 2
GROUPS = [KEEPING[start : start + 12] for start in range(0, len(KEEPING), 12)]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].name)
def test_no_key_stays(group: list[Fault], tmp_path: Path, seed: int) -> None:
    """Traffic that gives everything back, two of five nodes at fault: in the end all are empty."""
    with sites(5) as five, staged(five, tmp_path, seed, LONG) as stage:
        for first in range(0, len(group), AT_ONCE):
            pairs = zip(group[first:][:AT_ONCE], five[first % 4 :], strict=False)
            stage.inflict(*pairs, seconds=0.4)
        verdict = stage.finish()
    print(stage.history.turns())
    assert verdict.content, str(verdict)
