"""`quorlock local`: real servers that outlive the command, one set of them, none left behind."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorlock._cli.exit_status import (
    EX_CONFIG,
    EX_SIGNAL,
    EX_TEMPFAIL,
    EX_UNAVAILABLE,
    EX_USAGE,
    Failed,
)
from quorlock._cli.local import nodes as local_nodes
from quorlock._cli.local.server import LocalServer
from quorlock.testing.servers import ServersUnavailable, converse, find_binary
from tests.harness.support.wait import until
from tests.servers.cli.command import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A place to run commands with separate local nodes, which is empty again at the end."""
    # Not tmp_path: its name is too long for a unix socket.
    state = tempfile.mkdtemp()
    monkeypatch.setenv("XDG_STATE_HOME", state)
    shell = Shell(Path(state))
    shell.variables = {"XDG_STATE_HOME": state, "QUORLOCK_NODES": "local"}
    yield shell
    shell.run("local", "down", "--force")
    left = pids()
    for pid in left.values():
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(state)
    assert left == {}


def pids() -> dict[str, int]:
    """Return the processes that listen at the sockets in the folder, independently of the
    command.
    """
    place = local_nodes.folder()
    found = {path.name: LocalServer(place, int(path.stem)).pid for path in place.glob("*.sock")}
    return {name: pid for name, pid in found.items() if pid}


def files() -> set[str]:
    place = local_nodes.folder()
    return {path.name for path in place.iterdir()} if place.exists() else set()


