"""An event ends an acquire that waits, wherever it waits; no key is left."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

import quorlock
from quorlock import AcquireStopped, ConfigError
from quorlock._drivers.aio import admission
from quorlock._drivers.sync import pool
from quorlock.testing.memory import MemoryNodes
from tests.servers.api.faces import Face, left_over, raises

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock.testing.servers import Servers

# Longer than a test waits: a pause, an attempt or a connection that only the event can end.
LONG = 60.0
SOON = 0.1
PAUSES: dict[str, Any] = {"retry_delay": (LONG, LONG)}


@pytest.fixture(params=["memory", "servers"])
def urls(request: pytest.FixtureRequest, nodes: Servers) -> Iterator[list[str]]:
    """Three nodes in memory, then five real servers."""
    if request.param == "servers":
        yield nodes.urls
        return
    with MemoryNodes(3) as memory:
        yield memory.urls


def set_soon(event: threading.Event) -> threading.Timer:
    """Set the event from another thread, in a moment."""
    timer = threading.Timer(SOON, event.set)
    timer.start()
    return timer


async def stopped(face: Face, urls: list[str], use: str) -> AcquireStopped:
    """Wait for a lock that is held, in this form, and return the error that the event causes."""
    event = threading.Event()
    async with face.redlock(urls, **PAUSES) as redlock:
        async with redlock.lock("a"):
            timer, lock = set_soon(event), redlock.lock("a", stop=event)
            if use == "acquire":
                error = await raises(AcquireStopped, redlock.lock("a").acquire(stop=event))
            elif use == "lock":
                error = await raises(AcquireStopped, lock.acquire())
            else:
                error = await raises(AcquireStopped, lock.__aenter__())
            timer.join()
        assert not await redlock.lock("a").locked(), "the failed attempt is released"
    return error


@pytest.mark.parametrize("use", ["acquire", "lock", "with"])
async def test_the_event_ends_the_pause_between_attempts(
    face: Face, urls: list[str], use: str
) -> None:
    """The event of the call or of the lock ends the wait for a lock that another client holds."""
    began = time.monotonic()
    error = await stopped(face, urls, use)
    assert time.monotonic() - began < LONG / 2
    assert (error.resource, error.attempts) == ("a", 1)
    assert {vote.code for vote in error.votes} <= {"held", "not_awaited"}


async def test_an_event_that_is_set_sends_nothing(face: Face) -> None:
    """The nodes do not exist, and no attempt is made."""
    event = threading.Event()
    event.set()
    async with face.redlock(["redis://127.0.0.1:1"]) as redlock:
        error = await raises(AcquireStopped, redlock.lock("a").acquire(stop=event))
        assert (error.attempts, error.votes, error.elapsed) == (0, (), 0.0)
        assert redlock.nodes[0].code == "not_connected"


async def test_an_event_that_is_not_set_changes_nothing(face: Face, urls: list[str]) -> None:
    """A free lock is acquired, and the timeout of a held one passes."""
    event = threading.Event()
    async with face.redlock(urls) as redlock, redlock.lock("a", stop=event) as lease:
        assert lease.held
        lock = redlock.lock("a", timeout=0.01, stop=event)
        await raises(quorlock.AcquireTimeout, lock.acquire())
        event.set()
        assert lease.held, "it ends acquires, not leases"
        assert await lock.try_acquire() is None, "one attempt waits for nothing"


async def test_the_event_of_the_call_replaces_that_of_the_lock(face: Face, urls: list[str]) -> None:
    """The lock's own event, already set, is not looked at."""
    done, event = threading.Event(), threading.Event()
    done.set()
    async with face.redlock(urls) as redlock:
        lease = await redlock.lock("a", stop=done).acquire(stop=event)
        assert await lease.release()


