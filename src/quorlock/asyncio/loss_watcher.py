"""Reporting of a lost lease in asyncio: an event, and the cancelling of the lease's block.

Both depend only on a timer of the loop and the local clock, whatever the network does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from quorlock._core.time import FOR_EVER, PAST
from quorlock._drivers.aio.loops import call_in, guarded
from quorlock._drivers.clock import sleep_seconds

if TYPE_CHECKING:
    from quorlock._api.lease_state import LeaseState
    from quorlock._core.time import Instant


class LossTimer:
    """The timer of all watchers of one event loop.

    Nearly every lease is released long before it could be lost, and a timer for each lease was the
    most expensive part of a block. This one is set for the earliest deadline, and checks all
    watchers then. It has no reference to its loop, which would keep a closed loop in `_TIMERS`;
    watchers that are left have one, see `_forget_closed_loops`.
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
        check = guarded(self._check_again, self._check_all, due)
        asyncio.get_running_loop().call_later(sleep_seconds(due), check)
        self._due = due  # last: an interrupt before it leaves a timer that does nothing

    def _check_all(self, due: Instant) -> None:
        if due != self._due:
            return  # an earlier one was set since
        self._due = FOR_EVER
        deadlines = [watcher.check() for watcher in list(self._watchers.copy())]
        earliest = min(deadlines, default=FOR_EVER)
        if earliest < self._due:
            self._set(earliest)

    def _check_again(self, error: BaseException) -> bool:
        """Check all watchers soon, after an interrupt, and let the event loop have the error."""
        del error
        self._set(PAST)
        return False


_TIMERS: WeakKeyDictionary[asyncio.AbstractEventLoop, LossTimer] = WeakKeyDictionary()


def _forget_closed_loops() -> None:
    """Forget the timers of loops that were closed with watchers left: these refer to the loop."""
    for loop in _TIMERS.keyrefs():
        closed = loop()
        if closed is not None and closed.is_closed():
            _TIMERS.pop(closed, None)


class LossWatcher:
    """An event that is set once, when the lease is lost, and never by a release.

    The task of the lease's block is cancelled then, as `asyncio.timeout` does it. Each event loop
    in which the lease is used has its watcher; `next` is that of another loop.
    """

    __slots__ = (
        "_event",
        "_has_cancelled",
        "_lease_state",
        "_requests_before",
        "_soon",
        "_task",
        "_timer",
        "_was_lost",
        "loop",
        "next",
    )

    def __init__(
        self,
        lease_state: LeaseState,
        loop: asyncio.AbstractEventLoop,
        next_: LossWatcher | None,
    ) -> None:
        self._lease_state: LeaseState | None = lease_state  # None: it was released
        self.loop: asyncio.AbstractEventLoop = loop
        self.next: LossWatcher | None = next_
        self._was_lost = False
        self._event: asyncio.Event | None = None  # made when it is asked for
        self._task: asyncio.Task[Any] | None = None  # in the block
        self._requests_before = 0  # to cancel that task
        self._has_cancelled = False
        self._soon: asyncio.Handle | None = None
        timer = _TIMERS.get(loop)
        if timer is None:
            _forget_closed_loops()
            timer = _TIMERS[loop] = LossTimer()
        self._timer = timer
        timer.add(self, lease_state.deadline)

    @property
    def event(self) -> asyncio.Event:
        """The event that is set when the lease is lost."""
        if self._event is None:
            self.check()  # it may be over already
            self._event = asyncio.Event()
            if self._was_lost:
                self._event.set()
        return self._event

    def ended(self) -> None:
        """Check the state after the lease has ended, lost or released; safe from any thread."""
        if self.next is not None:
            self.next.ended()
        lease_state = self._lease_state
        if lease_state is None or lease_state.was_released:
            self._timer.remove(self)
            # Each refers to the other: both would stay until garbage is collected.
            self._lease_state = None
        else:
            call_in(self.loop, self.check)

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
        if self._was_lost:
            return  # by the end of the lease, in `check_expired`
        self._was_lost = True
        if self._event is not None:
            self._event.set()
        if self._task is not None:
            self._cancel_or_soon(self._task)

    # --- the block ---------------------------------------------------------------------------

    def enter(self, task: asyncio.Task[Any]) -> None:
        """Cancel this task, the current one, when the lease is lost, until `leave`."""
        self._requests_before = task.cancelling()
        self._task = task
        if self._was_lost:
            self._cancel_or_soon(task)

    def leave(self) -> None:
        """Cancel nothing from now on."""
        self._task = None
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def explains(self, error: BaseException | None) -> bool:
        """Leave; return whether the loss alone caused the block to be left, with this error."""
        task = self._task
        self.leave()
        if not self._has_cancelled or task is None:
            return False
        self._has_cancelled = False
        ours_alone = task.uncancel() <= self._requests_before
        return ours_alone and isinstance(error, asyncio.CancelledError)

    def _cancel_or_soon(self, task: asyncio.Task[Any]) -> None:
        if asyncio.current_task() is None:
            self._cancel(task)
            return
        # The body itself may have detected the loss, or a task that it runs eagerly.  A task that
        # cancels itself is cancelled at its next await, which may come after the block: so cancel
        # only when the body waits for something.
        self._soon = self.loop.call_soon(self._cancel, task)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        self._has_cancelled = True
        task.cancel()


def watcher_of(
    lease_state: LeaseState, loop: asyncio.AbstractEventLoop | None = None
) -> LossWatcher:
    """Return the running event loop's watcher of a lease, the same at every call.

    Where no loop runs: that of the loop that asked last.

    loop: the running one, if the caller knows it.
    """
    listener = lease_state.loss_listener
    watcher = latest = listener if isinstance(listener, LossWatcher) else None
    if loop is None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            if latest is None:
                raise
            return latest
    while watcher is not None and watcher.loop is not loop:
        watcher = watcher.next
    if watcher is None:
        watcher = lease_state.loss_listener = LossWatcher(lease_state, loop, latest)
    return watcher
