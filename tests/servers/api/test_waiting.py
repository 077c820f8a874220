"""The order of waiters, how many wait, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from operator import gt
from typing import Any

import pytest

from quorlock import AcquireTimeout
from quorlock.testing.memory import MemoryNodes
from quorlock.testing.servers import Server, Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, keys_on, raises

SETTINGS: dict[str, Any] = {"node_timeout": 0.3, "connect_timeout": 2.0}
WAITERS = 3
# Waits end by a call, so this is reached only by a defect.
LONG = 30.0


@pytest.fixture(params=["servers", "memory"])
def urls(request: pytest.FixtureRequest, nodes: Servers) -> Iterator[list[str]]:
    """Real servers, and nodes in memory."""
    if request.param == "servers":
        yield nodes.urls
        return
    with MemoryNodes(3) as memory:
        yield memory.urls


async def waits(redlock: Any, count: int) -> bool:
    """Do so many wait?"""
    return bool((await redlock.inspect("a")).waiters == count)


async def test_clients_are_served_in_the_order_in_which_they_came(
    face: Face, urls: list[str]
) -> None:
    """Each begins to wait when those before it do; all of them are counted."""
    order: list[int] = []
    async with face.redlock(urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire()

        async def work(index: int) -> None:
            async with face.redlock(urls, **SETTINGS) as own:
                assert await until_async(lambda: waits(own, index))
                if index == WAITERS:
                    assert (await own.inspect("a")).verdict == "held"
                    assert order == []
                    await lease.release()
                    return
                async with own.lock("a", timeout=LONG):
                    order.append(index)

        assert await face.crowd(WAITERS + 1, work) == [None] * (WAITERS + 1)
        assert order == list(range(WAITERS))
        assert await until_async(lambda: is_free(redlock))


async def is_free(redlock: Any) -> bool:
    report = await redlock.inspect("a")
    return bool((report.verdict, report.waiters) == ("free", 0))


async def test_the_waiters_of_one_process_count_once(face: Face, urls: list[str]) -> None:
    """The first of their line waits for all; each has a lease and a token."""
    tokens: list[str] = []
    async with face.redlock(urls, **SETTINGS) as redlock, face.redlock(urls, **SETTINGS) as own:
        lease = await own.lock("a").acquire()

        async def work(index: int) -> None:
            if index == WAITERS:
                assert await until_async(lambda: waits(own, 1))
                await lease.release()
                return
            async with redlock.lock("a", timeout=LONG) as mine:
                tokens.append(mine.token)
                assert mine.held
                assert (await own.inspect("a")).waiters <= 1

        assert await face.crowd(WAITERS + 1, work) == [None] * (WAITERS + 1)
        assert len(set(tokens)) == WAITERS
        assert await until_async(lambda: is_free(own))


async def test_a_waiter_that_gives_up_leaves_no_place(face: Face, nodes: Servers) -> None:
    """Nothing is left but the holder's key; after its release, nothing at all."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        async with face.redlock(nodes.urls, **SETTINGS) as other, other.lock("a"):
            await raises(AcquireTimeout, redlock.lock("a").acquire(timeout=0.1))
            assert await until_async(lambda: waits(redlock, 0))
            assert await until_async(
                lambda: not any(node.execute("EXISTS", "quorlock:queue:a") for node in nodes)
            )
        assert await until_async(lambda: keys_on(nodes) == {})


