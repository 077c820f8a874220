"""redlock-py: five nodes one after the other, by redis-py clients.

It has no extension. Waiting is trying again after a fixed pause, `retry_delay`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redlock

from bench.contestants import NotAcquired
from bench.contestants.clients import PerThread, address, tuned

if TYPE_CHECKING:
    from collections.abc import Sequence


class RedlockPy:
    """As its page shows: a list of dicts with hosts and ports."""

    def __init__(self, urls: Sequence[str], ttl: float, pause: float | None = None) -> None:
        self._urls = urls
        self._ttl_ms = int(ttl * 1000)
        self._pause = pause
        self._each = PerThread(self._make)

    def _clients(self) -> list[Any]:
        return [{"host": host, "port": port, "db": 0} for host, port in map(address, self._urls)]

    def _make(self) -> Any:
        # By thread only for Tuned's sake: clients that have but one connection.
        return redlock.Redlock(self._clients(), retry_count=1, retry_delay=self._pause)

    def acquire(self, resource: str) -> Any:
        """See the protocol."""
        manager = self._each.own
        held = manager.lock(resource, self._ttl_ms)
        if not held:
            raise NotAcquired(resource)
        return held

    def wait(self, resource: str) -> Any:
        """It tries three times by default, so who wants to wait for longer writes this loop."""
        manager = self._each.own
        while not (held := manager.lock(resource, self._ttl_ms)):
            pass  # it has slept within
        return held

    def release(self, handle: Any) -> None:
        """See the protocol."""
        self._each.own.unlock(handle)

    def extend(self, handle: Any) -> None:
        """It has none."""
        raise NotImplementedError

    def close(self) -> None:
        """It has none; its clients' connections end with the process."""


class Tuned(RedlockPy):
    """Given clients of redis-py: one connection each and no pool, no retries, 1 s timeouts."""

    def _clients(self) -> list[Any]:
        return [tuned(url, one_thread=True) for url in self._urls]
