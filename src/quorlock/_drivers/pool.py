"""The bundles of a driver, and how many acquire at once.

A bundle is taken by a note of who has it in hand: made by `dict.setdefault`, which one of several
threads wins, without a lock.  The first that is free is taken, so that one thread always talks
down the same connections.  Who acquires queues for a place, and gets the bundle of a call that is
over from hand to hand, in the order of coming: whoever comes later cannot pass.  Extensions and
releases need no place: who holds a lock must not queue behind those who want it.  If all bundles
are in hand they get the next that comes back, before all who queue, or a new one.

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

from quorlock._core.time import FOR_EVER, NS_PER_MS
from quorlock._drivers.clock import now
from quorlock._drivers.waiting import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.effects import Receipt
    from quorlock._core.time import Instant
    from quorlock._drivers.bundle import Bundle


# Who queues looks again by itself too, now and then: whoever should have handed it a bundle may
# have been interrupted.
_LOOK_AGAIN = 0.1  # seconds
# How many bundles there are for each that may acquire at once: those who release need some as
# well, and connecting again costs more than keeping.
_PER_PLACE = 2
# So long an urgent one waits for a bundle to come back, when there are as many.  Connecting takes
# longer: with 64 threads, new bundles for most releases halved the rate.
_URGENT_WAITS = 5 * NS_PER_MS
# Two are always of use: one sends while the other's answers are under way.
_PLACES_MIN = 2
# A round keeps the interpreter busy for about so many times what its sending takes.
_BUSY_PER_SENDING = 4
# The places follow the mean of about so many rounds.
_ROUNDS_REMEMBERED = 16


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
        self._kept = _PER_PLACE * cap
        self._places = min(cap, _PLACES_MIN)  # how many acquire at once at present
        self._sending = self._talking = 0  # ns, of the last rounds together: see `_learn`
        self._bundles: list[Bundle] = []
        self._owners: dict[Bundle, Owner] = {}  # of those that are in hand
        self._queue: deque[_Waiter] = deque()
        self._urgent: deque[_Waiter] = deque()  # served first, and not for long
        self._lock = threading.Lock()  # of the places, the queues and the list
        self.closing = False
        self._settling = False
        self._returned = Waiters()

    def take(self, owner: Owner, by: Instant = FOR_EVER, path: object = None) -> Bundle | None:
        """A bundle that is free, `path` if that is, or a new one; waits for a place unless urgent.

        None: there was no place by then.
        """
        if not self._owners and self._bundles:  # nobody to be counted, nobody who queues
            bundle = self._bundles[0]
            if self._owners.setdefault(bundle, owner) is owner:
                return bundle
        if owner.urgent:
            return self._take_now(owner, path)
        with self._lock:
            if not self._queue and self._has_place():
                return self._free(owner) or self._new(owner)
            waiter = _Waiter(owner)
            self._queue.append(waiter)
        return self._wait(waiter, self._queue, by)

    def _take_now(self, owner: Owner, path: object) -> Bundle:
        with self._lock:
            bundle = self._free(owner, path)
            if bundle is None and len(self._bundles) < _PER_PLACE * self._places:
                bundle = self._new(owner)
            if bundle is not None:
                return bundle
            waiter = _Waiter(owner)
            self._urgent.append(waiter)
        bundle = self._wait(waiter, self._urgent, now() + _URGENT_WAITS)
        if bundle is None:
            with self._lock:
                bundle = self._free(owner, path) or self._new(owner)
        return bundle

    def _free(self, owner: Owner, path: object = None) -> Bundle | None:
        for bundle in self._bundles:
            if bundle is path and self._owners.setdefault(bundle, owner) is owner:
                return bundle
        for bundle in self._bundles:
            if self._owners.setdefault(bundle, owner) is owner:
                return bundle
        return None

    def _new(self, owner: Owner) -> Bundle:
        bundle = self._make()
        self._owners[bundle] = owner
        self._bundles.append(bundle)
        return bundle

    def _wait(self, waiter: _Waiter, queue: deque[_Waiter], by: Instant) -> Bundle | None:
        try:
            while (left := by - now()) > 0:
                if waiter.called.acquire(timeout=min(left / 1e9, _LOOK_AGAIN)):
                    break
                self._serve()
        finally:
            with self._lock, contextlib.suppress(ValueError):
                queue.remove(waiter)
        return self._of(waiter.owner)

    def give(self, bundle: Bundle, round_: Receipt | None = None) -> None:
        """Hand it to whoever queues, or put it back, or close it if it is more than enough.

        round_: of the round that is over.
        """
        self._look_after(bundle)
        # As a rule there is nobody to hand it to, and there are not too many.
        if self._urgent or self._queue or self.closing or len(self._bundles) > self._kept:
            if self._hand_on(bundle, round_):
                return
            if self.closing or (self._idle() >= self._kept and not bundle.owes):
                self._end(bundle, bundle.close)
        self._owners.pop(bundle, None)
        if self._urgent or self._queue:
            self._serve()  # who came between our looking and our giving
        if self._settling:
            self._returned.wake_all()

    def _hand_on(self, bundle: Bundle, round_: Receipt | None) -> bool:
        """Give it to the first who may have it."""
        owner = self._owners.get(bundle)
        if owner is None or self.closing or not (self._urgent or self._queue):
            return False
        if round_ is not None:
            self._learn(round_)
        with self._lock:
            queue = self._next(leaving=owner)
            if queue is None:
                return False
            self._hand(bundle, queue)
            return True

    def _idle(self) -> int:
        return len(self._bundles) - len(self._owners)

    def _hand(self, bundle: Bundle, queue: deque[_Waiter]) -> None:
        # The note first, out of the queue last: interrupted between, it is found.
        self._owners[bundle] = queue[0].owner
        queue.popleft().called.release()

    def _next(self, leaving: Owner | None = None) -> deque[_Waiter] | None:
        """The queue whose first may have a bundle now."""
        if self._urgent:
            return self._urgent
        return self._queue if self._queue and self._has_place(leaving) else None

    def _serve(self) -> None:
        """Give who queues what is free, or for who may acquire a new one."""
        with self._lock:
            while queue := self._next():
                owner = queue[0].owner
                # It has one if whoever handed that on was interrupted before calling it.
                bundle = self._of(owner) or self._free(owner)
                if bundle is None:
                    if owner.urgent:
                        return
                    bundle = self._new(owner)
                self._hand(bundle, queue)

    def _learn(self, round_: Receipt) -> None:
        """So many places that the interpreter is busy while answers are under way, and no more.

        Threads beyond it take the interpreter lock from each other at every system call: with 8
        places on nodes next door a cycle took 1.8 times the CPU that it takes alone, with 2 or 3
        1.3 times.  On a slow network there is more waiting to be filled.  Sending and waiting
        for that lock grow alike when there are too many, so their ratio does not run away.
        """
        sending, talking = self._sending, self._talking
        self._sending += round_.sent - round_.started - sending // _ROUNDS_REMEMBERED
        self._talking += now() - round_.started - talking // _ROUNDS_REMEMBERED
        wanted = 1 + self._talking // (_BUSY_PER_SENDING * self._sending + 1)
        places, self._places = self._places, min(max(wanted, _PLACES_MIN), self._cap)
        if places < self._places:
            self._serve()

    def give_all(self, owner: Owner) -> None:
        """Put back whatever the owner has, and leave the queues, after an interrupt."""
        for queue in (self._queue, self._urgent):
            with self._lock:
                for waiter in list(queue):
                    if waiter.owner is owner:
                        queue.remove(waiter)
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

    def _has_place(self, leaving: Owner | None = None) -> bool:
        acquiring = sum(not o.urgent for _, o in self._notes() if o is not leaving)
        return acquiring < self._places