async def test_an_exchange_that_does_not_win_leaves_its_waiter_in_the_queues(
    face: Face, nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease was over, and the lock is another's: the waiter keeps its turn, without a look."""
    monkeypatch.setattr("quorlock._core.waiter._LOOKS", (90_000_000_000, 90_000_000_000))
    async with face.redlock(nodes.urls, **SETTINGS) as redlock, face.redlock(nodes.urls) as other:
        lease = await redlock.lock("a").acquire()

        async def work(index: int) -> None:
            if not index:
                async with redlock.lock("a", timeout=LONG) as mine:
                    assert mine.held
                return
            assert await until_async(lambda: all(tracked(node) for node in nodes))
            looked = [scripts_run(node) for node in nodes]
            for node in nodes:
                node.execute("SET", "a", "theirs", "XX", "PX", "60000")
            # The waiter looks because of that, and not again.
            assert await until_async(lambda: all(map(gt, map(scripts_run, nodes), looked)))
            assert await lease.release() is False
            assert await until_async(lambda: waits(other, 1))
            assert await other.release("a", "theirs") is True

        assert await face.crowd(2, work) == [None] * 2


@pytest.mark.parametrize("renews", [False, True])
async def test_a_key_that_another_library_deletes(
    renews: bool, face: Face, nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes report it to the first waiter, whose next look would come too late. A change that
    frees nothing makes it look, and later changes are reported again.
    """
    monkeypatch.setattr("quorlock._core.waiter._LOOKS", (90_000_000_000, 90_000_000_000))
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        other = await redlock.lock("other", ttl=1.0, renew=renews).acquire()
        if renews:  # asyncio: the same connections track all keys then
            first = other.valid_until
            assert await until_async(lambda: other.valid_until > first)
        for node in nodes:
            node.execute("SET", "a", "theirs", "NX", "PX", "60000")

        async def work(index: int) -> None:
            if not index:
                lease = await redlock.lock("a").acquire(timeout=LONG)
                assert await lease.release() is True
                return
            assert await until_async(lambda: all(tracked(node) for node in nodes))
            for node in nodes:
                node.execute("PEXPIRE", "a", "70000")
            assert await until_async(lambda: all(tracked(node) for node in nodes))
            for node in nodes:
                node.execute("DEL", "a")

        assert await face.crowd(2, work) == [None] * 2
        await other.release()


@pytest.mark.parametrize("kind", ["readers", "several"])
async def test_a_key_that_others_delete_while_many_wait_apart(
    kind: str, face: Face, nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a place in the queue, and the nodes' report reaches the first of them."""
    monkeypatch.setattr("quorlock._core.waiter._LOOKS", (90_000_000_000, 90_000_000_000))
    monkeypatch.setattr("quorlock._core.waiter._FIRST_LOOK_BEHIND", 90_000_000_000)
    waiters = 3
    granted_at: list[float] = []

    async def work(index: int) -> None:
        assert await until_async(lambda: all(queued(node) >= index for node in nodes))
        if index < waiters:
            also = () if kind == "readers" else (f"own {index}",)
            lock = redlock.lock("a", *also, shared=kind == "readers")
            lease = await lock.acquire(timeout=LONG)
            granted_at.append(time.monotonic())
            assert await lease.release() is True
            return
        assert await until_async(lambda: all(tracked(node, waiters) for node in nodes))
        granted_at.append(time.monotonic())
        for node in nodes:
            node.execute("DEL", "a")

    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        for node in nodes:
            node.execute("SET", "a", "theirs", "NX", "PX", "60000")
        assert await face.crowd(waiters + 1, work) == [None] * (waiters + 1)
    # At its timeout one of them would be granted the lock, and call the others.
    assert max(granted_at) - min(granted_at) < LONG / 2


def scripts_run(node: Server) -> int:
    """Return how many scripts the node has run."""
    calls = re.findall(rb"cmdstat_eval(?:sha)?:calls=(\d+)", node.execute("INFO", "commandstats"))
    return sum(map(int, calls))


def queued(node: Server) -> int:
    """Return how many wait in the node's queue."""
    return int(node.execute("ZCARD", "quorlock:queue:a"))


def tracked(node: Server, waiters: int = 1) -> bool:
    """Does the node track the waiters' key?"""
    count = re.search(rb"tracking_total_keys:(\d+)", node.execute("INFO", "stats"))
    return bool(queued(node) == waiters and count and int(count[1]) > 0)


async def test_a_short_outage_after_a_long_wait_is_only_a_delay(
    face: Face, mortal_nodes: Servers
) -> None:
    """Waiters, also one in line behind another, try again for `outage_timeout` from then on."""
    settings = {"node_timeout": 0.1, "outage_timeout": 1.0}
    async with (
        face.redlock(mortal_nodes.urls, **SETTINGS) as other,
        face.redlock(mortal_nodes.urls, **settings) as redlock,
    ):
        lease = await other.lock("a").acquire()

        async def work(index: int) -> None:
            if index:
                async with redlock.lock("a", timeout=LONG):
                    return
            assert await until_async(lambda: waits(other, 1))
            await asyncio.sleep(1.2 * settings["outage_timeout"])
            for node in mortal_nodes:
                node.stop()
            await asyncio.sleep(4 * settings["node_timeout"])
            for node in mortal_nodes:
                node.cont()
            await lease.release()

        assert await face.crowd(3, work) == [None] * 3


async def test_one_that_polls_is_not_seen(face: Face, nodes: Servers) -> None:
    """A client that polls gets the lock all the same, when it is free."""
    polling = SETTINGS | {"waiting": "poll", "retry_delay": (0.01, 0.02)}
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire()

        async def work(index: int) -> None:
            async with face.redlock(nodes.urls, **polling) as own:
                if index:
                    await raises(AcquireTimeout, own.lock("a").acquire(timeout=0.1))
                    assert (await own.inspect("a")).waiters == 0
                    await lease.release()
                    return
                async with own.lock("a", timeout=LONG):
                    pass

        assert await face.crowd(2, work) == [None, None]
