"""The blocking and the asyncio API behind one interface, so that turns are written once.

Turns are coroutines.  For asyncio they are tasks; for the blocking face each thread drives its own
to the end in one go, since nothing in it ever suspends: every call blocks.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import quorlock
import quorlock.asyncio
from tests.harness.traffic.settings import ASYNCIO, BLOCKING

Work = Callable[[int], Coroutine[Any, Any, None]]


class Blocking:
    """Workers are threads."""

    name = BLOCKING
    cancels = False

    def redlock(self, *args: Any, **settings: Any) -> Any:
        """A Redlock of this face."""
        return quorlock.Redlock(*args, **settings)

    async def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""
        time.sleep(seconds)  # noqa: ASYNC251 (in a separate thread)

    async def is_set_within(self, event: Any, seconds: float) -> bool:
        """Is the event set within so many seconds?"""
        return bool(event.wait(seconds))

    @asynccontextmanager
    async def entered(self, lock: Any) -> AsyncIterator[Any]:
        """A `with` block."""
        with lock as lease:
            yield lease

    def run(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Drive one coroutine to its end."""
        drive(start())

    async def crowd(self, count: int, work: Work) -> None:
        """All workers at once, until the last has ended; the first in this thread."""
        threads = [threading.Thread(target=lambda i=i: drive(work(i))) for i in range(1, count)]
        for thread in threads:
            thread.start()
        drive(work(0))
        for thread in threads:
            thread.join()


class Asyncio:
    """Workers are tasks of one loop."""

    name = ASYNCIO
    cancels = True

    def redlock(self, *args: Any, **settings: Any) -> Any:
        """A Redlock of this face."""
        return quorlock.asyncio.Redlock(*args, **settings)

    async def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""
        await asyncio.sleep(seconds)

    async def is_set_within(self, event: Any, seconds: float) -> bool:
        """Is the event set within so many seconds?"""
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def entered(self, lock: Any) -> AbstractAsyncContextManager[Any]:
        """An `async with` block: its body is cancelled when the lease is lost."""
        return lock  # type: ignore[no-any-return]

    def run(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Drive one coroutine to its end."""
        asyncio.run(start())

    async def crowd(self, count: int, work: Work) -> None:
        """All workers at once, until the last has ended."""
        await asyncio.gather(*map(work, range(count)))


async def call(verb: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a verb of the library, a function or a coroutine function."""
    result = verb(*args)
    return await result if inspect.isawaitable(result) else result


Face = Blocking | Asyncio
FACES: dict[str, Face] = {BLOCKING: Blocking(), ASYNCIO: Asyncio()}


def drive(work: Coroutine[Any, Any, None]) -> None:
    """A turn of the blocking face, to its end."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise RuntimeError("a turn of the blocking face suspended")
