"""pottery's Redlock, which uses a thread for every node and acquire, and its AIORedlock.

A lock object has one holder, so every cycle makes a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pottery

from bench.contestants import NotAcquired
from bench.contestants.clients import as_documented, async_as_documented, async_tuned, tuned

if TYPE_CHECKING:
    from collections.abc import Sequence

# The default is three.
EXTENSIONS = 10**9


class Pottery:
    """Redlock as documented, with clients made by `Redis.from_url`."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        self._masters = {self._client(url) for url in urls}
        self._ttl = ttl

    def _client(self, url: str) -> Any:
        return as_documented(url)

    def _lock(self, resource: str) -> Any:
        return pottery.Redlock(
            key=resource,
            masters=self._masters,
            auto_release_time=self._ttl,
            num_extensions=EXTENSIONS,
        )

    def acquire(self, resource: str) -> Any:
        lock = self._lock(resource)
        if not lock.acquire(blocking=False):
            raise NotAcquired(resource)
        return lock

    def wait(self, resource: str) -> Any:
        lock = self._lock(resource)
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        handle.release()

    def extend(self, handle: Any) -> None:
        handle.extend()

    def close(self) -> None:
        for client in self._masters:
            client.close()


class Tuned(Pottery):
    """Redlock with clients that do not retry and wait at most 1 s.

    They keep their pools, because pottery sends from its own threads.
    """

    def _client(self, url: str) -> Any:
        return tuned(url, one_thread=False)


class PotteryAsyncio:
    """AIORedlock as documented."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        self._urls = urls
        self._ttl = ttl
        self._masters: set[Any] = set()

    def _client(self, url: str) -> Any:
        return async_as_documented(url)

    async def open(self) -> None:
        self._masters = {self._client(url) for url in self._urls}

    def _lock(self, resource: str) -> Any:
        return pottery.AIORedlock(
            key=resource,
            masters=self._masters,
            auto_release_time=self._ttl,
            num_extensions=EXTENSIONS,
        )

    async def acquire(self, resource: str) -> Any:
        lock = self._lock(resource)
        if not await lock.acquire(blocking=False):
            raise NotAcquired(resource)
        return lock

    async def wait(self, resource: str) -> Any:
        lock = self._lock(resource)
        await lock.acquire()
        return lock

    def release(self, handle: Any) -> Any:
        return handle.release()

    def extend(self, handle: Any) -> Any:
        return handle.extend()

    async def close(self) -> None:
        for client in self._masters:
            await client.aclose()


class TunedAsyncio(PotteryAsyncio):
    """AIORedlock with one connection per node, no retries and no timeouts."""

    def _client(self, url: str) -> Any:
        return async_tuned(url)
