"""Reads what idle bundles are still to hear, since nobody else does until they are used again.

Most of it is stragglers, which only have to be dropped.  But a node may have forgotten a script
and want a release again, or hang up with an acquire unanswered: then a key would stay for as
long as the process is idle.  One thread, alive while bundles owe answers and a little longer.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from quorlock._drivers.waiting import Waiters

if TYPE_CHECKING:
    from quorlock._drivers.bundle import Bundle
    from quorlock._drivers.pool import Pool
    from quorlock._drivers.waiting import Flag

_EVERY = 0.05  # seconds: about a node_timeout, so that it finds nothing while there is traffic
_ROUNDS_WITHOUT_WORK = 10


class Janitor:
    """See the module."""

    def __init__(self, closed: Flag) -> None:
        self.pool: Pool | None = None
        self._closed = closed
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._ended = Waiters()

    def look_after(self, bundle: Bundle) -> None:
        """A bundle is given back."""
        if self._thread is None and bundle.owes:
            self._wake()

    def _wake(self) -> None:
        if self._starting.acquire(blocking=False):
            try:
                # Threads cannot be started while the interpreter ends.
                with contextlib.suppress(RuntimeError):
                    threading.Thread(
                        target=self._work, name="quorlock janitor", daemon=True
                    ).start()
            finally:
                self._starting.release()

    def close(self) -> None:
        """Wait for the thread to end; the closed event has told it to."""
        if self._thread is not None:
            self._ended.wait(lambda: self._thread is None, 1.0)  # see Keeper.close

    def _bundles(self) -> list[Bundle]:
        return self.pool.every() if self.pool is not None else []

    def _work(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            self._thread = threading.current_thread()
        idle_rounds = 0
        while idle_rounds < _ROUNDS_WITHOUT_WORK and not self._closed.wait(_EVERY):
            owing = self.pool is not None and self.pool.tidy()
            idle_rounds = 0 if owing else idle_rounds + 1
        self._thread = None
        self._ended.wake_all()
        if not self._closed.up and any(bundle.owes for bundle in self._bundles()):
            self._wake()  # given back after our last look and before we said that we are gone
