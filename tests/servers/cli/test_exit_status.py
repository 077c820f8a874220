"""The exit statuses of commands, and signals while they wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from quorlock import Redlock, errors
from quorlock._cli import exit_status
from quorlock.testing.servers import Server, Servers
from tests.harness.support.wait import until
from tests.servers.cli.command import COMMAND, Shell, at_a_quorum, at_last

SECRET = "canary-s3cret"


def node_error(*codes: errors.VoteCode) -> errors.NodeError:
    """Return the error of a round in which nodes have voted so."""
    return errors.NodeError("a", [("n", "unknown", "", True, code) for code in codes], 1, 0.1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.AcquireTimeout("a", (), 1, 0.1), 75),
        (errors.QuorumUnreachable("a", (), 1, 0.1), 69),
        (node_error(errors.VoteCode.TRANSIENT_ERROR, errors.VoteCode.NOT_CONNECTED), 69),
        (node_error(errors.VoteCode.CLOCK_SKEW), 69),
        (node_error(errors.VoteCode.TRANSIENT_ERROR, errors.VoteCode.PERMANENT_ERROR), 78),
        (node_error(errors.VoteCode.PROTOCOL_ERROR), 78),
        (node_error(errors.VoteCode.PERMANENT_ERROR, errors.VoteCode.ACCESS_DENIED), 77),
        (errors.LeaseLost("a", "expired"), 79),
        (errors.HoldLimitReached("a", 3.0), 79),
        (errors.ConfigError("ttl", 1, "more"), 64),
        (exit_status.Failed(77, "no"), 77),
        (exit_status.Interrupted(signal.SIGTERM), 143),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (PermissionError(), 74),
    ],
    ids=repr,
)
def test_each_error_has_its_status(error: BaseException, status: int) -> None:
    assert exit_status.status_of(error) == status


@pytest.mark.parametrize("words", ["--help", "status a", "status a --watch"])
def test_a_closed_terminal(words: str, shell: Shell) -> None:
    """The status is 129, without a message, also if the write fails before SIGHUP comes."""
    ours, theirs = os.openpty()
    os.close(ours)
    done = shell.run(*words.split(), capture_output=False, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (129, "")


@pytest.fixture(scope="module")
def locked_up() -> Iterator[Servers]:
    """Three that want a password, and know a user who may do nothing."""
    with Servers(3, password=SECRET) as servers:
        for server in servers:
            server.execute("ACL", "SETUSER", "idle", "on", f">{SECRET}", "~*", "+info")
        yield servers


def addresses(nodes: Servers) -> str:
    """Return the addresses without the password."""
    return ",".join(url.replace(f":{SECRET}@", "") for url in nodes.urls)


def test_refused_rights_are_reported(bare_shell: Shell, locked_up: Servers) -> None:
    """No password, a wrong one, no rights: 77, and no password is quoted."""
    at = ("--nodes", addresses(locked_up))
    assert "NOAUTH" in bare_shell.complaint(exit_status.EX_NOPERM, "acquire", "a", *at)
    done = bare_shell.run("status", "a", *at)
    assert (done.returncode, done.stderr) == (exit_status.EX_NOPERM, "")
    assert done.stdout.count("NOAUTH") == 3
    wrong = {"QUORLOCK_PASSWORD": f"{SECRET}-wrong"}
    said = bare_shell.complaint(exit_status.EX_NOPERM, "acquire", "a", *at, given=wrong)
    assert "WRONGPASS" in said
    assert SECRET not in said
    (bare_shell.home / "quorlock.toml").write_text(
        f"nodes = {addresses(locked_up).split(',')}\nusername = 'idle'\npassword = '{SECRET}'\n"
    )
    said = bare_shell.complaint(exit_status.EX_NOPERM, "acquire", "a")
    assert "+set" in said or "NOPERM" in said
    assert SECRET not in said


def test_a_password_is_on_no_command_line(bare_shell: Shell, locked_up: Servers) -> None:
    """The environment or a descriptor has it, and the login works."""
    at = ("--nodes", addresses(locked_up))
    given = {"QUORLOCK_PASSWORD": SECRET}
    assert bare_shell.answer("status", "a", *at, given=given).startswith("'a': free")
    script = '"$@" && cat'  # the rest of stdin is for what comes after
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, "status", "a", *at, "--password-fd", "0"],
        env=bare_shell.environment(),
        input=f"{SECRET}\r\nthe rest",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("  free\nthe rest")


def test_what_is_to_be_fixed_on_the_nodes(bare_shell: Shell, nodes: Servers) -> None:
    """A key of another type is no question of rights: 78."""
    for node in nodes:
        node.execute("RPUSH", "a", "x")
    at = ("--nodes", ",".join(nodes.urls))
    assert "type" in bare_shell.complaint(exit_status.EX_CONFIG, "acquire", "a", "-w", "0", *at)


def test_an_error_that_may_pass_is_no_matter_of_configuration(shell: Shell, nodes: Servers) -> None:
    """The memory of all nodes is full: 69, and the lock is granted when there is room again."""
    with full_memory(nodes):
        said = shell.complaint(exit_status.EX_UNAVAILABLE, "acquire", "a", "-w", "0")
    assert "OOM" in said
    assert shell.answer("acquire", "a")


def test_an_error_that_stays_decides(shell: Shell, nodes: Servers) -> None:
    """One node that needs a fix is enough, while the memory of the others is full."""
    nodes[0].execute("RPUSH", "a", "x")
    with full_memory(nodes[1:]):
        said = shell.complaint(exit_status.EX_CONFIG, "acquire", "a", "-w", "0")
    assert "OOM" in said
    assert "type" in said


@contextmanager
def full_memory(nodes: Sequence[Server]) -> Generator[None]:
    """Let nodes refuse writes, which may pass."""
    for node in nodes:
        node.execute("CONFIG", "SET", "maxmemory-policy", "noeviction")
        node.execute("CONFIG", "SET", "maxmemory", "1")
    try:
        yield
    finally:
        for node in nodes:
            node.execute("CONFIG", "SET", "maxmemory", "0")


def test_no_quorum(bare_shell: Shell, tmp_path: Path) -> None:
    """No server listens: each node is named with its reason."""
    gone = [f"unix://{tmp_path}/{name}" for name in "abc"]
    said = bare_shell.complaint(69, "acquire", "a", "-w", "0", "--nodes", ",".join(gone))
    assert "0 of 3 nodes answered, 2 are needed" in said


def test_no_nodes(bare_shell: Shell) -> None:
    """And what to do about it."""
    assert "--nodes" in bare_shell.complaint(exit_status.EX_CONFIG, "status", "a")


def test_nothing_at_all_is_help(bare_shell: Shell) -> None:
    assert bare_shell.answer() == bare_shell.answer("--help")
    assert bare_shell.answer("--version").startswith("quorlock, version ")
    assert "no such command 'tea'\n" in bare_shell.complaint(exit_status.EX_USAGE, "tea")


def test_a_misspelt_command_is_reported_with_the_nearest(bare_shell: Shell) -> None:
    said = bare_shell.complaint(exit_status.EX_USAGE, "runn", "x")
    assert said == "quorlock: no such command 'runn'\nhint: did you mean 'run'?\n"


def test_what_is_to_be_run_is_asked_for_before_the_nodes(bare_shell: Shell) -> None:
    said = bare_shell.complaint(exit_status.EX_USAGE, "run", "x")
    assert "the command is missing" in said


def test_without_click_it_says_what_to_install(bare_shell: Shell) -> None:
    """The message has one line."""
    code = (
        "import sys; sys.modules['click'] = None; from quorlock.__main__ import main; exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=bare_shell.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (exit_status.EX_UNAVAILABLE, "")
    assert done.stderr == "quorlock: click is not installed; run: pip install 'quorlock[cli]'\n"


# Ctrl-C at the import of a module, whose name is in the environment.
CTRL_C = """\
import os, signal, sys
def hook(event, facts):
    if event == "import" and facts[0] == os.environ["AT"]:
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(hook)
"""


@pytest.mark.parametrize("module", ["quorlock._cli.main", "quorlock.errors", "click"])
@pytest.mark.parametrize("command", [COMMAND, ("quorlock",)], ids=["module", "script"])
def test_ctrl_c_while_it_is_being_loaded(
    command: Sequence[str], module: str, installed: Shell
) -> None:
    """The signal ends it, without a traceback: a shell shows 130, and ends its script."""
    (installed.home / "sitecustomize.py").write_text(CTRL_C)
    path = f"{installed.home}:{installed.environment()['PYTHONPATH']}"
    done = subprocess.run(
        [*command, "status"],
        env=installed.environment({"PYTHONPATH": path, "AT": module}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


# --- signals ---------------------------------------------------------------------------------

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def asks(nodes: Servers) -> None:
    """Return when a client has tried to acquire at every node."""
    assert until(lambda: all(sets(node.execute("INFO", "commandstats")) for node in nodes), 20)


def sets(stats: bytes) -> bool:
    return b"cmdstat_set:" in stats or b"cmdstat_evalsha:" in stats or b"cmdstat_eval:" in stats


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_wait(number: signal.Signals, shell: Shell, nodes: Servers) -> None:
    """The command ends at once and silently; only the holder's keys are there."""
    with Redlock(nodes.urls, ttl=30) as redlock, redlock.lock("a") as lease:
        for node in nodes:
            node.execute("CONFIG", "RESETSTAT")
        with shell.start("acquire", "a") as waiting:
            asks(nodes)
            waiting.send_signal(number)
            printed = waiting.communicate(timeout=20)
        assert (waiting.returncode, printed) == (128 + number, ("", ""))
        assert at_last(nodes, "a", lease.token)
    assert at_last(nodes, "a", None)


