"""python-redis-lock on one node: waiters sleep in BLPOP until the holder pushes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis_lock

from bench.contestants import NotAcquired
from bench.contestants.clients import PerThread, tuned

if TYPE_CHECKING:
    from collections.abc import Sequence


class PythonRedisLock:
    """The lock as documented, with one connection per thread and no socket timeout.

    redis-py's default timeout of 5 s would interrupt its BLPOP of 10 s.
    """

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        self._ttl = int(ttl)
        self._clients: list[Any] = []
        self._url = urls[0]
        self._each = PerThread(self._make)

    def _make(self) -> Any:
        client = tuned(self._url, one_thread=True, timeout=None)
        self._clients.append(client)
        return client

    def acquire(self, resource: str) -> Any:
        lock = redis_lock.Lock(self._each.own, resource, expire=self._ttl)
        if not lock.acquire(blocking=False):
            raise NotAcquired(resource)
        return lock

    def wait(self, resource: str) -> Any:
        lock = redis_lock.Lock(self._each.own, resource, expire=self._ttl)
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        handle.release()

    def extend(self, handle: Any) -> None:
        handle.extend()

    def close(self) -> None:
        for client in self._clients:
            client.close()
