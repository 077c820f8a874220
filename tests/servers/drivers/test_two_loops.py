"""One Redlock in two event loops: each has its own part of the driver, and its own lines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from quorlock._core import line as lines
from quorlock._core.time import NS_PER_S
from quorlock._drivers.aio.driver import Driver
from quorlock.asyncio import Redlock
from quorlock.testing.memory import MemoryNodes
from tests.harness.support.wait import until, until_async
from tests.servers.drivers.test_several_loops import Loop

if TYPE_CHECKING:
    from quorlock._drivers.aio.loop_driver import LoopDriver
    from quorlock.asyncio import Lease


@pytest.fixture
def loops() -> Iterator[tuple[Loop, Loop]]:
    """Two loops that run, each in its thread."""
    made = Loop(), Loop()
    yield made
    for loop in made:
        loop.stop()
        loop.loop.close()


@pytest.fixture
def redlock(loops: tuple[Loop, Loop]) -> Iterator[Redlock]:
    """A Redlock on three nodes, closed in both loops at the end."""
    with MemoryNodes(3) as nodes:
        made = Redlock(nodes.urls, ttl=30.0, restart_guard=None)
        yield made
        for loop in loops:
            loop.run(made.close())


async def part_of(redlock: Redlock) -> LoopDriver:
    return redlock._session.driver.loop_driver()


def test_a_loop_gets_its_own_part_while_another_one_gets_its(
    redlock: Redlock, loops: tuple[Loop, Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may write `_latest` as soon as this one has."""
    first, second = loops
    others = second.run(part_of(redlock))
    latest = property(lambda _: others, lambda *_: None)
    monkeypatch.setattr(Driver, "_latest", latest, raising=False)
    assert first.run(part_of(redlock)).loop is first.loop


def waiting(loop: Loop, redlock: Redlock) -> int:
    """Return how many wait in this loop's line."""
    line = redlock._session.driver._loop_drivers[loop.loop].lines.get(b"a")  # type: ignore[union-attr]
    return len(line._first) + len(line._members) if line else 0


async def handed_on(loop: Loop, redlock: Redlock) -> Lease:
    """Return a lease that the line knows of: another caller of this loop has handed it on."""
    before = await redlock.lock("a").acquire()
    task = asyncio.create_task(redlock.lock("a", timeout=10).acquire())
    assert await until_async(lambda: waiting(loop, redlock))
    await before.release()
    return await task


def test_the_next_in_line_gets_a_lock_that_another_loop_releases(
    redlock: Redlock, loops: tuple[Loop, Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line belongs to the loop that acquired. Lines do not help themselves for a minute."""
    monkeypatch.setattr(lines, "STALLED_AFTER", 60 * NS_PER_S)
    first, second = loops
    lease = first.run(handed_on(first, redlock))
    work = redlock.lock("a", timeout=60).acquire()
    waiter = asyncio.run_coroutine_threadsafe(work, first.loop)
    assert until(lambda: waiting(first, redlock))
    assert second.run(lease.release())
    assert first.run(waiter.result(10).release())
