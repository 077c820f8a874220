"""`quorlock top` on the alternate screen: keys, signals, and the terminal afterwards."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from tests.servers.cli import terminal as shells
from tests.servers.cli.live import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from quorlock.testing.servers import Servers
    from tests.servers.cli.command import Shell

# No turn comes in the time of a test: what is drawn is drawn for a key or a signal.
RARELY = ("--interval", "60s")
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
SHOWN = ("5 up, quorum 3", "nothing is held")
LOCAL_MODES = 3  # in termios.tcgetattr


def top(shell: Shell, *, columns: int = 80) -> Terminal:
    return Terminal(shell, "top", *RARELY, columns=columns, keyboard=True)


def assert_restored(terminal: Terminal) -> None:
    """The last output leaves the alternate screen, and the attributes are those before."""
    assert terminal.shown.count(ENTER) == terminal.shown.count(LEAVE) == 1
    assert terminal.shown.endswith(LEAVE)
    assert termios.tcgetattr(terminal.end) == terminal.attributes


def rows(shown: str) -> list[str]:
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_q_ends_it(columns: int, shell: Shell, nodes: Servers) -> None:
    """No line is wider than the terminal, which is as before at the end."""
    with top(shell, columns=columns) as terminal:
        assert max(map(len, rows(terminal.until(*SHOWN)))) <= columns
        modes = termios.tcgetattr(terminal.end)[LOCAL_MODES]
        assert not modes & (termios.ECHO | termios.ICANON)
        assert modes & termios.ISIG, "Ctrl-C and Ctrl-Z are the terminal's"
        terminal.type("q")
        terminal.ended(0)
        assert_restored(terminal)


def test_other_keys_do_nothing(shell: Shell, nodes: Servers) -> None:
    """No key is echoed, and an arrow key, which begins with Escape, does not end it."""
    with top(shell) as terminal:
        terminal.until(*SHOWN)
        terminal.type("xyz\x1b[A\n")
        terminal.resize(81)
        assert "xyz" not in terminal.until("nothing is held")
        terminal.type("Q")
        assert "xyz" not in terminal.ended(0)


@pytest.mark.parametrize("key", [True, False])
def test_ctrl_c_ends_it(key: bool, shell: Shell, nodes: Servers) -> None:
    """Nothing is left on the normal screen: no picture, no message."""
    with top(shell) as terminal:
        terminal.until(*SHOWN)
        if key:
            terminal.type("\x03")
            terminal.ended(130)
        else:
            terminal.interrupt()
        assert_restored(terminal)


def test_term_ends_it(shell: Shell, nodes: Servers) -> None:
    with top(shell) as terminal:
        terminal.until(*SHOWN)
        terminal.process.send_signal(signal.SIGTERM)
        terminal.ended(143)
        assert_restored(terminal)


def test_a_closed_terminal_ends_it(shell: Shell, nodes: Servers) -> None:
    """The process does not stay behind (SIGHUP)."""
    with top(shell) as terminal:
        terminal.until(*SHOWN)
        os.close(terminal.end)
        terminal.end = os.open(os.devnull, os.O_RDONLY)
        assert terminal.process.wait(20) == 129


def test_it_is_drawn_again_for_another_size(shell: Shell, nodes: Servers) -> None:
    """The next picture comes at once, fitted to the new width."""
    with top(shell, columns=120) as terminal:
        terminal.until(*SHOWN)
        terminal.resize(60)
        _, _, drawn = terminal.until(*SHOWN).rpartition("\x1b[H")
        assert max(map(len, rows(drawn))) <= 60
        terminal.resize(61)
        terminal.until(*SHOWN)
        assert "Traceback" not in terminal.shown
        terminal.type("q")
        terminal.ended(0)
        assert_restored(terminal)


def test_ctrl_z_gives_the_terminal_to_the_shell(
    tmp_path: Path, shell: Shell, nodes: Servers
) -> None:
    """The shell has the normal screen while `top` is stopped; `fg` draws it again."""
    environment = shell.environment({"TERM": "xterm"})
    with shells.Terminal("bash", tmp_path, environment) as terminal:
        terminal.type(f"{sys.executable} -m quorlock top --interval 60s\n")
        terminal.await_text("nothing is held")
        terminal.type("\x1a")
        terminal.await_text("Stopped")
        assert terminal.screen.count(ENTER) == terminal.screen.count(LEAVE) == 1
        terminal.type("fg\n")
        terminal.await_text("nothing is held", times=2)
        terminal.type("q")
        terminal.await_text(LEAVE, times=2)
        terminal.type("echo still $((40 + 2))\n")
        terminal.await_text("still 42")


CRASH = """
from quorlock._cli.full_screen import FullScreen
with FullScreen():
    raise RuntimeError("crash")
"""


def test_an_exception_leaves_the_terminal_as_it_was(shell: Shell) -> None:
    """The traceback is on the normal screen."""
    program = (sys.executable, "-c", CRASH)
    with Terminal(shell, keyboard=True, program=program) as terminal:
        before, _, after = terminal.ended(1).partition(LEAVE)
        assert ENTER in before
        assert "RuntimeError" in after  # Python 3.13 colours it
        assert "crash" in after
        assert termios.tcgetattr(terminal.end) == terminal.attributes
