"""Looks at many resources, at an interval, down one set of connections: what `status --watch` and
`top` have in common. Leaves what is shown of it to them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from quorlock.asyncio import Redlock
from quorlock.cli.exits import Interrupted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence

    from quorlock import Inspection
    from quorlock.cli.config import Settings

T = TypeVar("T")
Show: TypeAlias = "Callable[[], None]"

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

    return _Run().run(ask())


def repeat(
    settings: Settings, interval: float, turn: Callable[[Redlock], Awaitable[Show]], times: int = 0
) -> None:
    """Take a turn at every interval, in seconds, and show what it gives; so many `times`, or (0)
    until interrupted.

    Raises Failed, and BrokenPipeError as soon as nobody reads what we print.
    """
    run = _Run()
    run.run(_repeat(run, settings, interval, turn, range(times) if times else count()))


async def _repeat(
    run: _Run,
    settings: Settings,
    interval: float,
    turn: Callable[[Redlock], Awaitable[Show]],
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
                show = await turn(redlock)
                with run.at_once():
                    show()


class _Run:
    """An event loop that signals end between two steps; they do then what they did before.

    An exception that is raised wherever a signal falls, as `exits.interruptible` does, is swallowed
    if that is a callback of a weak reference: event loops have many, and nothing would end us.
    """

    def __init__(self) -> None:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._taken = [number for number in numbers if callable(signal.getsignal(number))]
        self._before = {number: signal.getsignal(number) for number in self._taken}
        self._got: int | None = None
        self._over = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it in a loop of its own. Raises what a signal raised before."""
        try:
            return asyncio.run(self._take(work))
        finally:
            self._restore()
            if self._got is not None:
                signal.raise_signal(self._got)
                raise Interrupted(self._got)  # had it been raised before, and come to nothing

    @contextmanager
    def at_once(self) -> Generator[None]:
        """While we write, a signal raises as it did before: whoever should read may not."""
        try:
            self._restore()
            yield
            self._listen()
        except BaseException:
            self._over = True  # the loop may be told of the same signal: that is no second one
            raise

    async def _take(self, work: Coroutine[Any, Any, T]) -> T:
        self._listen()
        return await work

    def _listen(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in self._taken:
            loop.add_signal_handler(number, self._end, task, number)

    def _end(self, task: asyncio.Task[Any], number: int) -> None:
        if not self._over:  # the first only: what cleans up is not to be cut short
            self._over, self._got = True, number
            task.cancel()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


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
