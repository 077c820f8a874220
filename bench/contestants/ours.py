"""quorlock, both faces, with the settings it has when nobody sets any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import quorlock
import quorlock.asyncio as aio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence


def _settings(pause: float | None) -> dict[str, Any]:
    return {} if pause is None else {"retry_delay": (pause, pause)}


class Ours:
    """The blocking face; the lock object is made anew for every cycle, as a user's code does."""

    def __init__(self, urls: Sequence[str], ttl: float, pause: float | None = None) -> None:
        self._redlock = quorlock.Redlock(urls, ttl=ttl, **_settings(pause))

    def acquire(self, resource: str) -> quorlock.Lease:
        """See the protocol."""
        return self._redlock.lock(resource, timeout=0).acquire()

    def wait(self, resource: str) -> quorlock.Lease:
        """See the protocol."""
        return self._redlock.lock(resource).acquire()

    def release(self, handle: quorlock.Lease) -> None:
        """See the protocol."""
        handle.release()

    def extend(self, handle: quorlock.Lease) -> None:
        """See the protocol."""
        handle.extend()

    def close(self) -> None:
        """See the protocol."""
        self._redlock.close()


class OursAsyncio:
    """The asyncio face."""

    def __init__(self, urls: Sequence[str], ttl: float, pause: float | None = None) -> None:
        self._redlock = aio.Redlock(urls, ttl=ttl, **_settings(pause))

    async def open(self) -> None:
        """It connects by itself."""

    def acquire(self, resource: str) -> Awaitable[aio.Lease]:
        """See the protocol."""
        return self._redlock.lock(resource, timeout=0).acquire()

    def wait(self, resource: str) -> Awaitable[aio.Lease]:
        """See the protocol."""
        return self._redlock.lock(resource).acquire()

    def release(self, handle: aio.Lease) -> Awaitable[bool]:
        """See the protocol."""
        return handle.release()

    def extend(self, handle: aio.Lease) -> Awaitable[None]:
        """See the protocol."""
        return handle.extend()

    async def close(self) -> None:
        """See the protocol."""
        await self._redlock.close()