def test_a_second_signal_does_not_cut_short_what_the_first_began(
    shell: Shell, mortal_nodes: Servers
) -> None:
    """A node hangs, so that the end takes its time; the first signal says the status."""
    with Redlock(mortal_nodes.urls, ttl=30) as redlock, redlock.lock("a"):
        for node in mortal_nodes:
            node.execute("CONFIG", "RESETSTAT")
        with shell.start("acquire", "a") as waiting:
            asks(mortal_nodes)
            mortal_nodes[0].stop()
            # On a busy machine two may arrive at once: Python handles the lowest number first.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
                if waiting.poll() is None:
                    waiting.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    waiting.wait(0.02)
            printed = waiting.communicate(timeout=20)
        assert (waiting.returncode, printed) == (130, ("", ""))
        mortal_nodes[0].cont()
    assert at_last(mortal_nodes, "a", None)


def test_two_signals_in_one_instant(shell: Shell, nodes: Servers) -> None:
    """A terminal and a service manager may do so: CPython complains of a handler that changes."""
    with Redlock(nodes.urls, ttl=30) as redlock, redlock.lock("a"):
        for _ in range(5):
            for node in nodes:
                node.execute("CONFIG", "RESETSTAT")
            with shell.start("acquire", "a") as waiting:
                asks(nodes)
                waiting.send_signal(signal.SIGTERM)
                waiting.send_signal(signal.SIGINT)
                assert waiting.communicate(timeout=20) == ("", "")
            assert waiting.returncode in (130, 143)


