"""Attacks on `quorlock run` and other commands, or careless use: closed or full streams, commands
that try to escape, terminals that stop them, no home.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorlock._cli import config, exit_status
from quorlock.testing.servers import Servers
from tests.harness.support.pids import is_gone, states
from tests.harness.support.wait import until
from tests.servers.cli.command import COMMAND, PATIENCE, keys_stay
from tests.servers.cli.terminal import PROMPT, Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.cli.command import Shell

QUORLOCK = " ".join(COMMAND)


def sh(script: str, shell: Shell) -> tuple[int, str, str]:
    """Status, stdout and stderr of a script."""
    done = subprocess.run(
        ["sh", "-c", script],
        env=shell.environment(),
        cwd=shell.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


# --- streams ---------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_with_streams_closed_the_command_runs(closed: str, shell: Shell, nodes: Servers) -> None:
    """And finds them closed, or as good as: what it writes there goes nowhere, least to a node."""
    words = f"run x -v -c 'echo hello; echo hello >&2; cat; echo done > said; exit 3' {closed}"
    status, said, complained = sh(f"{QUORLOCK} {words}", shell)
    assert status == 3
    assert (shell.home / "said").read_text() == "done\n"
    assert (said == "") == (">&-" in closed.split())
    assert (complained == "") == ("2>&-" in closed)
    assert "Traceback" not in complained
    assert not keys_stay(nodes)


@pytest.mark.parametrize("full", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("-v -c 'exit 3'", 3),
        ("--json -c 'exit 3'", 3),
        ("--ttl 1s --no-renew -- sleep 60", exit_status.EX_LOST),
        ("-n --nodes redis://127.0.0.1:1 -- true", exit_status.EX_UNAVAILABLE),
        ("--nonesuch", exit_status.EX_USAGE),
        ("-v -- ./nothing", exit_status.EX_NOT_FOUND),
    ],
)
def test_what_cannot_be_said_changes_nothing(
    words: str, status: int, full: str, shell: Shell, nodes: Servers
) -> None:
    """A log on a full disk, say."""
    assert sh(f"{QUORLOCK} run x {words} {full}", shell)[0] == status
    assert not keys_stay(nodes)


@pytest.mark.parametrize("option", ["-v", "--json"])
def test_what_nobody_reads_stops_nothing(option: str, shell: Shell, nodes: Servers) -> None:
    """A pipe that is full, as of a collector of logs that hangs: also while `run` waits."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    token = shell.answer("acquire", "x", "--ttl", "30s")
    words = [*COMMAND, "run", "x", option, "-c", "echo ran; exit 3"]
    with subprocess.Popen(
        words, env=shell.environment(), stdout=subprocess.PIPE, stderr=writer, text=True
    ) as run:
        try:
            assert until(lambda: "1 waits" in shell.answer("status", "x"), PATIENCE)
            shell.answer("release", "x", "--token", token)
            assert run.communicate(timeout=PATIENCE)[0] == "ran\n"
            assert run.returncode == 3
        finally:
            run.kill()
            os.close(reader)
            os.close(writer)
    assert not keys_stay(nodes)


@pytest.mark.parametrize("full", ["2>/dev/full", "2>&-"])
def test_a_holder_that_cannot_be_shown_is_broken_all_the_same(
    full: str, shell: Shell, nodes: Servers
) -> None:
    shell.answer("acquire", "x")
    status, said, _ = sh(f"{QUORLOCK} break x --yes {full}", shell)
    assert (status, said.partition("\n")[0]) == (0, "'x': free")
    assert not keys_stay(nodes)


@pytest.mark.parametrize("nowhere", [">&-", ">/dev/full"])
def test_a_lock_whose_token_cannot_be_printed_is_released(
    nowhere: str, shell: Shell, nodes: Servers
) -> None:
    status, _, complained = sh(f"{QUORLOCK} acquire x {nowhere}", shell)
    assert status == exit_status.EX_IOERR
    assert "Traceback" not in complained
    assert not keys_stay(nodes)


# --- getting away ----------------------------------------------------------------------------


