"""Reporting of a lost lease in asyncio: an event, and the cancelling of the lease's block.

Both depend only on a timer of the loop and the local clock, whatever the network does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, TypeAlias
from weakref import WeakKeyDictionary

from quorlock._core.time import FOR_EVER, PAST
from quorlock._drivers.aio.loops import call_in
from quorlock._drivers.clock import now, sleep_seconds
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._api.lease_state import LeaseState
    from quorlock._core.time import Instant

OnLost: TypeAlias = Literal["cancel", "flag"]


def checked_on_lost(on_lost: OnLost) -> OnLost:
    """Return a user's argument, validated. Raises ConfigError."""
    if on_lost not in ("cancel", "flag"):
        fix = "give 'cancel' (end the block) or 'flag' (only set lease.lost)"
        raise ConfigError("on_lost", on_lost, fix)
    return on_lost


class LossTimer:
    """The timer of all watchers of one event loop.

    Nearly every lease is released long before it could be lost, and a timer for each lease was the
    most expensive part of a block. This one is set for the earliest deadline, and checks all
    watchers then. It has no reference to its loop, which would keep a closed loop in `_TIMERS`.
    """

    __slots__ = ("_due", "_watchers")

    def __init__(self) -> None:
        self._watchers: dict[LossWatcher, None] = {}
        self._due: Instant = FOR_EVER  # of the timer that is set; FOR_EVER: none is

    def add(self, watcher: LossWatcher, deadline: Instant) -> None:
        """Check this watcher at its deadline; called in the loop."""
        self._watchers[watcher] = None
        if deadline < self._due:
            self._set(deadline)

    def remove(self, watcher: LossWatcher) -> None:
        """Check it no more; safe from any thread."""
        self._watchers.pop(watcher, None)

    def _set(self, due: Instant) -> None:
        asyncio.get_running_loop().call_later(sleep_seconds(due), self._check_all, due)
        self._due = due  # last: an interrupt before it leaves a timer that does nothing

    def _check_all(self, due: Instant) -> None:
        if due != self._due:
            return  # an earlier one was set since
        self._due = FOR_EVER
        earliest = PAST  # an interrupt below: again at once
        try:
            deadlines = [watcher.check() for watcher in list(self._watchers.copy())]
            earliest = min(deadlines, default=FOR_EVER)
        finally:
            if earliest < self._due:
                self._set(earliest)


_TIMERS: WeakKeyDictionary[asyncio.AbstractEventLoop, LossTimer] = WeakKeyDictionary()


class LossWatcher:
    """An event that is set once, when the lease is lost, with listeners; never by a release."""

    __slots__ = ("_event", "_lease_state", "_listeners", "_loop", "_timer", "_was_lost")

    def __init__(self, lease_state: LeaseState) -> None:
        self._lease_state: LeaseState | None = lease_state  # None: it was released
        self._loop = loop = asyncio.get_running_loop()
        self._listeners: list[Callable[[], None]] = []
        self._was_lost = False
        self._event: asyncio.Event | None = None  # made when it is asked for
        timer = _TIMERS.get(loop)
        if timer is None:
            timer = _TIMERS[loop] = LossTimer()
        self._timer = timer
        deadline = lease_state.deadline
        if now() < deadline:
            timer.add(self, deadline)
        else:
            self.check()

    @property
    def event(self) -> asyncio.Event:
        """The event that is set when the lease is lost."""
        if self._event is None:
            self._event = asyncio.Event()
            if self._was_lost:
                self._event.set()
        return self._event

    def add(self, listener: Callable[[], None]) -> None:
        """Call this listener when the lease is lost; at once if it has been."""
        if self._was_lost:
            listener()
        else:
            self._listeners.append(listener)

    def remove(self, listener: Callable[[], None]) -> None:
        """Remove a listener."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def ended(self) -> None:
        """Check the state after the lease has ended, lost or released; safe from any thread."""
        lease_state = self._lease_state
        if lease_state is None or lease_state.was_released:
            self._timer.remove(self)
            # Each refers to the other: both would stay until garbage is collected.
            self._lease_state = None
        else:
            call_in(self._loop, self.check)

    def check(self) -> Instant:
        """Report a loss; return when to check again, FOR_EVER once the lease is over."""
        lease_state = self._lease_state
        if lease_state and not lease_state.was_released and not self._was_lost:
            if lease_state.check_expired():
                return lease_state.deadline
            self._report()
        self._timer.remove(self)
        return FOR_EVER

    def _report(self) -> None:
        self._was_lost = True
        if self._event is not None:
            self._event.set()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()


class BodyCancellation:
    """Cancellation of the current task when its lease is lost, as `asyncio.timeout` does it."""

    __slots__ = ("_fired", "_requests_before", "_soon", "_task", "_watcher")

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