def test_a_signal_that_python_swallows_is_not_the_last() -> None:
    """An exception in a callback of a weak reference is lost."""

    class Thing:
        pass

    def interrupted_twice() -> None:
        with exit_status.interruptible():
            thing = Thing()
            watcher = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
            del thing
            assert watcher() is None
            assert swallowed == [exit_status.Interrupted]
            os.kill(os.getpid(), signal.SIGHUP)

    swallowed: list[type[BaseException]] = []
    hook = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: swallowed.append(unraisable.exc_type)
    try:
        with pytest.raises(exit_status.Interrupted) as raised:
            interrupted_twice()
    finally:
        sys.unraisablehook = hook
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert exit_status.status_of(raised.value) == exit_status.EX_SIGNAL + signal.SIGHUP


def test_nodes_that_are_not_fit_are_a_matter_of_configuration(
    bare_shell: Shell, nodes: Servers
) -> None:
    """One server under two addresses is detected when connecting."""
    other = bare_shell.home / "other.sock"
    other.symlink_to(str(nodes[0].path))
    urls = [*nodes.urls[:2], f"unix://{other}"]
    bare_shell.variables["QUORLOCK_NODES"] = ",".join(urls)
    complaint = bare_shell.complaint(exit_status.EX_CONFIG, "acquire", "a")
    assert "the same server" in complaint


def test_a_signal_that_is_ignored_stays_ignored(shell: Shell, nodes: Servers) -> None:
    """nohup sets this."""
    with Redlock(nodes.urls, ttl=30) as redlock:
        lease = redlock.lock("a").acquire()
        for node in nodes:
            node.execute("CONFIG", "RESETSTAT")
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            waiting = shell.start("acquire", "a", "-w", "60s")
        finally:
            signal.signal(signal.SIGHUP, before)
        with waiting:
            asks(nodes)
            waiting.send_signal(signal.SIGHUP)
            lease.release()
            token, said = waiting.communicate(timeout=20)
        assert (waiting.returncode, said) == (0, "")
        assert at_a_quorum(nodes, "a", token.strip())
