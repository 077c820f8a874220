"""Looks at many resources, at an interval, down one set of connections: what `status --watch` and
`top` have in common. Leaves what is shown of it to them.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING

from quorlock.asyncio import Redlock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence

    from quorlock import Inspection
    from quorlock.cli.config import Settings

# Asked together: what a hung node costs is waited for once for all of them.
_AT_ONCE = 100


async def look(redlock: Redlock, names: Sequence[str]) -> list[Inspection]:
    """Inspect them."""
    told: list[Inspection] = []
    for first in range(0, len(names), _AT_ONCE):
        told += await asyncio.gather(*map(redlock.inspect, names[first : first + _AT_ONCE]))
    return told


def look_once(settings: Settings, names: Sequence[str]) -> list[Inspection]:
    """Inspect them, and that is all. Raises Failed."""

    async def ask() -> list[Inspection]:
        async with settings.made(Redlock) as redlock:
            return await look(redlock, names)

    return asyncio.run(ask())


def repeat(
    settings: Settings,
    interval: float,
    turn: Callable[[Redlock], Awaitable[None]],
    times: int | None = None,
) -> None:
    """Take a turn at every interval, in seconds; `times` of them, or until interrupted.

    Raises Failed, and BrokenPipeError as soon as nobody reads what we print.
    """
    asyncio.run(_repeat(settings, interval, turn, count() if times is None else range(times)))


async def _repeat(
    settings: Settings,
    interval: float,
    turn: Callable[[Redlock], Awaitable[None]],
    numbers: Iterable[int],
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with settings.made(Redlock) as redlock:
        with _unread() as unread:
            for number in numbers:
                if number:
                    # In step with the clock; a turn that took too long leaves some out.
                    await _pause(interval - (loop.time() - began) % interval, unread)
                await turn(redlock)


async def _pause(seconds: float, unread: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(unread.wait(), seconds)
        raise BrokenPipeError


@contextmanager
def _unread() -> Generator[asyncio.Event]:
    """Set when our stdout is a pipe whose reader went away: we may have nothing to write for long.

    Of a pipe's writing end nothing can be read; that it wakes who waits for it means just that.
    """
    event, descriptor = asyncio.Event(), sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        yield event
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, event.set)
    try:
        yield event
    finally:
        loop.remove_reader(descriptor)
