"""A background thread that reads the late replies of idle connection sets.

Most of these are only dropped. But a node may have lost a script, so that a release is sent again,
or may close the connection before an acquire has its reply. Without the thread, that key would stay
for as long as the process is idle. The thread runs while requests are pending on idle sets, and a
little longer.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from quorlock._core.time import NS_PER_MS
from quorlock._drivers.clock import now
from quorlock._drivers.threads import BackgroundThread

if TYPE_CHECKING:
    from quorlock._core.time import Instant
    from quorlock._drivers.sync.connection_set import ConnectionSet
    from quorlock._drivers.sync.pool import ConnectionPool

# About one node_timeout, so that it finds no work under traffic.
_EVERY = 50 * NS_PER_MS
_ROUNDS_WITHOUT_WORK = 10


class IdleDrainer:
    """The thread that drains the idle connection sets of `pool`, which the driver supplies."""

    pool: ConnectionPool

    def __init__(self) -> None:
        self._rounds_left = 0  # before the thread ends; 0: it has not begun
        self._thread = BackgroundThread(
            "quorlock idle drainer", self._step, is_overlooked=self._is_overlooked, linger=0
        )
        self._runner = self._thread.runner

    def look_after(self, connection_set: ConnectionSet) -> None:
        """Start the thread if a returned connection set has pending requests."""
        if not self._runner and connection_set.has_pending:
            with contextlib.suppress(RuntimeError):  # no thread: the next returned set retries
                self._thread.wake()

    def close(self, until: Instant) -> None:
        """End the thread, and wait for it until `until`."""
        self._thread.close(until)

    def _step(self) -> Instant | None:
        if self._rounds_left:
            had_work = self.pool.drain_idle()
            self._rounds_left = _ROUNDS_WITHOUT_WORK if had_work else self._rounds_left - 1
        else:
            self._rounds_left = _ROUNDS_WITHOUT_WORK
        if self._thread.closing or not self._rounds_left:
            self._rounds_left = 0
            return None
        return now() + _EVERY

    def _is_overlooked(self) -> bool:
        """Return whether a set was returned after the last check and before the thread ended."""
        return not self._thread.closing and any(one.has_pending for one in self.pool.all())
