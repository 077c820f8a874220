"""A lease is valid from before its first byte: a process may stand still after that was sent."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import quorlock
from quorlock import asyncio as aio
from tests.harness.support.wait import until, until_async

if TYPE_CHECKING:
    from quorlock.testing.servers import Servers

SETTINGS: dict[str, Any] = {"node_timeout": 2.0, "ttl": 8.0, "restart_guard": None}
# What of a ttl is left at its first byte: without 1 % and 2 ms.
DRIFT, RESOLUTION = 0.01, 0.002
STALL = 0.02  # seconds, after every packet
_NAME = re.compile(rb"begins-\d+")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The time of the first byte about each resource; every packet takes long to send."""
    first: dict[str, float] = {}
    send = socket.socket.send

    def noted(self: socket.socket, data: Any, *flags: int) -> int:
        names = {name.decode() for name in _NAME.findall(bytes(data))}
        for name in names:
            first.setdefault(name, quorlock.now())
        size = send(self, data, *flags)
        if names:
            time.sleep(STALL)
        return size

    monkeypatch.setattr(socket.socket, "send", noted)
    return first


def check(lease: Any, sent: dict[str, float]) -> None:
    """Check that it counts from before its first byte; forget that."""
    begun = lease.valid_until - lease.ttl * (1 - DRIFT) + RESOLUTION
    assert begun <= sent.pop(lease.resource) + 1e-6


def test_blocking(nodes: Servers, sent: dict[str, float]) -> None:
    with quorlock.Redlock(nodes.urls, **SETTINGS) as redlock:
        redlock.lock("warm").acquire().release()
        check(redlock.lock("begins-1").acquire(), sent)
        lease = redlock.lock("begins-2").try_acquire()
        check(lease, sent)
        assert lease is not None
        lease.extend()
        check(lease, sent)
        check(redlock.lock("begins-3", fencing=False, shared=True).acquire(), sent)
        check(redlock.any_of("begins-4").acquire(), sent)


def test_blocking_adopted(nodes: Servers, sent: dict[str, float]) -> None:
    with (
        quorlock.Redlock(nodes.urls, **SETTINGS) as redlock,
        quorlock.Redlock(nodes.urls, **SETTINGS) as other,
    ):
        ticket = redlock.lock("begins-1").acquire().hand_over()
        sent.clear()
        check(other.adopt(ticket), sent)


def test_blocking_renewed(nodes: Servers, sent: dict[str, float]) -> None:
    settings = SETTINGS | {"node_timeout": 0.5, "ttl": 1.8}
    with quorlock.Redlock(nodes.urls, **settings) as redlock:
        leases = [redlock.lock(f"begins-{i}", renew=True).acquire() for i in range(3)]
        sent.clear()
        ends = [lease.valid_until for lease in leases]
        assert until(lambda: all(a.valid_until > b for a, b in zip(leases, ends, strict=True)))
        for lease in leases:
            check(lease, sent)


def test_threads_whose_rounds_another_sends(nodes: Servers, sent: dict[str, float]) -> None:
    with quorlock.Redlock(nodes.urls, **SETTINGS) as redlock:
        redlock.lock("warm").acquire().release()
        leases: list[Any] = []

        def take(name: str) -> None:
            leases.append(redlock.lock(name).acquire())

        threads = [threading.Thread(target=take, args=(f"begins-{i}",)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(leases) == 8
        for lease in leases:
            check(lease, sent)


async def test_asyncio(nodes: Servers, sent: dict[str, float]) -> None:
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        await (await redlock.lock("warm").acquire()).release()
        check(await redlock.lock("begins-1").acquire(), sent)
        lease = await redlock.lock("begins-2").try_acquire()
        check(lease, sent)
        assert lease is not None
        await lease.extend()
        check(lease, sent)
        check(await redlock.lock("begins-3", shared=True).acquire(), sent)
        check(await redlock.any_of("begins-4").acquire(), sent)
        together = [redlock.lock(f"begins-{i}").acquire() for i in range(5, 9)]
        for lease in await asyncio.gather(*together):
            check(lease, sent)


async def test_asyncio_adopted(nodes: Servers, sent: dict[str, float]) -> None:
    async with (
        aio.Redlock(nodes.urls, **SETTINGS) as redlock,
        aio.Redlock(nodes.urls, **SETTINGS) as other,
    ):
        ticket = await (await redlock.lock("begins-1").acquire()).hand_over()
        sent.clear()
        check(await other.adopt(ticket), sent)


async def test_asyncio_renewed(nodes: Servers, sent: dict[str, float]) -> None:
    settings = SETTINGS | {"node_timeout": 0.5, "ttl": 1.8}
    async with aio.Redlock(nodes.urls, **settings) as redlock:
        leases = [await redlock.lock(f"begins-{i}", renew=True).acquire() for i in range(3)]
        sent.clear()
        ends = [lease.valid_until for lease in leases]
        assert await until_async(
            lambda: all(a.valid_until > b for a, b in zip(leases, ends, strict=True))
        )
        for lease in leases:
            check(lease, sent)
