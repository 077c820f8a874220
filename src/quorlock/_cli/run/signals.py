"""The signals that `run` forwards.

While `run` waits for the lock, they end the wait. Later they are bytes in a pipe, which can
be awaited together with other sources.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

from quorlock._cli.exit_status import Interrupted

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FORWARDED = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """A context manager in which the forwarded signals and `others` have no direct effect.

    Signals that were ignored at the start stay ignored (nohup, `&` in a script). After one that
    means an end, all of these are ignored for good, as after `exit_status.interruptible`: the next
    must not cut short what the exit has to do, nor change the status.
    """

    def __init__(self, *others: signal.Signals) -> None:
        caught = [*FORWARDED, *others]
        self._caught = [s for s in caught if signal.getsignal(s) is not signal.SIG_IGN]
        self._raising = False
        self._is_ending = False

    def __enter__(self) -> Self:
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        # C code writes the bytes when the signal arrives, before any Python code runs.
        self._woken_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._note) for number in self._caught}
        return self

    def __exit__(self, *_: object) -> None:
        self._raising = False
        self.taken()
        for number, handler in self._before.items():
            is_over = self._is_ending and number in _ENDING
            signal.signal(number, signal.SIG_IGN if is_over else handler)
        signal.set_wakeup_fd(self._woken_before)
        for end in self._pipe:
            os.close(end)

    def fileno(self) -> int:
        return self._pipe[0]

    def taken(self) -> list[int]:
        """Return the signals since the last call, in their order."""
        numbers: list[int] = []
        with suppress(BlockingIOError):
            numbers += os.read(self._pipe[0], 4096)
        self._is_ending |= any(number in _ENDING for number in numbers)
        return numbers

    @contextmanager
    def raising(self) -> Generator[None]:
        """Raise the first signal that means an end as Interrupted, and drop the others."""
        self._raising = True
        try:
            for number in self.taken():  # from before the wait
                self._note(number, None)
            yield
            self.taken()
        finally:
            self._raising = False

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._raising and number in _ENDING:
            self._raising = False
            raise Interrupted(number)


def means_an_end(number: int) -> bool:
    """Return whether this is INT, TERM, HUP or QUIT."""
    return number in _ENDING


@contextmanager
def held_back() -> Generator[set[int]]:
    """Block the forwarded signals, so that a forked process can set its handlers first.

    Yield the earlier mask.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        yield {*before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
