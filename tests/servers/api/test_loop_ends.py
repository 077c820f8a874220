"""The ends of tasks, of event loops and of a Redlock, while leases are held elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from quorlock import LeaseLost, QuorlockError, now
from quorlock.asyncio import Redlock
from quorlock.testing.memory import MemoryNodes
from tests.harness.support.wait import until, until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from quorlock.asyncio import Lease

SETTINGS: dict[str, Any] = {"restart_guard": None, "ttl": 5.0}


@pytest.fixture
def memory() -> Iterator[MemoryNodes]:
    with MemoryNodes(3) as nodes:
        yield nodes


def keys(nodes: MemoryNodes) -> list[bytes]:
    """The keys of all nodes, without those of quorlock itself."""
    found = [key for node in nodes for key in node.keys()]  # noqa: SIM118
    return [key for key in found if not key.startswith(b"quorlock:")]


def names_of_tasks() -> list[str]:
    return sorted(task.get_name() for task in asyncio.all_tasks() if "quorlock" in task.get_name())


def in_flight(lease: Lease) -> bool:
    """Return whether a round of renewal is under way for the lease."""
    renewal: Any = lease._state.renewal
    return bool(renewal.in_flight)


async def cancel_all_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Loops:
    """Event loops that run in threads."""

    def __init__(self, count: int) -> None:
        self._loops = [asyncio.new_event_loop() for _ in range(count)]
        self._threads = [threading.Thread(target=loop.run_forever) for loop in self._loops]
        for thread in self._threads:
            thread.start()

    def run(self, index: int, work: Coroutine[Any, Any, Any], seconds: float = 10.0) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loops[index]).result(seconds)

    def close(self) -> None:
        for index, loop in enumerate(self._loops):
            self.run(index, cancel_all_others())
            self.run(index, loop.shutdown_asyncgens())
            loop.call_soon_threadsafe(loop.stop)
        for loop, thread in zip(self._loops, self._threads, strict=True):
            thread.join()
            loop.close()


@pytest.fixture
def two_loops() -> Iterator[Loops]:
    loops = Loops(2)
    yield loops
    loops.close()


async def acquired(redlock: Redlock, name: str, **terms: Any) -> Lease:
    return await redlock.lock(name, **terms).acquire()


# --- other tasks are cancelled ---------------------------------------------------------------


async def test_cancelling_all_other_tasks_leaves_the_lease(memory: MemoryNodes) -> None:
    """The library's tasks are among them. It is no sign that the loop ends."""
    async with Redlock(memory.urls, **SETTINGS) as redlock:
        async with redlock.lock("a", renew=True) as lease:
            assert names_of_tasks() == ["quorlock renewal"]
            await cancel_all_others()
            assert lease.held
            assert await redlock.lock("a").locked()
        assert await until_async(lambda: not keys(memory))
    assert not names_of_tasks()


async def test_renewal_survives_the_cancelling_of_all_other_tasks(memory: MemoryNodes) -> None:
    """Also in the middle of a round, for leases that are due."""
    async with Redlock(memory.urls, **SETTINGS | {"ttl": 0.6, "node_timeout": 0.1}) as redlock:
        lease = await redlock.lock("a", renew=True).acquire()
        while not in_flight(lease):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await cancel_all_others()
        async with redlock.lock("b", renew=True):
            await asyncio.sleep(0.7)
        assert lease.held


@pytest.mark.parametrize("eager", [False, True])
def test_a_task_that_cleans_up_does_not_hide_the_end_of_the_loop(
    memory: MemoryNodes, *, eager: bool
) -> None:
    """asyncio.run cancels all tasks; one of them begins another to clean up."""
    kept: list[object] = []

    async def cleans_up() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.create_task(asyncio.sleep(0.01))

    async def main() -> None:
        redlock = Redlock(memory.urls, **SETTINGS)
        kept.extend([redlock, await redlock.lock("a").acquire()])
        kept.extend([asyncio.create_task(cleans_up()) for _ in range(20)])
        await asyncio.sleep(0)
        if eager:
            factory: Any = getattr(asyncio, "eager_task_factory", None)  # from Python 3.12 on
            asyncio.get_running_loop().set_task_factory(factory)

    asyncio.run(main())
    assert until(lambda: not keys(memory))


def test_a_task_that_cleans_up_has_locks(memory: MemoryNodes) -> None:
    """All leases are released after that, also one that it acquires then."""
    kept: list[Any] = []
    found: list[bool] = []

    async def cleans_up(redlock: Redlock) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            kept.append(await redlock.lock("b").acquire())
            await kept[1].extend()
            found.extend([kept[1].held, await redlock.lock("a").locked()])

    async def main() -> None:
        redlock = Redlock(memory.urls, **SETTINGS)
        kept.extend([redlock, await redlock.lock("a").acquire()])
        kept.append(asyncio.create_task(cleans_up(redlock)))
        await asyncio.sleep(0)

    asyncio.run(main())
    assert found == [True, True]
    assert until(lambda: not keys(memory))


