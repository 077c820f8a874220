"""Renews leases: one thread for all of a Redlock's, alive only while there are any.

Its extensions go over connections of its own (`watch`), so they wait for nobody, and it hears what
nodes say of its keys while it sleeps.  The loss of a lease is
told by the alarm, whatever becomes of this thread.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from quorlock._core.renewal import Agenda, renew
from quorlock._core.time import NS_PER_MS, NS_PER_S
from quorlock._drivers import fork
from quorlock._drivers.blocking import Driver
from quorlock._drivers.clock import now
from quorlock._drivers.waiting import Waiters
from quorlock._face.renewing import Kept, Renewer, log_trouble
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._core.effects import Chance
    from quorlock._core.redlock import Holding as Facts
    from quorlock._core.renewal import Renewal
    from quorlock._core.time import Instant
    from quorlock._drivers.watch import Watch
    from quorlock._face.lease import LeaseBase
    from quorlock._face.session import Session
    from quorlock._face.terms import Warns

# Without work it ends after this: who takes one lock after the other starts no thread for each.
_IDLE = 200 * NS_PER_MS


class _Kept(Kept):
    """May be stopped by another thread than the one that renews."""

    __slots__ = ("_engine",)

    def __init__(
        self,
        engine: Thread,
        lease: LeaseBase[Driver],
        on_warning: Warns | None,
        at: Instant,
        chance: Chance,
    ) -> None:
        super().__init__(lease, on_warning, at, chance)
        self._engine = engine

    def begin(self, at: Instant) -> Facts | None:
        with self._engine.lock:  # either we see that it is over, or who ends it sees us begin
            return super().begin(at)

    def done(self) -> None:
        self.in_flight = False
        self._engine.settled.wake_all()

    def stop(self) -> None:
        self._engine.stop(self)


class Thread(Renewer[Driver]):
    """See the module."""

    def __init__(self, session: Session[Driver]) -> None:
        super().__init__(session)
        self.forget()
        fork.register(self)

    def forget(self) -> None:
        """In a forked child: the leases are the parent's, the thread is not here."""
        self.lock = threading.Lock()
        self.settled = Waiters()  # woken when something that was in flight has come down
        self._agenda = Agenda()
        self._watch: Watch | None = None
        self._ended = Waiters()
        self._woken = False
        self._until: Instant = 0  # it sleeps until then
        self._thread: threading.Thread | None = None
        self._closing = False

    # --- called from any thread --------------------------------------------------------------

    def add(self, lease: LeaseBase[Driver], on_warning: Warns | None) -> None:
        renewal = _Kept(self, lease, on_warning, now(), self.chance)
        lease.holding.renewal = renewal
        with self.lock:
            self._agenda.add(renewal)
            soon = renewal.due < self._until
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="quorlock renewal", daemon=True
                )
                self._thread.start()
        if soon:
            self._wake()

    def stop(self, renewal: Renewal) -> None:
        """Its lease is over; return when nothing is under way for it, a bounded time at most."""
        with self.lock:
            self._agenda.drop(renewal)
        if renewal.in_flight and self._thread is not threading.current_thread():
            patience = 2 * self.policy.node_timeout + self.policy.connect_timeout + NS_PER_S
            self.settled.wait(lambda: not renewal.in_flight, patience / 1e9)

    def close(self) -> None:
        """End the thread, and wait for it a bounded time. Its leases are not given back by it."""
        self._closing = True
        self._wake()
        if self._thread is not threading.current_thread():
            patience = 2 * self.policy.node_timeout + NS_PER_S
            self._ended.wait(self._has_ended, patience / 1e9)

    def _has_ended(self) -> bool:
        return self._thread is None and not self.driver.watched

    def _wake(self) -> None:
        self._woken = True
        watch = self._watch
        if watch is not None:
            watch.wake()

    # --- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        watch = self._watch = self.driver.watch()
        try:
            while (due := self._next(watch)) is not None:
                self._renew(due, watch)
        finally:
            if self._thread is threading.current_thread():
                self._thread = None
            watch.close(now() + self.policy.node_timeout)
            self._ended.wake_all()

    def _next(self, watch: Watch) -> list[Renewal] | None:
        """Those that are due, as soon as some are; None: there is nothing left to renew."""
        idle_until = now() + _IDLE
        while True:
            self._woken = False
            with self.lock:
                at = now()
                while watch.hints:
                    self._agenda.hint(watch.hints.popleft(), at)
                if self._closing or (not self._agenda and at >= idle_until):
                    self._agenda = Agenda()
                    self._thread = None  # under the lock: who adds one from now on starts another
                    return None
                due = self._agenda.take(at)
                if due:
                    return due
                next_due = self._agenda.next_due()
                self._until = idle_until if next_due is None else next_due
            watch.wait(lambda: self._woken, self._until)

    def _renew(self, due: Sequence[Renewal], watch: Watch) -> None:
        try:
            self.driver.run(renew(due, now(), self.policy, self.chance), watch)
        except Exception as error:  # noqa: BLE001 (whatever it is: those that can go on go on)
            if self.driver.closed:
                return
            log_trouble("renewal failed, and will be tried again", error)
        finally:
            for renewal in due:
                if renewal.in_flight:
                    renewal.done()
        with self.lock:
            over, warned = self._agenda.settle(due, now())
        for flow in self.lost(over):
            with contextlib.suppress(QuorlockError):  # closed meanwhile, which gives back itself
                self.driver.run(flow)
        self.warn(warned)


def renewer(session: Session[Driver]) -> Thread:
    """The session's one, made when it is first needed."""
    if not session.renewers:
        session.renewers.append(Thread(session))  # of two that are made at once the first counts
    first = session.renewers[0]
    assert isinstance(first, Thread)
    return first
