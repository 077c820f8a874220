"""The command and what it has started, as far as signals reach: its process group, or, on a
terminal, where it shares ours, itself and its descendants. Leaves when to signal to the guard.
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

_PR_SET_PDEATHSIG = 1


class Family:
    """A command that runs, and its descendants.

    It dies with the thread that started it (Linux): start it from one that lives as long as it may.
    grouped: give it a process group of its own.  Raises OSError if it cannot be run.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, grouped: bool
    ) -> None:
        self._grouped = grouped
        self._known: dict[int, int] = {}
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
        return status if status is None or status >= 0 else EX_SIGNAL - status

    def send(self, number: int) -> None:
        """Signal all of them; also those that are left of it when the command itself is gone."""
        if self._grouped:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)
        elif hasattr(os, "pidfd_open"):
            self._send_each(number)
        else:
            self._process.send_signal(number)

    def forget(self) -> None:
        """Close what we know the descendants by."""
        while self._known:
            os.close(self._known.popitem()[1])

    def _send_each(self, number: int) -> None:
        # By descriptors: a descendant that has ended leaves its number to others.
        for pid in _descendants(self.pid) if self._process.returncode is None else ():
            if pid not in self._known:
                with suppress(OSError):
                    self._known[pid] = os.pidfd_open(pid)
        for descriptor in self._known.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)


def _descendants(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread may end while we look
            for child in children.read_text().split():
                yield from _descendants(int(child))


def _die_with(parent: int) -> Callable[[], None] | None:
    """What the child does before it becomes the command."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: the child is to do little

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # gone before we asked to be told
            os.kill(os.getpid(), signal.SIGKILL)

    return die_with_parent
