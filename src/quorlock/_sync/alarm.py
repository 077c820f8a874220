"""Sets `lease.lost` when the validity ends: one thread for all leases that were asked for it.

By the local clock alone, whatever the network does.  The thread lives while there is something
to wait for.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import weakref
from typing import TYPE_CHECKING

from quorlock._drivers import fork
from quorlock._drivers.clock import now

if TYPE_CHECKING:
    from quorlock._face.holding import Holding


class Alarm:
    """See the module."""

    def __init__(self) -> None:
        self.forget()
        fork.register(self)

    def forget(self) -> None:
        """In a forked child: the leases are the parent's, the thread is not here."""
        self._due: list[tuple[int, int, weakref.ref[threading.Event], Holding]] = []
        self._number = itertools.count()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    def watch(self, holding: Holding, event: threading.Event) -> None:
        """Set the event when the holding's validity has ended."""
        with self._condition:
            entry = (holding.valid_until, next(self._number), weakref.ref(event), holding)
            heapq.heappush(self._due, entry)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="quorlock alarm", daemon=True
                )
                self._thread.start()
            self._condition.notify()

    def _work(self) -> None:
        with self._condition:
            while self._due:
                left = self._due[0][0] - now()
                if left > 0:
                    self._condition.wait(left / 1e9)
                else:
                    self._ring()
            self._thread = None

    def _ring(self) -> None:
        _, _, reference, holding = heapq.heappop(self._due)
        event = reference()
        if event is None or holding.given_up:
            return
        if holding.held:  # extended meanwhile
            entry = (holding.valid_until, next(self._number), reference, holding)
            heapq.heappush(self._due, entry)
        else:
            event.set()


alarm = Alarm()
