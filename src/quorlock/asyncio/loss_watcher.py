"""Reporting of a lost lease in asyncio: an event, and the cancelling of the lease's block.

Both depend only on the loop's timer and the local clock, whatever the network does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, TypeAlias

from quorlock._drivers.aio.loops import call_in
from quorlock._drivers.clock import sleep_seconds
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._api.lease_state import LeaseState

OnLost: TypeAlias = Literal["cancel", "flag"]


def checked_on_lost(on_lost: OnLost) -> OnLost:
    """Return a user's argument, validated. Raises ConfigError."""
    if on_lost not in ("cancel", "flag"):
        fix = "give 'cancel' (end the block) or 'flag' (only set lease.lost)"
        raise ConfigError("on_lost", on_lost, fix)
    return on_lost


class LossWatcher:
    """An event that is set once, when the lease is lost, with listeners; never by a release."""

    def __init__(self, lease_state: LeaseState) -> None:
        self.event: asyncio.Event = asyncio.Event()
        self._lease_state = lease_state
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def add(self, listener: Callable[[], None]) -> None:
        """Call this listener when the lease is lost; at once if it has been."""
        if self.event.is_set():
            listener()
        else:
            self._listeners.append(listener)

    def remove(self, listener: Callable[[], None]) -> None:
        """Remove a listener."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def ended(self) -> None:
        """Check the state after the lease has ended, lost or released; safe from any thread."""
        call_in(self._loop, self._look)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lease_state.was_released or self.event.is_set():
            return
        if self._lease_state.check_expired():
            delay = sleep_seconds(self._lease_state.deadline)
            self._timer = self._loop.call_later(delay, self._look)
            return
        self.event.set()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()


class BodyCancellation:
    """Cancellation of the current task when its lease is lost, as `asyncio.timeout` does it."""

    def __init__(self, watcher: LossWatcher) -> None:
        task = asyncio.current_task()
        assert task is not None, "async with runs in a task"
        self._task = task
        self._requests_before = task.cancelling()
        self._watcher = watcher
        self._fired = False
        self._soon: asyncio.Handle | None = None

    def begin(self) -> None:
        """Cancel the task when the watcher reports the loss."""
        self._watcher.add(self._fire)

    def end(self) -> None:
        """Cancel nothing from now on."""
        self._watcher.remove(self._fire)
        if self._soon is not None:
            self._soon.cancel()

    def _fire(self) -> None:
        if asyncio.current_task() is not self._task:
            self._cancel()
            return
        # The body itself detected the loss.  A task that cancels itself is cancelled at its next
        # await, which may come after the block: so cancel only when the body waits for something.
        self._soon = asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        self._fired = True
        self._task.cancel()

    def explains(self, error: BaseException | None) -> bool:
        """Return whether this cancellation alone caused the block to be left."""
        self.end()
        if not self._fired:
            return False
        ours_alone = self._task.uncancel() <= self._requests_before
        return ours_alone and isinstance(error, asyncio.CancelledError)


def watcher_of(state: LeaseState) -> LossWatcher:
    """Return the watcher of a lease, the same at every call; make it, in this event loop."""
    if not isinstance(state.loss_listener, LossWatcher):
        state.loss_listener = LossWatcher(state)
    return state.loss_listener
