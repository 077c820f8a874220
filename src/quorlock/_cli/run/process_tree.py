"""The command and its descendants, as far as signals reach.

Signals go to the command's process group. On a terminal the command shares the group of `run`, and
they go to the command alone. They also go to descendants that have left the group, as timeout(1)
and setsid(1) do. The guard decides when to signal.

On Linux the guard adopts orphans: a descendant without a parent becomes a child of the guard, which
so still knows it, and reaps it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from quorlock._cli.exit_status import EX_SIGNAL

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IS_LINUX = sys.platform == "linux"


class ProcessTree:
    """A running command and its descendants.

    On Linux it dies with the thread that started it, so start it from a thread that outlives it.

        grouped: give it its own process group.

    Raise OSError if it cannot be run.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, grouped: bool
    ) -> None:
        self._grouped = grouped
        if _IS_LINUX:
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._process = subprocess.Popen(
            command,
            env=environment,
            # Descriptors that were inherited beyond the first three are meant for the command.
            # Those opened here are not inherited (PEP 446).
            close_fds=False,
            process_group=0 if grouped else None,
            preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 (the guard has one thread)
        )

    @property
    def pid(self) -> int:
        """Return the command's pid; also its group's, if it has its own."""
        return self._process.pid

    def status(self) -> int | None:
        """Return the exit status as a shell reports it; None while it runs."""
        status = self._process.poll()
        if status is None and _IS_LINUX:
            self._bury()
        return status if status is None or status >= 0 else EX_SIGNAL - status

    def pass_on(self, number: int, *, beyond_group: bool = False) -> None:
        """Signal the command and the descendants that depend on it, but no daemons.

        beyond_group: except those in the group of this process, whom it has reached already.
        """
        if beyond_group:
            _signal_all(number, _outside(os.getpgrp(), [self.pid]))
        else:
            self._send(number, self._tops(self.pid))

    def term(self) -> None:
        """Send TERM to all descendants, daemons too."""
        self._send(signal.SIGTERM, self._tops(os.getpid()))

    def kill(self) -> None:
        """Kill all descendants, also those that outlive the command."""
        found = {*_descendants(os.getpid())}
        self._send(signal.SIGKILL, found)
        seen = found
        # A process that was killed starts no other. If a pass finds none, none is left.
        while found := {*_descendants(os.getpid())} - seen:
            self._send(signal.SIGKILL, found)
            seen |= found

    def _send(self, number: int, pids: Iterable[int]) -> None:
        others = [pid for pid in pids if not self._is_reached(pid)]
        with suppress(ProcessLookupError, PermissionError):  # sudo: it is another user's
            if self._grouped:
                os.killpg(self.pid, number)
            elif self._process.returncode is None:
                os.kill(self.pid, number)
        _signal_all(number, others)

    def _is_reached(self, pid: int) -> bool:
        """Return whether a signal to the command, or its group, reaches this process."""
        if not self._grouped:
            return pid == self.pid
        with suppress(ProcessLookupError):
            return os.getpgid(pid) == self.pid
        return True

    def _tops(self, pid: int) -> Iterator[int]:
        """Return the topmost process of each other group.

        They forward signals to their descendants, as timeout(1) and a nested `run` do. Many a
        command that gets a signal twice gives up at once.
        """
        for child in _children(pid):
            if not self._is_reached(child):
                yield child
            if self._is_reached(child) or not self._grouped:
                yield from self._tops(child)

    def _bury(self) -> None:
        # Not the command: Popen waits for it by its pid.
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid == self.pid:
                break
            os.waitpid(found.si_pid, 0)


def _signal_all(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _outside(group: int, pids: Iterable[int]) -> Iterator[int]:
    """Return the topmost processes, of these and their descendants, that are not in the group."""
    for pid in pids:
        with suppress(ProcessLookupError):
            if os.getpgid(pid) != group:
                yield pid
            else:
                yield from _outside(group, _children(pid))


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> Iterator[int]:
    threads = Path(f"/proc/{pid}/task")
    with suppress(OSError):  # the process may end in between, and so may a thread
        for thread in threads.iterdir():
            with suppress(OSError):
                yield from map(int, (thread / "children").read_text().split())


def _die_with(parent: int) -> Callable[[], None] | None:
    """Return the function that the child runs before exec, so that it dies with its parent."""
    if not _IS_LINUX:
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: the child should do little

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before prctl
            os.kill(os.getpid(), signal.SIGKILL)

    return die_with_parent
