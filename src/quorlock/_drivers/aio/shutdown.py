"""The shutdown of a loop driver: release what is held, wait for replies, close the connections."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from quorlock._drivers.aio.connector import timeout_answer
from quorlock._drivers.aio.loops import is_ending
from quorlock._drivers.clock import now

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from quorlock._core.time import Instant
    from quorlock._drivers.aio.abc import RunningFlow
    from quorlock._drivers.aio.admission import Readiness
    from quorlock._drivers.aio.connector import AsyncConnector
    from quorlock._drivers.aio.deadlines import Deadlines


class Shutdown:
    """The end of one loop driver, and what the loop driver may still send.

    A task, the guardian, does the work. So it completes even if the caller of `close` is cancelled.
    asyncio.run cancels the guardian with all other tasks when it ends. That is the signal to
    release what is still held, as the interpreter's exit is for threads. If other tasks are not
    cancelled, the loop continues, with another guardian.
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
        self._tasks = tasks
        self._connectors = connectors
        self._readiness = readiness
        self._deadlines = deadlines
        self._on_end = on_end
        self.on_closed: Callable[[], None] = _nothing
        self._start()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._requested: asyncio.Future[None] = loop.create_future()
        self.guardian = loop.create_task(self._run(), name="quorlock guardian")
        self.guardian.add_done_callback(self._on_done)
        timeout_answer(self.guardian)

    def _on_done(self, guardian: asyncio.Task[None]) -> None:
        if guardian is self.guardian:
            self.on_closed()

    async def complete(self) -> None:
        """Release, receive pending replies for a bounded time, and close everything."""
        self._request()
        await asyncio.wait([self.guardian])

    def request_soon(self) -> None:
        """Begin after the last reference to the Redlock is gone; safe from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, perhaps just now
            self._requested.get_loop().call_soon_threadsafe(self._request)

    def _request(self) -> None:
        self.begun = True
        if not self._requested.done():
            self._requested.set_result(None)

    async def _run(self) -> None:
        try:
            await self._requested
        except GeneratorExit:
            raise  # the loop is gone
        except BaseException:
            if is_ending(asyncio.get_running_loop()):
                await self._finish()
            else:
                self._start()
            raise
        await self._finish()

    async def _finish(self) -> None:
        connectors, node_timeout = self._connectors, self._deadlines.node_timeout
        until = now() + 2 * node_timeout
        self.begun = True
        for task in list(self._tasks):
            task.fail_closed()
        for connector in connectors:
            if connector.node_state.pending_releases.has_unconfirmed():
                connector.wake()  # its task is cancelled with all others when a loop ends
        try:
            await self._drained(until)  # other flows may be releasing at this moment
        except BaseException:  # cancelled once more
            self._send_releases()
            for connector in connectors:
                connector.close_soon()
            raise
        self._send_releases()
        await self._drained(until)
        give_up = (until + node_timeout) / 1e9
        await asyncio.gather(*(connector.close(give_up) for connector in connectors))
        self._readiness.stop()
        self._deadlines.stop()

    def _send_releases(self) -> None:
        self.closing = True
        self._on_end()

    async def _drained(self, until: Instant) -> None:
        while now() < until and (self._tasks or self._awaits_replies()):  # noqa: ASYNC110 (rare, bounded)
            await asyncio.sleep(0.001)

    def _awaits_replies(self) -> bool:
        return any(
            (connector.connection is not None and connector.connection.awaits_replies)
            or connector.node_state.pending_releases.has_unconfirmed()
            for connector in self._connectors
        )


def _nothing() -> None:
    pass
