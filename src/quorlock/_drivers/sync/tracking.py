"""A connection set whose thread also reads push messages between its rounds: renewal's.

Its connections track the keys that are extended over them. Invalidations of these keys are queued
here until the thread takes them. For the flows of that thread it is a pool of one set.
`_core.renewal_schedule` decides about the consequences.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from quorlock._core.time import FOR_EVER
from quorlock._drivers.clock import sleep_ms
from quorlock._drivers.sync.polling import WakeupPipe
from quorlock._drivers.wait import WaitQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock._core.request import StopEvent
    from quorlock._core.time import Instant
    from quorlock._drivers.sync.connection_set import ConnectionSet
    from quorlock._drivers.sync.pool import Borrower
    from quorlock._protocol.pipeline import InvalidationCallback


class TrackedConnections:
    """A connection set with key tracking enabled, owned by one thread."""

    def __init__(
        self,
        make: Callable[[InvalidationCallback], ConnectionSet],
        on_close: Callable[[TrackedConnections], None],
    ) -> None:
        self.closing = False
        self.invalidations: deque[Sequence[bytes] | None] = deque()
        self._make = make
        self.connection_set = self._made()
        self._on_close = on_close
        self._wakeup: WakeupPipe | None = None
        self._waiters = WaitQueue()
        # No descriptors left: then pushes do not interrupt its sleep.
        with contextlib.suppress(OSError):
            self._wakeup = WakeupPipe()

    def _made(self) -> ConnectionSet:
        connection_set = self._make(self._on_invalidation)
        connection_set.visit = self.wake_all
        return connection_set

    # --- a pool of one -----------------------------------------------------------------------

    def borrow(
        self,
        owner: Borrower,
        by: Instant = FOR_EVER,
        path: object = None,
        stop: StopEvent | None = None,
    ) -> ConnectionSet:
        """Return the set, which has no other borrower."""
        del owner, by, path, stop
        self._replace_interrupted()
        return self.connection_set

    def give_back(self, connection_set: ConnectionSet) -> None:
        """Keep the set borrowed."""

    def give_back_all(self, owner: Borrower) -> None:
        """Keep the set borrowed; replace one that was discarded."""
        del owner
        self._replace_interrupted()

    def _replace_interrupted(self) -> None:
        if self.connection_set.is_busy:
            self.connection_set.discard()
        if self.connection_set.closed and not self.closing:
            self.connection_set = self._made()

    def on_change(self) -> None:
        """Wake no other borrower."""

    # --- listening ---------------------------------------------------------------------------

    def wait(self, is_so: Callable[[], object], until: Instant) -> None:
        """Return when `is_so()` is true, when woken, at an invalidation, or at `until`.

        May return earlier, when the clock has to be read again.
        """
        if self._wakeup is None:
            self._waiters.wait(lambda: is_so() or self.invalidations, until)
            return
        if not is_so():
            self._replace_interrupted()
            self.connection_set.wait_for_push(self._wakeup.end, sleep_ms(until))
        self._wakeup.receive()

    def wake_all(self) -> None:
        """Wake the thread; safe from any thread."""
        self._waiters.wake_all()
        wakeup = self._wakeup  # a local reference: it stays valid if the attribute is reset
        if wakeup is not None:
            wakeup.wake()

    def _on_invalidation(self, keys: Sequence[bytes] | None) -> None:
        self.invalidations.append(keys)
        self.wake_all()  # another thread may have read it (`ConnectionSet._route`)

    # --- the end -----------------------------------------------------------------------------

    def close(self, until: Instant) -> None:
        """Close the connections, after receiving pending replies until `until`."""
        self.connection_set.close(until)
        self.closing = True
        self._wakeup = None
        self._on_close(self)

    def reset_after_fork(self) -> None:
        """Close our copies of the sockets silently, in a forked child."""
        self.connection_set.reset_after_fork()
        self._wakeup = None
