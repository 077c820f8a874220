"""A lease that ends other than by its own release makes way for the next in line of its process."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from quorlock import LeaseLost
from quorlock._core import line as lines
from quorlock._core.time import NS_PER_S
from quorlock.testing.memory import MemoryNodes
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, raises, real

SETTINGS: dict[str, Any] = {"node_timeout": 0.05, "connect_timeout": 2.0, "restart_guard": None}
# Waits end by a call, so this is reached only by a defect.
LONG = 30.0
Leases = list[Any]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryNodes]:
    """Nodes in memory; lines do not help themselves before a minute."""
    monkeypatch.setattr(lines, "STALLED_AFTER", 60 * NS_PER_S)
    with MemoryNodes(3) as memory:
        yield memory


def waiting(redlock: Any) -> int:
    """Return how many wait in the line of this process."""
    driver = real(redlock)._session.driver
    here = driver if hasattr(driver, "lines") else driver.loop_driver()
    line = here.lines.get(b"a")
    return len(line._first) + len(line._members) if line else 0


async def by_token(nodes: MemoryNodes, redlock: Any, held: Leases) -> None:
    lease = held.pop()  # kept: garbage is released in the background, and perhaps first
    assert await redlock.release("a", lease.token)


async def as_garbage(nodes: MemoryNodes, redlock: Any, held: Leases) -> None:
    held.clear()
    gc.collect()


async def as_lost(nodes: MemoryNodes, redlock: Any, held: Leases) -> None:
    for node in nodes:
        node.flush()
    await raises(LeaseLost, held[0].extend())


async def as_lost_by_renewal(nodes: MemoryNodes, redlock: Any, held: Leases) -> None:
    for node in nodes:
        node.flush()


ENDS = {
    "by token": (by_token, {}),
    "garbage": (as_garbage, {}),
    "lost": (as_lost, {}),
    "lost by renewal": (as_lost_by_renewal, {"renew": True, "ttl": 0.2}),
}


@pytest.mark.parametrize(("end", "options"), ENDS.values(), ids=ENDS)
async def test_the_next_in_line_gets_the_lock(
    face: Face,
    nodes: MemoryNodes,
    end: Callable[[MemoryNodes, Any, Leases], Awaitable[None]],
    options: dict[str, Any],
) -> None:
    held: Leases = []
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        first = await redlock.lock("a").acquire()

        async def work(index: int) -> None:
            if index == 2:
                assert await until_async(lambda: waiting(redlock) == 2)
                await first.release()
                return
            held.append(await redlock.lock("a", timeout=LONG, **options).acquire())
            if waiting(redlock):
                await end(nodes, redlock, held)
            else:
                await held.pop().release()

        assert await face.crowd(3, work) == [None] * 3


async def is_queued(redlock: Any) -> bool:
    return bool((await redlock.inspect("a")).waiters == 1)


async def test_a_lease_that_was_handed_over(face: Face, nodes: MemoryNodes) -> None:
    """The next in line takes its place in the queues of the nodes, and is called."""
    tickets: list[Any] = []
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        first = await redlock.lock("a").acquire()

        async def work(index: int) -> None:
            if index == 2:
                assert await until_async(lambda: waiting(redlock) == 2)
                await first.release()
                assert await until_async(lambda: len(tickets) == 1)
                async with face.redlock(nodes.urls, **SETTINGS) as other:
                    assert await until_async(lambda: is_queued(other))
                    await (await other.adopt(tickets[0])).release()
                return
            lease = await redlock.lock("a", timeout=LONG).acquire()
            if tickets:
                await lease.release()
            else:
                tickets.append(await lease.hand_over())

        assert await face.crowd(3, work) == [None] * 3


async def test_a_lease_that_is_being_extended(face: Face, nodes: MemoryNodes) -> None:
    """An extension may be in flight when the lock is handed on: the lease ends, and stays over."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        for _ in range(20):
            first = await redlock.lock("a").acquire()
            ends: list[str] = []

            async def work(index: int, first: Any = first, ends: list[str] = ends) -> None:
                if index == 0:
                    async with redlock.lock("a", timeout=LONG) as second:
                        assert await until_async(lambda: ends)
                        assert not first.held
                        await second.extend()  # a quorum has its keys
                elif index == 1:
                    error = await raises(LeaseLost, extended_for_ever(first))
                    ends.append(error.reason)
                else:
                    assert await until_async(lambda: waiting(redlock) == 1)
                    assert await first.release()

            assert await face.crowd(3, work) == [None] * 3
            assert ends == ["released"]


async def extended_for_ever(lease: Any) -> None:
    while True:
        await lease.extend()
