"""Fences rise over what befalls nodes: restarts, old snapshots, FLUSHALL, clocks that are set."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from quorlock import NodeError, QuorumUnreachable, VoteCode, now
from quorlock.testing.servers import Servers
from tests.harness.faults import Site, shim, sites
from tests.harness.faults.clock import ClockJump
from tests.harness.traffic.faces import FACES, Face, call
from tests.harness.traffic.settings import ASYNCIO, BLOCKING

MAX_TTL = 1.0
SETTINGS: dict[str, Any] = {"ttl": MAX_TTL, "max_ttl": MAX_TTL, "node_timeout": 0.15}

each_face = pytest.mark.parametrize("face", FACES.values(), ids=lambda face: face.name)


class Fences:
    """One Redlock that takes fences of one lock, each of which must be larger than the last."""

    def __init__(self, face: Face, urls: list[str], **settings: Any) -> None:
        self.face = face
        self.redlock = face.redlock(urls, **SETTINGS, **settings)
        self.all: list[int] = []

    async def take(self, count: int = 3, timeout: float = 10.0) -> None:  # noqa: ASYNC109
        for _ in range(count):
            lease = await call(self.redlock.lock("r", fencing=True, timeout=timeout).acquire)
            self.all.append(lease.fence)
            await call(lease.release)
        assert all(one < next_ for one, next_ in pairwise(self.all)), self.all


Story = Callable[[Fences], Coroutine[Any, Any, None]]


def play(face: Face, urls: list[str], story: Story, **settings: Any) -> None:
    """Call it with a Redlock that is closed at the end."""

    async def whole() -> None:
        fences = Fences(face, urls, **settings)
        try:
            await story(fences)
        finally:
            await call(fences.redlock.close)

    face.run(whole)


# --- nodes that forget -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("face", "memory"),
    [(FACES[BLOCKING], "lost"), (FACES[ASYNCIO], "saved")],
    ids=["lost", "saved"],
)
def test_they_rise_over_restarts_of_one_node_after_the_other(face: Face, memory: str) -> None:
    """The node is empty, or has an old snapshot: an old counter is as bad as none.

    The guard quarantines each for a second and more; the other two continue.
    """

    async def story(servers: Servers, fences: Fences) -> None:
        await fences.take()
        if memory == "saved":
            for server in servers:
                server.execute("SAVE")
            await fences.take(10)
        for server in servers[:2]:
            server.kill()
            server.restart()
            await fences.take()
            await until_all_vote(fences)
            await fences.take()

    with Servers(3) as servers:
        play(face, servers.urls, partial(story, servers))


@pytest.mark.parametrize(
    ("face", "memory"),
    [(FACES[BLOCKING], "saved"), (FACES[ASYNCIO], "lost")],
    ids=["saved", "lost"],
)
def test_they_rise_though_all_nodes_forget_at_once(face: Face, memory: str) -> None:
    """Only clocks know which numbers were issued. All are in quarantine before they vote."""

    async def story(servers: Servers, fences: Fences) -> None:
        await fences.take()
        if memory == "saved":
            for server in servers:
                server.execute("SAVE")
            await fences.take(10)
        for server in servers:
            server.kill()
            server.restart()
        assert "restarted" in await refused(fences)
        await fences.take()

    with Servers(3) as servers:
        play(face, servers.urls, partial(story, servers), outage_timeout=10.0)


@each_face
def test_they_rise_over_flushall_where_a_marker_guards(face: Face) -> None:
    """No connection breaks by it, and no uptime shows it: the acquire itself looks."""

    async def story(servers: Servers, fences: Fences) -> None:
        await fences.take()
        for server in servers:
            server.execute("FLUSHALL")
        assert "started, emptied or first used" in await refused(fences)
        await fences.take()

    with Servers(3) as servers:
        settings: dict[str, Any] = {"restart_guard": "marker", "outage_timeout": 10.0}
        play(face, servers.urls, partial(story, servers), **settings)


async def refused(fences: Fences) -> str:
    """Return the error of an attempt as soon as the nodes are connected again."""
    while True:
        with pytest.raises(QuorumUnreachable) as caught:
            await call(fences.redlock.lock("r", fencing=True, timeout=0).acquire)
        if any(vote.code is VoteCode.QUARANTINED for vote in caught.value.votes):
            return str(caught.value)


async def until_all_vote(fences: Fences) -> None:
    deadline = now() + 20.0
    while not all(node.up for node in fences.redlock.nodes):
        assert now() < deadline, fences.redlock.nodes
        await call(fences.redlock.inspect, "r")
        await fences.face.sleep(0.02)


# --- clocks ----------------------------------------------------------------------------------

needs_shim = pytest.mark.skipif(not shim.available(), reason="clocks cannot be moved here")


@needs_shim
@pytest.mark.parametrize(
    ("face", "seconds"),
    [(FACES[BLOCKING], 3_600.0), (FACES[ASYNCIO], -3_600.0)],
    ids=["forward", "back"],
)
def test_one_clock_that_is_off_costs_nothing(face: Face, seconds: float) -> None:
    """The others agree and do not follow it, neither forward nor back, nor afterwards."""

    async def story(three: list[Site], fences: Fences) -> None:
        await fences.take()
        jump = ClockJump(seconds)
        jump.begin(three[0])
        try:
            await fences.take(6)
        finally:
            jump.end(three[0])
        await fences.take()
        assert abs(fences.all[-1] - fences.all[0]) < 600 * 1_000_000

    with sites(3) as three:
        play(face, [site.server.url for site in three], partial(story, three))


@needs_shim
@each_face
def test_clocks_that_do_not_agree_are_named(face: Face) -> None:
    """One is off, and one is down: it is unknown which of the two others is right."""

    async def story(three: list[Site], fences: Fences) -> None:
        await fences.take()
        three[2].server.kill()
        jump = ClockJump(3_600.0)
        jump.begin(three[0])
        try:
            with pytest.raises(NodeError, match=r"its clock is 3[56]..\.. s (ahead of|behind)"):
                await call(fences.redlock.lock("fresh", fencing=True, timeout=0).acquire)
            lease = await call(fences.redlock.lock("fresh", timeout=0).acquire)
            await call(lease.release)  # the lock itself needs no clocks that agree
        finally:
            jump.end(three[0])
        await fences.take()

    with sites(3) as three:
        play(face, [site.server.url for site in three], partial(story, three))


@needs_shim
@each_face
def test_clocks_that_are_all_set_back_take_nothing_from_counters(face: Face) -> None:
    """Also with one node alone: what it remembers is larger than what its clock shows."""

    async def story(site: Site, fences: Fences) -> None:
        await fences.take()
        jump = ClockJump(-3_600.0)
        jump.begin(site)
        try:
            await fences.take()
        finally:
            jump.end(site)
        await fences.take()

    with sites(1) as (site,):
        play(face, [site.server.url], partial(story, site))


@needs_shim
@each_face
def test_limit_one_node_whose_clock_is_set_back_and_whose_memory_is_lost(face: Face) -> None:
    """DOCUMENTED LIMIT of N = 1: no other node can correct it, and the numbers repeat."""

    async def story(site: Site, fences: Fences) -> None:
        await fences.take()
        jump = ClockJump(-3_600.0)
        jump.begin(site)
        try:
            site.server.execute("DEL", "quorlock:fence:r")
            with pytest.raises(AssertionError):
                await fences.take()
        finally:
            jump.end(site)

    with sites(1) as (site,):
        play(face, [site.server.url], partial(story, site))
