"""The blocking and the asyncio API of quorlock, with default settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import quorlock
import quorlock.asyncio as aio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence


class Ours:
    """The blocking API, with a new lock object for every cycle, as in users' code."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        self._redlock = quorlock.Redlock(urls, ttl=ttl)

    def acquire(self, resource: str) -> quorlock.Lease:
        return self._redlock.lock(resource, timeout=0).acquire()

    def wait(self, resource: str) -> quorlock.Lease:
        return self._redlock.lock(resource).acquire()

    def release(self, handle: quorlock.Lease) -> None:
        handle.release()

    def extend(self, handle: quorlock.Lease) -> None:
        handle.extend()

    def close(self) -> None:
        self._redlock.close()


class OursInBlocks(Ours):
    """The blocking API as most users write it, in a `with` block."""

    def block(self, resource: str) -> quorlock.Lock:
        return self._redlock.lock(resource, timeout=0)


class OursAsyncio:
    """The asyncio API."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        self._redlock = aio.Redlock(urls, ttl=ttl)

    async def open(self) -> None:
        """Do nothing: quorlock connects on demand."""

    def acquire(self, resource: str) -> Awaitable[aio.Lease]:
        return self._redlock.lock(resource, timeout=0).acquire()

    def wait(self, resource: str) -> Awaitable[aio.Lease]:
        return self._redlock.lock(resource).acquire()

    def release(self, handle: aio.Lease) -> Awaitable[bool]:
        return handle.release()

    def extend(self, handle: aio.Lease) -> Awaitable[None]:
        return handle.extend()

    async def close(self) -> None:
        await self._redlock.close()


class OursAsyncioInBlocks(OursAsyncio):
    """The asyncio API as most users write it, in an `async with` block."""

    def block(self, resource: str) -> aio.Lock:
        return self._redlock.lock(resource, timeout=0)
