"""redlock-py: one node after the other, with redis-py clients.

The library has no extension. It waits by retrying after a fixed pause, `retry_delay`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redlock

from bench.contestants import NotAcquired
from bench.contestants.clients import PerThread, address, tuned

if TYPE_CHECKING:
    from collections.abc import Sequence


class RedlockPy:
    """Redlock as documented, with a list of dicts of hosts and ports."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        self._urls = urls
        self._ttl_ms = int(ttl * 1000)
        self._each = PerThread(self._make)

    def _clients(self) -> list[Any]:
        return [{"host": host, "port": port, "db": 0} for host, port in map(address, self._urls)]

    def _make(self) -> Any:
        # One per thread only for Tuned, whose clients have a single connection.
        return redlock.Redlock(self._clients(), retry_count=1)

    def acquire(self, resource: str) -> Any:
        manager = self._each.own
        held = manager.lock(resource, self._ttl_ms)
        if not held:
            raise NotAcquired(resource)
        return held

    def wait(self, resource: str) -> Any:
        """Retry in a loop: the library tries only three times by default."""
        manager = self._each.own
        while not (held := manager.lock(resource, self._ttl_ms)):
            pass  # `lock` has slept
        return held

    def release(self, handle: Any) -> None:
        self._each.own.unlock(handle)

    def extend(self, handle: Any) -> None:
        """Raise NotImplementedError: the library has no extension."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: the library has no close, and connections end with the process."""


class Tuned(RedlockPy):
    """Redlock with clients of one connection, no retries and timeouts of 1 s."""

    def _clients(self) -> list[Any]:
        return [tuned(url, one_thread=True) for url in self._urls]
