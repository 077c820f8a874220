"""Renewal in the blocking API: one thread for all leases of a Redlock, alive while there are any.

Its extensions use separate connections (`TrackedConnections`), so they wait for no other call.
While it sleeps it reads the invalidations of its keys.  Only this thread uses the schedule; other
threads queue their changes, without a lock.  The lease's own event reports a loss, even if this
thread fails.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from quorlock._api.lease import state_of
from quorlock._api.renewal import RenewalManager, RenewedLease
from quorlock._core.renewal import renew
from quorlock._core.renewal_schedule import BATCH_MAX, RenewalSchedule
from quorlock._core.time import FOR_EVER, NS_PER_S
from quorlock._drivers import fork
from quorlock._drivers.clock import now
from quorlock._drivers.log import log_trouble
from quorlock._drivers.sync.driver import Driver
from quorlock._drivers.threads import BackgroundThread
from quorlock._drivers.wait import WaitQueue
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock._api.lease import LeaseBase
    from quorlock._api.lease_options import Warns
    from quorlock._api.session import Session
    from quorlock._core.effects import Entropy
    from quorlock._core.renewal_schedule import RenewalEntry
    from quorlock._core.time import Instant
    from quorlock._drivers.sync.tracking import TrackedConnections


class _ThreadRenewedLease(RenewedLease):
    """The renewal of one lease, which another thread may stop."""

    __slots__ = ("_thread",)

    def __init__(
        self,
        thread: RenewalThread,
        lease: LeaseBase[Driver],
        on_warning: Warns | None,
        at: Instant,
        entropy: Entropy,
    ) -> None:
        super().__init__(lease, on_warning, at, entropy)
        self._thread = thread

    def clear_in_flight(self) -> None:
        self.in_flight = False
        self._thread.settled.wake_all()

    def stop(self) -> None:
        self._thread.stop(self)


class RenewalThread(RenewalManager[Driver]):
    """The renewal thread of a session, with the queue of changes from other threads."""

    def __init__(self, session: Session[Driver]) -> None:
        super().__init__(session)
        self.reset_after_fork()
        fork.register(self)

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the leases are the parent's, and the thread is not here."""
        self.settled = WaitQueue()  # notified when a command in flight has finished
        self._schedule = RenewalSchedule()
        self._is_busy = False  # the thread is in a step
        # Changes that other threads want.
        self._news: deque[tuple[Callable[[RenewalSchedule, RenewalEntry], None], RenewalEntry]] = (
            deque()
        )
        self._until: Instant = FOR_EVER  # an entry that is due sooner must wake the thread
        self._watch: TrackedConnections | None = None
        self._thread = BackgroundThread(
            "quorlock renewal", self._step, finish=self._close_connections
        )

    # --- called from any thread --------------------------------------------------------------

    def add(self, lease: LeaseBase[Driver], on_warning: Warns | None) -> None:
        """Renew a lease until it is over. Raises QuorlockError if no thread can be started."""
        renewal = _ThreadRenewedLease(self, lease, on_warning, now(), self.entropy)
        state_of(lease).renewal = renewal
        self._news.append((RenewalSchedule.add, renewal))
        # Also if many changes wait: that drops entries that are over.
        is_late = renewal.due < self._until or len(self._news) > BATCH_MAX
        if is_late or not self._thread.runner:
            try:
                self._thread.wake()
            except RuntimeError as error:
                self._news.append((RenewalSchedule.drop, renewal))
                raise QuorlockError(_no_thread(lease.resource, error)) from error

    def stop(self, renewal: RenewalEntry) -> None:
        """Stop renewing an ended lease; wait, for a bounded time, until nothing is in flight."""
        self._news.append((RenewalSchedule.drop, renewal))
        # The thread first marks the lease as in flight, then checks whether it is over.  So either
        # this code sees the mark, or the thread sees the end (`RenewalEntry.mark_in_flight`).
        patience = 2 * self.policy.node_timeout + self.policy.connect_timeout + NS_PER_S
        until = now() + patience
        while renewal.in_flight and not self._thread.is_current and now() < until:
            self.settled.wait(lambda: not renewal.in_flight, until)

    def close(self) -> None:
        """End the thread and wait a bounded time for it. It does not release its leases."""
        self._thread.close(now() + 2 * self.policy.node_timeout + NS_PER_S)

    # --- the thread --------------------------------------------------------------------------

    def _step(self) -> Instant | None:
        """Renew the leases that are due; return when the next ones are, None if there are none."""
        if self._is_busy:  # the step before was interrupted anywhere
            self._schedule = self._schedule.rebuilt()
        self._is_busy = True
        while True:
            self._until = FOR_EVER  # from here on, `add` wakes the thread
            self._take_new_leases()
            if self._thread.closing:
                self._schedule = RenewalSchedule()
            due = self._schedule.pop_due(now())
            if not due:
                break
            self._renew(due, self._listening())
        next_due = self._schedule.next_due()
        if next_due is not None:
            self._listening()
            self._until = next_due
        self._is_busy = False
        return next_due

    def _take_new_leases(self) -> None:
        while self._news:
            change, renewal = self._news[0]
            change(self._schedule, renewal)
            self._news.popleft()  # last: an interrupt before it repeats the change
        watch, at = self._watch, now()
        while watch is not None and watch.invalidations:
            self._schedule.expedite(watch.invalidations.popleft(), at)

    def _listening(self) -> TrackedConnections:
        """Return the tracked connections; the thread sleeps on them from now on."""
        if self._watch is None:
            self._watch = self._thread.wakeup = self.driver.watch()
        return self._watch

    def _close_connections(self) -> None:
        watch, self._watch = self._watch, None
        self._thread.wakeup = WaitQueue()
        if watch is not None:
            watch.close(now() + self.policy.node_timeout)

    def _renew(self, due: Sequence[RenewalEntry], watch: TrackedConnections) -> None:
        others_due = self._schedule.next_due() or FOR_EVER
        try:
            self.driver.run(renew(due, now(), self.policy, self.entropy, others_due), watch)
        except BaseException as error:  # noqa: BLE001 (other leases stay renewed)
            if self.driver.closed:
                return
            log_trouble("renewal failed, and will be tried again", error)
        finally:
            for renewal in due:
                if renewal.in_flight:
                    renewal.clear_in_flight()
        over, warned = self._schedule.reschedule(due, now())
        for flow in self.lost(over):
            with contextlib.suppress(QuorlockError):  # closed in between; `close` releases
                self.driver.run(flow)
        self.warn(warned)


def _no_thread(resource: str, error: RuntimeError) -> str:
    """Return the text of the error: what happened, and what to do."""
    return (
        f"no thread can be had to renew the lease on {resource!r} ({error}), so it is not taken: "
        "allow this process more threads, or acquire without renew"
    )


def renewer(session: Session[Driver]) -> RenewalThread:
    """Return the session's renewal thread; make it at first use."""
    if not session.renewers:
        session.renewers.append(
            RenewalThread(session)
        )  # of two made at the same time, the first counts
    first = session.renewers[0]
    assert isinstance(first, RenewalThread)
    return first
