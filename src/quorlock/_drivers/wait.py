"""Waiting for another thread, such that an interrupt leaves no thread waiting for ever.

A signal handler runs in the main thread, between two instructions of any function. It may raise
(Ctrl-C, a soft time limit), and it may call this library. So all code that a caller's thread runs
in here follows three rules:

1. It takes no lock for mutual exclusion. If a handler called the library while its thread had the
   lock, it would wait for itself. Since CPython 3.14 an exception may also come between the taking
   and the beginning of the block, in every form (`with lock`, `acquire` and `try`). The lock would
   stay taken and every thread would hang. Shared state is changed by one step of a dict, a deque
   or a list. Each object has one writer at a time, recorded by `dict.setdefault`.
2. An object whose owner was interrupted inside it is discarded, never repaired. The mark is
   `is_busy`, set while the owner is inside. If a connection set is returned with that mark, all its
   connections are closed, and each request without a reply becomes a pending release on its node.
   So the order of lines inside does not matter.
3. A thread waits on a raw lock that no other thread ever takes. Condition, Event and Semaphore of
   `threading` are written in Python, with a lock: rule 1.

If returning an object was interrupted as well, the next thread that needs the object recovers it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

from quorlock._core.time import NS_PER_MS
from quorlock._drivers.clock import now, sleep_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.request import StopEvent
    from quorlock._core.time import Instant


# How often a wait looks at its `stop`.  It cannot call `stop.wait()`, which takes a lock: a signal
# handler that sets the event in the same thread would wait for that lock for ever (rule 1).
_STOP_CHECK = 50 * NS_PER_MS


def is_stopped(stop: StopEvent | None) -> bool:
    """Return whether a wait that `stop` may end is to end."""
    return stop is not None and stop.is_set()


def next_look(until: Instant, stop: StopEvent | None) -> Instant:
    """Return when to look at `stop` again in a wait that ends at `until`."""
    return until if stop is None else min(until, now() + _STOP_CHECK)


class Wakeup:
    """The wait of one thread for a wake-up; one that comes before the wait ends it at once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Wake the thread; safe from any thread."""
        with contextlib.suppress(RuntimeError):  # it is awake already
            self._lock.release()

    def wait(self, until: Instant) -> None:
        """Return after a wake-up, at `until`, or when the clock has to be read again."""
        self._lock.acquire(timeout=sleep_seconds(until))


class WaitQueue:
    """Threads that wait for a change. `waiting` has one raw lock for each of them."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[threading.Lock] = deque()

    def wait(self, is_so: Callable[[], object], until: Instant) -> None:
        """Return when `is_so()` is true, after a wake-up, or at `until`."""
        waiter = threading.Lock()
        waiter.acquire()
        self.waiting.append(waiter)  # before the check, so that no wake-up is missed
        try:
            while not is_so() and now() < until:
                if waiter.acquire(timeout=sleep_seconds(until)):
                    return
        finally:
            with contextlib.suppress(ValueError):
                self.waiting.remove(waiter)

    def wake_all(self) -> None:
        """Wake all waiting threads."""
        # A list: building a tuple may collect garbage in CPython 3.11.
        for waiter in list(self.waiting):
            with contextlib.suppress(RuntimeError):  # awake already
                waiter.release()


class OneShotEvent:
    """An event that becomes true once; threads may wait for it. `up`: it has become true."""

    __slots__ = ("_waiters", "up")

    def __init__(self) -> None:
        self.up = False
        self._waiters = WaitQueue()

    def set(self) -> None:
        """Make the event true."""
        self.up = True
        self._waiters.wake_all()

    def wait(self, until: Instant) -> bool:
        """Wait for the event until `until` at most; return whether it is true."""
        if not self.up:
            self._waiters.wait(lambda: self.up, until)
        return self.up
