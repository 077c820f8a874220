"""`redlock.check()`, `ready` and `quorum`: the state of the nodes for a health check."""

from __future__ import annotations

import pytest

import quorlock
from quorlock import QuorlockError, VoteCode
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, raises

SETTINGS = {"node_timeout": 0.3, "connect_timeout": 0.5}


async def test_a_fresh_redlock_is_ready_after_a_check(face: Face, nodes: Servers) -> None:
    """The check connects to all nodes, and leaves no key."""
    async with face.redlock(nodes.urls) as redlock:
        assert (redlock.ready, redlock.quorum) == (False, 3)
        health = await redlock.check()
        assert health.ready
        assert health
        assert (health.quorum, [node.up for node in health.nodes]) == (3, [True] * 5)
        assert redlock.ready
        assert not any(node.keys() for node in nodes)


@pytest.mark.parametrize("dead", [2, 3])
async def test_dead_nodes_are_reported(face: Face, mortal_nodes: Servers, dead: int) -> None:
    """No error is raised for them, whether a quorum is left or not."""
    async with face.redlock(mortal_nodes.urls) as redlock:
        assert (await redlock.check()).ready  # else empty nodes keep out until all are there
    for node in mortal_nodes[:dead]:
        node.kill()
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        health = await redlock.check()
        assert [node.up for node in health.nodes] == [False] * dead + [True] * (5 - dead)
        assert {node.code for node in health.nodes[:dead]} == {VoteCode.NOT_CONNECTED}
        assert "not connected yet" not in {node.why for node in health.nodes}
        assert health.ready == redlock.ready == bool(health) == (dead == 2)


async def test_nodes_that_come_back_are_up_again(face: Face, mortal_nodes: Servers) -> None:
    """A check tries to connect again as soon as the back-off of an earlier one is over."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS, restart_guard=None) as redlock:
        for node in mortal_nodes[:3]:
            node.kill()
        assert not (await redlock.check()).ready
        for node in mortal_nodes[:3]:
            node.restart()

        async def is_ready() -> bool:
            return (await redlock.check()).ready

        assert await until_async(is_ready)  # after the back-off of the last attempt


async def test_hung_nodes_are_not_up(face: Face, mortal_nodes: Servers) -> None:
    """A node that does not answer the check is not up, and the check takes a bounded time."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        assert (await redlock.check()).ready
        for node in mortal_nodes[:3]:
            node.stop()
        try:
            began = quorlock.now()
            health = await redlock.check()
            assert quorlock.now() - began < 30
        finally:
            for node in mortal_nodes[:3]:
                node.cont()
        assert not health.ready
        assert {node.code for node in health.nodes[:3]} == {VoteCode.TIMED_OUT}
        assert [node.up for node in health.nodes[3:]] == [True, True]


async def test_one_node(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls[:1]) as redlock:
        assert (await redlock.check())[:2] == (True, 1)
        assert redlock.quorum == 1


async def test_a_closed_redlock_is_not_checked(face: Face, nodes: Servers) -> None:
    redlock = face.redlock(nodes.urls)
    await redlock.close()
    assert "closed" in str(await raises(QuorlockError, redlock.check()))
