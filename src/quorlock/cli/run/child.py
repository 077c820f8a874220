"""The command as `run` sees it: started, told of signals and of the lease, seen to its end, all by
way of a guard (`guard.py`). Leaves the lock to `run`.

The guard is a fork of ours, made before any other thread exists: locks that other threads hold
would stay taken in it.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from errno import ENOENT
from typing import TYPE_CHECKING, NamedTuple, Self

from quorlock.cli.exits import EX_CANNOT_RUN, EX_NOT_FOUND, EX_OSERR, EX_SIGNAL, Failed
from quorlock.cli.run.channel import Channel
from quorlock.cli.run.guard import Guard, Orders
from quorlock.cli.run.signals import Signals, held_back

if TYPE_CHECKING:
    from collections.abc import Mapping


class Ended(NamedTuple):
    """The command is gone. status: as a shell says it.  in_time: not on account of the lease."""

    status: int
    in_time: bool


class Child:
    """The guard, and the command once it is started. Leaving `with`, neither is left.

    valid_until: when the command is to be dead, as the guard was told last.
    """

    def __init__(self, orders: Orders) -> None:
        self._command = orders.command[0]
        self.valid_until = 0.0
        self._pid = 0
        self._orders = orders
        self._channel, other = Channel.pair()
        sys.stdout.flush()  # or both would write what is in it
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
            self.wake()  # it has to see that
            os.waitpid(self._guard, 0)
            self._guard = 0

    def fileno(self) -> int:
        """For `select`: there is something to hear."""
        return self._channel.fileno()

    def start(self, environment: Mapping[str, str], valid_until: float) -> None:
        """Run the command, which is to be dead by then."""
        self.valid_until = valid_until
        self._channel.say("start", dict(environment), valid_until)

    def until(self, valid_until: float) -> None:
        """The lease goes on until then."""
        if valid_until != self.valid_until:
            self.valid_until = valid_until
            self._channel.say("until", valid_until)

    def signal(self, number: int) -> None:
        """Pass it on to the command and what it has started."""
        self._channel.say("signal", number)

    def end(self) -> None:
        """The lease is gone before its time: end the command now."""
        self._channel.say("end")

    def wake(self) -> None:
        """Let the guard go on if somebody has stopped it: it watches the clock."""
        os.kill(self._guard, signal.SIGCONT)

    def hear(self) -> Ended | None:
        """What there is to hear; None: it goes on. Raises Failed."""
        for word, *facts in self._channel.hear():
            if word == "failed":
                raise self._failed(*facts)
            if word == "ended":
                status, late = facts
                return Ended(status, in_time=not late)
            (self._pid,) = facts
        return self._killed() if self._channel.closed else None

    def _failed(self, errno: int, why: str) -> Failed:
        status = EX_NOT_FOUND if errno == ENOENT else EX_CANNOT_RUN
        return Failed(status, f"cannot run {self._command!r}: {why}")

    def _killed(self) -> Ended:
        # The guard was killed. On Linux the command was with it; elsewhere, and for what it has
        # started, this is all that can be done.
        if self._pid and self._orders.grouped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        return Ended(EX_SIGNAL + signal.SIGKILL, in_time=True)


def _fork() -> int:
    try:
        return os.fork()
    except OSError as error:
        why = str(error.strerror)
    raise Failed(EX_OSERR, f"cannot start a process: {why}")


def _be_guard(orders: Orders, channel: Channel, mask: set[int]) -> None:
    status = 1
    try:
        # Ctrl-Z does not stop it, nor that the command reads in the terminal's background: who
        # watches the clock goes on when all others stand.
        if orders.grouped:
            os.setpgid(0, 0)  # what is sent to the group of `run` is for `run` to pass on
        stops = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
        with Signals(signal.SIGCHLD, *stops) as signals:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            Guard(orders, channel, signals).work()
        status = 0
    except BaseException as error:  # noqa: BLE001 (nothing may come out, to the frames of `run`)
        sys.excepthook(type(error), error, error.__traceback__)
    os._exit(status)
