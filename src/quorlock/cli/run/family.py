"""The command and what it has started, as far as signals reach: its process group, or, on a
terminal, where it shares ours, itself; and those of its descendants that have left that group, as
timeout(1) and setsid(1) do. Leaves when to signal to the guard.

The guard adopts orphans (Linux): a descendant whose parent is gone is a child of the guard, who so
knows it still, and buries it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from quorlock.cli.exits import EX_SIGNAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IS_LINUX = sys.platform == "linux"


class Family:
    """A command that runs, and its descendants.

    It dies with the thread that started it (Linux): start it from one that lives as long as it may.
    grouped: give it a process group of its own.  Raises OSError if it cannot be run.
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
            # What was given to us beyond the first three is meant for the command: none of ours is
            # inherited (PEP 446).
            close_fds=False,
            process_group=0 if grouped else None,
            preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 (the guard has one thread)
        )

    @property
    def pid(self) -> int:
        """Of the command; with a group of its own also that group's."""
        return self._process.pid

    def status(self) -> int | None:
        """How it has ended, as a shell says it; None while it runs."""
        status = self._process.poll()
        if status is None and _IS_LINUX:
            self._bury()
        return status if status is None or status >= 0 else EX_SIGNAL - status

    def pass_on(self, number: int) -> None:
        """Signal the command and what hangs by it; not what has made itself independent."""
        self._send(number, self._tops(self.pid))

    def term(self) -> None:
        """Tell all of them to end, also those who have made themselves independent."""
        self._send(signal.SIGTERM, self._tops(os.getpid()))

    def kill(self) -> None:
        """End all of them; also those that are left when the command is gone."""
        found = {*_descendants(os.getpid())}
        self._send(signal.SIGKILL, found)
        seen = found
        # Whoever has got it starts nothing any more: once no other is found, none is left.
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
        for pid in others:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _is_reached(self, pid: int) -> bool:
        """By what is sent to the command, or its group."""
        if not self._grouped:
            return pid == self.pid
        with suppress(ProcessLookupError):
            return os.getpgid(pid) == self.pid
        return True

    def _tops(self, pid: int) -> Iterator[int]:
        """Whom to tell beside the group: the first of each other group, who tells those after it,
        as timeout(1) and a `run` in a `run` do. Told twice, many a command gives up at once.
        """
        for child in _children(pid):
            if not self._is_reached(child):
                yield child
            if self._is_reached(child) or not self._grouped:
                yield from self._tops(child)

    def _bury(self) -> None:
        # Not the command: Popen asks for it by its number.
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid == self.pid:
                break
            os.waitpid(found.si_pid, 0)


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread may end while we look
            yield from map(int, children.read_text().split())


def _die_with(parent: int) -> Callable[[], None] | None:
    """What the child does before it becomes the command."""
    if not _IS_LINUX:
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: the child is to do little

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # gone before we asked to be told
            os.kill(os.getpid(), signal.SIGKILL)

    return die_with_parent
