"""Work in threads of its own, while the main thread waits for it, open to interruptions.

Not by concurrent.futures: what a signal raises inside of its waiting leaves a lock taken, for
which the thread that brings the result waits for ever, and the end of the interpreter for that. And
never without a timeout: a signal may be given to any thread, and then nothing wakes the main one,
which alone runs what Python has to say to it.
"""

from __future__ import annotations

import _thread
import threading
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

_BEAT = 0.1  # seconds


class Work(Generic[R]):
    """One call, begun; it ends with the process at the latest."""

    def __init__(self, call: Callable[[], R]) -> None:
        self._call = call
        self._given: list[R] = []
        self._raised: list[BaseException] = []
        self._done = threading.Lock()  # a raw one is taken and given between two looks for signals
        self._done.acquire()
        # A raw one: threading waits for it to begin, by locks that an interruption may leave taken.
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self._given.append(self._call())
        except BaseException as error:  # noqa: BLE001 (whoever waits gets it)
            self._raised.append(error)
        finally:
            self._done.release()

    def wait(self) -> None:
        """Until it has ended."""
        while not (self._given or self._raised):
            self._done.acquire(timeout=_BEAT)

    def result(self) -> R:
        """What came of it; waits for it. Raises what it raised."""
        self.wait()
        if self._raised:
            raise self._raised[0]
        return self._given[0]


def each(call: Callable[[I], R], things: Sequence[I]) -> list[R]:
    """Call it for all of them at once. Raises what the first of them raised."""
    works = [Work(partial(call, thing)) for thing in things]
    return [work.result() for work in works]
