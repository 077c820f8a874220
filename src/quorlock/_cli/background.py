"""Calls in background threads, which the main thread awaits and which signals may interrupt.

concurrent.futures is not used: an exception that a signal raises during its wait leaves a lock
taken. Then the thread that delivers the result waits for ever, and so does the exit of the
interpreter. Every wait has a timeout: the kernel may deliver a signal to any thread, which does not
wake the main thread, and only the main thread runs Python's signal handlers.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

_BEAT = 0.1  # seconds


class BackgroundCall(Generic[R]):
    """One call in a daemon thread."""

    def __init__(self, call: Callable[[], R]) -> None:
        self._call = call
        self._given: list[R] = []
        self._raised: list[BaseException] = []
        self._done = threading.Lock()  # raw: signals are checked before and after, not within
        self._done.acquire()
        # Raw, because threading waits for the start with locks that an interruption may leave
        # taken.
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self._given.append(self._call())
        except BaseException as error:  # noqa: BLE001 (`result` raises it)
            self._raised.append(error)
        finally:
            self._done.release()

    def wait(self) -> None:
        """Wait until the call has ended."""
        while not (self._given or self._raised):
            self._done.acquire(timeout=_BEAT)

    def result(self) -> R:
        """Wait for the call and return its result, or raise its exception."""
        self.wait()
        if self._raised:
            raise self._raised[0]
        return self._given[0]


def run_all(call: Callable[[I], R], things: Sequence[I]) -> list[R]:
    """Call the function for all items concurrently. Raise the first item's exception, if any."""
    works = [BackgroundCall(partial(call, thing)) for thing in things]
    return [work.result() for work in works]
