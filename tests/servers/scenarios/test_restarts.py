"""Nodes are killed again and again, a majority of them within each ttl, and come back empty.

Nothing is assumed of their memory: the restart guard is there for that.  So many kills leave times
without a lock, but never two holders.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.harness.faults import Site, sites
from tests.harness.traffic.records import instant
from tests.harness.traffic.settings import BLOCKING, Settings
from tests.servers.scenarios.scenario import MARGIN, Act, Course, play, started

SECONDS = 8.0
# Few resources and leases that are held to the end show a node that votes too early.
GREEDY = Settings(
    (),
    "",
    BLOCKING,
    4,
    0,
    resources=("r0", "r1"),
    ttls=(0.6,),
    max_ttl=0.6,
    outage_timeout=0.4,
    kinds={"hold": 4, "expire": 3, "try": 2},
)


def test_restarts_without_end_and_never_two_holders(tmp_path: Path, seed: int) -> None:
    """Three nodes, each killed on its own account about once in its quarantine, some twice."""
    entropy = random.Random(seed)
    with sites(3) as three, started(three, tmp_path, seed, GREEDY) as scenario:
        kills: list[Act] = []
        play([killer(site, entropy, kills) for site in three])
        scenario.expects_grants = False
        scenario.pause(GREEDY.max_ttl + MARGIN)  # `finish` waits until they are connected again
        verdict = scenario.finish()
    grants = sum(scenario.history.grants(kills[0].since, instant()).values())
    print(f"{len(kills)} kills, {grants} locks granted meanwhile and after")
    assert len(kills) >= 6
    assert grants
    assert verdict.judgement.content, str(verdict)


def killer(site: Site, entropy: random.Random, kills: list[Act]) -> Course:
    """Kill and start again, after pauses as long as it takes to vote again, or shorter."""
    over = instant() + round(SECONDS * 1e9)
    yield entropy.uniform(0.0, 1.0)
    while instant() < over:
        act = Act("kill", site.server.path, since=instant())
        site.server.kill()
        yield entropy.uniform(0.0, 0.1)
        site.server.restart()
        act.until = instant()
        kills.append(act)
        yield entropy.uniform(0.2, 3 * GREEDY.max_ttl)
