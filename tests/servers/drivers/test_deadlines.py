"""The one timer that the deadlines of an event loop share."""

import asyncio
from collections.abc import Iterable
from functools import partial
from itertools import repeat
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorlock._core.commands import Inspect
from quorlock._core.effects import Flow, Receive, Send, Sleep, Timeout
from quorlock._core.time import NS_PER_MS, NS_PER_S
from quorlock._drivers.aio.deadlines import Deadlines
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


@pytest.mark.parametrize("unread", [[True] * 3 + [False], repeat(True)], ids=["ends", "endless"])
def test_what_has_come_is_read_before_a_wait_ends(unread: Iterable[bool]) -> None:
    """A tick reads one buffer of each connection, and a burst of releases has many of them. But a
    connection that is never empty delays no deadline for long.
    """
    left, asked = iter(unread), list[bool]()

    def has_unread() -> bool:
        asked.append(next(left))
        return asked[-1]

    async def main() -> int:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()
        task: Any = SimpleNamespace(reply_deadline=now(), on_deadline=ended.set_result)
        none = cast("Any", None)
        deadlines = Deadlines(loop, partial, [task], none, NS_PER_MS, has_unread)
        deadlines.final_read_then_timeout([task], now())
        until = await ended
        return now() - until

    late = asyncio.run(main())
    if isinstance(unread, list):
        assert asked == unread
    else:
        assert late >= 20 * NS_PER_MS


def test_a_tick_reads_a_burst_of_messages() -> None:
    """The release of thousands of locks brings each of their waiters 150 bytes from each node. With
    16 KiB in a tick, a busy loop read them for seconds, and no reply behind them.
    """

    async def main(nodes: MemoryNodes) -> None:
        async with Redlock(nodes.urls, restart_guard=None) as redlock:
            await redlock.lock("a").acquire()
            connectors = redlock._session.driver.loop_driver().connectors
            buffers = [c.connection.get_buffer(-1) for c in connectors if c.connection]
            assert len(buffers) == len(nodes.urls)
            assert all(buffer is buffers[0] for buffer in buffers), "it is emptied at once"
            assert len(buffers[0]) >= 65_536

    with MemoryNodes(3) as nodes:
        asyncio.run(main(nodes))


def test_a_connection_whose_buffer_was_filled_may_have_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(nodes: MemoryNodes) -> None:
        async with Redlock(nodes.urls, restart_guard=None) as redlock:
            await redlock.lock("a").acquire()
            loop_driver = redlock._session.driver.loop_driver()
            connection = loop_driver.connectors[0].connection
            assert connection is not None
            monkeypatch.setattr(connection, "_take", lambda _: None)
            size = len(connection.get_buffer(-1))
            for read, found in ((size - 1, [False, False]), (size, [True, False])):
                connection.buffer_updated(read)
                assert [loop_driver._has_unread() for _ in range(2)] == found

    with MemoryNodes(1) as nodes:
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
