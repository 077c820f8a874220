"""How a command ends: the exit statuses, and the one place that makes a sentence on stderr and a
status of whatever ended it early. Leaves the words to the errors.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quorlock import errors
from quorlock.cli.streams import say

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from types import FrameType
    from typing import TextIO

# The numbers and names of sysexits.h, which `os` has on some systems only. 79 is ours: the first
# that sysexits.h leaves free.
EX_USAGE = 64
EX_UNAVAILABLE = 69  # no quorum of nodes answers, or something is not installed
EX_OSERR = 71  # too few descriptors, threads, processes, too little memory
EX_TEMPFAIL = 75  # held by another: try again later
EX_IOERR = 74  # what we are to answer cannot be written
EX_NOPERM = 77
EX_CONFIG = 78
EX_LOST = 79  # the lease is over
# Those of shells.
EX_CANNOT_RUN = 126
EX_NOT_FOUND = 127
EX_SIGNAL = 128  # and the signal's number

_STATUSES = {
    # What is said of the settings is checked in `config`, which fails by itself: what is left was
    # given to this command, or is about the nodes.
    errors.ConfigError: EX_USAGE,
    errors.AcquireTimeout: EX_TEMPFAIL,
    errors.QuorumUnreachable: EX_UNAVAILABLE,
    errors.LeaseLost: EX_LOST,
    errors.HoldLimitReached: EX_LOST,
    OSError: EX_IOERR,  # after AcquireTimeout, which is a TimeoutError and so one of these
}
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# First words of what a server says to whoever may not: wrong login, a right that is missing.
_NOT_PERMITTED = ("NOPERM", "NOAUTH", "WRONGPASS", "DENIED", "(grant ", "permission", "ERR AUTH")


class Failed(Exception):
    """The command cannot go on: the status, and why in a sentence."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Interrupted(KeyboardInterrupt):
    """A signal wants us to end: INT, TERM or HUP. Whatever cleans up after Ctrl-C does for all."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def interruptible() -> Generator[None]:
    """The first INT, TERM or HUP is an `Interrupted`; those after it are ignored, for good.

    What cleans up takes a bounded time, also at the end of the interpreter, and a second exception
    in its midst would leave behind what the first one was to give back. But where Python swallows
    the first (a `__del__`, a callback of a weak reference), the next counts as the first. A signal
    that is ignored when we begin (nohup) stays ignored.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    taken = [number for number in numbers if before[number] is not signal.SIG_IGN]
    raised: list[weakref.ref[Interrupted]] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        # No other handler is set here: of a signal that has come already CPython would complain.
        if not (raised and raised[-1]()):
            raise noted(Interrupted(number))

    def noted(error: Interrupted) -> Interrupted:
        raised.append(weakref.ref(error))  # none of our variables keeps it alive
        return error

    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            if signal.getsignal(number) is interrupt:
                signal.signal(number, signal.SIG_IGN if raised else before[number])


def told(command: str | None, error: BaseException) -> int:
    """Say on stderr why the command ends, and return its status.

    An interruption says nothing, nor does a reader of ours that went away (`quorlock … | head`).
    """
    if isinstance(error, OSError) and not isinstance(error, errors.QuorlockError):
        _shut(sys.stdout)
    if not isinstance(error, (KeyboardInterrupt, BrokenPipeError)):
        say(f"{' '.join(filter(None, ('quorlock', command)))}: {error}\n")
    return status_of(error)


def status_of(error: BaseException) -> int:
    """The exit status that goes with an error of ours, or with an interruption."""
    if isinstance(error, Failed):
        return error.status
    if isinstance(error, KeyboardInterrupt):
        return EX_SIGNAL + getattr(error, "number", signal.SIGINT)
    if isinstance(error, BrokenPipeError):
        return EX_SIGNAL + signal.SIGPIPE
    if is_scarcity(error):
        return EX_OSERR
    if (about_nodes := _status_of_nodes(error)) is not None:
        return about_nodes
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 1)


def _status_of_nodes(error: BaseException) -> int | None:
    """Of an error that says that they are not fit."""
    if isinstance(error, errors.NodeError):
        faults = [vote.cause for vote in error.votes if not vote.fit]
        return EX_NOPERM if is_not_permitted(faults) else EX_CONFIG
    # Found out when connecting: the same server twice, other settings there.
    is_about = isinstance(error, errors.ConfigError) and error.argument.startswith("nodes")
    return EX_CONFIG if is_about else None


def is_scarcity(error: BaseException) -> bool:
    """Did the operating system refuse us something? Python has no class for threads that it did."""
    if isinstance(error, RuntimeError):
        return "start new thread" in str(error)
    return isinstance(error, OSError) and error.errno in _SCARCE


def _shut(stream: TextIO) -> None:
    """What could not be written is not tried again at the end of the interpreter."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def is_not_permitted(faults: Iterable[str]) -> bool:
    """Is one of what the nodes said about a login or a right?"""
    return any(words in fault for fault in faults for words in _NOT_PERMITTED)
