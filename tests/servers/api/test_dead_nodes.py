"""Acceptance 2: a dead minority costs nothing, a dead majority is named and leaves nothing."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import QuorumUnreachable
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, left_over, raises, sees_all

SETTINGS: dict[str, Any] = {"node_timeout": 0.25, "connect_timeout": 0.5}
CYCLES = 60


async def cycles(redlock: aio.Redlock, count: int = CYCLES) -> list[float]:
    """Seconds of each acquire + release."""
    times = []
    for turn in range(count):
        began = quorlock.now()
        lease = await redlock.lock(f"cycle:{turn}").acquire(timeout=0)
        assert await lease.release() is True
        times.append(quorlock.now() - began)
    return times


def report(face: Face, healthy: list[float], faulty: list[float], what: str) -> None:
    before, after = median(healthy), median(faulty)
    print(
        f"\n{face.name}, {what}: healthy median {before * 1e3:.3f} ms, then {after * 1e3:.3f} ms"
        f" ({after / before:.2f} x); first {faulty[0] * 1e3:.3f} ms, worst {max(faulty) * 1e3:.3f}"
    )


async def test_two_of_five_killed(face: Face, mortal_nodes: Servers) -> None:
    """Every call succeeds, the first after the kill too; nothing is left on the live nodes."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        healthy = await cycles(redlock)
        for node in mortal_nodes[:2]:
            node.kill()
        faulty = await cycles(redlock)
        report(face, healthy, faulty, "2 of 5 killed")
        async with redlock.lock("a") as lease:
            dead = {vote.node for vote in lease.votes if vote.vote != "granted"}
            assert dead == {node.path for node in mortal_nodes[:2]}
            await lease.extend(20)
        # No call waits for dead nodes: the timeouts of two nodes are not in every call.
        assert sum(faulty) < CYCLES * SETTINGS["node_timeout"]
    assert left_over(mortal_nodes[2:]) == {}


async def test_a_lease_outlives_the_death_of_a_minority(face: Face, mortal_nodes: Servers) -> None:
    """Held before the kill: extended, released with True afterwards."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire()
        for node in mortal_nodes[3:]:
            node.kill()
        await lease.extend(20)
        assert lease.held
        assert await redlock.lock("a").try_acquire() is None
        assert await lease.release() is True
    assert left_over(mortal_nodes[:3]) == {}


async def test_restarted_nodes_vote_again(face: Face, mortal_nodes: Servers) -> None:
    """Two are killed and come back, then two others are killed: the same Redlock continues with the
    restarted ones.

    This is without the guard; test_restart_guard.py tests it.
    """
    async with face.redlock(mortal_nodes.urls, **SETTINGS, restart_guard=None) as redlock:
        await cycles(redlock, 5)
        for node in mortal_nodes[:2]:
            node.kill()
        await cycles(redlock, 5)
        for node in mortal_nodes[:2]:
            node.restart()
        assert await sees_all(redlock)
        for node in mortal_nodes[3:]:
            node.kill()
        await cycles(redlock, 5)
    assert left_over(mortal_nodes[:3]) == {}


@pytest.mark.parametrize("before", [True, False], ids=["seen alive", "dead from the start"])
async def test_three_of_five_killed(face: Face, mortal_nodes: Servers, before: bool) -> None:
    """QuorumUnreachable within outage_timeout, with the three nodes and their causes; no key stays
    on the other two.
    """
    settings = {**SETTINGS, "outage_timeout": 0.8, "restart_guard": None}
    async with face.redlock(mortal_nodes.urls, **settings) as other:
        # A set that is in use: of a fresh one, two of five may not agree on anything by themselves.
        await cycles(other, 3)
        assert await until_async(
            lambda: all(n.execute("EXISTS", "quorlock:config") for n in mortal_nodes)
        )
    async with face.redlock(mortal_nodes.urls, **settings) as redlock:
        if before:
            await cycles(redlock, 3)
        for node in mortal_nodes[:3]:
            node.kill()
        began = quorlock.now()
        error = await raises(QuorumUnreachable, redlock.lock("a").acquire(timeout=None))
        took = quorlock.now() - began
        print(f"\n{face.name}: gave up after {took:.3f} s, {error.attempts} attempts: {error}")
        assert took < 0.8 + 5, "a generous slack for a busy machine"
        assert error.attempts > 1
        absent = {vote.node: vote.cause for vote in error.votes if not vote.answered}
        assert set(absent) == {node.path for node in mortal_nodes[:3]}
        assert all("refused" in cause or "lost" in cause for cause in absent.values())
        assert all(node.path in str(error) for node in mortal_nodes[:3])
        assert error.elapsed <= took
        assert left_over(mortal_nodes[3:]) == {}
        await raises(QuorumUnreachable, redlock.lock("a").acquire(timeout=0))
        await raises(QuorumUnreachable, redlock.lock("a").try_acquire())
        await raises(QuorumUnreachable, redlock.lock("a").locked())
        for node in mortal_nodes[:3]:
            node.restart()
        # Connecting backs off for up to a second, which is longer than our outage_timeout here.
        assert await sees_all(redlock)
        lease = await redlock.lock("a").acquire(timeout=30)
        assert await lease.release() is True
    assert left_over(mortal_nodes) == {}


async def test_all_killed(face: Face, mortal_nodes: Servers) -> None:
    """No node answers: QuorumUnreachable with five causes, at timeout=0 after one attempt."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        for node in mortal_nodes:
            node.kill()
        error = await raises(QuorumUnreachable, redlock.lock("a").acquire(timeout=0))
        assert error.attempts == 1
        assert "0 of 5 nodes answered" in str(error)
        assert not any(vote.answered for vote in error.votes)
