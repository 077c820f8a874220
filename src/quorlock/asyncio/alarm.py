"""Tells the loss of a lease: an event, and the cancelling of the block that runs under it.

By the loop's timer and the local clock alone, whatever the network does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quorlock._drivers.clock import now

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._face.holding import Holding


class Alarm:
    """Rings once, when the holding is lost; never when it was given up."""

    def __init__(self, holding: Holding) -> None:
        self.event = asyncio.Event()
        self._holding = holding
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def add(self, listener: Callable[[], None]) -> None:
        """Call this too; at once if it has rung."""
        if self.event.is_set():
            listener()
        else:
            self._listeners.append(listener)

    def remove(self, listener: Callable[[], None]) -> None:
        """Do not call it any more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def ended(self) -> None:
        """The holding is over, lost or given up."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._look()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._holding.given_up or self.event.is_set():
            return
        if self._holding.look():
            left = self._holding.deadline - now()
            self._timer = self._loop.call_later(max(0, left) / 1e9, self._look)
            return
        self.event.set()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()


class Cancellation:
    """Cancels the current task when the alarm rings, as `asyncio.timeout` does."""

    def __init__(self, alarm: Alarm) -> None:
        task = asyncio.current_task()
        assert task is not None, "async with runs in a task"
        self._task = task
        self._requests_before = task.cancelling()
        self._alarm = alarm
        self._fired = False
        self._soon: asyncio.Handle | None = None
        alarm.add(self._fire)

    def _fire(self) -> None:
        if asyncio.current_task() is not self._task:
            self._cancel()
            return
        # The body itself saw the loss.  A task that cancels itself is cancelled at its next
        # await, which may come after the block: so not before the body waits for something.
        self._soon = asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        self._fired = True
        self._task.cancel()

    def explains(self, error: BaseException | None) -> bool:
        """The block was left because of us alone: by our cancelling and nobody else's."""
        self._alarm.remove(self._fire)
        if self._soon is not None:
            self._soon.cancel()
        if not self._fired:
            return False
        ours_alone = self._task.uncancel() <= self._requests_before
        return ours_alone and isinstance(error, asyncio.CancelledError)
