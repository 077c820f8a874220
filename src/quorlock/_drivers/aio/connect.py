"""Sockets to one node, opened in an event loop without a thread; compare `sync.connect`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from quorlock._drivers.clock import now
from quorlock._drivers.resolve import lookup, numeric
from quorlock._drivers.sync.connect import NO_ADDRESS, attempt

if TYPE_CHECKING:
    import socket

    from quorlock._core.time import Instant
    from quorlock._drivers.resolve import Addresses


async def open_socket(host: str, port: int, give_up: Instant, max_silence_ms: int) -> socket.socket:
    """Return a socket that is connected to the first address that accepts. Raises OSError."""
    found = await _addresses(host, port, give_up)
    for index, info in enumerate(found):
        left = len(found) - index
        with attempt(info, max_silence_ms, is_last=left == 1) as sock:
            sock.setblocking(False)
            # Each address gets a share of the time, so that a silent one leaves some to the others.
            async with asyncio.timeout((give_up - now()) / left / 1e9):
                await asyncio.get_running_loop().sock_connect(sock, info[4])
            return sock
    raise OSError(0, NO_ADDRESS)


async def _addresses(host: str, port: int, give_up: Instant) -> Addresses:
    """Return the addresses of a name or IP literal, as `resolve.addresses` does."""
    if (literal := numeric(host, port)) is not None:
        return literal
    wanted = lookup(host)
    until = wanted.until(give_up, (give_up - now()) // 4)
    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(news.set)

    wanted.listeners.add(tell)  # before the check, so that no end is missed
    try:
        if not wanted.done:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0, until - now()) / 1e9):
                    await news.wait()
    finally:
        wanted.listeners.discard(tell)
    return wanted.result(port)