def gone(pid: int) -> bool:
    """Return whether the process has ended; a zombie counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


# --- one set that persists -------------------------------------------------------------------


def test_they_go_on_until_down_and_leave_nothing(shell: Shell) -> None:
    """The nodes outlive the command; a second `up` finds them; `down` leaves no process and no
    file.
    """
    assert shell.answer("local", "up").startswith("5 of 5 local nodes are up\n")
    first = pids()
    assert len(first) == 5
    assert shell.answer("local", "up").startswith("5 of 5 local nodes are up\n")
    assert shell.answer("local", "status").startswith("5 of 5 local nodes are up\n")
    assert pids() == first
    assert shell.answer("local", "down") == "5 local nodes ended"
    assert files() == set()
    assert not local_nodes.folder().exists()
    if sys.platform == "linux":
        assert all(gone(pid) for pid in first.values())
    assert shell.answer("local", "down") == "there are no local nodes"


def test_no_other_user_reaches_them(shell: Shell) -> None:
    """No port listens, and folder and sockets are closed to others."""
    shell.answer("local", "up", "--nodes", "1")
    place = local_nodes.folder()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE((place / "0.sock").stat().st_mode) == 0o700
    (port,) = converse(str(place / "0.sock"), [("CONFIG", "GET", "port")], 5.0)
    assert port == [b"port", b"0"]


def test_two_that_start_at_once_start_one_set(shell: Shell) -> None:
    """Also where the one waits for the other to remove the folder."""
    both = [shell.start("local", "up", "--nodes", "3") for _ in range(3)]
    for one in both:
        said, complaint = one.communicate(timeout=60)
        assert (one.returncode, complaint) == (0, ""), complaint
        assert said.startswith("3 of 3 ")
    assert len(pids()) == 3
    ending, starting = shell.start("local", "down"), shell.start("local", "up", "--nodes", "3")
    assert ending.communicate(timeout=60)[1] == starting.communicate(timeout=60)[1] == ""
    assert len(pids()) in (0, 3)
    assert len(files()) in (0, 13)  # a socket, a pid, a log and a lock for each, and the note


def test_the_number_of_nodes_stays(shell: Shell) -> None:
    """Another quorum would be another lock."""
    shell.answer("local", "up", "--nodes", "3")
    before = pids()
    assert "there are 3 local nodes" in shell.complaint(EX_USAGE, "local", "up", "--nodes", "5")
    assert shell.answer("local", "up").startswith("3 of 3 ")
    assert pids() == before


# --- crashes ---------------------------------------------------------------------------------


def test_a_node_that_died_is_started_again_and_keeps_out(shell: Shell) -> None:
    """The others are not changed. With a quorum of restarted nodes no lock is granted at first."""
    shell.answer("local", "up", "--nodes", "3")
    before = pids()
    os.kill(before["0.sock"], signal.SIGKILL)
    os.kill(before["1.sock"], signal.SIGKILL)
    wait_until_ended(0, 1)
    assert "1 of 3 local nodes are up" in shell.run("local", "status").stdout
    assert shell.run("local", "status").returncode == EX_UNAVAILABLE
    assert shell.answer("local", "up").count("restarted") == 2
    after = pids()
    assert after["2.sock"] == before["2.sock"]
    assert len(after) == 3
    assert "restart guard: started" in shell.complaint(EX_UNAVAILABLE, "acquire", "x", "-w", "0")


def wait_until_ended(*numbers: int) -> None:
    servers = local_nodes.present()
    assert until(lambda: not any(servers[number].pid for number in numbers), 10)


def test_a_reboot_ends_whatever_was_held(shell: Shell) -> None:
    """Leftovers of an earlier boot are removed; its note does not exclude nodes from voting."""
    place = local_nodes.folder()
    place.mkdir(mode=0o700, parents=True)
    (place / "note.json").write_text('{"boot": "an earlier one", "nodes": 3}')
    (place / "7.sock").touch()
    assert "there are no local nodes" in shell.run("local", "status").stdout
    assert shell.answer("acquire", "x", "-w", "0")
    assert "7.sock" not in files()
    assert len(pids()) == 5


def test_a_start_that_is_interrupted_leaves_nothing(shell: Shell) -> None:
    starting = shell.start("local", "up", "--nodes", "9")
    note = local_nodes.folder() / "note.json"
    assert until(lambda: note.exists() or starting.poll() is not None, 60)
    starting.send_signal(signal.SIGINT)
    _, complaint = starting.communicate(timeout=60)
    assert "Traceback" not in complaint
    if starting.returncode == 0:  # it was quicker
        assert len(pids()) == 9
    else:
        assert starting.returncode == 128 + signal.SIGINT
        assert (pids(), files()) == ({}, set())


@pytest.mark.parametrize("then", ["up", "down"])
def test_a_start_that_was_killed_leaves_nothing(shell: Shell, then: str) -> None:
    """The server does not listen yet: no second one is started, and none is missed."""
    slow = shell.home / "slow"
    slow.write_text(f'#!/bin/sh\necho >>{slow}.begun\nsleep 1\nexec {find_binary()} "$@"\n')
    slow.chmod(0o700)
    up = f"from quorlock._cli.local import nodes; nodes.find_binary = lambda: {str(slow)!r}"
    words = [sys.executable, "-c", f"{up}; nodes.up(1)"]
    starting = subprocess.Popen(words, env=shell.environment())
    begun = Path(f"{slow}.begun")
    assert until(begun.exists, 60)
    starting.kill()
    starting.wait()
    if then == "up":
        subprocess.run(words, env=shell.environment(), check=True)
        assert len(pids()) == 1
    assert shell.run("local", "down").stdout == "1 local nodes ended\n"
    assert not until(pids, 1.5)
    assert begun.read_text() == "\n"


def test_a_start_that_fails_leaves_nothing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program, or one that does not start."""

    def nowhere() -> str:
        raise ServersUnavailable("no server was found")

    for find, words in ((nowhere, "no server was found"), (lambda: "false", "does not start")):
        monkeypatch.setattr(local_nodes, "find_binary", find)
        with pytest.raises(Failed, match=words) as raised:
            local_nodes.up(3)
        assert raised.value.status == EX_UNAVAILABLE
        assert not local_nodes.folder().exists()
    del shell  # which sees to the folder


# --- what is held ----------------------------------------------------------------------------


def test_down_waits_for_no_holder_and_ends_none(shell: Shell) -> None:
    """The command refuses without any change, and succeeds after the release."""
    token = shell.answer("acquire", "x")
    before = pids()
    assert "held: 'x'" in shell.complaint(EX_TEMPFAIL, "local", "down")
    assert pids() == before
    assert shell.answer("extend", "x", "--token", token) == ""
    other = shell.answer("acquire", "y", "-w", "0")
    assert shell.answer("release", "x", "--token", token) == ""
    assert shell.answer("release", "y", "--token", other) == ""
    assert shell.answer("local", "down") == "5 local nodes ended"


def test_a_down_that_was_killed_is_undone(shell: Shell) -> None:
    """No client can acquire while `down` checks; holders continue. The next `up` ends this."""
    token = shell.answer("acquire", "x")
    for server in local_nodes.present():
        server.close()
    refused = shell.run("acquire", "y", "-w", "0")
    assert refused.returncode != 0
    assert "OOM" in refused.stderr
    assert shell.answer("extend", "x", "--token", token) == ""
    assert shell.answer("release", "x", "--token", token) == ""
    shell.answer("local", "up")
    assert shell.answer("acquire", "y", "-w", "0")