class Fugitive:
    """A program with an unusual name, which writes its pid and never ends."""

    def __init__(self, home: Path) -> None:
        self.path = home / "fugitive"
        self.path.write_text(
            "#!/bin/sh\necho $PPID > parent\necho $$ >> pids\nwhile :; do sleep 0.01; done\n"
        )
        self.path.chmod(0o755)
        self._pids, self._parent = home / "pids", home / "parent"

    def pids(self) -> list[int]:
        with suppress(FileNotFoundError):
            return [int(line) for line in self._pids.read_text().splitlines()]
        return []

    def is_awaited(self) -> bool:
        """Return whether it runs and its parent sleeps until it ends.

        timeout(1) of coreutils 9.1 does not pass a signal on that comes just after it has forked.
        """
        return bool(self.pids()) and states(int(self._parent.read_text())) == ["S"]


@pytest.fixture
def fugitive(shell: Shell) -> Iterator[Fugitive]:
    it = Fugitive(shell.home)
    yield it
    for pid in it.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


COUNTER = """\
import os, pathlib, signal, time
got = os.open("got", os.O_WRONLY | os.O_CREAT)
signal.signal(signal.SIGINT, lambda *_: os.write(got, b"."))
pathlib.Path("pids").touch()
while not os.path.exists("go"):
    time.sleep(0.01)
"""
WAYS_OUT = {
    "timeout": "timeout 60 ./fugitive; true",
    "setsid": "setsid ./fugitive; true",
    "a daemon": "(setsid ./fugitive > /dev/null 2>&1 &) ; while :; do sleep 1; done",
    "ignoring": "trap '' TERM INT HUP; setsid ./fugitive; true",
    "job control": "set -m; ./fugitive & wait",
}
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="there are no orphans to adopt")


@needs_linux
@pytest.mark.parametrize("way", WAYS_OUT)
def test_none_gets_away_when_the_lease_is_over(
    way: str, shell: Shell, fugitive: Fugitive, nodes: Servers
) -> None:
    """The command tries another process group, another session or another parent."""
    done = shell.run("run", "x", "--ttl", "1s", "--no-renew", "-c", WAYS_OUT[way])
    left = [pid for pid in fugitive.pids() if not is_gone(pid)]
    assert (done.returncode, left) == (exit_status.EX_LOST, [])
    assert fugitive.pids()
    assert not keys_stay(nodes)


@needs_linux
@pytest.mark.parametrize("way", ["timeout", "setsid", "a daemon", "job control"])
def test_none_gets_away_when_run_is_killed(way: str, shell: Shell, fugitive: Fugitive) -> None:
    with shell.start("run", "x", "--ttl", "1s", "-c", WAYS_OUT[way]) as running:
        assert until(fugitive.pids, PATIENCE)
        running.kill()
    assert until(lambda: all(is_gone(pid) for pid in fugitive.pids()), PATIENCE)


@needs_linux
@pytest.mark.parametrize("way", ["timeout", "setsid", "job control"])
def test_a_signal_that_is_passed_on_reaches_another_group(
    way: str, shell: Shell, fugitive: Fugitive
) -> None:
    """The shell dies of it, and so would leave the other behind without a lock."""
    with shell.start("run", "x", "-c", WAYS_OUT[way]) as running:
        assert until(fugitive.is_awaited, PATIENCE)
        running.terminate()
    assert until(lambda: all(is_gone(pid) for pid in fugitive.pids()), PATIENCE)


@needs_linux
def test_a_signal_comes_once_to_the_command_of_a_run_in_a_run(shell: Shell) -> None:
    """Many commands that get a signal twice give up at once and leave their work half done."""
    (shell.home / "counter").write_text(COUNTER)
    urls = shell.variables["QUORLOCK_NODES"].split(",")
    (shell.home / "quorlock.toml").write_text(f"nodes = {urls}")
    script = f"trap : INT; {QUORLOCK} run y -- {sys.executable} counter; true"
    got, go = shell.home / "got", shell.home / "go"
    with shell.start("run", "x", "-c", script) as running:
        assert until((shell.home / "pids").exists, PATIENCE)
        for sent in (1, 2, 3):
            running.send_signal(signal.SIGINT)
            assert until(lambda: got.stat().st_size >= sent, PATIENCE)  # noqa: B023 (called before the next)
        go.touch()
    assert got.read_text() == "..."


