"""Signals reach the command and what it has started; whatever happens to `run`, none is left."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios

import pytest

from quorlock import Redlock
from tests.harness.support.pids import children, is_gone
from tests.harness.support.wait import until
from tests.servers.cli.command import PATIENCE
from tests.servers.cli.run.conftest import PATIENT, Runner, events

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


@pytest.mark.parametrize("name", NAMES)
def test_it_is_passed_on_once(name: str, run: Runner) -> None:
    number = signal.Signals[name]
    held = run.patient("x")
    held.send(number)
    assert until(lambda: run.log("got"), PATIENCE)
    assert held.process.poll() is None
    held.send(signal.SIGTERM if number != signal.SIGTERM else signal.SIGINT)
    assert until(lambda: len(run.log("got")) == 2, PATIENCE)
    assert run.log("got")[0][0] == number


@pytest.mark.parametrize("name", NAMES)
def test_the_status_shows_the_signal_and_grandchildren_get_it_too(name: str, run: Runner) -> None:
    number = signal.Signals[name]
    # The shell waits for the second program; both are to die. Not before they run: between its fork
    # and its exec dash loses a SIGINT, without us as well (3 of 7 times when aimed at it), and what
    # it starts with `&` does not ignore it yet.
    program = "/bin/sh -c 'echo runs; exec sleep 1000 >&- 2>&-'"
    held = run.start("x", "-c", f"{program} & echo $!; echo $$; {program}; exit 5")
    assert held.process.stdout is not None
    lines = [held.process.stdout.readline().strip() for _ in range(4)]
    assert lines.count("runs") == 2
    pids = [int(line) for line in lines if line != "runs"]
    held.send(number)
    assert held.end().returncode == 128 + number
    # INT and QUIT are ignored by what a shell starts with `&`.
    spared = pids[0] if number in (signal.SIGINT, signal.SIGQUIT) else None
    assert until(
        lambda: [pid for pid in pids if not is_gone(pid)] == ([spared] if spared else []), PATIENCE
    )
    if spared:
        os.kill(spared, signal.SIGKILL)
    assert not run.keys_stay()


def test_signals_that_we_ignore_are_ignored_by_the_command_too(run: Runner) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        held = run.patient("x")
    finally:
        signal.signal(signal.SIGHUP, before)
    held.send(signal.SIGHUP)
    held.send(signal.SIGTERM)
    assert until(lambda: run.log("got"), PATIENCE)
    assert [int(line[0]) for line in run.log("got")] == [signal.SIGTERM]
    assert held.process.poll() is None


def test_an_ignored_sigchld_loses_no_status(run: Runner) -> None:
    """A supervisor that ignores SIGCHLD starts `run`. The command gets the default."""
    check = "import signal, sys; sys.exit(7 if not signal.getsignal(signal.SIGCHLD) else 8)"
    words = ("x", "--once-per", "1h", "--", sys.executable, "-c", check)
    for _ in range(2):  # the first did not succeed, and is not kept as done
        done = run(*words, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        assert (done.returncode, done.stderr) == (7, "")


def test_many_ctrl_c_end_neither_us_nor_the_release(run: Runner) -> None:
    held = run.patient("x")
    for times in (1, 2, 3):
        held.send(signal.SIGINT)
        assert until(lambda: len(run.log("got")) >= times, PATIENCE)  # noqa: B023 (called before the next)
    # Stopped now, so that the last one arrives before it has seen the end of the command.
    os.kill(held.pid, signal.SIGSTOP)
    for pid in reversed(run.pids()):
        os.kill(pid, signal.SIGKILL)
    held.send(signal.SIGINT)
    os.kill(held.pid, signal.SIGCONT)
    assert held.end().returncode == 128 + signal.SIGKILL
    assert not run.keys_stay()


SIGNALLED_AT_EXIT = """
import atexit, os, signal, sys
atexit.register(os.kill, os.getpid(), signal.SIGTERM)
from quorlock.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_at_exit_does_not_change_the_status(number: int, run: Runner) -> None:
    held = run.patient("x", does="obey", program=SIGNALLED_AT_EXIT)
    held.send(number)
    assert held.end().returncode == 0


