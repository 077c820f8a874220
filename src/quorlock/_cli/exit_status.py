"""Exit statuses, and the one place that turns an error into a message on stderr and a status."""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quorlock import errors
from quorlock._cli.stdio import say

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType
    from typing import TextIO

# The numbers and names of sysexits.h, which `os` defines on some systems only. 79 is the first that
# sysexits.h leaves free.
EX_USAGE = 64
EX_UNAVAILABLE = 69  # no quorum of nodes works, perhaps for a while; or something is not installed
EX_OSERR = 71  # too few descriptors, threads, processes, too little memory
EX_TEMPFAIL = 75  # held by another: try again later
EX_IOERR = 74  # the output cannot be written
EX_NOPERM = 77
EX_CONFIG = 78
EX_LOST = 79  # the lease is over
# The statuses that shells use.
EX_CANNOT_RUN = 126
EX_NOT_FOUND = 127
EX_SIGNAL = 128  # plus the signal's number

_STATUSES = {
    # `config` checks the settings and raises Failed. A ConfigError that remains concerns an
    # argument of this command, or the nodes.
    errors.ConfigError: EX_USAGE,
    errors.AcquireTimeout: EX_TEMPFAIL,
    errors.QuorumUnreachable: EX_UNAVAILABLE,
    errors.LeaseLost: EX_LOST,
    errors.HoldLimitReached: EX_LOST,
    OSError: EX_IOERR,  # after AcquireTimeout, which is a TimeoutError and so an OSError
}
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Failed(Exception):
    """An error that ends the command: the exit status, the reason, and a hint what to do."""

    def __init__(self, status: int, why: str, hint: str = "") -> None:
        super().__init__(f"{why}\nhint: {hint}" if hint else why)
        self.status = status


class Interrupted(KeyboardInterrupt):
    """INT, TERM or HUP, as an exception. Cleanup for Ctrl-C runs for all three."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def interruptible() -> Generator[None]:
    """Raise the first INT, TERM or HUP as `Interrupted`, and ignore later ones for good.

    Cleanup takes a bounded time, also at the exit of the interpreter. A second exception during it
    would leave behind what the first one was to release. If Python swallows the first one (in a
    `__del__` or a weak reference's callback), the next counts as the first. A signal that is
    ignored at the start (nohup) stays ignored.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    taken = [number for number in numbers if before[number] is not signal.SIG_IGN]
    raised: list[weakref.ref[Interrupted]] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        # No other handler is set here: CPython complains about a signal that is already pending.
        if not (raised and raised[-1]()):
            raise noted(Interrupted(number))

    def noted(error: Interrupted) -> Interrupted:
        raised.append(weakref.ref(error))  # no variable here keeps it alive
        return error

    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            if signal.getsignal(number) is interrupt:
                signal.signal(number, signal.SIG_IGN if raised else before[number])


def report_error(command: str | None, error: BaseException) -> int:
    """Write the reason why the command ends to stderr, and return its exit status.

    An interruption writes nothing, nor does a broken pipe (`quorlock ... | head`).
    """
    if isinstance(error, OSError) and not isinstance(error, errors.QuorlockError):
        is_closed = error.errno == errno.EIO and _is_closed_terminal(sys.stdout)
        _shut(sys.stdout)
        if is_closed:
            error = Interrupted(signal.SIGHUP)  # which is sent too, a moment before or after
    if not isinstance(error, (KeyboardInterrupt, BrokenPipeError)):
        say(f"{' '.join(filter(None, ('quorlock', command)))}: {error}\n")
    return status_of(error)


def status_of(error: BaseException) -> int:
    """Return the exit status of an error of the library, or of an interruption."""
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
    """Return the exit status of an error that concerns the nodes, else None."""
    if isinstance(error, errors.NodeError):
        if any(vote.code is errors.VoteCode.ACCESS_DENIED for vote in error.votes):
            return EX_NOPERM
        # Loading, busy, out of memory: the nodes may work at the next try.
        stays = any(vote.code.is_permanent for vote in error.votes)
        return EX_CONFIG if stays else EX_UNAVAILABLE
    # Detected when connecting: the same server twice, other settings on a node.
    is_about = isinstance(error, errors.ConfigError) and error.argument.startswith("nodes")
    return EX_CONFIG if is_about else None


def is_scarcity(error: BaseException) -> bool:
    """Return whether the operating system refused a resource.

    Python has no exception class for a thread that cannot be started.
    """
    if isinstance(error, errors.QuorlockError) and error.__cause__ is not None:
        return is_scarcity(error.__cause__)
    if isinstance(error, RuntimeError):
        return "start new thread" in str(error)
    return isinstance(error, OSError) and error.errno in _SCARCE


def _is_closed_terminal(stream: TextIO) -> bool:
    return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode) and not stream.isatty()


def _shut(stream: TextIO) -> None:
    """Discard unwritten output, so that the exit of the interpreter does not try it again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
