"""Sets `lease.lost` when the validity ends: one thread for all leases that were asked for it.

By the local clock alone, whatever the network does.  The thread lives while there is something
to wait for.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from typing import TYPE_CHECKING

from quorlock._drivers import fork
from quorlock._drivers.clock import now
from quorlock._drivers.waiting import Waiters

if TYPE_CHECKING:
    from quorlock._face.holding import Holding


class Bell:
    """The event of one holding, and its place in the alarm."""

    def __init__(self, holding: Holding) -> None:
        self.event = threading.Event()
        self.holding = holding
        self.ended()

    def ended(self) -> None:
        """The holding may be over: lost is told, given up is forgotten."""
        if self.holding.given_up:
            alarm.drop(self)
        elif self.holding.look():
            alarm.watch(self)
        else:
            alarm.drop(self)
            self.event.set()


class Alarm:
    """See the module."""

    def __init__(self) -> None:
        self.forget()
        fork.register(self)

    def forget(self) -> None:
        """In a forked child: the leases are the parent's, the thread is not here."""
        self._due: list[tuple[int, int, Bell]] = []
        self._number = itertools.count()
        # Reentrant: a lease may become garbage, and drop its bell, while we are in here.
        self._lock = threading.RLock()
        self._sleeping = Waiters()
        self._woken = False
        self._thread: threading.Thread | None = None

    def bell(self, holding: Holding) -> Bell:
        """The holding's bell, one for all threads that ask."""
        with self._lock:
            if not isinstance(holding.bell, Bell):
                holding.bell = Bell(holding)
            return holding.bell

    def watch(self, bell: Bell) -> None:
        """Ring when the holding's validity is about to end."""
        with self._lock:
            heapq.heappush(self._due, (bell.holding.deadline, next(self._number), bell))
            if self._thread is None:
                name = "quorlock alarm"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()
        self._wake()

    def drop(self, bell: Bell) -> None:
        """There is nothing to ring for any more."""
        with self._lock:
            self._due = self._without(bell)  # no comprehension under a lock: see _drivers/pool.py
            heapq.heapify(self._due)
        self._wake()

    def _without(self, bell: Bell) -> list[tuple[int, int, Bell]]:
        return [entry for entry in self._due if entry[2] is not bell]

    def _wake(self) -> None:
        self._woken = True
        self._sleeping.wake_all()

    def _work(self) -> None:
        while (bell := self._next()) is not None:
            bell.ended()  # rings, or watches on if it was extended meanwhile

    def _next(self) -> Bell | None:
        while True:
            self._woken = False
            with self._lock:
                if not self._due:
                    self._thread = None
                    return None
                left = self._due[0][0] - now()
                if left <= 0:
                    return heapq.heappop(self._due)[2]
            self._sleeping.wait(lambda: self._woken, left / 1e9)


alarm = Alarm()
