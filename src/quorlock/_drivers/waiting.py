"""Waiting for another thread, made of raw locks alone.

threading's Condition, Event and Semaphore are written in Python: a Ctrl-C that arrives inside
their `__enter__` leaves their lock taken, and everybody who comes later hangs (seen within
100 interrupted calls, tests/drivers/test_interrupts.py).  A raw lock is taken and given in C,
between two checks for signals.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Waiters:
    """Threads that wait until something has changed. `waiting`: a lock for each of them."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[threading.Lock] = deque()

    def wait(self, is_so: Callable[[], object], seconds: float) -> None:
        """Return when it is so already, when somebody wakes us, or after that many seconds."""
        waiter = threading.Lock()
        waiter.acquire()
        self.waiting.append(waiter)  # before looking, so that no waking is missed
        try:
            if not is_so():
                waiter.acquire(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX)))
        finally:
            with contextlib.suppress(ValueError):
                self.waiting.remove(waiter)

    def wake_one(self) -> None:
        """Wake the thread that has waited longest."""
        if self.waiting:
            with contextlib.suppress(IndexError):
                self.waiting.popleft().release()

    def wake_all(self) -> None:
        """Wake them all."""
        while self.waiting:
            self.wake_one()


class Flag:
    """Something that becomes true once; threads may wait for it. `up`: it has become true."""

    __slots__ = ("_waiters", "up")

    def __init__(self) -> None:
        self.up = False
        self._waiters = Waiters()

    def set(self) -> None:
        """Make it true."""
        self.up = True
        self._waiters.wake_all()

    def wait(self, seconds: float) -> bool:
        """Wait that long for it at the most; whether it is true."""
        if not self.up:
            self._waiters.wait(lambda: self.up, seconds)
        return self.up
