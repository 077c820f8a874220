"""`run` and its guard are paused (a freeze, a suspend) before the guard starts the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from quorlock._cli import exit_status

if TYPE_CHECKING:
    from quorlock import Redlock
    from tests.servers.cli.command import Shell

# `quorlock`, with its guard stopped before it is sent the order to start. `run` continues it.
PAUSED = """\
import os, signal, sys
from quorlock._cli.main import main
from quorlock._cli.run.child import Child
start = Child.start
def start_while_stopped(child, environment, valid_until):
    os.kill(child._guard, signal.SIGSTOP)
    os.waitpid(child._guard, os.WUNTRACED)
    {}
Child.start = start_while_stopped
sys.exit(main())
"""
BOTH = "start(child, environment, valid_until); os.kill(os.getpid(), signal.SIGSTOP)"
RENEWED = "start(child, environment, 0.0); child.until(valid_until)"


def begin(shell: Shell, program: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, "run", "x", *words, "--", "echo", "runs"],
        env=shell.environment(),
        cwd=shell.home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("mode", ["term", "kill", "warn"])
def test_after_the_end_of_the_lease_the_command_is_not_started(
    mode: str, shell: Shell, redlock: Redlock
) -> None:
    """Another client has the lock when they continue."""
    with begin(shell, PAUSED.format(BOTH), "--ttl", "2s", "--on-lost", mode) as paused:
        try:
            _, status = os.waitpid(paused.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            with redlock.lock("x", timeout=30.0):
                paused.send_signal(signal.SIGCONT)
                said, complained = paused.communicate()
        finally:
            paused.kill()
    assert (paused.returncode, said) == (exit_status.EX_LOST, "")
    assert complained == (
        "quorlock run: the command was not started: the lease was over, or almost\n"
    )


def test_a_late_guard_starts_the_command_of_a_lease_that_was_renewed(shell: Shell) -> None:
    with begin(shell, PAUSED.format(RENEWED)) as late:
        assert (*late.communicate(), late.returncode) == ("runs\n", "", 0)