def test_a_generator_that_cleans_up_has_locks(memory: MemoryNodes) -> None:
    """asyncio.run closes it together with the one by which the library sees the loop end."""
    kept: list[Any] = []

    async def numbers(redlock: Redlock) -> AsyncIterator[int]:
        async with redlock.lock("b"):
            yield 1

    async def main() -> None:
        redlock = Redlock(memory.urls, **SETTINGS)
        kept.extend([redlock, await redlock.lock("a").acquire(), numbers(redlock)])
        assert await anext(kept[-1]) == 1

    asyncio.run(main())
    assert until(lambda: not keys(memory))


def test_a_loop_that_is_ended_by_hand(memory: MemoryNodes) -> None:
    """The last task cancels all others. Leases are released as the generators are closed."""
    kept: list[object] = []

    async def main() -> None:
        redlock = Redlock(memory.urls, **SETTINGS)
        kept.extend([redlock, await redlock.lock("a", renew=True).acquire()])
        await cancel_all_others()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    assert keys(memory)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert until(lambda: not keys(memory))


def test_a_loop_that_is_closed_at_once(
    memory: MemoryNodes, capfd: pytest.CaptureFixture[str]
) -> None:
    """The lease is not released, and asyncio has nothing to report."""
    kept: list[Any] = []

    async def main() -> None:
        redlock = Redlock(memory.urls, **SETTINGS)
        kept.extend([redlock, await redlock.lock("a", renew=True).acquire()])
        for connector in redlock._session.driver.loop_driver().connectors:
            connector.discard()  # asyncio warns of open sockets

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    kept.clear()
    gc.collect()
    assert keys(memory)
    assert capfd.readouterr() == ("", "")


def test_a_second_cancellation_releases_all_the_same(memory: MemoryNodes) -> None:
    """A handler of SIGTERM cancels all tasks, and asyncio.run does so again; a node hangs."""
    kept: list[object] = []

    async def main() -> None:
        redlock = Redlock(memory.urls, **SETTINGS)
        kept.extend([redlock, await redlock.lock("a").acquire()])
        memory[0].hang()
        kept.append(asyncio.create_task(redlock.lock("b").locked()))
        await asyncio.sleep(0)
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    memory[0].go_on()
    assert until(lambda: not keys(memory)), keys(memory)


# --- close() ---------------------------------------------------------------------------------


async def test_a_close_whose_task_is_cancelled_is_done(memory: MemoryNodes) -> None:
    """Also if the task that closes has not taken its first step."""
    redlock = Redlock(memory.urls, **SETTINGS)
    lease = await redlock.lock("a").acquire()
    closing = asyncio.create_task(redlock.close())
    while not names_of_tasks():  # noqa: ASYNC110
        await asyncio.sleep(0)
    await cancel_all_others()
    assert closing.cancelled()
    assert await until_async(lambda: not names_of_tasks()), names_of_tasks()
    assert not lease.held
    assert await until_async(lambda: not keys(memory)), keys(memory)


async def test_a_close_whose_task_is_cancelled_in_the_middle(memory: MemoryNodes) -> None:
    redlock = Redlock(memory.urls, **SETTINGS)
    await redlock.check()  # connects to all nodes
    memory[0].hang()
    lease = await redlock.lock("a").acquire()
    closing = asyncio.create_task(redlock.close())
    await asyncio.sleep(0.01)
    assert keys(memory)
    assert names_of_tasks() == ["quorlock shutdown"]
    await cancel_all_others()
    memory[0].go_on()
    assert closing.cancelled()
    assert await until_async(lambda: not names_of_tasks()), names_of_tasks()
    assert not lease.held
    assert await until_async(lambda: not keys(memory)), keys(memory)


async def test_a_close_that_is_cancelled_is_done(memory: MemoryNodes) -> None:
    """A call of close waits for a round of renewal to hung nodes when it is cancelled."""
    redlock = Redlock(memory.urls, **SETTINGS | {"ttl": 1.5})
    lease = await redlock.lock("a", renew=True).acquire()
    await asyncio.sleep(0)
    for node in memory[:2]:
        node.hang()
    while not in_flight(lease):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    closing = asyncio.create_task(redlock.close())
    await asyncio.sleep(0)
    closing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await closing
    for node in memory[:2]:
        node.go_on()
    assert await until_async(lambda: not keys(memory)), keys(memory)
    assert not lease.held
    assert await until_async(lambda: not names_of_tasks()), names_of_tasks()


