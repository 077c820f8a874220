"""A terminal with a shell in it, at which a test types: keys go in, the screen comes out."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import termios
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pytest

from tests.servers.cli.command import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PROMPT = "READY> "

# How each is started with nothing of the system's, and where it reads its set-up in the home.
SHELLS = {
    "bash": (["bash", "--noprofile", "--rcfile", ".rc", "-i"], ".rc", f"PS1='{PROMPT}'"),
    "zsh": (["zsh", "--no-globalrcs", "-i"], ".zshrc", f"PS1='{PROMPT}'; unsetopt prompt_sp"),
    "fish": (
        ["fish", "-i"],
        ".config/fish/config.fish",
        f"function fish_prompt; echo -n '{PROMPT}'; end; set fish_greeting",
    ),
}


class Terminal:
    """One in which a shell has shown its prompt."""

    def __init__(
        self, name: str, home: Path, environment: Mapping[str, str], *, setup: str = ""
    ) -> None:
        if shutil.which(name) is None:
            pytest.skip(f"there is no {name}")
        words, file, prompt = SHELLS[name]
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(f"{setup}\n{prompt}\n")
        self._seen = b""
        self._end, other = os.openpty()
        self._shell = subprocess.Popen(
            words,
            # fish would leave a folder in /tmp.
            env={
                **environment,
                "TERM": "xterm",
                "ZDOTDIR": str(home),
                "XDG_RUNTIME_DIR": str(home),
            },
            cwd=home,
            stdin=other,
            stdout=other,
            stderr=other,
            preexec_fn=lambda: control(other),  # noqa: PLW1509 (it takes no lock)
        )
        os.close(other)

    def __enter__(self) -> Self:
        self.await_text(PROMPT)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._end)  # it hangs up
        try:
            self._shell.wait(PATIENCE)
        finally:
            self._shell.kill()
            self._shell.wait()

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self._end, text.encode())

    def await_text(self, text: str, times: int = 1) -> None:
        """Continue once the text has been on the screen this often."""
        self.await_that(lambda: self.screen.count(text) >= times)

    def await_that(self, is_so: Callable[[], object]) -> None:
        """Look at the screen until it is so."""
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < deadline, self.screen
            if select.select([self._end], [], [], 0.01)[0]:
                with suppress(OSError):
                    self._seen += os.read(self._end, 1 << 16)

    @property
    def screen(self) -> str:
        """All that was shown so far."""
        return self._seen.decode(errors="replace")


def control(terminal: int) -> None:
    """Make it the controlling terminal of this process in a new session, with default signals."""
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
