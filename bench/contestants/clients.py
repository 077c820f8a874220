"""redis-py clients for the peers: as documented, and with the best settings that we found."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import urlsplit

import redis
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# Seconds for one command; redis-py's default is 5 s and 10 retries.
TIMEOUT = 1.0


def address(url: str) -> tuple[str, int]:
    """Return host and port."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return parts.hostname, parts.port or 6379


def as_documented(url: str) -> redis.Redis:
    """Return `Redis.from_url(url)`; it uses hiredis, which is installed."""
    return redis.Redis.from_url(url)


def tuned(url: str, *, one_thread: bool, timeout: float | None = TIMEOUT) -> redis.Redis:
    """Return a client without retries, with a short timeout and RESP2.

    A client for one thread has a single connection and no pool, which saves a sixth of a cycle of
    redis-py's Lock.
    """
    host, port = address(url)
    return redis.Redis(
        host=host,
        port=port,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=timeout,
        socket_connect_timeout=TIMEOUT,
        socket_keepalive=True,
        single_connection_client=one_thread,
    )


def async_as_documented(url: str) -> aioredis.Redis:
    """Return `redis.asyncio.Redis.from_url(url)`."""
    return aioredis.Redis.from_url(url)


def async_tuned(url: str) -> aioredis.Redis:
    """Return a client with no retries, no socket timeout, RESP2 and one connection for all tasks.

    Of bounded and unbounded pools, timeouts and none, RESP2 and 3, this is the fastest with 1 and
    100 tasks, and it has no errors with 1,000. A node that hangs blocks it.
    """
    host, port = address(url)
    return aioredis.Redis(
        host=host,
        port=port,
        protocol=2,
        retry=AsyncRetry(NoBackoff(), 0),
        socket_timeout=None,
        socket_connect_timeout=TIMEOUT,
        socket_keepalive=True,
        single_connection_client=True,
    )


def async_careful(url: str) -> aioredis.Redis:
    """Return a client for hanging nodes, with a pool, no retries and a short timeout."""
    host, port = address(url)
    return aioredis.Redis(
        host=host,
        port=port,
        protocol=2,
        retry=AsyncRetry(NoBackoff(), 0),
        socket_timeout=TIMEOUT,
        socket_connect_timeout=TIMEOUT,
        socket_keepalive=True,
    )


class PerThread(threading.local, Generic[T]):
    """One object for each thread."""

    def __init__(self, make: Callable[[], T]) -> None:
        self.own = make()