async def test_the_event_ends_the_wait_for_connections(face: Face, mortal_nodes: Servers) -> None:
    """All nodes hang while this client connects."""
    for node in mortal_nodes:
        node.stop()
    event = threading.Event()
    urls, began = mortal_nodes.urls, time.monotonic()
    async with face.redlock(urls, connect_timeout=LONG, outage_timeout=LONG) as redlock:
        timer = set_soon(event)
        error = await raises(AcquireStopped, redlock.lock("a").acquire(stop=event))
        assert time.monotonic() - began < LONG / 2
        timer.join()
        for node in mortal_nodes:
            node.cont()
    assert error.attempts == 1
    assert left_over(mortal_nodes) == {}


async def test_the_event_ends_the_wait_in_the_queue(
    face: Face, mortal_nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt at hung nodes has the only slot; the event ends the call that queues behind it."""
    monkeypatch.setattr(pool, "FOLLOWERS_MAX", 0)
    monkeypatch.setattr(admission, "ACQUIRING_MAX", 1)
    event, ends = threading.Event(), [0.0, 0.0]
    async with face.redlock(mortal_nodes.urls, node_timeout=2, outage_timeout=0) as redlock:
        await (await redlock.lock("warm").acquire()).release()
        for node in mortal_nodes:
            node.stop()

        async def work(index: int) -> quorlock.AcquireError:
            await asyncio.sleep(SOON * index)  # the first has the only slot by then
            timer = set_soon(event) if index else None
            lock = redlock.lock("b" if index else "a")
            error = await raises(quorlock.AcquireError, lock.acquire(stop=event if index else None))
            ends[index] = time.monotonic()
            if timer is not None:
                timer.join()
            return error

        first, queued = await face.crowd(2, work)
        for node in mortal_nodes:
            node.cont()
    assert isinstance(first, quorlock.QuorumUnreachable)
    assert isinstance(queued, AcquireStopped)
    assert {vote.code for vote in queued.votes} == {"local_queue_timeout"}
    assert ends[1] < ends[0], "it did not wait for the slot"
    assert left_over(mortal_nodes) == {}


async def test_a_decorated_function_is_not_called(face: Face, urls: list[str]) -> None:
    """The call raises the error in place of a run of the function."""
    event, calls = threading.Event(), []
    event.set()
    async with face.redlock(urls) as redlock:
        if face.name == "asyncio":

            @redlock.lock("a", stop=event)
            async def run() -> None:
                calls.append(1)

            await raises(AcquireStopped, run())
        else:
            lock = cast("Any", redlock).real.lock("a", stop=event)
            with pytest.raises(AcquireStopped):
                lock(lambda: calls.append(1))()
    assert calls == []


async def test_an_asyncio_event(urls: list[str]) -> None:
    """The event may be one of asyncio, which another task sets."""
    event = asyncio.Event()
    async with quorlock.asyncio.Redlock(urls, **PAUSES) as redlock, redlock.lock("a"):
        asyncio.get_running_loop().call_later(SOON, event.set)
        await raises(AcquireStopped, redlock.lock("a").acquire(stop=event))


def test_a_signal_handler_may_set_the_event(urls: list[str]) -> None:
    """`SIGTERM` of a service: the handler sets the event in the very thread that waits."""
    event = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: event.set())
    try:
        with quorlock.Redlock(urls, **PAUSES) as redlock, redlock.lock("a"):
            signal.setitimer(signal.ITIMER_REAL, SOON)
            with pytest.raises(AcquireStopped):
                redlock.lock("a", stop=event).acquire()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("value", [True, 5.0, lambda: True, threading.Event])
async def test_what_is_no_event(face: Face, value: Any) -> None:
    """Another object is refused before anything is sent."""
    fix = "give an event with is_set()"
    async with face.redlock(["redis://127.0.0.1:1"]) as redlock:
        with pytest.raises(ConfigError, match="stop=") as caught:
            redlock.lock("a", stop=value)
        assert caught.value.fix.startswith(fix)
        error = await raises(ConfigError, redlock.lock("a").acquire(stop=value))
        assert (error.argument, error.fix.startswith(fix)) == ("stop", True)
