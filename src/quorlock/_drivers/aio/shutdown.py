"""The shutdown of a loop driver: release what is held, wait for replies, close the connections."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any, cast

from quorlock._drivers.aio.loops import background_task
from quorlock._drivers.clock import now

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
    from types import AsyncGeneratorType

    from quorlock._drivers.aio.abc import RunningFlow
    from quorlock._drivers.aio.admission import Readiness
    from quorlock._drivers.aio.connector import AsyncConnector
    from quorlock._drivers.aio.deadlines import Deadlines


class Shutdown:
    """The end of one loop driver, and what the loop driver may still send.

    It begins when the Redlock is closed, or when the loop ends, as the interpreter's exit is the
    end for threads. asyncio.run closes all asynchronous generators then, after it has cancelled all
    tasks, so one of them waits here for that. Cancelled tasks alone are no sign: a program may
    cancel all others and continue.
    """

    def __init__(
        self,
        tasks: Collection[RunningFlow],
        connectors: Sequence[AsyncConnector],
        readiness: Readiness,
        deadlines: Deadlines,
        on_end: Callable[[], None],
    ) -> None:
        self.begun = False  # only releases from now on
        self.closing = False  # no releases either
        self._ended = False
        self._tasks = tasks
        self._connectors = connectors
        self._readiness = readiness
        self._deadlines = deadlines
        self._on_end = on_end
        self.on_closed: Callable[[], None] = _nothing
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._generator = cast("AsyncGeneratorType[None, None]", self._wait_for_loop_end())
        _resume(self._generator.asend(None))  # to its `yield`: the loop knows of it now

    async def _wait_for_loop_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.complete()

    async def complete(self) -> None:
        """Release, receive pending replies for a bounded time, and close everything.

        A task does it, so that it completes even if the caller is cancelled.
        """
        while not self._ended:
            await asyncio.wait([self._begin()])

    def request_soon(self) -> None:
        """Begin after the last reference to the Redlock is gone; safe from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, perhaps just now
            self._loop.call_soon_threadsafe(self._begin)

    def abandon(self) -> None:
        """Wait for the end of the loop no longer."""
        self._ended = True
        if not self._generator.ag_running:
            _resume(self._generator.aclose())

    def _begin(self) -> asyncio.Task[None]:
        self.begun = True
        if self._task is None:
            self._task = background_task(self._finish(), "quorlock shutdown")
            self._task.add_done_callback(self._on_done)
        return self._task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or not self.closing:  # cancelled with all others, or interrupted
            self._task = None
            self._begin()
        else:
            self.on_closed()
            self.abandon()

    async def _finish(self) -> None:
        connectors = self._connectors
        for task in list(self._tasks):
            task.fail_closed()
        for connector in connectors:
            if connector.node_state.pending_releases.has_unconfirmed():
                connector.wake()  # its task is cancelled with all others when a loop ends
        await self._drained()  # other flows may be releasing at this moment
        self.closing = True
        self._on_end()
        await self._drained()
        give_up = (now() + self._deadlines.node_timeout) / 1e9
        await asyncio.gather(*(connector.close(give_up) for connector in connectors))
        self._readiness.stop()
        self._deadlines.stop()

    async def _drained(self) -> None:
        """Wait while fewer and fewer replies are missing: thousands of releases take long.

        The time is compared after a look at the replies, as they may have come in a long step of
        the loop.
        """
        fewest, since = sys.maxsize, now()
        while True:
            connections = [connector.connection for connector in self._connectors]
            missing = sum([one.open_requests for one in connections if one is not None])
            if not (self._tasks or missing or self._has_unconfirmed()):
                return
            if missing < fewest:
                fewest, since = missing, now()
            elif now() >= since + 2 * self._deadlines.node_timeout:
                return
            await asyncio.sleep(0.001)

    def _has_unconfirmed(self) -> bool:
        return any(
            connector.node_state.pending_releases.has_unconfirmed()
            for connector in self._connectors
        )


def _resume(step: Coroutine[Any, Any, None]) -> None:
    """Resume an asynchronous generator that awaits nothing on its way."""
    with contextlib.suppress(StopIteration):
        step.send(None)


def _nothing() -> None:
    pass