def test_a_down_that_is_interrupted_changes_nothing(shell: Shell) -> None:
    """Ctrl-C while it waits for a node that hangs: the others give locks again."""
    shell.answer("local", "up", "--count", "3")
    hung = pids()["2.sock"]
    os.kill(hung, signal.SIGSTOP)
    ending = shell.start("local", "down")
    path, question = local_nodes.present()[1].path, [("CONFIG", "GET", "maxmemory")]
    assert until(lambda: converse(path, question, 1.0)[0][1] == b"1", 30)
    ending.send_signal(signal.SIGINT)
    ending.communicate(timeout=30)
    assert ending.returncode == EX_SIGNAL + signal.SIGINT
    os.kill(hung, signal.SIGCONT)
    assert shell.answer("acquire", "x", "-w", "0")


def test_by_force_it_ends_and_those_after_keep_out(shell: Shell) -> None:
    """The holder has its lease still, so nodes that know nothing of it may not vote yet."""
    assert shell.answer("acquire", "x", "--ttl", "30")
    done = shell.run("local", "down", "--force")
    assert (done.returncode, done.stdout) == (0, "5 local nodes ended\n")
    assert "may be held still" in done.stderr
    assert (pids(), files()) == ({}, {"note.json"})
    assert "restart guard: started" in shell.complaint(EX_UNAVAILABLE, "acquire", "x", "-w", "0")


def test_nodes_that_cannot_be_asked_are_ended_too(shell: Shell) -> None:
    """Nodes in SIGSTOP are reported by `status`, and whether a lock is held is unknown."""
    shell.answer("local", "up", "--nodes", "3")
    for name in ("0.sock", "1.sock"):
        os.kill(pids()[name], signal.SIGSTOP)
    assert shell.run("local", "status").stdout.count("silent") == 2
    assert "may be held still" in shell.run("local", "down").stderr
    assert (pids(), files()) == ({}, {"note.json"})


# --- as the nodes of other commands ----------------------------------------------------------


def test_other_commands_start_them_and_share_them(shell: Shell) -> None:
    """The name may come from option, environment and file; a password is for other nodes."""
    token = shell.answer("acquire", "x", "--nodes", "local", given={"QUORLOCK_PASSWORD": "p"})
    first = pids()
    assert len(first) == 5
    assert "held by" in shell.answer("status", "x")
    for nodes_value in ("'local'", "['local']"):
        (shell.home / "quorlock.toml").write_text(f"nodes = {nodes_value}\nprefix = ''")
        assert "held by" in shell.answer("status", "x", given={"QUORLOCK_NODES": ""})
    os.kill(first["0.sock"], signal.SIGKILL)
    wait_until_ended(0)
    shell.answer("release", "x", "--token", token)
    assert len(pids()) == 5


# --- the folder ------------------------------------------------------------------------------


def test_a_folder_that_others_may_enter_is_refused(shell: Shell) -> None:
    place = local_nodes.folder()
    place.mkdir(parents=True)
    place.chmod(0o755)
    assert "mode 700" in shell.complaint(EX_CONFIG, "local", "up")
    assert files() == set()
    place.rmdir()


def test_a_folder_that_cannot_be(shell: Shell) -> None:
    long = {"XDG_STATE_HOME": str(shell.home / ("x" * 80))}
    assert "too long" in shell.complaint(EX_CONFIG, "local", "up", given=long)
    (shell.home / "file").touch()
    taken = {"XDG_STATE_HOME": str(shell.home / "file")}
    assert "Not a directory" in shell.complaint(EX_CONFIG, "local", "up", given=taken)
    odd = {"XDG_STATE_HOME": str(shell.home / "a\udcffb")}
    assert "no path of a node" in shell.complaint(EX_CONFIG, "local", "up", given=odd)
    assert [path.name for path in shell.home.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["XDG_STATE_HOME", "HOME"])
def test_a_folder_for_each_working_directory_is_refused(shell: Shell, name: str) -> None:
    """Two commands in two folders would have separate nodes, and both would get the lock."""
    given = {"XDG_STATE_HOME": "", name: "state"}
    for words in (["local", "up"], ["run", "a", "--nodes", "local", "--", "true"]):
        assert "need an absolute path" in shell.complaint(EX_CONFIG, *words, given=given)
    assert not (shell.home / "state").exists()
