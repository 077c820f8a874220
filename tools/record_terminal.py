"""A terminal that nobody sits at: a shell in a tmux server of its own. Owns that server and what
runs in it, to their end; leaves to others what is typed and when it is looked at.
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
END_TIMEOUT = 5.0  # seconds, for what runs in it to end when it is hung up on
_CONFIG = """\
set -g status off
set -g default-terminal screen-256color
set -s escape-time 0
"""
_BASHRC = r"PS1='\[\e[1;32m\]$\[\e[0m\] '"


class Missing(Exception):
    """A program that is needed is not there."""


class Screen(NamedTuple):
    """What is to be seen: see record_svg.Frame."""

    text: str
    cursor: tuple[int, int] | None


class Terminal:
    """See the module. `folder` is for its socket, and the home and the working directory of the
    shell.
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
            told = self._ask("display-message", "-p", "#{pid} #{pane_pid}")
            self._pids = [int(pid) for pid in told.split()]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)
        if self._pids:
            _end(*self._pids)

    def type(self, text: str) -> None:
        """As from the keyboard."""
        # A semicolon at the end would be tmux's own.
        self._ask("send-keys", "-l", "--", re.sub(";$", r"\\;", text))

    def press(self, key: str) -> None:
        """A key by tmux's name for it."""
        self._ask("send-keys", key)

    def screen(self) -> Screen:
        """What it shows now. A picture that is being drawn is looked at again."""
        seen = self._look()
        for _ in range(5):
            before, seen = seen, self._look()
            if before == seen:
                break
        return seen

    def _look(self) -> Screen:
        where = "#{cursor_flag} #{cursor_x} #{cursor_y}"
        told = self._ask("capture-pane", "-e", "-p", ";", "display-message", "-p", where)
        text, _, last = told.rstrip("\n").rpartition("\n")
        is_shown, column, row = map(int, last.split())
        return Screen(text, (column, row) if is_shown else None)

    def is_waiting(self) -> bool:
        """Does the shell wait for a command?"""
        cursor = self._look().cursor
        if cursor is None or cursor[0] != len(PROMPT):
            return False
        told = self._ask("capture-pane", "-p").splitlines()
        return told[cursor[1]].rstrip() == PROMPT.rstrip()

    def _ask(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words],
            env=self.environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,  # Ctrl-C is for us, who then end what there is
        )
        if done.returncode:
            raise RuntimeError(f"tmux {words[0]}: {done.stderr.strip()}")
        return done.stdout


def _environment(folder: Path) -> dict[str, str]:
    """A new user's: nothing of ours but where programs are."""
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
    """They were hung up on; what does not mind is killed: the server, and the shell's session."""
    deadline = time.monotonic() + END_TIMEOUT
    while left := [pid for pid in _pids() if pid == server or _session(pid) == shell]:
        if time.monotonic() > deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _pids() -> list[int]:
    """All there are."""
    told = subprocess.run(["ps", "-eo", "pid="], capture_output=True, text=True, check=True)
    return [int(pid) for pid in told.stdout.split()]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None
