"""One local node: a server process on a unix socket that outlives this process.

This module owns its start, its end and its commands; `nodes` owns the set. A process is found by
its socket. The kernel names the process that listens there, even if it is stopped, and never one
that only reuses the pid of a dead one. It also holds the lock on a file, inherited from the process
that started it. So one that does not listen yet is found too, if that process was killed.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from quorlock.testing.servers import ServersUnavailable, converse

_READY_TIMEOUT = 10.0  # seconds; one needs 0.05
_END_TIMEOUT = 5.0
_ANSWER_TIMEOUT = 1.0
_LOG_TAIL_LINES = 5
_BORN_EMPTY = "quorlock:born-empty"  # docs/contributing/decisions/0013-restart-guard.md
_SIDE_KEYS = b"quorlock:"
# The equivalents of SO_PEERCRED on macOS, from its sys/un.h.
_SOL_LOCAL, _LOCAL_PEERPID = 0, 2


class ServerState(NamedTuple):
    """The state that a node reports."""

    uptime: int  # seconds
    born_empty: bool  # it is the first process at its socket, with nothing to forget
    held: tuple[str, ...]  # resources whose key it has


class LocalServer:
    """The node with this number in a folder."""

    def __init__(self, folder: Path, number: int) -> None:
        self.path: str = str(folder / f"{number}.sock")
        self._folder = folder
        self._number = number

    def spawn(self, binary: str) -> None:
        """Run the program, unless it runs already; wait for a process that is starting or ending.

        `await_ready()` waits until it serves. Raise ServersUnavailable.

        The server daemonizes: it is no child process of the caller, and has its own session. So no
        terminal signals it, and the caller need not wait for it.
        """
        deadline = time.monotonic() + _READY_TIMEOUT
        with self._file("lock").open("w") as lock:
            while not _lock(lock):
                if self.pid:
                    return
                if time.monotonic() > deadline:
                    raise ServersUnavailable(f"{self.path}: a process neither listens nor ends")
                time.sleep(0.005)
            self._file("log").write_bytes(b"")
            done = subprocess.run(
                self._command_line(binary),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                pass_fds=[lock.fileno()],
            )
        if done.returncode:
            raise ServersUnavailable(f"{binary} does not start: {done.stdout}{done.stderr}".strip())

    def await_ready(self) -> None:
        """Wait until it replies. Raise ServersUnavailable."""
        deadline = time.monotonic() + _READY_TIMEOUT
        while not self._answers():
            if time.monotonic() > deadline:
                log = self._file("log").read_text(errors="replace").splitlines()
                tail = "\n  ".join(log[-_LOG_TAIL_LINES:])
                raise ServersUnavailable(f"{self.path} does not answer. Its log ends:\n  {tail}")
            time.sleep(0.005)

    def say_born_empty(self) -> None:
        """Store for the restart guard of all clients that this process had nothing to forget."""
        (info,) = self._ask([("INFO", "server")], _READY_TIMEOUT)
        self._ask([("SET", _BORN_EMPTY, _field(info, "run_id"))], _READY_TIMEOUT)

    def open(self) -> None:
        """Undo `close()`."""
        self._ask([("CONFIG", "SET", "maxmemory", "0")])

    def close(self) -> None:
        """Refuse new acquires, but not releases and extensions.

        With one byte of memory a server refuses commands that may need more, such as SET.
        """
        self._ask([("CONFIG", "SET", "maxmemory", "1")])

    def state(self) -> ServerState | None:
        """Return its state; None if it does not reply."""
        try:
            info, born, keys = self._ask([("INFO", "server"), ("GET", _BORN_EMPTY), ("KEYS", "*")])
        except OSError:
            return None
        run_id = _field(info, "run_id").encode()
        return ServerState(int(_field(info, "uptime_in_seconds")), born == run_id, _resources(keys))

    @property
    def pid(self) -> int | None:
        """Return the pid of the listening process, which may be stopped; None if there is none."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_TIMEOUT)
            try:
                connection.connect(self.path)
            except (ConnectionRefusedError, FileNotFoundError):
                return None
            return _peer(connection)

    def end(self) -> None:
        """Kill it by SIGKILL, since there is nothing to save, and wait. Raise OSError."""
        deadline = time.monotonic() + _END_TIMEOUT
        while (pid := self.pid) or self._is_starting():
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {pid or '?'}, at {self.path}, does not end")
            if pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)

    def _is_starting(self) -> bool:
        """Return whether there is a process, if none listens."""
        with suppress(FileNotFoundError), self._file("lock").open("r+") as lock:
            return not _lock(lock)
        return False

    def _command_line(self, binary: str) -> list[str]:
        # Nothing is kept on disk. What processes of this machine hold ends with the machine, and a
        # node that crashed keeps out for `max_ttl`. No key is evicted, and no port is open.
        command = [binary, "--port", "0", "--unixsocket", self.path, "--unixsocketperm", "700"]
        command += ["--dir", str(self._folder), "--save", "", "--appendonly", "no"]
        command += ["--maxmemory-policy", "noeviction", "--databases", "1", "--daemonize", "yes"]
        command += ["--pidfile", str(self._file("pid")), "--logfile", str(self._file("log"))]
        return command

    def _file(self, kind: str) -> Path:
        return self._folder / f"{self._number}.{kind}"

    def _answers(self) -> bool:
        try:
            self._ask([("PING",)])
        except OSError:
            return False
        return True

    def _ask(
        self, commands: Sequence[Sequence[str]], timeout: float = _ANSWER_TIMEOUT
    ) -> list[Any]:
        """Return its replies. Raise OSError, also if a reply is an error."""
        replies = converse(self.path, commands, timeout)
        for reply in replies:
            if isinstance(reply, Exception):
                raise OSError(f"{self.path}: {reply}")
        return replies


def _lock(file: IO[str]) -> bool:
    """Lock the file until it is closed; return false if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _peer(connection: socket.socket) -> int:
    if sys.platform == "linux":
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    else:
        credentials = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, 4)
    pid = int(struct.unpack_from("i", credentials)[0])
    if pid <= 0:  # a signal to pid 0 would reach this process's group
        raise PermissionError("the node runs in another container: end it from there")
    return pid


def _field(info: bytes, name: str) -> str:
    found = re.search(rf"^{name}:(\w+)".encode(), info, re.MULTILINE)
    return found[1].decode() if found else ""


def _resources(keys: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(key.decode(errors="replace") for key in keys if not key.startswith(_SIDE_KEYS))