@needs_linux
def test_what_made_itself_independent_outlives_a_command_that_ends(
    shell: Shell, fugitive: Fugitive
) -> None:
    """A daemon that was started under the lock is not a part of the work."""
    script = "setsid ./fugitive > /dev/null 2>&1 & while ! [ -e pids ]; do sleep 0.01; done"
    assert shell.run("run", "x", "-c", script).returncode == 0
    assert not any(is_gone(pid) for pid in fugitive.pids())


@needs_linux
def test_orphans_are_buried_while_the_command_runs(shell: Shell) -> None:
    """A command that runs for months may leave many; process 1 does the same."""
    script = "for i in 1 2 3 4 5 6 7 8 9; do (sh -c 'echo $$ >> pids' &); done; cat"
    with subprocess.Popen(
        [*COMMAND, "run", "x", "-c", script],
        env=shell.environment(),
        cwd=shell.home,
        stdin=subprocess.PIPE,
    ) as running:
        pids = shell.home / "pids"
        assert until(lambda: pids.exists() and len(pids.read_text().split()) == 9, PATIENCE)
        assert until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.read_text().split()),
            PATIENCE,
        )
        running.communicate()
    assert running.returncode == 0


MAY_NOT_KILL = ["setpriv", "--bounding-set", "-kill"]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, and setpriv"
)
def test_a_command_that_became_another_user_is_waited_for(shell: Shell, nodes: Servers) -> None:
    """A command under sudo may not be signalled, and the status is 79 in the end."""
    become = "setpriv --reuid 12345 --clear-groups sh -c 'sleep 2'"
    script = f"{' '.join(MAY_NOT_KILL)} {QUORLOCK} run x --ttl 1s --no-renew -- {become}"
    status, _, complained = sh(script, shell)
    assert status == exit_status.EX_LOST
    assert "Traceback" not in complained
    assert not keys_stay(nodes)


# --- a terminal ------------------------------------------------------------------------------

READER = "echo $$ >> pids; read line; echo got $line"


@pytest.fixture
def bash(shell: Shell) -> Iterator[Terminal]:
    """One with job control."""
    (shell.home / "reader").write_text(f"{READER}\n")
    with Terminal("bash", shell.home, shell.environment()) as terminal:
        yield terminal


def pids(shell: Shell) -> list[int]:
    file = shell.home / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def test_ctrl_z_and_fg(bash: Terminal, shell: Shell) -> None:
    """The command continues, if the lease is still held."""
    bash.type(f"{QUORLOCK} run x -- sh reader\r")
    assert until(lambda: pids(shell), PATIENCE)
    bash.type("\x1a")
    bash.await_text("Stopped")
    bash.await_text(PROMPT, times=2)  # what is typed before it may be lost
    bash.type("   fg; echo status=$?\r")  # it may lose the first while it sets up the terminal
    bash.await_text("sh reader", times=3)
    bash.type("hello\r")
    bash.await_text("got hello")
    bash.await_text("status=0")


@pytest.mark.parametrize("how", ["Ctrl-Z", "reading in the background"])
def test_stopped_for_longer_than_the_lease_it_is_dead_by_then(
    how: str, bash: Terminal, shell: Shell
) -> None:
    """A terminal stops a job as a whole; the guard is not stopped, and does what it is for."""
    end = " &" if how != "Ctrl-Z" else ""
    bash.type(f"{QUORLOCK} run x --ttl 1s -- sh reader{end}\r")
    assert until(lambda: pids(shell), PATIENCE)
    if how == "Ctrl-Z":
        bash.type("\x1a")
    assert until(lambda: all(is_gone(pid) for pid in pids(shell)), PATIENCE)
    bash.await_text(PROMPT, times=2)
    bash.type("   fg; echo status=$?\r")  # it may lose the first while it sets up the terminal
    bash.await_text(f"status={exit_status.EX_LOST}")


def test_too_few_descriptors_are_said_so(shell: Shell, nodes: Servers) -> None:
    """The error names the command or the nodes that failed because of it."""
    status, said, complained = sh(f"ulimit -n 10; {QUORLOCK} run x -- echo ran", shell)
    assert (status, said) in [(exit_status.EX_OSERR, ""), (exit_status.EX_UNAVAILABLE, "")]
    assert "too many open files" in complained.lower()
    assert "Traceback" not in complained
    assert not keys_stay(nodes)


