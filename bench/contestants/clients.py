"""redis-py clients as the peers are given them: by the page, and with the best settings we know."""

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

# One command's time; redis-py's own default is 5 s, tried 10 times more.
TIMEOUT = 1.0


def address(url: str) -> tuple[str, int]:
    """Host and port."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return parts.hostname, parts.port or 6379


def by_the_page(url: str) -> redis.Redis:
    """`Redis.from_url`, and nothing else. hiredis is installed, so it is used."""
    return redis.Redis.from_url(url)


def tuned(url: str, *, one_thread: bool, timeout: float | None = TIMEOUT) -> redis.Redis:
    """No retries, a short timeout, RESP2. For one thread: a single connection, which saves the pool
    (a sixth of a cycle of redis-py's Lock).
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


def async_by_the_page(url: str) -> aioredis.Redis:
    """`redis.asyncio.Redis.from_url`, and nothing else."""
    return aioredis.Redis.from_url(url)


def async_tuned(url: str) -> aioredis.Redis:
    """No retries, no socket timeout, RESP2, one connection for all tasks: of pools bounded and
    unbounded, timeouts and none, RESP2 and 3, the fastest with 1 and 100 tasks, and without errors
    with 1,000. A node that hangs hangs it.
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
    """No retries and a short timeout, with a pool: for nodes that hang."""
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
    """One of something for each thread."""

    def __init__(self, make: Callable[[], T]) -> None:
        self.own = make()
