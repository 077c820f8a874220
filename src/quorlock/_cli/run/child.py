"""The command as `run` sees it: started, signalled and awaited by way of a guard (`guard.py`).

The guard is forked before any other thread exists: a lock that another thread holds would stay
taken in it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from errno import EAGAIN, EMFILE, ENFILE, ENOENT, ENOMEM
from typing import NamedTuple, Self

from quorlock._cli.exit_status import (
    EX_CANNOT_RUN,
    EX_LOST,
    EX_NOT_FOUND,
    EX_OSERR,
    EX_SIGNAL,
    Failed,
)
from quorlock._cli.run.channel import Channel
from quorlock._cli.run.guard import LeaseGuard, Orders
from quorlock._cli.run.signals import Signals, held_back

_STATUSES = {ENOENT: EX_NOT_FOUND, **dict.fromkeys((EAGAIN, EMFILE, ENFILE, ENOMEM), EX_OSERR)}


class ChildEnded(NamedTuple):
    """The end of the command."""

    status: int  # as a shell reports it
    in_time: bool  # the lease did not end it


class Child:
    """The guard and, once it is started, the command. Both are gone after the `with` block.

    valid_until: the deadline that the guard was last sent; the command must be dead by then.
    pid: the command's; 0 before it is started.
    """

    def __init__(self, orders: Orders) -> None:
        self._command = orders.command[0]
        self.valid_until: float = 0.0
        self.pid: int = 0
        self._orders = orders
        self._channel, other = Channel.pair()
        # Where SIGCHLD is ignored, statuses are lost. The command gets the default, too.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.stdout.flush()  # or both would write its content
        with held_back() as mask:
            self._guard = _fork()
            if self._guard == 0:
                self._channel.close()
                _be_guard(orders, other, mask)
        other.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the command if it still runs, and the guard."""
        self._channel.close()
        if self._guard:
            self.wake()  # it has to notice
            os.waitpid(self._guard, 0)
            self._guard = 0

    def fileno(self) -> int:
        return self._channel.fileno()

    def start(self, environment: Mapping[str, str], valid_until: float) -> None:
        """Start the command, which must be dead by this deadline."""
        self.valid_until = valid_until
        self._channel.send("start", dict(environment), valid_until)

    def until(self, valid_until: float) -> None:
        """Extend the deadline."""
        if valid_until != self.valid_until:
            self.valid_until = valid_until
            self._channel.send("until", valid_until)

    def signal(self, number: int) -> None:
        """Forward a signal to the command and its descendants."""
        self._channel.send("signal", number)

    def end(self) -> None:
        """End the command now: the lease ended early."""
        self._channel.send("end")

    def wake(self) -> None:
        """Continue the guard if it was stopped: it must watch the clock."""
        os.kill(self._guard, signal.SIGCONT)

    def receive(self) -> ChildEnded | None:
        """Return how the command ended, or None if it has not. Raise Failed."""
        for word, *facts in self._channel.receive():
            if word == "failed":
                raise self._failed(*facts)
            if word == "expired":
                raise Failed(EX_LOST, "the command was not started: the lease was over, or almost")
            if word == "ended":
                status, late = facts
                return ChildEnded(status, in_time=not late)
            (self.pid,) = facts
        return self._killed() if self._channel.closed else None

    def _failed(self, errno: int, why: str) -> Failed:
        status = _STATUSES.get(errno, EX_CANNOT_RUN)
        return Failed(status, f"cannot run {self._command!r}: {why}")

    def _killed(self) -> ChildEnded:
        # The guard was killed. On Linux its death also kills the command. Elsewhere, and for the
        # command's descendants, this is all that can be done.
        if self.pid and self._orders.grouped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return ChildEnded(EX_SIGNAL + signal.SIGKILL, in_time=True)


def _fork() -> int:
    try:
        return os.fork()
    except OSError as error:
        why = str(error.strerror)
    raise Failed(EX_OSERR, f"cannot start a process: {why}")


def _be_guard(orders: Orders, channel: Channel, mask: set[int]) -> None:
    status = 1
    try:
        # Neither Ctrl-Z nor reading from a background terminal stops this group: the guard watches
        # the clock even if all others are stopped.
        if orders.grouped:
            os.setpgid(0, 0)  # `run` forwards the signals that its group gets
        stops = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
        with Signals(signal.SIGCHLD, *stops) as signals:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            LeaseGuard(orders, channel, signals).work()
        status = 0
    except BaseException as error:  # noqa: BLE001 (nothing may come out, to the frames of `run`)
        sys.excepthook(type(error), error, error.__traceback__)
    os._exit(status)