def test_so_are_too_few_threads(shell: Shell, nodes: Servers) -> None:
    """Renewal has none: the command is not started, and the lock is released."""
    (shell.home / "sitecustomize.py").write_text(NO_RENEWAL)
    path = f"{shell.home}:{shell.environment()['PYTHONPATH']}"
    done = shell.run("run", "x", "--", "echo", "ran", given={"PYTHONPATH": path})
    assert (done.returncode, done.stdout) == (exit_status.EX_OSERR, "")
    assert "can't start new thread" in done.stderr
    assert "Traceback" not in done.stderr
    assert not keys_stay(nodes)


NO_RENEWAL = """\
import _thread
start = _thread.start_new_thread
def refuse(function, *arguments):
    if "renewal" in getattr(getattr(function, "__self__", None), "name", ""):
        raise RuntimeError("can't start new thread")
    return start(function, *arguments)
_thread.start_new_thread = refuse
"""


@pytest.mark.parametrize("name", ["EAGAIN", "ENOMEM"])
def test_so_is_a_process_that_cannot_be_had(name: str, shell: Shell, nodes: Servers) -> None:
    """The command was found, and can be run once there are fewer processes."""
    (shell.home / "sitecustomize.py").write_text(NO_PROCESS)
    path = f"{shell.home}:{shell.environment()['PYTHONPATH']}"
    done = shell.run("run", "x", "--", "echo", "ran", given={"PYTHONPATH": path, "REASON": name})
    assert (done.returncode, done.stdout) == (exit_status.EX_OSERR, "")
    assert "cannot run 'echo'" in done.stderr
    assert not keys_stay(nodes)


NO_PROCESS = """\
import errno, os, subprocess
def refuse(*_, **__):
    number = getattr(errno, os.environ["REASON"])
    raise OSError(number, os.strerror(number))
subprocess.Popen = refuse
"""


def test_there_may_be_many_descriptors(shell: Shell, nodes: Servers) -> None:
    """Inherited ones: those of `run` and of its guard have numbers above 1,023."""
    words = ("run", "x", "--min-hold", "0.3", "-c", "echo ran; exit 3")
    done = subprocess.run(
        [sys.executable, "-c", MANY_DESCRIPTORS, *COMMAND, *words],
        env=shell.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "ran\n", "")
    assert not keys_stay(nodes)


MANY_DESCRIPTORS = """\
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
for descriptor in range(3, 1100):
    os.dup2(0, descriptor)
os.execv(sys.argv[1], sys.argv[1:])
"""


# --- places ----------------------------------------------------------------------------------


