"""Background threads that exist only while there is work for them.

This module starts, wakes, ends and joins such a thread. The owner supplies the work: a `step` that
performs the due work and returns the instant of its next call.

No lock is taken here, since an interrupted `with lock` can leave the lock taken for good. Every
state is one attribute or one entry of a dict, changed by one call of C. The order of the changes
makes it correct (docs/contributing/decisions/0021-background-threads.md):

- A thread registers itself, from inside. The starting thread may be interrupted, or fail.
- `wake` records that there is work before it checks whether a thread is registered. A thread that
  ends checks that record after it has removed its registration. So one of the two sees the other.
- The caller starts a thread by `_thread` alone. `threading` takes locks for that, and the caller
  may be a signal handler or a finalizer that runs while they are taken.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Protocol

from quorlock._core.time import NS_PER_MS, NS_PER_S, PAST
from quorlock._drivers import fork
from quorlock._drivers.clock import SLEEP_MAX, now
from quorlock._drivers.log import log_trouble
from quorlock._drivers.wait import WaitQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.time import Duration, Instant

# An idle thread ends after this. Starting one takes about 0.1 ms.
LINGER: Duration = 200 * NS_PER_MS
# After an exception, from `step` or while it waits, a thread continues after this delay.
_RETRY_DELAY: Duration = 100 * NS_PER_MS
# A new thread has this long to register itself before another one is started. Without it, every
# call of `wake` until then starts one (1,500 leases collected together: 22 threads).
_STARTING: Duration = 50 * NS_PER_MS
# Threads with work that could not be started.
_refused: dict[BackgroundThread, None] = {}


class Wakeup(Protocol):
    """The object on which a background thread waits, such as a `WaitQueue`."""

    def wait(self, is_so: Callable[[], object], until: Instant) -> None:
        """Return when `is_so()` is true, when woken, or at `until`; earlier is harmless."""
        ...

    def wake_all(self) -> None:
        """Wake the waiting threads; safe from any thread."""
        ...


def start(run: Callable[[], object], name: str) -> None:
    """Start a daemon thread for one call. Raises RuntimeError or MemoryError if that fails."""
    _thread.start_new_thread(_become, (run, name))


def _become(run: Callable[[], object], name: str) -> None:
    """Continue in a named thread that `threading` registers, or in this one if that fails."""
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except BaseException:  # noqa: BLE001 (the work has to be done in any case)
        run()


class BackgroundThread:
    """A daemon thread for one kind of work, started on demand and ended when idle.

    Args:
        name: The name of the thread in `threading.enumerate()`.
        step: Performs the due work, and returns the instant of its next call, or None.
            If it raises, the exception is logged and `step` is called again.
        finish: Is called by the thread before it ends.
        is_overlooked: Is called after the thread has removed its registration. It returns whether
            there is work after all, for work that comes without a call of `wake`.
        linger: How long an idle thread stays.

    `runner` holds the ident of the running thread, and is empty if there is none.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], Instant | None],
        *,
        finish: Callable[[], None] | None = None,
        is_overlooked: Callable[[], bool] | None = None,
        linger: Duration = LINGER,
    ) -> None:
        self.name = name
        self.closing = False
        self.runner: dict[None, int] = {}
        self.wakeup: Wakeup = WaitQueue()
        self._step = step
        self._finish = finish
        self._is_overlooked = is_overlooked
        self._linger = linger
        self._ended = WaitQueue()
        self._woken = False
        self._starting_until: Instant = PAST
        self._generation = fork.generation

    # --- called from any thread --------------------------------------------------------------

    def wake(self) -> None:
        """Have `step` called soon. Raises RuntimeError if no thread runs and none can be started.

        The start is retried then: by the next call, and by any other background thread.
        """
        self._woken = True  # first, by the rules of this module
        self.wakeup.wake_all()
        if not self.runner and now() >= self._starting_until:
            self._start()

    @property
    def is_current(self) -> bool:
        """Return whether the caller runs in this thread."""
        return self.runner.get(None) == threading.get_ident()

    def close(self, until: Instant) -> None:
        """Let the thread end when no work is left, and wait for that until `until`."""
        self.closing = True
        self._woken = True
        self.wakeup.wake_all()
        # `Thread.join` would create and keep a dummy for a thread that `threading` does not know,
        # such as the one that releases a collected lease.
        while self.runner and not self.is_current and now() < until:
            self._ended.wait(lambda: not self.runner, until)

    # --- the thread --------------------------------------------------------------------------

    def _start(self) -> None:
        try:
            self._starting_until = now() + _STARTING
            _thread.start_new_thread(self._begin, ())
        except BaseException as error:
            self._starting_until = PAST
            if not isinstance(error, (RuntimeError, MemoryError)):
                raise  # interrupted by a signal handler
            _refused[self] = None  # too many threads, or at interpreter exit
            raise RuntimeError(str(error) or "can't start new thread") from error

    def _begin(self) -> None:
        if not self.runner:  # else another thread has registered first
            _become(self._run, self.name)

    def _run(self) -> None:
        me = threading.get_ident()
        self._starting_until = PAST
        pause = 0.0
        # False in a child that `step` has forked: this thread ends with its step there.
        while self._generation == fork.generation and self.runner.setdefault(None, me) == me:
            try:
                time.sleep(pause)
                pause = 0.0
                self._work()
            except BaseException as error:  # noqa: BLE001 (other code may raise in any thread)
                self._woken, pause = True, _RETRY_DELAY / NS_PER_S
                log_trouble(f"{self.name} was interrupted, and continues", error)
            finally:
                self.runner.pop(None, None)
                self._ended.wake_all()
            if not (self._woken or (self._is_overlooked and self._is_overlooked())):
                return

    def _work(self) -> None:
        idle_until: Instant | None = None
        while self._generation == fork.generation:
            self._start_refused()
            self._woken = False
            due = self._call_step()
            if due is not None:
                idle_until = None
            else:
                due = idle_until = idle_until or now() + self._linger
                if self.closing or now() >= due:
                    break
            if _refused:
                due = min(due, now() + SLEEP_MAX)
            self.wakeup.wait(lambda: self._woken, due)
        if self._finish is not None:
            with contextlib.suppress(Exception):
                self._finish()

    @staticmethod
    def _start_refused() -> None:
        for thread in list(_refused):
            _refused.pop(thread, None)
            if thread._generation == fork.generation:  # noqa: SLF001 (an instance of this class)
                with contextlib.suppress(RuntimeError):
                    thread.wake()

    def _call_step(self) -> Instant | None:
        try:
            return self._step()
        except BaseException as error:  # noqa: BLE001 (no exception may end the work)
            if self.closing:
                return None
            log_trouble(f"{self.name} failed, and continues", error)
            return now() + _RETRY_DELAY
