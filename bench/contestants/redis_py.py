"""redis-py: its Lock on one node, and a hand-written Redlock in asyncio."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from redis.lock import Lock

from bench.contestants import NotAcquired
from bench.contestants.clients import (
    PerThread,
    as_documented,
    async_as_documented,
    async_careful,
    async_tuned,
    tuned,
)
from quorlock import scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

PAUSE = 0.1  # redis-py's default


class RedisPyLock:
    """The lock as documented: `Redis.from_url(...).lock(name, timeout)`."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        self._url = urls[0]
        self._ttl = ttl
        self._start()

    def _start(self) -> None:
        self._client = as_documented(self._url)

    def _lock(self, resource: str) -> Lock:
        lock: Lock = self._client.lock(resource, timeout=self._ttl)
        return lock

    def acquire(self, resource: str) -> Lock:
        lock = self._lock(resource)
        if not lock.acquire(blocking=False):
            raise NotAcquired(resource)
        return lock

    def wait(self, resource: str) -> Lock:
        lock = self._lock(resource)
        lock.acquire()
        return lock

    def release(self, handle: Lock) -> None:
        handle.release()

    def extend(self, handle: Lock) -> None:
        """Set the ttl again; `Lock.extend` would add to it."""
        handle.reacquire()

    def close(self) -> None:
        self._client.close()


class Tuned(RedisPyLock):
    """The lock with one connection per thread, no retries and no threading.local per lock."""

    def _start(self) -> None:
        self._clients: list[redis.Redis] = []
        self._each = PerThread(self._make)

    def _make(self) -> redis.Redis:
        client = tuned(self._url, one_thread=True)
        self._clients.append(client)
        return client

    def _lock(self, resource: str) -> Lock:
        return Lock(self._each.own, resource, timeout=self._ttl, thread_local=False)

    def close(self) -> None:
        for client in self._clients:
            client.close()


class GatherAsyncio:
    """The obvious hand-written Redlock: `SET NX PX` on all clients, gathered; a majority wins.

    A script releases in the same way. Errors of single nodes count as votes against.
    """

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        self._urls = urls
        self._ttl_ms = int(ttl * 1000)
        self._quorum = len(urls) // 2 + 1

    def _client(self, url: str) -> Any:
        return async_as_documented(url)

    async def open(self) -> None:
        self._clients = [self._client(url) for url in self._urls]
        self._release, self._extend = (
            [client.register_script(script.text) for client in self._clients]
            for script in (scripts.RELEASE, scripts.EXTEND)
        )

    async def acquire(self, resource: str) -> tuple[str, str]:
        token = secrets.token_hex(16)
        asked = (c.set(resource, token, nx=True, px=self._ttl_ms) for c in self._clients)
        votes = await asyncio.gather(*asked, return_exceptions=True)
        if sum(vote is True for vote in votes) < self._quorum:
            await self.release((resource, token))
            raise NotAcquired(next((repr(v) for v in votes if isinstance(v, Exception)), resource))
        return resource, token

    async def wait(self, resource: str) -> tuple[str, str]:
        while True:
            try:
                return await self.acquire(resource)
            except NotAcquired:
                await asyncio.sleep(PAUSE)

    async def release(self, handle: tuple[str, str]) -> None:
        resource, token = handle
        asked = (script(keys=[resource], args=[token]) for script in self._release)
        await asyncio.gather(*asked, return_exceptions=True)

    async def extend(self, handle: tuple[str, str]) -> None:
        resource, token = handle
        asked = (script(keys=[resource], args=[token, self._ttl_ms]) for script in self._extend)
        votes = await asyncio.gather(*asked, return_exceptions=True)
        if sum(vote == 1 for vote in votes) < self._quorum:
            raise NotAcquired(resource)

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


class GatherTuned(GatherAsyncio):
    """The Redlock with one connection per node, no retries and no timeouts: the fastest."""

    def _client(self, url: str) -> Any:
        return async_tuned(url)


class GatherCareful(GatherAsyncio):
    """The Redlock for hanging nodes, with no retries and timeouts of 1 s."""

    def _client(self, url: str) -> Any:
        return async_careful(url)
