"""Nodes that reply at once, so that a client does the same work in every cycle.

The replies of a real server depend on the scheduler: an occasional extra poll makes the CPU time
of the same cycle vary by a factor of two on a busy machine. Here the far end of every connection
is in the client's process. It replies before the client's `send` returns, with the recorded reply
of a real server to the same command (`SET`, or a script by its SHA). Sockets, system calls and
bytes are real. `spent_ns` is the CPU time of the far ends.
"""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import hiredis

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_CANNABLE = frozenset({b"SET", b"EVALSHA"})
_BUFFER_BYTES = 1 << 20

_Socket = socket.socket


class Canned:
    """One canned node in front of each real server at these ports."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.spent_ns = 0  # CPU time of the far ends, to be subtracted
        self.replay = False  # set this once real servers have replied to every command
        self.answers: dict[bytes, bytes] = {}
        self._ports: dict[int, int] = {}
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in ports]
        for listener, port in zip(self._listeners, ports, strict=True):
            self._ports[listener.getsockname()[1]] = port
        self._by_port = dict(zip(self._ports, self._listeners, strict=True))
        self._far: list[_Far] = []

    @property
    def urls(self) -> list[str]:
        """Addresses of the nodes; connect to them within `in_place()`."""
        return [f"redis://127.0.0.1:{port}" for port in self._ports]

    @contextmanager
    def in_place(self) -> Generator[None]:
        """Serve sockets that this process creates in the `with` block, as long as they live."""
        canned = self

        class Answered(_Socket):
            _far: _Far | None = None

            def connect(self, address: Any) -> None:
                try:
                    super().connect(address)
                except BlockingIOError:
                    pass  # the connection is in progress; the far end waits for it
                finally:
                    self._far = canned.accept(address)

            def send(self, data: Any, flags: int = 0) -> int:
                sent = super().send(data, flags)
                if self._far is not None:
                    self._far.take(bytes(data[:sent]))
                return sent

            def sendall(self, data: Any, flags: int = 0) -> None:
                super().sendall(data, flags)
                if self._far is not None:
                    self._far.take(bytes(data))

        socket.socket = Answered  # type: ignore[misc]
        try:
            yield
        finally:
            socket.socket = _Socket  # type: ignore[misc]

    def accept(self, address: Any) -> _Far | None:
        """Return the far end of a new connection, or None if it is not to one of these nodes."""
        if not isinstance(address, tuple) or address[1] not in self._ports:
            return None
        accepted = self._by_port[address[1]].accept()[0]
        near = _Socket(fileno=accepted.detach())
        server = _Socket(socket.AF_INET)
        server.connect(("127.0.0.1", self._ports[address[1]]))
        for sock in (near, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far = _Far(self, near, server)
        self._far.append(far)
        return far

    def close(self) -> None:
        """Close the far ends and the listeners."""
        for far in self._far:
            far.close()
        for listener in self._listeners:
            listener.close()


class _Far:
    """The far end of one connection."""

    def __init__(self, canned: Canned, near: socket.socket, server: socket.socket) -> None:
        self._canned = canned
        self._near = near
        self._server = server
        self._commands = hiredis.Reader()
        self._buffer = bytearray(_BUFFER_BYTES)

    def take(self, data: bytes) -> None:
        """Read the sent bytes and reply to their commands."""
        began = time.process_time_ns()
        missing = len(data)
        while missing:
            missing -= self._near.recv_into(self._buffer)
        self._commands.feed(data)
        answers: list[bytes] = []
        while (command := self._commands.gets()) is not False:
            answers.append(self._answer(command))
        self._near.sendall(b"".join(answers))
        self._canned.spent_ns += time.process_time_ns() - began

    def _answer(self, command: list[bytes]) -> bytes:
        canned = self._canned
        if command[0] not in _CANNABLE:
            return self._ask(command)
        kind = b" ".join(command[:2]) if command[0] == b"EVALSHA" else command[0]
        if not canned.replay:
            canned.answers[kind] = self._ask(command)
        return canned.answers[kind]

    def _ask(self, command: list[bytes]) -> bytes:
        """Return the real server's reply."""
        words = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in command)
        self._server.sendall(b"*%d\r\n%b" % (len(command), words))
        reader, answer = hiredis.Reader(), b""
        while True:
            data = self._server.recv(65536)
            if not data:
                raise ConnectionError(f"the server closed the connection after {command[0]!r}")
            answer += data
            reader.feed(data)
            if reader.gets() is not False:
                return answer

    def close(self) -> None:
        self._near.close()
        self._server.close()
