"""Inspect many resources at an interval, over one set of connections.

`status --watch` and `top` use it, and show the results.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from quorlock import Inspection
from quorlock._cli.config import FileSettings
from quorlock._cli.exit_status import Interrupted
from quorlock.asyncio import Redlock
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from quorlock._cli.full_screen import FullScreen  # it imports rich

T = TypeVar("T")
Show: TypeAlias = "Callable[[], None]"

# Inspected concurrently, so that the timeout of a hung node is waited for once for all of them.
_AT_ONCE = 100


async def inspect_all(
    redlock: Redlock, names: Sequence[str], *, are_listed: bool = False
) -> list[Inspection]:
    """Inspect the resources.

    are_listed: the nodes have listed the names; sorted sets of other programs are left out.
    """
    inspections: list[Inspection] = []
    for first in range(0, len(names), _AT_ONCE):
        inspections += await asyncio.gather(*map(redlock.inspect, names[first : first + _AT_ONCE]))
    return [one for one in inspections if not (are_listed and _is_other_data(one))]


def _is_other_data(inspection: Inspection) -> bool:
    """Return whether no node that replied has a lock there, and one has data of another type."""
    views = [view for view in inspection.nodes if view.code is not None]
    return inspection.verdict == "unreachable" and any(
        view.code is VoteCode.WRONG_TYPE for view in views
    )


def inspect_once(
    settings: FileSettings, names: Sequence[str], *, are_listed: bool = False
) -> list[Inspection]:
    """Inspect the resources once. Raise Failed."""

    async def ask() -> list[Inspection]:
        async with settings.made(Redlock) as redlock:
            return await inspect_all(redlock, names, are_listed=are_listed)

    return _Run().run(ask())


def poll(
    settings: FileSettings,
    interval: float,
    turn: Callable[[Redlock], Awaitable[Show]],
    times: int = 0,
    display: FullScreen | None = None,
) -> None:
    """Call `turn` at every interval, in seconds, and show what it returns.

        times: how often; 0: until interrupted.
        display: whose user may end it too.

    Raise Failed, or BrokenPipeError as soon as stdout has no reader.
    """
    run = _Run()
    run.run(_poll(run, settings, interval, turn, range(times) if times else count(), display))


async def _poll(
    run: _Run,
    settings: FileSettings,
    interval: float,
    turn: Callable[[Redlock], Awaitable[Show]],
    numbers: Iterable[int],
    display: FullScreen | None,
) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    began = loop.time()
    async with settings.made(Redlock) as redlock:
        with display.listening(over.set, run.at_once) if display else _unread(over):
            for number in numbers:
                if number:
                    # In step with the clock: if a turn takes too long, the next ones are skipped.
                    await _pause(interval - (loop.time() - began) % interval, over)
                show = None if over.is_set() else await turn(redlock)
                if over.is_set() and display:
                    return
                if show is None:
                    raise BrokenPipeError
                with run.at_once():
                    show()


class _Run:
    """An event loop that a signal ends between two steps. Then the earlier handler runs.

    `exit_status.interruptible` raises an exception wherever the signal arrives. In a weak
    reference's callback the exception is swallowed; event loops have many of these, and would not
    end.
    """

    def __init__(self) -> None:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._taken = [number for number in numbers if callable(signal.getsignal(number))]
        self._before = {number: signal.getsignal(number) for number in self._taken}
        self._task: asyncio.Task[Any] | None = None
        self._got: int | None = None
        self._over = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in a new loop. Raise what the earlier signal handler raises."""
        try:
            return asyncio.run(self._take(work))
        finally:
            self._restore()
            if self._got is not None:
                signal.raise_signal(self._got)
                raise Interrupted(self._got)  # if an earlier exception was swallowed

    @contextmanager
    def at_once(self) -> Generator[None]:
        """Restore the signal handlers during output, which blocks if the reader stops reading."""
        try:
            self._restore()
            yield
            self._listen()
        except BaseException:
            self._over = True  # the loop may see the same signal too: it must not count twice
            raise

    async def _take(self, work: Coroutine[Any, Any, T]) -> T:
        self._task = asyncio.current_task()
        self._listen()
        return await work

    def _listen(self) -> None:
        # Callbacks of the loop, which are in no task, listen again too.
        loop, task = asyncio.get_running_loop(), self._task
        assert task is not None
        for number in self._taken:
            loop.add_signal_handler(number, self._end, task, number)

    def _end(self, task: asyncio.Task[Any], number: int) -> None:
        if not self._over:  # only the first: later ones must not interrupt the cleanup
            self._over, self._got = True, number
            task.cancel()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


async def _pause(seconds: float, over: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(over.wait(), seconds)


@contextmanager
def _unread(event: asyncio.Event) -> Generator[None]:
    """Set the event when stdout is a pipe without a reader.

    There may be no output for a long time, so no write would fail. The writing end of a pipe never
    has data to read. If it becomes readable, its reader is gone.
    """
    descriptor = sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, event.set)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
