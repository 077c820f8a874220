"""Very many leases are released at once: by garbage collection, by close."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock._core.rounds import SentRound
from quorlock._drivers.sync.connection_set import ConnectionSet
from quorlock._drivers.threads import BackgroundThread
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.time import Instant

MANY = 1_500


def keys_left(nodes: Servers, seconds: float = 20.0) -> int:
    """Return how many keys are on the nodes when no more disappear, or when the time is up."""
    until(lambda: not any(node.keys() for node in nodes), seconds)
    return sum(len(node.keys()) for node in nodes)


def test_garbage_is_released_by_one_thread(nodes: Servers) -> None:
    """A thread for each lease killed the connector of a node, and the node stayed disconnected."""
    with quorlock.Redlock(nodes.urls, node_timeout=0.5, ttl=60, max_ttl=60) as redlock:
        leases = [redlock.lock(f"r{index}").acquire(timeout=20) for index in range(MANY)]
        most = threading.active_count()
        for _ in range(MANY):
            del leases[-1]
            most = max(most, threading.active_count())
        gc.collect()
        assert keys_left(nodes) == 0
        assert most <= threading.active_count() + 12, "a thread for each"
        assert redlock.lock("after").acquire(timeout=5).release()


def test_closing_sends_what_a_thread_has_not_begun_to(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release of an interrupted call, say, which is the last of a program."""
    with quorlock.Redlock(nodes.urls) as redlock:
        state, session = redlock.lock("a").acquire()._state, redlock._session
        monkeypatch.setattr(session.driver._background_thread, "_start", lambda: None)
        assert session.end(state)
        session.driver.run_in_background(state.release_flow())
    assert [node.keys() for node in nodes] == [[]] * 5


def test_a_connector_that_fails_continues(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong in its thread is logged, and the node is connected nevertheless."""
    with quorlock.Redlock(nodes.urls, node_timeout=0.5) as redlock:
        connector = redlock._session.driver._connectors.all[0]
        connect = connector._connect

        def once() -> None:
            monkeypatch.setattr(connector, "_connect", connect)
            message = "a defect of ours"
            raise RuntimeError(message)

        monkeypatch.setattr(connector, "_connect", once)
        end = time.monotonic() + 10
        while not redlock.nodes[0].up and time.monotonic() < end:
            assert redlock.lock("any").acquire(timeout=5).release()
        assert redlock.nodes[0].up
    assert "a defect of ours" in caplog.text


def test_closing_with_much_unsent_makes_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio: a connection that was still writing is notified of its end once."""
    errors: list[str] = []

    async def main(node: Servers) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(str(what)))
        redlock = aio.Redlock(node.urls, node_timeout=0.5, prefix="p" * 400, ttl=60, max_ttl=60)
        leases = [await redlock.lock(f"r{index}").acquire() for index in range(MANY)]
        node[0].stop()
        closing = asyncio.create_task(redlock.close())
        await asyncio.sleep(0.1)
        node[0].cont()
        await closing
        assert not any(lease.held for lease in leases)

    with Servers(1) as node:
        asyncio.run(main(node))
    assert not errors
    assert not caplog.records


class Job:
    """A user's object in a cycle, that calls the library when it is collected."""

    def __init__(self, at_end: Callable[[], None]) -> None:
        self.itself = self
        self._at_end = at_end

    def __del__(self) -> None:
        self._at_end()


def test_a_finalizer_may_call_the_library(nodes: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer runs in any thread, inside a call: here in one that waits for replies."""
    results: list[bool] = []
    await_some = ConnectionSet._await_some

    def collecting(connection_set: ConnectionSet, left: int) -> None:
        monkeypatch.setattr(ConnectionSet, "_await_some", await_some)
        gc.collect()
        await_some(connection_set, left)

    with quorlock.Redlock(nodes.urls, node_timeout=1.0) as redlock:
        job, at_end = redlock.lock("job").acquire(), redlock.lock("end of job", timeout=0)

        def end() -> None:
            with at_end:
                results.append(job.release())

        def work() -> None:
            Job(end)
            monkeypatch.setattr(ConnectionSet, "_await_some", collecting)
            results.append(redlock.lock("outer").acquire(timeout=0).release())

        thread = threading.Thread(target=work)
        gc.disable()
        try:
            thread.start()
            thread.join()
        finally:
            gc.enable()
    assert results == [True, True]


@pytest.mark.parametrize("where", ["renewal", "connector", "releases"])
def test_a_redlock_is_collected_by_a_thread_of_its_own(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The Redlock closes within the thread's own work: nothing hangs, nothing is left."""
    collected: list[str] = []
    step = BackgroundThread._call_step

    def collecting(thread: BackgroundThread) -> Instant | None:
        if where in thread.name and not gc.isenabled():
            collected.append(thread.name)
            gc.collect()
        return step(thread)

    monkeypatch.setattr(BackgroundThread, "_call_step", collecting)
    gc.disable()
    try:
        abandon(nodes, where)
        assert keys_left(nodes) == 0
        assert until(lambda: not ours(), 10)
    finally:
        gc.enable()
    assert collected
    assert ours() == []


def abandon(nodes: Servers, where: str) -> None:
    """A Redlock and its leases that are garbage, and of which one of its threads learns."""
    redlock = quorlock.Redlock(nodes.urls, node_timeout=0.25, ttl=20.0)
    leases = [redlock.lock(name, renew=True).acquire() for name in "ab"]
    cycle: list[object] = [redlock, leases]
    cycle.append(cycle)
    driver = redlock._session.driver
    if where == "connector":
        for connector in driver._connectors.all:
            connector._wake()
    elif where == "releases":
        driver._background_thread.wake()


def ours() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("quorlock")]


def test_what_a_call_has_made_is_freed_at_its_end(mortal_nodes: Servers) -> None:
    """Also if a node replies late: with many tasks, what is kept until then is scanned again and
    again for garbage.
    """

    async def main() -> None:
        async with aio.Redlock(mortal_nodes.urls, node_timeout=0.5) as redlock:
            assert await (await redlock.lock("first").acquire()).release()
            mortal_nodes[4].stop()
            gc.collect()
            before = count_of(asyncio.Future, SentRound)
            for _ in range(10):
                assert await (await redlock.lock("r").acquire()).release()
            assert count_of(asyncio.Future, SentRound) <= before
            mortal_nodes[4].cont()

    asyncio.run(main())


def count_of(*kinds: type) -> int:
    return sum(type(found) in kinds for found in gc.get_objects())


def test_a_redlock_that_was_closed_while_a_call_connected_is_freed(mortal_nodes: Servers) -> None:
    """The error of that call refers to its session, and its event loop's part to the call."""

    async def scene() -> weakref.ref[object]:
        redlock = aio.Redlock(mortal_nodes.urls[:3])
        call = asyncio.create_task(redlock.lock("a").acquire())
        await asyncio.sleep(0)
        await redlock.close()
        with pytest.raises(quorlock.QuorlockError):
            await call
        return weakref.ref(redlock._session)

    mortal_nodes[0].stop()
    session = asyncio.run(scene())
    mortal_nodes[0].cont()
    gc.collect()
    assert session() is None
