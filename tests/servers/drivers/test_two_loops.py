"""One Redlock in two event loops: each has its own part of the driver, and its own lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from quorlock._drivers.aio.driver import Driver
from quorlock.asyncio import Redlock
from quorlock.testing.memory import MemoryNodes
from tests.servers.drivers.test_several_loops import Loop

if TYPE_CHECKING:
    from quorlock._drivers.aio.loop_driver import LoopDriver


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
