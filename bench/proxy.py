"""A small TCP proxy in a separate process that delays the replies of nodes.

    with Proxy(["redis://127.0.0.1:7001"]) as proxy:
        ... proxy.urls ...
        proxy.delay(0.020)          # from now on every reply arrives 20 ms later

Commands pass at once, replies after the delay and in order. The proxy adds about ten microseconds
to each, also with a delay of 0, so compare only figures that were measured through it. The process
ends with its owner, even if that is killed.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from bench.child import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

_READ_BYTES = 65536
_END_SECONDS = 5.0


class Proxy:
    """A proxy in front of each URL, at first without a delay. A context manager."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._ports = [urlsplit(url).port or 6379 for url in urls]
        self.urls: list[str] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.proxy", json.dumps(self._ports)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            self.urls = [f"redis://127.0.0.1:{port}" for port in json.loads(self._read_line())]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def delay(self, seconds: float) -> None:
        """Delay replies by this long; return when it is in force."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%r\n" % seconds)
        self._process.stdin.flush()
        self._read_line()

    def close(self) -> None:
        """Stop the proxy."""
        self._process.kill()
        self._process.communicate(timeout=_END_SECONDS)

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the proxy has ended; its stderr says why")
        return line


class _Relay:
    """The relay that runs in the process: one thread, one select.

    The resolution of select is microseconds. That of poll is milliseconds, rounded up, which is as
    long as the shorter delays.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.seconds = 0.0
        self._listeners = {_listener(): port for port in ports}
        self._other: dict[socket.socket, socket.socket] = {}
        self._nodes: set[socket.socket] = set()
        self._held: deque[tuple[float, socket.socket, bytes]] = deque()

    @property
    def ports(self) -> list[int]:
        """The ports of the listeners."""
        return [int(listener.getsockname()[1]) for listener in self._listeners]

    def run(self) -> None:
        """Relay until stdin ends."""
        while True:
            self._forward_due()
            timeout = max(0.0, self._held[0][0] - time.monotonic()) if self._held else None
            waiting = [sys.stdin.buffer, *self._listeners, *self._other]
            for ready in select.select(waiting, [], [], timeout)[0]:
                if isinstance(ready, socket.socket):
                    self._read(ready)
                elif line := sys.stdin.buffer.readline():
                    self.seconds = float(line)
                    print("ok", flush=True)
                else:
                    return

    def _read(self, sock: socket.socket) -> None:
        if sock in self._listeners:
            self._accept(sock)
            return
        other = self._other.get(sock)
        if other is None:
            return  # closed a moment ago, in the same select
        try:
            data = sock.recv(_READ_BYTES)
        except OSError:
            data = b""
        if sock in self._nodes and (self.seconds or self._held):
            # The end of the stream is delayed, too, so that it follows the replies.
            self._held.append((time.monotonic() + self.seconds, other, data))
            if not data:
                del self._other[sock]
        else:
            self._pass(other, data)

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        try:
            node = socket.create_connection(("127.0.0.1", self._listeners[listener]), 1.0)
        except OSError:
            client.close()  # the node is down: the client sees its connection closed
            return
        for sock in (client, node):
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._other |= {client: node, node: client}
        self._nodes.add(node)

    def _forward_due(self) -> None:
        while self._held and self._held[0][0] <= time.monotonic():
            _, client, data = self._held.popleft()
            self._pass(client, data)

    def _pass(self, sock: socket.socket, data: bytes) -> None:
        if data:
            with suppress(OSError):  # the peer has closed; select will report its end of file
                sock.sendall(data)
            return
        for gone in (sock, self._other.get(sock)):
            if gone is not None:
                self._other.pop(gone, None)
                self._nodes.discard(gone)
                gone.close()


def _listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=512)


def main() -> None:
    """Run the proxy; the child process calls this."""
    relay = _Relay(json.loads(sys.argv[1]))
    print(json.dumps(relay.ports), flush=True)
    with suppress(KeyboardInterrupt):
        relay.run()


if __name__ == "__main__":
    main()
