"""The primitives where nodes disagree, keys are lost or foreign, and terms are handed over."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import quorlock
import quorlock.asyncio as aio
from quorlock import AcquireTimeout, LeaseLost, NodeError
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import (
    BlockingFace,
    Face,
    emptied,
    holders,
    raises,
    real,
)

QUICK: dict[str, Any] = {"node_timeout": 0.25, "retry_delay": (0.002, 0.01)}


async def test_nodes_that_disagree_which_are_free(face: Face, nodes: Servers) -> None:
    """Each permit is free on two of five nodes: none can be won, and no key is left."""
    for index, node in enumerate(nodes):
        for number in range(5):
            if (number - index) % 5 > 1:
                node.execute("SET", f"pool#{number}", "another", "PX", 20_000)
    async with face.redlock(nodes.urls, **QUICK) as redlock:
        semaphore = redlock.semaphore("pool", 5, ttl=9)
        assert await semaphore.try_acquire() is None
        await raises(AcquireTimeout, semaphore.acquire(timeout=0.1))
    left = [holders(nodes, f"pool#{number}") for number in range(5)]
    assert await until_async(lambda: {v for row in left for v in row} == {None, b"another"})


async def test_a_lost_permit_is_not_given_twice(face: Face, nodes: Servers) -> None:
    """A late release of the lost lease leaves the permit of the next holder alone."""
    async with face.redlock(nodes.urls, **QUICK) as redlock:
        semaphore = redlock.semaphore("pool", 1, ttl=0.8)
        lost = await semaphore.acquire()
        assert await until_async(lambda: not lost.held, 5)
        async with await semaphore.acquire(timeout=5) as lease:
            assert await lost.release() is False
            assert lease.held
            assert holders(nodes, "pool#0").count(lease.token.encode()) >= 3
            assert await semaphore.try_acquire() is None


async def test_a_nested_lock_on_a_part_is_refused(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, **QUICK) as redlock, redlock.lock("a", "b"):
        error = await raises(AcquireTimeout, redlock.lock("b", "c").acquire(timeout=0.05))
        assert "'b'" in str(error)
        assert holders(nodes, "c") == [None] * 5


async def test_no_leader_where_the_key_is_of_another_type(face: Face, nodes: Servers) -> None:
    """A key that this library did not set is an error, not a crash."""
    for node in nodes:
        node.execute("LPUSH", "role", "x")
    async with face.redlock(nodes.urls, **QUICK) as redlock:
        await raises(NodeError, redlock.election("role").leader())


async def test_a_done_mark_is_no_leader(face: Face, nodes: Servers) -> None:
    """A mark at the name of an election keeps candidates out until it ends."""
    async with face.redlock(nodes.urls, **QUICK) as redlock:
        lease = await redlock.lock("role", ttl=5).acquire()
        await lease.keep(0.8)
        election = redlock.election("role", ttl=5)
        assert await election.leader() is None
        async with election.campaign(timeout=10) as term:
            assert term.fence


async def test_a_nested_acquire_after_a_loss(face: Face, nodes: Servers) -> None:
    """No level is counted where another client may hold the lock; it can be taken again later."""
    async with face.redlock(nodes.urls, **QUICK) as redlock:
        lock = redlock.rlock("a", ttl=0.8)
        outer = await lock.acquire()
        assert await until_async(lambda: not outer.held, 5)
        async with redlock.lock("a", timeout=5):
            await raises(LeaseLost, lock.acquire())
        with contextlib.suppress(LeaseLost):
            await lock.release()
        async with lock as again:
            assert again.held


async def test_permits_without_an_end(face: Face, nodes: Servers) -> None:
    """Permits held by keys without a ttl do not hide one that is free, nor end the search."""
    for node in nodes:
        for number in range(39):
            node.execute("SET", f"pool#{number}", "another")
    async with face.redlock(nodes.urls, **QUICK) as redlock:
        semaphore = redlock.semaphore("pool", 40, ttl=9)
        for _ in range(8):  # in any of three windows
            lease = await semaphore.try_acquire()
            assert lease is not None
            assert lease.permit == 39
            assert await lease.release()
        error = await raises(AcquireTimeout, redlock.semaphore("pool", 39).acquire(timeout=0))
        assert "is free in" not in str(error)


async def test_a_leader_that_hands_over_within_run(face: Face, nodes: Servers) -> None:
    """`run` returns what the leader returned, and the heir continues the term."""
    async with face.redlock(nodes.urls, **QUICK) as redlock:
        election = redlock.election("role", ttl=5.0)
        if isinstance(face, BlockingFace):
            ticket: Any = real(election).run(quorlock.Lease.hand_over)
        else:
            ticket = await election.run(aio.Lease.hand_over)
        assert await election.leader() is not None
        async with face.redlock(nodes.urls, **QUICK) as other:
            heir = await other.adopt(ticket)
            assert heir.held
            assert await heir.release()
        assert await emptied(nodes)


async def test_a_crowd_on_memory_nodes(face: Face) -> None:
    """No more than three are inside, and each has its own number."""
    inside: dict[int | None, int] = {}
    most = 0
    async with face.redlock(["memory://f1", "memory://f2", "memory://f3"], **QUICK) as redlock:
        semaphore = redlock.semaphore("pool", 3, ttl=9)

        async def work(index: int) -> int:
            nonlocal most
            async with await semaphore.acquire(timeout=30) as lease:
                assert lease.permit not in inside
                inside[lease.permit] = index
                most = max(most, len(inside))
                # The first ones stay until all permits are held: on a busy machine, not by chance.
                assert await until_async(lambda: most == 3, 20)
                await asyncio.sleep(0.001)
                del inside[lease.permit]
            return index

        assert await face.crowd(24, work) == list(range(24))
    assert most == 3


async def test_sets_that_overlap_on_a_node_that_comes_and_goes(
    face: Face, mortal_nodes: Servers
) -> None:
    """Sets of two of four names exclude each other, and nothing is left."""
    nodes = mortal_nodes
    held: dict[str, int] = {}
    done = threading.Event()

    def torment() -> None:
        while not done.wait(0.05):
            nodes[0].stop()
            done.wait(0.05)
            nodes[0].cont()

    thread = threading.Thread(target=torment)
    thread.start()
    try:
        async with face.redlock(nodes.urls, ttl=30.0, **QUICK) as redlock:

            async def work(index: int) -> int:
                names = [f"n{index % 4}", f"n{(index + 1 + index // 4 % 3) % 4}"]
                for _ in range(3):
                    async with redlock.lock(*names, timeout=30) as lease:
                        assert not set(lease.resources) & set(held)
                        held.update(dict.fromkeys(lease.resources, index))
                        await asyncio.sleep(0)
                        for name in lease.resources:
                            del held[name]
                return index

            assert await face.crowd(8, work) == list(range(8))
    finally:
        done.set()
        thread.join()
        nodes[0].cont()
    assert await emptied(nodes, 10)
