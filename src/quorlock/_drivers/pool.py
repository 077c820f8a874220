"""The bundles of a driver: idle ones on a stack, and a cap on how many acquire at once.

Taken last in, first out, so that one thread always talks down the same connections.  Extensions
and releases pass the cap: who holds a lock must not queue behind those who want it.

Who has a bundle in hand is noted on the bundle, and the rest is derived from that note, so that
a taking or giving that is interrupted half way (Ctrl-C) is made good by the next giving.  No
comprehension stands under a lock: since Python 3.12 (PEP 709) a signal that arrives in one is not
covered by the `with` around it, and the lock would stay taken (tests/project/test_signals.py).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from quorlock._drivers.waiting import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._drivers.bundle import Bundle


_LOOK_AGAIN = 0.05  # seconds


class Owner:
    """Who takes bundles. `urgent`: passes the cap."""

    urgent: bool = False


class Pool:
    """See the module."""

    def __init__(self, make: Callable[[], Bundle], cap: int, on_owing: Callable[[], None]) -> None:
        self._make = make
        self._on_owing = on_owing  # told when a bundle comes back that is still to hear something
        self._cap = cap
        self._bundles: list[Bundle] = []
        self._idle: list[Bundle] = []
        self._lock = threading.Lock()
        self._freed = Waiters()
        self._closing = False

    def take(self, owner: Owner) -> Bundle:
        """The bundle used last, or a new one; waits for a place unless urgent."""
        while (bundle := self._try_take(owner)) is None:
            # Looks again by itself too: the one who was woken may have been interrupted.
            self._freed.wait(self._has_place, _LOOK_AGAIN)
        return bundle

    def _try_take(self, owner: Owner) -> Bundle | None:
        with self._lock:
            if not owner.urgent and not self._has_place():
                return None
            while self._idle:
                bundle = self._idle[-1]
                if bundle.owner is None:
                    bundle.owner = owner
                    self._idle.pop()
                    return bundle
                self._idle.pop()
            bundle = self._make()
            bundle.owner = owner
            self._bundles.append(bundle)
            return bundle

    def give(self, owner: Owner) -> None:
        """Put back all that the owner has; close what is more than enough."""
        surplus: list[Bundle] = []
        owing = False
        mine = [bundle for bundle in list(self._bundles) if bundle.owner is owner]
        with self._lock:
            for bundle in mine:
                owing = owing or bundle.owes
                if self._closing or (len(self._idle) >= self._cap and not bundle.owes):
                    self._bundles.remove(bundle)
                    surplus.append(bundle)
                elif bundle not in self._idle:
                    self._idle.append(bundle)
                bundle.owner = None
        self._freed.wake_one()
        if owing:
            self._on_owing()
        for bundle in surplus:
            bundle.close()

    def close(self, end: Callable[[Bundle], None]) -> None:
        """End all idle bundles, one after the other; those in use when they come back."""
        self._closing = True
        while True:
            with self._lock:
                if not self._idle:
                    return
                bundle = self._idle.pop()
            end(bundle)
            with self._lock:
                self._bundles.remove(bundle)

    def every(self) -> list[Bundle]:
        """All bundles, also those in use."""
        return list(self._bundles)

    def _has_place(self) -> bool:
        owners = [bundle.owner for bundle in list(self._bundles)]
        return sum(o is not None and not o.urgent for o in owners) < self._cap
