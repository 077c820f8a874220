"""Many releases at once, on real servers: as one command for each node, with the same outcomes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import quorlock.asyncio as aio
from tests.harness.support.wait import until_async

if TYPE_CHECKING:
    from quorlock.testing.servers import Servers


def keys_of(nodes: Servers) -> list[object]:
    """Return the keys of each node: the last of them may not have carried out the releases yet."""
    return [node.execute("KEYS", "r*") for node in nodes]


async def release_together(leases: list[aio.Lease]) -> list[bool]:
    return await asyncio.gather(*[lease.release() for lease in leases])


async def test_a_waiter_gets_its_turn_and_the_others_are_freed(nodes: Servers) -> None:
    """The waiter is called by the nodes, as after a release alone."""
    async with aio.Redlock(nodes.urls) as redlock, aio.Redlock(nodes.urls) as elsewhere:
        for awaited in (None, "r3"):
            locks = [redlock.lock(f"r{number}") for number in range(12)]
            leases = [await lock.acquire() for lock in locks]
            waiter = None
            if awaited:
                waiter = asyncio.create_task(elsewhere.lock(awaited).acquire(timeout=20))
                assert await until_async(
                    lambda: all(node.execute("EXISTS", "quorlock:queue:r3") for node in nodes)
                )
            assert await release_together(leases) == [True] * 12
            if waiter is not None:
                assert await (await waiter).release() is True
        assert await until_async(lambda: keys_of(nodes) == [[]] * 5)
        for node in nodes:
            assert "cmdstat_mget" in str(node.execute("INFO", "commandstats"))


async def test_a_node_that_has_forgotten_its_scripts(nodes: Servers) -> None:
    """NOSCRIPT: each is released alone, and the next group brings the script again."""
    async with aio.Redlock(nodes.urls) as redlock:
        for _ in range(3):
            leases = [await redlock.lock(f"r{number}").acquire() for number in range(8)]
            for node in nodes:
                node.execute("SCRIPT", "FLUSH")
            assert await release_together(leases) == [True] * 8
            assert await until_async(lambda: keys_of(nodes) == [[]] * 5)


async def test_a_lease_of_the_group_that_has_expired(nodes: Servers) -> None:
    """The release of that one is false, and those of the others are true."""
    async with aio.Redlock(nodes.urls) as redlock:
        leases = [await redlock.lock(f"r{number}").acquire() for number in range(8)]
        for node in nodes:
            node.execute("DEL", "r5")
            node.execute("SET", "r6", "another's")
        assert await release_together(leases) == [number not in (5, 6) for number in range(8)]
        assert await until_async(lambda: keys_of(nodes) == [[b"r6"]] * 5)
        assert all(node.execute("GET", "r6") == b"another's" for node in nodes)


async def test_an_interrupted_crowd_leaves_nothing(nodes: Servers) -> None:
    """Half of the releases are cancelled in the tick in which all of them began."""
    async with aio.Redlock(nodes.urls) as redlock:
        for _ in range(5):
            leases = [await redlock.lock(f"r{number}").acquire() for number in range(20)]
            tasks = [asyncio.create_task(lease.release()) for lease in leases]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert await until_async(lambda: keys_of(nodes) == [[]] * 5)
