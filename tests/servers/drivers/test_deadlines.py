"""The one timer that the deadlines of an event loop share."""

import asyncio

import pytest

from quorlock._core.commands import Inspect
from quorlock._core.effects import Flow, Receive, Send, Sleep, Timeout
from quorlock._core.time import NS_PER_S
from quorlock._drivers.aio.flow_state import RECEIVING, SLEEPING
from quorlock._drivers.clock import now
from quorlock.asyncio import Redlock
from quorlock.testing.memory import MemoryNodes
from tests.harness.support.wait import until_async


def rest() -> Flow[object]:
    """Ask all nodes, and sleep after the end of their time."""
    sent = yield Send(Inspect(b"key"))
    yield Receive(sent.sent_at)
    return (yield Sleep(now() + 60 * NS_PER_S))


def ask(seconds: float) -> Flow[object]:
    """Ask all nodes, and wait for a reply."""
    yield Send(Inspect(b"key"))
    return (yield Receive(now() + int(seconds * NS_PER_S)))


def test_the_timer_is_set_for_the_earliest_deadline() -> None:
    """A flow that waits for a moment only comes when the timer is set for a minute from now."""

    async def main(nodes: MemoryNodes) -> None:
        async with Redlock(nodes.urls, node_timeout=0.02, restart_guard=None) as redlock:
            driver = redlock._session.driver
            lease = await redlock.lock("a").acquire()
            for node in nodes:
                node.hang()
            long = asyncio.create_task(driver.run(ask(60)))
            await asyncio.sleep(0)
            (loop_driver,) = driver._loop_drivers.values()
            deadlines = loop_driver.deadlines
            assert await until_async(lambda: deadlines._timer_at >= now() + 30 * NS_PER_S)
            short = asyncio.create_task(driver.run(ask(0.05)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert deadlines._timer_at < now() + 30 * NS_PER_S
            assert isinstance(await short, Timeout)
            assert not long.done()
            long.cancel()
            for node in nodes:
                node.go_on()
            await lease.release()

    with MemoryNodes(3) as nodes:
        asyncio.run(main(nodes))


def test_a_flow_that_sleeps_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline of its last round is long past, and is no lateness of the loop."""

    async def main(nodes: MemoryNodes) -> None:
        async with Redlock(nodes.urls, node_timeout=0.05, restart_guard=None) as redlock:
            driver = redlock._session.driver
            await (await redlock.lock("a").acquire()).release()
            for node in nodes:
                node.hang()
            resting = asyncio.create_task(driver.run(rest()))
            (loop_driver,) = driver._loop_drivers.values()
            assert await until_async(
                lambda: [task.state for task in loop_driver.tasks] == [SLEEPING]
            )
            await driver.run(ask(0.06))
            late: list[object] = []
            monkeypatch.setattr(
                loop_driver.deadlines,
                "final_read_then_timeout",
                lambda tasks, _: late.extend(tasks),
            )
            loop_driver.deadlines._on_timer()
            assert late == []
            resting.cancel()
            for node in nodes:
                node.go_on()

    with MemoryNodes(3) as nodes:
        asyncio.run(main(nodes))


def test_a_deadline_counts_again_after_another_wait() -> None:
    """A lease's end may limit two waits for replies, and the flow sleeps in between."""
    until, slept = now() + 60 * NS_PER_S, asyncio.Event()

    def twice() -> Flow[object]:
        yield Send(Inspect(b"key"))
        yield Receive(until)
        yield Sleep(now())
        slept.set()
        return (yield Receive(until))

    async def main(nodes: MemoryNodes) -> None:
        async with Redlock(nodes.urls, restart_guard=None) as redlock:
            driver = redlock._session.driver
            waiting = asyncio.create_task(driver.run(twice()))
            await slept.wait()
            (task,) = driver.loop_driver().tasks
            assert task.state is RECEIVING
            assert task.reply_deadline == until
            waiting.cancel()

    with MemoryNodes(1) as nodes:
        asyncio.run(main(nodes))