def test_there_need_be_no_home(bare_shell: Shell) -> None:
    """The user has no name either, as in containers."""
    unnamed = ["unshare", "--user", f"--map-user={2**16 - 7}"]
    if not may(unnamed):
        pytest.skip("no such user can be had here")
    environment = bare_shell.environment()
    del environment["HOME"]
    done = subprocess.run(
        [*unnamed, *COMMAND, "status", "x"],
        env=environment,
        cwd=bare_shell.home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (exit_status.EX_CONFIG, "")
    assert "no nodes are named" in done.stderr
    assert "Traceback" not in done.stderr


def may(words: list[str]) -> bool:
    with suppress(OSError):
        return subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return False


def test_a_run_in_a_run_learns_where_its_nodes_went(shell: Shell, locked_nodes: Servers) -> None:
    """QUORLOCK_NODES is handed on, unless a URL has a password; a file's name always is."""
    inner = [*COMMAND, "run", "y", "--", "echo", "inner"]
    assert shell.answer("run", "x", "--", *inner) == "inner"
    given = {"QUORLOCK_NODES": ",".join(locked_nodes.urls), "QUORLOCK_CONFIG": ""}
    done = shell.run("run", "x", "--", *inner, given=given)
    assert done.returncode == exit_status.EX_CONFIG
    assert "removes QUORLOCK_NODES from its command's environment" in done.stderr
    urls = shell.variables["QUORLOCK_NODES"].split(",")
    (shell.home / "nodes.toml").write_text(f"nodes = {urls}")
    given = {"QUORLOCK_NODES": "", "QUORLOCK_CONFIG": "nodes.toml"}
    assert shell.answer("run", "x", "--", *inner, given=given) == "inner"


@pytest.fixture
def locked_nodes() -> Iterator[Servers]:
    with Servers(1, password="canary-s3cret") as servers:
        yield servers


@pytest.mark.parametrize(
    ("nodes", "is_kept"),
    [
        ("local", True),
        ("redis://a,redis://b:7", True),
        ("redis://user:@a", True),
        ("redis://a,redis://:secret@b", False),
        ("redis://a?password=secret", False),
        ("redis://user@a", False),
        ("no url, secret", False),
        ("", True),
    ],
)
def test_nodes_without_a_password_are_handed_on(
    nodes: str, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORLOCK_NODES", nodes)
    assert ("QUORLOCK_NODES" not in config.secret_variables()) == is_kept


NAMES = {"no UTF-8": "a\udcff", "newline": "a\nb", "not ASCII": "é☃", "spaces": " "}


@pytest.mark.parametrize("name", NAMES)
def test_names_come_through(name: str, shell: Shell) -> None:
    script = 'printf %s "$QUORLOCK_RESOURCE$1"'
    words = [*COMMAND, "run", NAMES[name], "-v", "--", "sh", "-c", script, "sh", NAMES[name]]
    for locale in ("C", "C.UTF-8"):
        environment = shell.environment({"LC_ALL": locale, "PYTHONCOERCECLOCALE": "0"})
        done = subprocess.run(words, env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, os.fsencode(NAMES[name]) * 2)
        assert b"Traceback" not in done.stderr


VARIABLES = {
    "PYTHONWARNINGS": "error",
    "PYTHONOPTIMIZE": "2",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDEVMODE": "1",
    "PYTHONIOENCODING": "ascii",
    "PYTHONSTARTUP": "/nowhere",
    "PYTHONSAFEPATH": "1",
    "PYTHONTRACEMALLOC": "1",
}


@pytest.mark.parametrize("name", VARIABLES)
def test_what_is_set_for_python_changes_nothing(name: str, shell: Shell) -> None:
    """The variables are meant for the command, if that is Python too, and reach it."""
    given = {name: VARIABLES[name]}
    words = ("run", "é", "-v", "-c", f'test "${name}" = "{VARIABLES[name]}"')
    done = shell.run(*words, given=given)
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 2)
    assert shell.run("run", "--help", given=given).stdout.startswith("Usage: quorlock run")


def test_much_passes_through(shell: Shell) -> None:
    """Output that is never held; an environment and arguments as large as the kernel allows."""
    script = f"{QUORLOCK} run x -c 'head -c 50000000 /dev/zero' | wc -c"
    assert sh(script, shell)[1].strip() == "50000000"
    many = ["a" * 1000] * 100
    given = {f"BIG{n}": "b" * 100_000 for n in range(4)}
    done = shell.run("run", "x", "--", "sh", "-c", "echo $# ${#BIG3}", "sh", *many, given=given)
    assert done.stdout == "100 100000\n"


def test_a_reader_who_leaves_ends_the_command(shell: Shell) -> None:
    """`… | head -1`: the command gets the SIGPIPE that it would get without us."""
    status, said, complained = sh(f"({QUORLOCK} run x -- yes; echo $? >&2) | head -1", shell)
    assert (status, said, complained) == (0, "y\n", f"{128 + signal.SIGPIPE}\n")


def test_from_xargs_they_take_turns(shell: Shell) -> None:
    turn = "mkdir inside && rmdir inside && echo {}"
    script = f"seq 6 | xargs -P 3 -I{{}} {QUORLOCK} run x -c '{turn}'"
    status, said, complained = sh(script, shell)
    assert (status, sorted(said.split()), complained) == (0, list("123456"), "")


def test_under_timeout_it_passes_term_on(shell: Shell, nodes: Servers) -> None:
    status, _, complained = sh(f"timeout 1 {QUORLOCK} run x -- sleep 1000", shell)
    assert (status, complained) == (124, "")
    assert not keys_stay(nodes)
