"""The bundle of a thread that listens to its nodes between its rounds as well: renewal's.

Its connections track the keys that are extended over them, and what the nodes then say of these
keys is kept here until the thread takes it.  To the flows that the thread leads it is a pool of one
bundle.  Leaves what a hint means to `_core.renewal`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import TYPE_CHECKING

from quorlock._core.time import FOR_EVER, NS_PER_MS
from quorlock._drivers.clock import now
from quorlock._drivers.waiting import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock._core.effects import Receipt
    from quorlock._core.time import Instant
    from quorlock._drivers.bundle import Bundle
    from quorlock._drivers.pool import Owner
    from quorlock._wire.conversation import Hint

# poll takes no more than a C int of milliseconds.
_SLEEP_MS_MAX = 1 << 30


class Watch:
    """See the module."""

    def __init__(self, make: Callable[[Hint], Bundle], on_close: Callable[[Watch], None]) -> None:
        self.closing = False
        self.hints: deque[Sequence[bytes] | None] = deque()
        self.bundle = make(self._hinted)
        self._on_close = on_close
        self._lock = threading.Lock()  # of the bell: nobody rings one that is closed
        self._bell: tuple[int, int] | None = None
        self._waiters = Waiters()
        with contextlib.suppress(OSError):  # no descriptors left: then it hears nobody in its sleep
            self._bell = os.pipe()
            os.set_blocking(self._bell[0], False)
            os.set_blocking(self._bell[1], False)

    # --- a pool of one -----------------------------------------------------------------------

    def take(self, owner: Owner, by: Instant = FOR_EVER, path: object = None) -> Bundle:
        """The bundle, which nobody else wants."""
        del owner, by, path
        return self.bundle

    def give(self, bundle: Bundle, round_: Receipt | None = None) -> None:
        """It stays in hand."""

    def give_all(self, owner: Owner) -> None:
        """It stays in hand."""

    # --- listening ---------------------------------------------------------------------------

    def wait(self, is_so: Callable[[], object], until: Instant) -> None:
        """Return when it is so already, when somebody wakes us, at a hint, or then."""
        left = max(0, until - now())
        if self._bell is None:
            self._waiters.wait(lambda: is_so() or self.hints, left / 1e9)
            return
        if not is_so():
            self.bundle.listen(self._bell[0], min(-(-left // NS_PER_MS), _SLEEP_MS_MAX))
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell[0], 4096)

    def wake(self) -> None:
        """From any thread."""
        self._waiters.wake_all()
        with self._lock, contextlib.suppress(BlockingIOError):  # full: it will wake
            if self._bell is not None:
                os.write(self._bell[1], b"\0")

    def _hinted(self, keys: Sequence[bytes] | None) -> None:
        self.hints.append(keys)
        self.wake()  # another thread may have read it (`Bundle._foreign`)

    # --- the end -----------------------------------------------------------------------------

    def close(self, until: Instant) -> None:
        """Close the connections, having heard what is owed until then."""
        self.bundle.close(until)
        self._hang_up()
        self._on_close(self)

    def forget(self) -> None:
        """In a forked child: close our copies, without a word."""
        self._lock = threading.Lock()
        for connection in self.bundle.connections:
            if connection is not None:
                connection.sock.close()
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            bell, self._bell = self._bell, None
        for end in bell or ():
            os.close(end)
