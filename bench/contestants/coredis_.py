"""coredis: its Lock on one node, and a hand-written Redlock over several of its clients."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import coredis
from coredis.patterns.lock import Lock
from coredis.tokens import PureToken

from bench.contestants import NotAcquired
from quorlock import scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

PAUSE = 0.1  # the default of coredis


class _Clients:
    """Open clients; coredis runs them in a task group of the loop."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        self._urls = urls
        self._ttl = ttl
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        enter = self._stack.enter_async_context
        clients = [coredis.Redis.from_url(url) for url in self._urls]
        self._clients: list[Any] = [await enter(client) for client in clients]

    async def close(self) -> None:
        await self._stack.aclose()


class CoredisLock(_Clients):
    """The Lock of coredis, on one node."""

    async def acquire(self, resource: str) -> Any:
        lock = Lock(self._clients[0], resource, timeout=self._ttl, blocking=False)
        if not await lock.acquire():
            raise NotAcquired(resource)
        return lock

    async def wait(self, resource: str) -> Any:
        lock = Lock(self._clients[0], resource, timeout=self._ttl, sleep=PAUSE)
        await lock.acquire()
        return lock

    def release(self, handle: Any) -> Any:
        return handle.release()

    def extend(self, handle: Any) -> Any:
        """Add a second: coredis cannot set the ttl again."""
        return handle.extend(1.0)


class CoredisGather(_Clients):
    """A hand-written Redlock, as for redis.asyncio: `SET NX PX` on all clients, gathered."""

    async def open(self) -> None:
        await super().open()
        self._quorum = len(self._clients) // 2 + 1
        self._release, self._extend = (
            [client.register_script(script.text.decode()) for client in self._clients]
            for script in (scripts.RELEASE, scripts.EXTEND)
        )

    async def acquire(self, resource: str) -> tuple[str, str]:
        token, px = secrets.token_hex(16), int(self._ttl * 1000)
        asked = (c.set(resource, token, condition=PureToken.NX, px=px) for c in self._clients)
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
        asked = (script([resource], [token]) for script in self._release)
        await asyncio.gather(*asked, return_exceptions=True)

    async def extend(self, handle: tuple[str, str]) -> None:
        resource, token = handle
        arguments = [token, int(self._ttl * 1000)]
        asked = (script([resource], arguments) for script in self._extend)
        votes = await asyncio.gather(*asked, return_exceptions=True)
        if sum(vote == 1 for vote in votes) < self._quorum:
            raise NotAcquired(resource)
