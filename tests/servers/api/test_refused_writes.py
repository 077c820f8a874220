"""Nodes that refuse writes for a while, as without a good replica or with a full disk.

A lock whose key is absent is gone on such a node as on any other.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from quorlock import LeaseLost, NodeError
from quorlock.testing.servers import Servers
from tests.servers.api.faces import Face, all_up, emptied, raises, real, wipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import quorlock.asyncio as aio
    from quorlock.testing.servers import Server

SETTINGS: dict[str, Any] = {"ttl": 20.0, "max_ttl": 20.0, "node_timeout": 2.0}
TOKEN = "0" * 32


@pytest.fixture(scope="module")
def nodes() -> Iterator[Servers]:
    """Servers of this module alone, since their configuration is changed."""
    with Servers(3) as servers:
        yield servers


@contextmanager
def refusing(nodes: Iterable[Server]) -> Iterator[None]:
    """Have these nodes refuse all writes: NOREPLICAS."""
    nodes = list(nodes)
    try:
        for node in nodes:
            node.execute("CONFIG", "SET", "min-replicas-to-write", 1)
        yield
    finally:
        for node in nodes:
            node.execute("CONFIG", "SET", "min-replicas-to-write", 0)


def pending_releases(redlock: aio.Redlock) -> list[int]:
    states = real(redlock)._session.driver.node_states
    return [len(state.pending_releases) for state in states.all]


async def test_a_lock_that_is_gone(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        await all_up(redlock)
        extended, released = [await redlock.lock(name).acquire() for name in ("x", "y")]
        for name in ("x", "y"):
            wipe(nodes, name)
        with refusing(nodes):
            error = await raises(LeaseLost, extended.extend())
            assert error.reason == "evicted"
            assert not await released.release()
            assert not await redlock.release("z", TOKEN)
            assert not await redlock.extend("z", TOKEN)
        assert pending_releases(redlock) == [0, 0, 0]


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_lock_that_is_there(face: Face, nodes: Servers, is_shared: bool) -> None:
    """The node refuses its release, which is retried."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        await all_up(redlock)
        lease = await redlock.lock("x", shared=is_shared).acquire()
        with refusing(nodes):
            await raises(NodeError, lease.release())
        assert await emptied(nodes)


async def test_one_node_that_refuses_gets_no_needless_releases(face: Face, nodes: Servers) -> None:
    """The number of releases that are retried has a limit, and real ones would be left out."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        await all_up(redlock)
        with refusing([nodes[0]]):
            for number in range(20):
                lease = await redlock.lock(f"x{number}").acquire()
                assert await lease.release()
            assert pending_releases(redlock) == [0, 0, 0]
