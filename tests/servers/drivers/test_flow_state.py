"""The states of a flow task: every transition in the table happens, and no other."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quorlock._core.claims import Keys
from quorlock._core.commands import Acquire
from quorlock._core.effects import Flow, Receive, Send, Sleep, Wait
from quorlock._core.member import Member
from quorlock._core.request import AcquireRequest
from quorlock._core.time import NS_PER_MS, NS_PER_S, Instant
from quorlock._drivers.aio import admission
from quorlock._drivers.aio.driver import Driver
from quorlock._drivers.aio.flow_state import RUNNING, SLEEPING, TRANSITIONS, FlowState
from quorlock._drivers.aio.flow_task import FlowTask
from quorlock._drivers.clock import now
from quorlock.asyncio import Redlock
from quorlock.testing.memory import MemoryNodes


def acquire(deadline: Instant) -> Flow[None]:
    """One round, and all of its replies."""
    yield Send(Acquire(b"key", b"token", 1000), queue_until=deadline)
    for _ in range(3):
        yield Receive(now() + NS_PER_S)


def sleep(duration: int) -> Flow[None]:
    """One sleep."""
    yield Sleep(now() + duration)


def wait(until: Instant) -> Flow[None]:
    """One wait for news that never come."""
    request = AcquireRequest("key", Keys(b"key"), 1000, now(), None)
    yield Wait(until, None, Member(request))


def on_memory_nodes(scene: Callable[[Driver], Coroutine[Any, Any, None]]) -> None:
    """Run the scene on three memory nodes."""

    async def main(urls: list[str]) -> None:
        async with Redlock(urls) as redlock:
            await scene(redlock._session.driver)

    with MemoryNodes(3) as nodes:
        asyncio.run(main(nodes.urls))


def test_every_transition(
    checked_transitions: set[tuple[FlowState, FlowState]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slot: the first acquire has it and connects. It is cancelled, and the next gets it."""

    async def scene(driver: Driver) -> None:
        def start(flow: Flow[None]) -> asyncio.Task[None]:
            return asyncio.create_task(driver.run(flow))

        later = now() + 10 * NS_PER_S
        first, second = start(acquire(later)), start(acquire(later))
        late, third = start(acquire(now() + NS_PER_MS)), start(acquire(later))
        unwanted = start(acquire(later))
        resting, tired = start(sleep(NS_PER_MS)), start(sleep(10 * NS_PER_S))
        waiting, left = start(wait(now() + NS_PER_MS)), start(wait(later))
        await asyncio.sleep(0)
        for task in (first, unwanted, tired, left):
            task.cancel()
        await asyncio.gather(second, third, late, resting, waiting)
        await asyncio.gather(tired, left, return_exceptions=True)
        cancelled = start(acquire(later))
        await asyncio.sleep(0)
        cancelled.cancel()
        ended = FlowTask(driver.loop_driver(), sleep(0))
        ended.begin()
        await ended.future
        ended.cancel()  # its caller did not get the outcome

    monkeypatch.setattr(admission, "ACQUIRING_MAX", 1)
    on_memory_nodes(scene)
    table = {(before, after) for before, ends in TRANSITIONS.items() for after in ends}
    assert checked_transitions == table


@pytest.mark.usefixtures("checked_transitions")
def test_no_other_transition() -> None:
    """A flow that is done runs no more."""

    async def scene(driver: Driver) -> None:
        task = FlowTask(driver.loop_driver(), sleep(NS_PER_S))
        task.begin()
        assert task.state is SLEEPING
        task.cancel()
        with pytest.raises(AssertionError):
            task.state = RUNNING

    on_memory_nodes(scene)
