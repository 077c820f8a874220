"""Renewal in asyncio: one task per event loop for all leases of a Redlock, alive while needed.

Its commands use the same ordered connections as those of all other tasks.  So a release arrives
after every command that was sent to keep the lease, and never waits for the task to stop.  The loss
watcher reports a loss, even if this task fails.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

from quorlock._api.renewal import RenewalManager, RenewedLease
from quorlock._core.renewal import renew
from quorlock._core.renewal_schedule import RenewalSchedule
from quorlock._core.time import FOR_EVER
from quorlock._drivers import fork
from quorlock._drivers.aio.driver import Driver
from quorlock._drivers.aio.loops import background_task, call_in, guarded
from quorlock._drivers.clock import now, sleep_seconds
from quorlock._drivers.log import log_trouble
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._api.lease import LeaseBase
    from quorlock._api.lease_options import Warns
    from quorlock._api.session import Session
    from quorlock._core.effects import Entropy
    from quorlock._core.renewal_schedule import RenewalEntry
    from quorlock._core.time import Instant

_RESTART_DELAY = 0.02  # seconds; short, as leases may be due


class _TaskRenewedLease(RenewedLease):
    """The renewal of one lease, in the loop in which it was acquired."""

    __slots__ = ("_task",)

    def __init__(
        self,
        task: _LoopRenewal,
        lease: LeaseBase[Driver],
        on_warning: Warns | None,
        at: Instant,
        entropy: Entropy,
    ) -> None:
        super().__init__(lease, on_warning, at, entropy)
        self._task = task

    def stop(self) -> None:
        self._task.drop(self)

    def escaped(self, error: BaseException) -> None:
        # As in any callback of the loop, they end the program, but not this task.
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            asyncio.get_running_loop().call_soon(_raise, error)


class RenewalTasks(RenewalManager[Driver]):
    """The renewal tasks of a session, one for each event loop."""

    def __init__(self, session: Session[Driver]) -> None:
        super().__init__(session)
        self.reset_after_fork()
        fork.register(self)

    def reset_after_fork(self) -> None:
        """Drop all tasks in a forked child: the leases are the parent's."""
        self._tasks: dict[asyncio.AbstractEventLoop, _LoopRenewal] = {}

    def add(self, lease: LeaseBase[Driver], on_warning: Warns | None) -> None:
        """Renew a lease from now on, until it is over."""
        loop = asyncio.get_running_loop()
        task = self._tasks.get(loop)
        if task is None:
            for other in list(self._tasks):  # a copy: other loops may begin and end now
                if other.is_closed():
                    self._tasks.pop(other, None)
            task = self._tasks[loop] = _LoopRenewal(self, loop)
        task.add(_TaskRenewedLease(task, lease, on_warning, now(), self.entropy))

    async def close(self) -> None:
        """End the task of this loop. It does not release its leases."""
        task = self._tasks.pop(asyncio.get_running_loop(), None)
        if task is not None:
            await task.close()


class _LoopRenewal:
    """The renewal task of one event loop."""

    def __init__(self, tasks: RenewalTasks, loop: asyncio.AbstractEventLoop) -> None:
        self._tasks = tasks
        self._loop = loop
        self._schedule = RenewalSchedule()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wakeup = asyncio.Event()
        self._until: Instant = 0  # the task sleeps until then
        self._invalidations: list[Sequence[bytes] | None] = []

    def add(self, renewal: _TaskRenewedLease) -> None:
        renewal.entry.renewal = renewal
        self._schedule.add(renewal)
        self._start()
        if renewal.due < self._until:
            self._wake()

    def _start(self) -> None:
        if self._schedule and (self._task is None or self._task.done()):
            self._task = background_task(self._work(), "quorlock renewal")

    def _wake(self) -> None:
        self._wakeup.clear()  # an interrupted `set` may have woken no task
        self._wakeup.set()

    def _wake_again(self, error: BaseException) -> bool:
        del error
        self._wake()
        return False

    def drop(self, renewal: RenewalEntry) -> None:
        """Remove a lease that is over. Safe from any thread."""
        call_in(self._loop, partial(self._drop, renewal))

    def _drop(self, renewal: RenewalEntry) -> None:
        self._schedule.drop(renewal)
        if not self._schedule:
            self._wake()

    async def close(self) -> None:
        """End the task, without cancelling it: `on_warning` may call this inside the task."""
        task, self._schedule = self._task, RenewalSchedule()
        self._wake()
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait([task])

    def _on_invalidation(self, keys: Sequence[bytes] | None) -> None:
        # All commands of the loop use these connections: most keys are not of renewed leases.
        if self._schedule.contains_any(keys):
            self._invalidations.append(keys)
            self._wake()

    async def _work(self) -> None:
        try:
            await self._work_on()
        except GeneratorExit:
            raise
        except BaseException:
            # A signal handler has raised, or all tasks but one are cancelled. Another task
            # continues with all leases that are not over; not at once, in case it fails again.
            self._schedule = self._schedule.rebuilt()
            self._loop.call_later(_RESTART_DELAY, self._start)
            raise

    async def _work_on(self) -> None:
        with contextlib.suppress(QuorlockError):  # closed in between
            self._tasks.driver.watch(self._on_invalidation)
        while self._schedule:
            invalidations, self._invalidations = self._invalidations, []
            for keys in invalidations:
                self._schedule.expedite(keys, now())
            due = self._schedule.pop_due(now())
            if due:
                await self._renew(due)
            else:
                await self._sleep()

    async def _sleep(self) -> None:
        """Wait until a lease is due, or until there is news."""
        if self._invalidations:
            return
        next_due = self._schedule.next_due()
        assert next_due is not None, "every lease of the schedule is due at some time"
        self._wakeup.clear()
        self._until = next_due
        wake = guarded(self._wake_again, self._wake)
        timer = self._loop.call_later(sleep_seconds(next_due), wake)
        try:
            await self._wakeup.wait()
        finally:
            timer.cancel()

    async def _renew(self, due: Sequence[RenewalEntry]) -> None:
        tasks, schedule = self._tasks, self._schedule
        others_due = schedule.next_due() or FOR_EVER
        try:
            await tasks.driver.run(renew(due, now(), tasks.policy, tasks.entropy, others_due))
        except Exception as error:  # noqa: BLE001 (other leases stay renewed)
            if tasks.driver.closed:
                self._schedule = RenewalSchedule()
            if schedule is not self._schedule:
                return
            log_trouble("renewal failed, and will be tried again", error)
        over, warned = schedule.reschedule(due, now())
        for flow in tasks.lost(over):
            tasks.driver.send_later(flow)
        tasks.warn(warned)


def _raise(error: BaseException) -> None:
    raise error


def renewer(session: Session[Driver]) -> RenewalTasks:
    """Return the session's renewal tasks; make them at first use."""
    if not session.renewers:
        session.renewers.append(RenewalTasks(session))
    first = session.renewers[0]
    assert isinstance(first, RenewalTasks)
    return first
