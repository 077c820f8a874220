"""Faults inside a process of the traffic: no threads, and signals.

SIGUSR1: for a moment no thread can be started, as with a limit of processes or memory. SIGUSR2: a
signal handler runs in the main thread, in the middle of the library. It raises, or it calls the
library: it releases the lease that is held there, or closes a Redlock. In a process of tasks it
does nothing, since it could not await.

A handler raises only if the library was called by `faces.call`: a worker's own code between its
calls is not tested.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

NO_THREADS, STRIKE = signal.SIGUSR1, signal.SIGUSR2
NO_THREAD = "can't start new thread"
_LASTS = 0.7  # seconds without threads
_HERE = str(Path(__file__).parent)
_LIBRARY = f"{Path('src', 'quorlock')}/"


class Struck(Exception):
    """A signal handler has raised it."""


class Threads:
    """Lets no thread be started for a moment after `refuse`."""

    def __init__(self) -> None:
        self._until = 0.0
        for module in (threading, _thread):
            for name in ("_start_new_thread", "start_new_thread", "_start_joinable_thread"):
                if hasattr(module, name):
                    setattr(module, name, self._guarded(getattr(module, name)))

    def refuse(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Refuse threads for a moment; a signal handler."""
        self._until = time.monotonic() + _LASTS

    def _guarded(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def start_or_not(*args: Any, **kwargs: Any) -> Any:
            if time.monotonic() < self._until:
                raise RuntimeError(NO_THREAD)
            return start(*args, **kwargs)

        return start_or_not


def is_in_the_library(frame: FrameType | None) -> bool:
    """Return whether the signal has interrupted a worker's call into the library."""
    called = False
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__":
            return False  # what comes out of there is lost, whatever it is
        if code.co_filename.startswith(_HERE):
            return called and code.co_name in ("call", "entered")
        called = called or _LIBRARY in code.co_filename
        frame = frame.f_back
    return False


def install(threads: Threads, struck: Callable[[FrameType | None], None]) -> None:
    """Install the handlers, in the main thread."""
    signal.signal(NO_THREADS, threads.refuse)
    signal.signal(STRIKE, lambda _number, frame: struck(frame))


def uninstall() -> None:
    """The process is about to end: nothing befalls it any more."""
    signal.signal(NO_THREADS, signal.SIG_IGN)
    signal.signal(STRIKE, signal.SIG_IGN)
