"""Run one test with both APIs: it is written with `await`, as for quorlock.asyncio.

An adapter gives the blocking API coroutine functions that never suspend. Which methods these are is
read from the asyncio API, so the adapter contains no names. test_parity checks that both APIs have
the same names and parameters.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import quorlock
import quorlock.asyncio as aio
from quorlock._sync.semaphore import AnyLock
from quorlock.asyncio.semaphore import AnyLock as AsyncioAnyLock
from quorlock.testing.servers import Server
from tests.harness.support.wait import until_async

T = TypeVar("T")

TWINS: dict[type, type] = {
    quorlock.Redlock: aio.Redlock,
    quorlock.Lock: aio.Lock,
    quorlock.RLock: aio.RLock,
    quorlock.Election: aio.Election,
    quorlock.Once: aio.Once,
    quorlock.Semaphore: aio.Semaphore,
    AnyLock: AsyncioAnyLock,
    quorlock.Lease: aio.Lease,
}


class Awaited:
    """A blocking Redlock, Lock or Lease, used as if it were its asyncio twin."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        if not inspect.ismethod(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            return awaited(found(*args, **kwargs))

        async def verb(*args: Any, **kwargs: Any) -> Any:
            return awaited(found(*args, **kwargs))

        twin = getattr(TWINS[type(self.real)], name)
        return verb if inspect.iscoroutinefunction(twin) else call

    async def __aenter__(self) -> Any:
        return awaited(self.real.__enter__())

    async def __aexit__(self, *raised: Any) -> Any:
        return self.real.__exit__(*raised)

    def __repr__(self) -> str:
        return repr(self.real)


def awaited(result: Any) -> Any:
    """Make the result of a blocking call awaitable."""
    return Awaited(result) if type(result) in TWINS else result


def real(thing: object) -> Any:
    """The library's own object."""
    return thing.real if isinstance(thing, Awaited) else thing


class Face:
    """The asyncio API, and what a test needs beside it."""

    name = "asyncio"

    def redlock(self, nodes: Iterable[object], **settings: Any) -> aio.Redlock:
        """A Redlock, to be entered with `async with`."""
        return aio.Redlock(nodes, **settings)

    async def crowd(
        self, count: int, work: Callable[[int], Coroutine[Any, Any, T]]
    ) -> list[T | BaseException]:
        """Return the results of many concurrent contenders: tasks, or threads."""
        return await asyncio.gather(*map(work, range(count)), return_exceptions=True)

    async def is_set_within(self, event: object, seconds: float) -> bool:
        """Is the event set by then?"""
        assert isinstance(event, asyncio.Event)
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def __repr__(self) -> str:
        return self.name


class BlockingFace(Face):
    """The adapter for the blocking API."""

    name = "blocking"

    def redlock(self, nodes: Iterable[object], **settings: Any) -> aio.Redlock:
        return cast(aio.Redlock, Awaited(quorlock.Redlock(nodes, **settings)))

    async def crowd(
        self, count: int, work: Callable[[int], Coroutine[Any, Any, T]]
    ) -> list[T | BaseException]:
        def alone(index: int) -> T | BaseException:
            try:
                return asyncio.run(work(index))
            except BaseException as error:  # noqa: BLE001 (as gather's return_exceptions does)
                return error

        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(alone, range(count)))

    async def is_set_within(self, event: object, seconds: float) -> bool:
        assert isinstance(event, threading.Event)
        return event.wait(seconds)


FACES = (BlockingFace(), Face())


async def sees_all(redlock: aio.Redlock) -> bool:
    """Return whether every node soon answers an inspection."""

    async def is_so() -> bool:
        return not any(view.error for view in (await redlock.inspect("seen")).nodes)

    return await until_async(is_so)


async def all_up(redlock: aio.Redlock, resource: str = "warm", within: float = 5.0) -> bool:
    """Use the lock until every node is connected: a majority does without the others."""

    async def is_so() -> bool:
        await (await redlock.lock(resource).acquire(timeout=10)).release()
        return all(node.up for node in redlock.nodes)

    return await until_async(is_so, within)


async def emptied(nodes: Iterable[Server], seconds: float = 5.0) -> bool:
    """Wait until no node has a key."""
    nodes = list(nodes)
    return await until_async(lambda: not keys_on(nodes), seconds)


async def until_over(lease: aio.Lease) -> None:
    """Wait until the validity has run out, without a request."""
    await asyncio.sleep(max(0.0, lease.validity) + 0.002)


async def raises(kind: type[T], wanted: Awaitable[object]) -> T:
    """The error that comes out."""
    try:
        outcome = await wanted
    except Exception as error:
        if not isinstance(error, kind):
            raise
        return error
    raise AssertionError(f"{kind.__name__} was not raised, but came {outcome!r}")


def holders(nodes: Iterable[Server], resource: str | bytes) -> list[bytes | None]:
    """Return the value of the key on every node, read without the library."""
    return [node.execute("GET", resource) for node in nodes]


def steal(nodes: Iterable[Server], resource: str, token: str = "theirs") -> None:
    """Give the key to another client."""
    for node in nodes:
        node.execute("SET", resource, token, "PX", 60_000)


def wipe(nodes: Iterable[Server], resource: str) -> None:
    """Delete the key on all nodes."""
    for node in nodes:
        node.execute("DEL", resource)


def keys_on(nodes: Iterable[Server]) -> dict[str, list[bytes]]:
    """Every key on every live node that has any."""
    return {node.path: keys for node in nodes if (keys := node.keys())}


def left_over(nodes: Iterable[Server]) -> dict[str, list[bytes]]:
    """Every key on every live node, for after the clients have closed: should be empty.

    A busy server may not have executed yet what a client sent before it closed, and the client
    waits for its reply only for a bounded time. So a server with keys is asked again without
    clients.
    """
    nodes = list(nodes)
    for node in nodes:
        if node.keys():
            node.left_alone(5.0)
    return keys_on(nodes)