def test_nor_does_it_after_a_wait_that_a_signal_ended(run: Runner, redlock: Redlock) -> None:
    with redlock.lock("x"):
        waiting = run.start("x", "-v", "--", "true", program=SIGNALLED_AT_EXIT)
        assert waiting.process.stderr is not None
        waiting.process.stderr.readline()  # for whom it waits
        waiting.send(signal.SIGINT)
        assert waiting.end().returncode == 128 + signal.SIGINT


@pytest.mark.parametrize("does", ["", "obey"])
def test_killed_it_leaves_no_command_and_the_lock_frees_itself(does: str, run: Runner) -> None:
    held = run.patient("x", "--ttl", "2s", does=does)
    held.send(signal.SIGKILL)
    with Redlock(run.nodes.urls, max_ttl=30.0) as redlock:
        lease = redlock.lock("x", timeout=30.0).acquire()
        left = [pid for pid in run.pids() if not is_gone(pid)]
        lease.release()
    assert left == []
    # TERM came first, and so an obedient command has ended.
    assert [int(line[0]) for line in run.log("got")] == [signal.SIGTERM]
    assert bool(run.log("end")) == (does == "obey")


def test_stopped_it_is_no_holder_and_its_command_is_dead_in_time(run: Runner) -> None:
    """Ctrl-Z or a debugger stops renewal, and only the supervisor checks the clock."""
    held = run.patient("x", "--ttl", "2s")
    held.send(signal.SIGSTOP)
    with Redlock(run.nodes.urls, max_ttl=30.0) as redlock:
        redlock.lock("x", timeout=30.0).acquire().release()
        left = [pid for pid in run.pids() if not is_gone(pid)]
    assert left == []
    held.send(signal.SIGCONT)
    assert held.end().returncode == 79


def test_with_its_guard_killed_the_command_dies(run: Runner) -> None:
    held = run.patient("x")
    (guard,) = children(held.pid)
    os.kill(guard, signal.SIGKILL)
    assert held.end().returncode == 128 + signal.SIGKILL
    assert until(lambda: all(is_gone(pid) for pid in run.pids()), PATIENCE)
    assert not run.keys_stay()


def test_a_guard_that_is_stopped_is_continued(run: Runner) -> None:
    """Otherwise the command would outlive the lease, and `run` would wait for ever for the
    supervisor.
    """
    held = run.patient("x", "--json", "--ttl", "5s")
    (guard,) = children(held.pid)
    os.kill(guard, signal.SIGSTOP)
    for node in run.nodes[:3]:
        node.stop()
    done = held.end()
    assert done.returncode == 79
    assert run.log("alive")[-1][0] < events(done)["ended"]["valid_until"]


# --- on a terminal ---------------------------------------------------------------------------


class Terminal:
    """`run` in the foreground of a terminal, whose other end is in this process."""

    def __init__(self, run: Runner, *arguments: str, program: str | None = None) -> None:
        self.end, other = os.openpty()
        self.run = run.start(
            *arguments,
            program=program,
            stdin=other,
            start_new_session=False,
            preexec_fn=lambda: control(other),
        )
        os.close(other)

    def type(self, text: bytes) -> None:
        os.write(self.end, text)


def control(terminal: int) -> None:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def test_on_a_terminal_ctrl_c_comes_once_and_a_signal_to_us_as_well(run: Runner) -> None:
    terminal = Terminal(run, "x", "--", sys.executable, str(PATIENT), "")
    assert until(lambda: run.log("begun"), PATIENCE)
    terminal.type(b"\x03")
    assert until(lambda: run.log("got"), PATIENCE)
    terminal.run.send(signal.SIGTERM)
    assert until(lambda: len(run.log("got")) == 2, PATIENCE)
    terminal.run.send(signal.SIGINT)  # not by the terminal: the command did not get it
    assert until(lambda: len(run.log("got")) == 3, PATIENCE)
    numbers = [int(line[0]) for line in run.log("got")]
    assert numbers == [signal.SIGINT, signal.SIGTERM, signal.SIGINT]
    for pid in reversed(run.pids()):
        os.kill(pid, signal.SIGKILL)
    assert terminal.run.end().returncode == 128 + signal.SIGKILL
    os.close(terminal.end)


