"""The bundles of a driver, and a cap on how many acquire at once.

A bundle is taken by a note of who has it in hand: made by `dict.setdefault`, which one of several
threads wins, without a lock.  The first that is free is taken, so that one thread always talks
down the same connections.  Extensions and releases pass the cap: who holds a lock must not queue
behind those who want it.  Who queues gets the bundle of an acquire that is over from hand to hand,
in the order of coming: whoever comes later cannot pass.

The notes are all that there is to know, so that a taking or giving that is interrupted half way
(Ctrl-C) is made good by the next giving.  No comprehension stands under a lock: since Python 3.12
(PEP 709) a signal that arrives in one is not covered by the `with` around it, and the lock would
stay taken (tests/project/test_signals.py).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from quorlock._core.time import FOR_EVER
from quorlock._drivers.clock import now
from quorlock._drivers.waiting import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.time import Instant
    from quorlock._drivers.bundle import Bundle


# Who queues looks again by itself too, now and then: whoever should have handed it a bundle may
# have been interrupted.
_LOOK_AGAIN = 0.1  # seconds
# How many bundles are kept for each that may acquire at once: those who release need some as well,
# and connecting again costs more than keeping.
_IDLE_PER_PLACE = 2


class Owner:
    """Who takes bundles. `urgent`: passes the cap."""

    __slots__ = ()

    urgent: bool


class _Servant(Owner):
    """The pool itself."""

    __slots__ = ()

    urgent = True


_TIDIES = _Servant()


class _Waiter:
    """Who queues. `called` is a raw lock, given free when there is a bundle (see `waiting`)."""

    __slots__ = ("called", "owner")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.called = threading.Lock()
        self.called.acquire()


class Pool:
    """See the module."""

    def __init__(
        self, make: Callable[[], Bundle], cap: int, look_after: Callable[[Bundle], None]
    ) -> None:
        self._make = make
        self._look_after = look_after  # told when a bundle comes back: it may be to hear something
        self._cap = cap
        self._bundles: list[Bundle] = []
        self._owners: dict[Bundle, Owner] = {}  # of those that are in hand
        self._queue: deque[_Waiter] = deque()
        self._lock = threading.Lock()  # of the cap, the queue and the list
        self.closing = False
        self._settling = False
        self._returned = Waiters()

    def take(self, owner: Owner, by: Instant = FOR_EVER) -> Bundle | None:
        """The first bundle that is free, or a new one; waits for a place unless urgent.

        None: there was no place by then.
        """
        if not self._owners and self._bundles:  # nobody to be counted, nobody who queues
            bundle = self._bundles[0]
            if self._owners.setdefault(bundle, owner) is owner:
                return bundle
        waiter: _Waiter | None = None
        with self._lock:
            if owner.urgent or (not self._queue and self._has_place()):
                return self._first_free(owner)
            waiter = _Waiter(owner)
            self._queue.append(waiter)
        return self._wait(waiter, by)

    def _first_free(self, owner: Owner) -> Bundle:
        for bundle in self._bundles:
            if self._owners.setdefault(bundle, owner) is owner:
                return bundle
        bundle = self._make()
        self._owners[bundle] = owner
        self._bundles.append(bundle)
        return bundle

    def _wait(self, waiter: _Waiter, by: Instant) -> Bundle | None:
        try:
            while (left := by - now()) > 0:
                if waiter.called.acquire(timeout=min(left / 1e9, _LOOK_AGAIN)):
                    break
                with self._lock:
                    if self._has_place() and self._queue and self._queue[0] is waiter:
                        return self._first_free(waiter.owner)
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._queue.remove(waiter)
        return self._of(waiter.owner)

    def give(self, bundle: Bundle) -> None:
        """Hand it to whoever queues, or put it back, or close it if it is more than enough."""
        self._look_after(bundle)
        owner = self._owners.get(bundle)
        if self._queue and owner is not None and not owner.urgent and not self.closing:
            with self._lock:
                if self._queue:
                    # The note first, out of the queue last: interrupted between, it is found.
                    self._owners[bundle] = self._queue[0].owner
                    self._queue.popleft().called.release()
                    return
        idle = len(self._bundles) - len(self._owners)
        if self.closing or (idle >= _IDLE_PER_PLACE * self._cap and not bundle.owes):
            self._end(bundle, bundle.close)
        else:
            self._owners.pop(bundle, None)
        if self._settling:
            self._returned.wake_all()

    def give_all(self, owner: Owner) -> None:
        """Put back whatever the owner has, after an interrupt."""
        while (bundle := self._of(owner)) is not None:
            self.give(bundle)

    def settle(self, until: Instant) -> None:
        """Wait until nobody has a bundle in hand, until then at the most."""
        self._settling = True
        while self._owners and (left := until - now()) > 0:
            self._returned.wait(lambda: not self._owners, left / 1e9)

    def close(self, end: Callable[[Bundle], None]) -> None:
        """End all idle bundles, one after the other; those in use when they come back."""
        self.closing = True
        closer = _Servant()
        for bundle in self.every():
            if self._owners.setdefault(bundle, closer) is closer:
                self._end(bundle, partial(end, bundle))

    def tidy(self) -> bool:
        """Read what idle bundles are still to hear; whether any was.

        Never one that is in hand: its owner sleeps until something comes, and what we read does
        not wake it.  Under the lock, so that who wants the bundle waits a moment for it instead
        of making another.
        """
        owing = [bundle for bundle in self.every() if bundle.owes]
        for bundle in owing:
            with self._lock:
                if self._owners.setdefault(bundle, _TIDIES) is not _TIDIES:
                    continue
                try:
                    bundle.look_in()
                finally:
                    self._owners.pop(bundle, None)
        return bool(owing)

    def every(self) -> list[Bundle]:
        """All bundles, also those in use."""
        return list(self._bundles)

    def _of(self, owner: Owner) -> Bundle | None:
        return next((bundle for bundle, other in self._notes() if other is owner), None)

    def _notes(self) -> list[tuple[Bundle, Owner]]:
        return list(self._owners.items())  # a copy: other threads take and give meanwhile

    def _end(self, bundle: Bundle, close: Callable[[], None]) -> None:
        # The note goes last: interrupted before, the next giving does it again.
        close()
        with self._lock:
            if bundle in self._bundles:
                self._bundles.remove(bundle)
        self._owners.pop(bundle, None)

    def _has_place(self) -> bool:
        return sum(not owner.urgent for _, owner in self._notes()) < self._cap
