"""Commands that keep running: their output is read line by line, or from a terminal."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.servers.cli.command import COMMAND, Shell
from tests.servers.cli.terminal import control

_PATIENCE = 20.0


@contextmanager
def going_on(shell: Shell, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Begin it; ended by Ctrl-C, of which it says nothing."""
    with shell.start(*words) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=_PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said


def lines(process: subprocess.Popen[str], wanted: Callable[[str], bool]) -> list[str]:
    """Return its lines up to the wanted one."""
    assert process.stdout is not None
    found: list[str] = []
    while line := process.stdout.readline():
        found.append(line.removesuffix("\n"))
        if wanted(found[-1]):
            return found
    raise AssertionError(f"it ended: {found}")


class Terminal:
    """A command on a terminal of this size, whose other end is here.

    keyboard: The terminal is also its stdin, and controls it: `type` sends keys.
    """

    def __init__(
        self,
        shell: Shell,
        *words: str,
        rows: int = 24,
        columns: int = 80,
        keyboard: bool = False,
        program: Sequence[str] = COMMAND,
        **given: str,
    ) -> None:
        self.end, other = os.openpty()
        self.resize(columns, rows)
        self.attributes = termios.tcgetattr(self.end)  # as they were before
        environment = shell.environment({"TERM": "xterm", **given})
        for name in ("COLUMNS", "LINES"):  # on a terminal the echo has the input
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [*program, *words],
            env=environment,
            cwd=shell.home,
            stdin=other if keyboard else subprocess.DEVNULL,
            stdout=other,
            stderr=other,
            preexec_fn=(lambda: control(other)) if keyboard else None,  # noqa: PLW1509
        )
        os.close(other)
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.end)

    def until(self, *texts: str) -> str:
        """Return its output when each of these has appeared; reading continues where it stopped."""
        shown, deadline = "", time.monotonic() + _PATIENCE
        while not all(text in shown for text in texts):
            assert time.monotonic() < deadline, shown
            shown += self._read(deadline - time.monotonic())
        return shown

    def resize(self, columns: int, rows: int = 24) -> None:
        """Give the terminal another size."""
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self.end, keys.encode())

    def interrupt(self) -> str:
        """Ctrl-C; what it shows until it has ended, with status 130."""
        self.process.send_signal(signal.SIGINT)
        return self.ended(130)

    def ended(self, status: int) -> str:
        """Return what it shows until it has ended, with this status."""
        shown, deadline = "", time.monotonic() + _PATIENCE
        while self.process.poll() is None:  # a terminal that is not read blocks writers
            assert time.monotonic() < deadline, shown
            shown += self._read(0.02)
        assert self.process.returncode == status, (self.process.returncode, shown)
        return shown + self._read(0)

    def _read(self, seconds: float) -> str:
        if not select.select([self.end], [], [], seconds)[0]:
            return ""
        try:
            text = os.read(self.end, 65_536).decode()
        except OSError:  # no process is left at the other end
            return ""
        self.shown += text
        return text

    @property
    def rows(self) -> list[str]:
        """All lines that were ever drawn, without colours and movements."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown.replace("\x1b[H", "\n"))
        return re.split(r"[\r\n]+", plain)