# Python in another session and group, as setsid(1) starts a program.
APART = "import os, sys; os.setsid(); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


@pytest.mark.parametrize("depth", ["the command", "its child"])
def test_ctrl_c_reaches_what_has_left_the_group_of_the_terminal(depth: str, run: Runner) -> None:
    """timeout(1) leaves it. Without us it gets no Ctrl-C, and could not be ended by one."""
    words = [sys.executable, "-c", APART, str(PATIENT), ""]
    if depth == "its child":
        words = ["sh", "-c", 'trap : INT; "$@"; exit', "sh", *words]
    terminal = Terminal(run, "x", "--", *words)
    assert until(lambda: run.log("begun"), PATIENCE)
    terminal.type(b"\x03")
    assert until(lambda: run.log("got"), PATIENCE)
    terminal.run.send(signal.SIGTERM)
    assert until(lambda: len(run.log("got")) == 2, PATIENCE)
    assert [int(line[0]) for line in run.log("got")] == [signal.SIGINT, signal.SIGTERM]
    for pid in reversed(run.pids()):
        os.kill(pid, signal.SIGKILL)
    terminal.run.end()
    assert not run.keys_stay()
    os.close(terminal.end)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1"])
def test_on_a_terminal_a_signal_to_us_and_the_guard_reaches_the_command(
    name: str, run: Runner
) -> None:
    """`pkill quorlock`: it does not find the command, which has another name."""
    number = signal.Signals[name]
    terminal = Terminal(run, "x", "--", sys.executable, str(PATIENT), "")
    assert until(lambda: run.log("begun"), PATIENCE)
    (guard,) = children(terminal.run.pid)
    os.kill(guard, number)
    terminal.run.send(number)
    assert until(lambda: run.log("got"), PATIENCE)
    assert {int(line[0]) for line in run.log("got")} == {number}
    for pid in reversed(run.pids()):
        os.kill(pid, signal.SIGKILL)
    assert terminal.run.end().returncode == 128 + signal.SIGKILL
    assert not run.keys_stay()
    os.close(terminal.end)


# The guard gets its Ctrl-C after the lock was granted, and before the command is started.
EARLY = """\
import os, signal, sys
from quorlock._cli.main import main
from quorlock._cli.run.child import Child
start = Child.start
def start_after_ctrl_c(child, environment, valid_until):
    os.kill(child._guard, signal.SIGINT)
    start(child, environment, valid_until)
Child.start = start_after_ctrl_c
sys.exit(main())
"""


def test_on_a_terminal_an_early_ctrl_c_reaches_the_command(run: Runner) -> None:
    """The terminal has not sent it to the command, so `run` forwards it later."""
    terminal = Terminal(run, "x", "--", sys.executable, str(PATIENT), "obey", program=EARLY)
    assert until(lambda: run.log("begun"), PATIENCE)
    terminal.run.send(signal.SIGINT)
    assert terminal.run.end().returncode == 0
    assert [int(line[0]) for line in run.log("got")] == [signal.SIGINT]
    assert not run.keys_stay()
    os.close(terminal.end)


def test_on_a_terminal_the_command_reads_from_it(run: Runner) -> None:
    terminal = Terminal(run, "x", "-c", "read word; echo got $word")
    terminal.type(b"hello\n")
    assert terminal.run.end().stdout == "got hello\n"
    os.close(terminal.end)


def test_on_a_terminal_all_are_dead_in_time_too(run: Runner) -> None:
    """The command on a terminal shares our process group, which cannot be killed as a whole."""
    arguments = ("x", "--ttl", "5s", "--no-renew", "--", sys.executable, str(PATIENT), "")
    terminal = Terminal(run, *arguments)
    assert terminal.run.end().returncode == 79
    assert len(run.pids()) == 2
    assert [pid for pid in run.pids() if not is_gone(pid)] == []
    os.close(terminal.end)
