"""The first use of servers that have just started: acquire waits until they vote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from quorlock import LeaseLost, QuorumUnreachable, VoteCode
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, raises

# The servers vote max_ttl after their start, and at most a second later: uptimes are whole seconds.
BRIEF: dict[str, Any] = {"ttl": 0.8, "max_ttl": 0.8, "outage_timeout": 0.2}
LONG: dict[str, Any] = {"outage_timeout": 0.2}


@pytest.fixture
def fresh() -> Iterator[Servers]:
    """Start three servers of which no program has said that they are new."""
    with Servers(3) as servers:
        for server in servers:
            server.execute("DEL", "quorlock:born-empty")
        yield servers


def mark(servers: Servers) -> None:
    """Say that the servers are new, and let their clients connect again."""
    for server in servers:
        server.born_empty()
        server.execute("CLIENT", "KILL", "TYPE", "normal")


async def test_the_lock_is_entered_when_a_quorum_votes(fresh: Servers, face: Face) -> None:
    async with face.redlock(fresh.urls, **BRIEF) as redlock:
        await raises(QuorumUnreachable, redlock.lock("x").try_acquire())
        await raises(QuorumUnreachable, redlock.lock("x", timeout=0).acquire())
        async with redlock.lock("x", timeout=60.0) as lease:
            assert lease.held
            assert [vote.vote for vote in lease.votes].count("granted") >= 2
    assert await until_async(lambda: not any(server.keys() for server in fresh))


async def test_without_a_timeout_it_waits_as_well(fresh: Servers, face: Face) -> None:
    """Many at once: each gets its turn."""
    async with face.redlock(fresh.urls, **BRIEF) as redlock:

        async def work(index: int) -> bool:
            lease = await redlock.lock(f"x{index % 3}").acquire(timeout=None)
            return bool(await lease.release())

        assert await face.crowd(9, work) == [True] * 9


async def test_a_shorter_timeout_is_told_the_cause_once(fresh: Servers, face: Face) -> None:
    async with face.redlock(fresh.urls, **LONG) as redlock:
        error = await raises(QuorumUnreachable, redlock.lock("x", timeout=0.7).acquire())
    sentence = (
        r"'x': 3 of 3 nodes cast no vote for \d+( to \d+)? s more and may have forgotten locks"
        r" \(restart guard: started \d( to \d)? s ago\), after \d+ attempts? in [\d.]+ m?s;"
        r" wait, or mark nodes that are new: quorlock nodes fresh"
    )
    assert re.fullmatch(sentence, str(error)), error
    assert error.elapsed >= 0.7
    for vote in error.votes:
        assert vote.code is VoteCode.QUARANTINED
        assert vote.quarantine is not None
        assert 25 < vote.quarantine.votes_in < 32
        assert not vote.answered


async def test_nodes_that_are_marked_as_new_vote_at_once(fresh: Servers, face: Face) -> None:
    """Also while a caller waits for them, for an hour if need be."""
    async with face.redlock(fresh.urls, max_ttl=3600.0) as redlock:

        async def work(index: int) -> bool:
            if index == 0:
                lease = await redlock.lock("x").acquire(timeout=None)
                return bool(await lease.release())
            kept_out = {VoteCode.QUARANTINED}
            known = await until_async(lambda: {node.code for node in redlock.nodes} == kept_out)
            mark(fresh)
            return known

        assert await face.crowd(2, work) == [True, True]
    async with face.redlock(fresh.urls, max_ttl=3600.0) as redlock:
        assert await (await redlock.lock("x").acquire(timeout=0)).release() is True


async def test_nodes_that_die_meanwhile_are_an_outage(fresh: Servers, face: Face) -> None:
    async with face.redlock(fresh.urls, **LONG) as redlock:

        async def work(index: int) -> str:
            if index == 0:
                return str(await raises(QuorumUnreachable, redlock.lock("x").acquire(timeout=60)))
            kept_out = {VoteCode.QUARANTINED}
            await until_async(lambda: {node.code for node in redlock.nodes} == kept_out)
            for server in fresh[:2]:
                server.kill()
            return ""

        error = str((await face.crowd(2, work))[0])
        assert error.startswith("'x': 0 of 3 nodes voted, 2 are needed (")
        assert error.endswith("; check these nodes")


async def test_one_node_that_votes_is_not_enough(fresh: Servers, face: Face) -> None:
    """A failed attempt releases the key there; when another node votes, the lock is granted."""
    fresh[0].born_empty()
    async with face.redlock(fresh.urls, **LONG) as redlock:
        error = await raises(QuorumUnreachable, redlock.lock("x", timeout=0.3).acquire())
        assert "'x': 2 of 3 nodes (" in str(error)
        assert fresh[0].keys() == []
        fresh[1].born_empty()
        fresh[1].execute("CLIENT", "KILL", "TYPE", "normal")
        async with redlock.lock("x", timeout=60.0) as lease:
            assert lease.held


async def test_a_renewed_lease_outlives_the_restart_of_a_minority(
    fresh: Servers, face: Face
) -> None:
    """And an adopted one: they count on the nodes that vote, with or without this wait."""
    mark(fresh)
    async with face.redlock(fresh.urls, **LONG) as redlock:
        lease = await redlock.lock("x", renew=True).acquire(timeout=5.0)
        fresh[0].restart()
        await lease.extend()
        ticket = await lease.hand_over()
        assert (await redlock.adopt(ticket)).held
    async with face.redlock(fresh.urls, **LONG | {"max_ttl": 30.0, "ttl": 1.0}) as redlock:
        lease = await redlock.lock("x").acquire(timeout=60.0)
        fresh[1].restart()
        error = await raises(LeaseLost, lease.extend())
        assert error.reason == "unreachable"


async def test_max_ttl_alone_limits_the_ttl(fresh: Servers, face: Face) -> None:
    mark(fresh)
    async with face.redlock(fresh.urls, max_ttl=5) as redlock:
        assert redlock.lock("x").ttl == 5.0
        async with redlock.lock("x", timeout=5.0) as lease:
            assert lease.ttl == 5.0
    async with face.redlock(["memory://a"], max_ttl=3600) as redlock:
        assert redlock.lock("x").ttl == 10.0