def test_a_close_that_is_cancelled_closes_other_loops(
    memory: MemoryNodes, two_loops: Loops
) -> None:
    redlock = Redlock(memory.urls, **SETTINGS)
    two_loops.run(0, acquired(redlock, "here"))
    there = two_loops.run(1, acquired(redlock, "there"))

    async def close() -> None:
        memory[0].hang()
        asks = asyncio.create_task(redlock.inspect("a"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(redlock.close())
        await asyncio.sleep(0)
        for task in (asks, closing):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, QuorlockError):
                await task
        memory[0].go_on()

    two_loops.run(0, close())
    assert until(lambda: not keys(memory)), keys(memory)
    assert not there.held


def test_close_in_one_loop_ends_renewal_in_another(memory: MemoryNodes, two_loops: Loops) -> None:
    """Renewal has to end, not to try again for ever: the other loop must answer."""
    redlock = Redlock(memory.urls, **SETTINGS | {"ttl": 0.6, "node_timeout": 0.1})
    lease = two_loops.run(1, acquired(redlock, "a", renew=True))
    two_loops.run(0, redlock.close())

    async def tasks() -> list[str]:
        await until_async(lambda: not names_of_tasks())
        return names_of_tasks()

    assert two_loops.run(1, tasks()) == []
    assert not lease.held
    assert until(lambda: not keys(memory))


async def test_close_while_a_renewed_acquire_wins(memory: MemoryNodes) -> None:
    """The lease gets into a schedule that the closed Redlock does not renew."""
    redlock = Redlock(memory.urls, **SETTINGS | {"ttl": 0.6, "node_timeout": 0.1})
    await (await redlock.lock("a").acquire()).release()
    waiting = asyncio.create_task(acquired(redlock, "b", renew=True))
    await asyncio.sleep(0)
    (task,) = redlock._session.driver.loop_driver().tasks
    while not task.future.done():  # noqa: ASYNC110
        await asyncio.sleep(0)
    await redlock.close()  # its first step comes before the winner's next one
    with contextlib.suppress(QuorlockError):
        assert not (await waiting).held
    assert await until_async(lambda: not names_of_tasks()), names_of_tasks()
    assert await until_async(lambda: not keys(memory))


# --- leases in other loops -------------------------------------------------------------------


async def test_an_adopted_lease_outlives_another_loop(memory: MemoryNodes) -> None:
    """A loop that ends releases its own leases, not those that were adopted elsewhere."""

    async def use(redlock: Redlock) -> None:
        async with redlock.lock("b"):
            pass

    async with Redlock(memory.urls, **SETTINGS) as giver, Redlock(memory.urls, **SETTINGS) as taker:
        adopted = await taker.adopt(await (await giver.lock("a").acquire()).hand_over())
        await asyncio.to_thread(asyncio.run, use(taker))
        assert adopted.held
        assert await giver.lock("a").try_acquire() is None
        assert await adopted.release()


@pytest.mark.parametrize("looks", [False, True])
def test_a_loss_is_reported_in_the_loop_of_the_block(
    memory: MemoryNodes, two_loops: Loops, *, looks: bool
) -> None:
    """Though `lost` was read before in the loop that acquired."""
    redlock = Redlock(memory.urls, **SETTINGS | {"ttl": 0.4, "node_timeout": 0.1})

    async def take() -> Lease:
        lease = await redlock.lock("a").acquire()
        if looks:
            assert not lease.lost.is_set()
        return lease

    async def hold(lease: Lease) -> float:
        with pytest.raises(LeaseLost):
            async with lease:
                await asyncio.sleep(5.0)
        return now()

    async def wait(lease: Lease) -> float:
        await asyncio.wait_for(lease.lost.wait(), 5.0)
        return now()

    for waits in (hold, wait):
        lease = two_loops.run(0, take())
        ends = lease.valid_until
        assert two_loops.run(1, waits(lease)) < ends + 2.0
    two_loops.run(0, redlock.close())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks")
async def test_an_eager_child_that_sees_the_loss(memory: MemoryNodes) -> None:
    """A child runs inside of its parent's step: the parent must not be cancelled later."""
    factory: Callable[..., Any] = getattr(asyncio, "eager_task_factory")  # noqa: B009
    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)

    async def child(lease: Lease) -> None:
        with pytest.raises(LeaseLost):
            await lease.extend()

    async def hold(redlock: Redlock) -> None:
        async with redlock.lock("a", ttl=0.3) as lease:
            ends = lease.valid_until
            while now() < ends:
                pass  # the loop is busy
            await asyncio.create_task(child(lease))

    async with Redlock(memory.urls, **SETTINGS | {"node_timeout": 0.1}) as redlock:
        with pytest.raises(LeaseLost):
            await hold(redlock)
        await asyncio.sleep(0)
    loop.set_task_factory(None)
