"""pottery's Redlock and AIORedlock: a thread for every node and acquire, or tasks.

Its lock object is one holder's, so a new one is made for every cycle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pottery

from bench.contestants import NotAcquired
from bench.contestants.clients import async_by_the_page, async_tuned, by_the_page, tuned

if TYPE_CHECKING:
    from collections.abc import Sequence

# By default a lock may be extended three times.
EXTENSIONS = 10**9


class Pottery:
    """As its page shows: clients made by `Redis.from_url`."""

    def __init__(self, urls: Sequence[str], ttl: float, pause: float | None = None) -> None:
        self._masters = {self._client(url) for url in urls}
        self._ttl = ttl
        _set_pause(pottery.Redlock, pause)

    def _client(self, url: str) -> Any:
        return by_the_page(url)

    def _lock(self, resource: str) -> Any:
        return pottery.Redlock(
            key=resource,
            masters=self._masters,
            auto_release_time=self._ttl,
            num_extensions=EXTENSIONS,
        )

    def acquire(self, resource: str) -> Any:
        """See the protocol."""
        lock = self._lock(resource)
        if not lock.acquire(blocking=False):
            raise NotAcquired(resource)
        return lock

    def wait(self, resource: str) -> Any:
        """See the protocol."""
        lock = self._lock(resource)
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        """See the protocol."""
        handle.release()

    def extend(self, handle: Any) -> None:
        """See the protocol."""
        handle.extend()

    def close(self) -> None:
        """See the protocol."""
        for client in self._masters:
            client.close()


class Tuned(Pottery):
    """The same with clients that try once and wait for 1 s at most. They keep their pools, since
    pottery asks from threads of its own.
    """

    def _client(self, url: str) -> Any:
        return tuned(url, one_thread=False)


class PotteryAsyncio:
    """The asyncio face, as its page shows."""

    def __init__(self, urls: Sequence[str], ttl: float, pause: float | None = None) -> None:
        self._urls = urls
        self._ttl = ttl
        self._masters: set[Any] = set()
        _set_pause(pottery.AIORedlock, pause)

    def _client(self, url: str) -> Any:
        return async_by_the_page(url)

    async def open(self) -> None:
        """See the protocol."""
        self._masters = {self._client(url) for url in self._urls}

    def _lock(self, resource: str) -> Any:
        return pottery.AIORedlock(
            key=resource,
            masters=self._masters,
            auto_release_time=self._ttl,
            num_extensions=EXTENSIONS,
        )

    async def acquire(self, resource: str) -> Any:
        """See the protocol."""
        lock = self._lock(resource)
        if not await lock.acquire(blocking=False):
            raise NotAcquired(resource)
        return lock

    async def wait(self, resource: str) -> Any:
        """See the protocol."""
        lock = self._lock(resource)
        await lock.acquire()
        return lock

    def release(self, handle: Any) -> Any:
        """See the protocol."""
        return handle.release()

    def extend(self, handle: Any) -> Any:
        """See the protocol."""
        return handle.extend()

    async def close(self) -> None:
        """See the protocol."""
        for client in self._masters:
            await client.aclose()


class TunedAsyncio(PotteryAsyncio):
    """The same with one connection a node, no retries and no timeouts."""

    def _client(self, url: str) -> Any:
        return async_tuned(url)


def _set_pause(lock: Any, pause: float | None) -> None:
    """The longest pause between tries. It is no argument, but a constant of the class."""
    if pause is not None:
        lock._RETRY_DELAY = pause  # noqa: SLF001
