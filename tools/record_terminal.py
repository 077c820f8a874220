"""A terminal under program control: a shell in a separate tmux server.

This module stops the server and everything that runs in it. Its callers type and read the screen.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from tools.record_svg import Size

PROMPT = "$ "
END_TIMEOUT = 5.0  # seconds for its processes to end after SIGHUP
_CONFIG = """\
set -g status off
set -g default-terminal screen-256color
set -s escape-time 0
"""
_BASHRC = r"PS1='\[\e[1;32m\]$\[\e[0m\] '"


class Missing(Exception):
    """A required program is not installed."""


class Screen(NamedTuple):
    """The contents of the screen, as in `record_svg.Frame`."""

    text: str
    cursor: tuple[int, int] | None


class Terminal:
    """One terminal.

    Args:
        folder: for the server's socket; the home and the working directory of the shell.
        size: columns and rows.
    """

    def __init__(self, folder: Path, size: Size) -> None:
        for program in ("tmux", "bash"):
            if shutil.which(program) is None:
                raise Missing(f"{program} is not installed: a recording is made in it")
        self._size = size
        self._folder = folder
        self.environment = _environment(folder)
        self._tmux = ["tmux", "-u", "-S", str(folder / "tmux"), "-f", str(folder / "tmux.conf")]
        self._pids: list[int] = []  # of the server and the shell

    def __enter__(self) -> Self:
        (self._folder / "tmux.conf").write_text(_CONFIG)
        (self._folder / "bashrc").write_text(_BASHRC)
        size = ("-x", str(self._size.columns), "-y", str(self._size.rows))
        try:
            self._ask("new-session", "-d", *size, "exec bash --noprofile --rcfile bashrc")
            output = self._ask("display-message", "-p", "#{pid} #{pane_pid}")
            self._pids = [int(pid) for pid in output.split()]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)
        if self._pids:
            _end(*self._pids)

    def type(self, text: str) -> None:
        """Type a text."""
        # tmux takes a semicolon at the end for a command separator.
        self._ask("send-keys", "-l", "--", re.sub(";$", r"\\;", text))

    def press(self, key: str) -> None:
        """Press a key, given by tmux's name."""
        self._ask("send-keys", key)

    def screen(self) -> Screen:
        """Return the screen once two captures in sequence are equal."""
        seen = self._look()
        for _ in range(5):
            before, seen = seen, self._look()
            if before == seen:
                break
        return seen

    def _look(self) -> Screen:
        where = "#{cursor_flag} #{cursor_x} #{cursor_y}"
        output = self._ask("capture-pane", "-e", "-p", ";", "display-message", "-p", where)
        text, _, last = output.rstrip("\n").rpartition("\n")
        is_shown, column, row = map(int, last.split())
        return Screen(text, (column, row) if is_shown else None)

    def is_waiting(self) -> bool:
        """Return whether the shell waits for a command."""
        cursor = self._look().cursor
        if cursor is None or cursor[0] != len(PROMPT):
            return False
        rows = self._ask("capture-pane", "-p").splitlines()
        return rows[cursor[1]].rstrip() == PROMPT.rstrip()

    def _ask(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words],
            env=self.environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,  # Ctrl-C reaches only this process, which ends the others
        )
        if done.returncode:
            raise RuntimeError(f"tmux {words[0]}: {done.stderr.strip()}")
        return done.stdout


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a new user, with the PATH of this process."""
    here = Path(sys.executable).parent
    return {
        "PATH": f"{here}:{os.environ['PATH']}",
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder),
        "HISTFILE": "/dev/null",
        "LANG": "C.UTF-8",
        "TERM": "screen-256color",
    }


def _end(server: int, shell: int) -> None:
    """Wait for the server and the shell's session to end; kill them after the timeout."""
    deadline = time.monotonic() + END_TIMEOUT
    while left := [pid for pid in _pids() if pid == server or _session(pid) == shell]:
        if time.monotonic() > deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _pids() -> list[int]:
    """Return all process ids."""
    listing = subprocess.run(["ps", "-eo", "pid="], capture_output=True, text=True, check=True)
    return [int(pid) for pid in listing.stdout.split()]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None
