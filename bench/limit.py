"""The limit: bare sockets that send precomputed bytes, the floor for one thread in CPython.

The limit sends what quorlock sends (SET NX PX with a token of the same length, and quorlock's
release script by EVALSHA) and checks every byte of the replies. It has nothing that makes a lock:
no fresh tokens, deadlines, leases, errors or failing nodes. A wrong or missing reply raises
`WrongAnswer`.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from bench.contestants import NAMES
from quorlock import scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOKEN = b"0123456789abcdef0123456789abcdef"
GRANTED = b"+OK\r\n"
RELEASED = b":-3\r\n"  # scripts/release.lua: the key had this token and is deleted
CYCLE = GRANTED + RELEASED
TIMEOUT = 5.0

# A node repeats the replies of one cycle, so any part of the stream is a slice of this.
_READ_BYTES = 65536
_STREAM = CYCLE * (_READ_BYTES // len(CYCLE) + 2)

Pair = tuple[bytes, bytes]


class WrongAnswer(Exception):
    """A node's reply was not that for a free lock."""


def words(*parts: bytes) -> bytes:
    """Return a command in RESP."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def pair(resource: str, ttl: float) -> Pair:
    """Return the bytes that acquire and release a resource."""
    key, ttl_ms = resource.encode(), b"%d" % int(ttl * 1000)
    take = words(b"SET", key, TOKEN, b"NX", b"PX", ttl_ms)
    return take, words(b"EVALSHA", scripts.RELEASE.sha, b"1", key, TOKEN)


def connect(url: str) -> socket.socket:
    """Return a blocking socket to a node that has loaded the release script."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    sock = socket.create_connection((parts.hostname, parts.port or 6379), TIMEOUT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(words(b"SCRIPT", b"LOAD", scripts.RELEASE.text))
    answer = sock.recv(4096)
    if answer != b"$40\r\n" + scripts.RELEASE.sha + b"\r\n":
        raise WrongAnswer(repr(answer))
    return sock


class _Sockets:
    """The common part of both blocking limits, for one thread."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        self._ttl = ttl
        self._socks = [connect(url) for url in urls]
        self._sends = [sock.send for sock in self._socks]
        self._pairs: dict[str, Pair] = {}

    def acquire(self, resource: str) -> Pair:
        """Send SET to every node."""
        both = self._pairs.get(resource)
        if both is None:
            both = self._pairs[resource] = pair(resource, self._ttl)
        self._ask(both[0], GRANTED)
        return both

    def release(self, handle: Pair) -> None:
        """Run the release script on every node."""
        self._ask(handle[1], RELEASED)

    def wait(self, resource: str) -> Pair:
        """Raise NotImplementedError: the limit cannot wait."""
        raise NotImplementedError

    def extend(self, handle: Pair) -> None:
        """Raise NotImplementedError: the limit has no extension."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._socks:
            sock.close()

    def _ask(self, data: bytes, wanted: bytes) -> None:
        raise NotImplementedError


class All(_Sockets):
    """Sockets that wait for all nodes, each in turn.

    A blocking recv needs no poll before it: with N = 1, 3, 5 it takes less time and less CPU than
    poll or epoll.
    """

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        super().__init__(urls, ttl)
        self._recvs = [sock.recv for sock in self._socks]
        for sock in self._socks:
            sock.settimeout(None)  # with a timeout Python would poll before every recv

    def _ask(self, data: bytes, wanted: bytes) -> None:
        for send in self._sends:
            send(data)
        for recv in self._recvs:
            answer = recv(64)
            if answer != wanted:
                raise WrongAnswer(repr(answer))


class Quorum(_Sockets):
    """Sockets that continue once a majority has replied.

    Late replies are read and checked in a later round.
    """

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        super().__init__(urls, ttl)
        self._quorum = len(urls) // 2 + 1
        self._poll = poll = select.poll()
        self._recv: dict[int, Callable[[int], bytes]] = {}
        self._read: dict[int, int] = {}  # bytes of replies read from each node so far
        self._spoilt = False  # by a wrong reply
        self._asked = 0  # bytes of replies expected from each node since the beginning
        for sock in self._socks:
            sock.setblocking(False)
            poll.register(sock, select.POLLIN)
            self._recv[sock.fileno()] = sock.recv
            self._read[sock.fileno()] = 0

    def close(self) -> None:
        """Read the remaining replies first: closing a socket earlier may lose its last release."""
        try:
            if not self._spoilt:
                silent = sum(read < self._asked for read in self._read.values())
                self._receive(silent)
        finally:
            super().close()

    def _ask(self, data: bytes, wanted: bytes) -> None:
        for send in self._sends:
            send(data)
        self._asked += len(wanted)
        self._receive(self._quorum)

    def _receive(self, missing: int) -> None:
        """Read until `missing` more nodes have sent all their replies."""
        read, recv, poll, asked = self._read, self._recv, self._poll.poll, self._asked
        while missing:
            ready = poll(TIMEOUT * 1000)
            if not ready:
                self._refuse(b"none in time")
            for node, _ in ready:
                before = read[node]
                answer = recv[node](4096)
                offset = before % len(CYCLE)
                if not answer or answer != _STREAM[offset : offset + len(answer)]:
                    self._refuse(answer)
                read[node] = now = before + len(answer)
                if now == asked:
                    missing -= 1
                    if not missing:
                        break

    def _refuse(self, answer: bytes) -> NoReturn:
        self._spoilt = True
        raise WrongAnswer(repr(answer[:80]))


def saturate(urls: Sequence[str], seconds: float, in_flight: int, ttl: float) -> dict[str, Any]:
    """Keep `in_flight` cycles pipelined for `seconds`, to measure the capacity of the nodes.

    A cycle is done when all nodes have replied. No node is ahead of the slowest by more than
    `in_flight`. The times of single cycles have no meaning here.
    """
    with ExitStack() as stack:
        flows = [stack.enter_context(closing(_Flow(url, in_flight, ttl))) for url in urls]
        poll = select.poll()
        for flow in flows:
            poll.register(flow.sock, select.POLLIN)
        by_number = {flow.sock.fileno(): flow for flow in flows}
        cpu, began = time.process_time_ns(), time.perf_counter()
        done = 0
        while time.perf_counter() < began + seconds:
            for flow in flows:
                flow.send(done + in_flight)
            for number, _ in poll.poll(TIMEOUT * 1000):
                by_number[number].receive()
            done = min(flow.done for flow in flows)
        took, cpu = time.perf_counter() - began, time.process_time_ns() - cpu
        for flow in flows:
            flow.finish()
    return {"cycles": done, "seconds": took, "cpu_ns": cpu}


class _Flow:
    """One node's pipeline: whole cycles, in blocks of precomputed bytes."""

    def __init__(self, url: str, in_flight: int, ttl: float) -> None:
        self.sock = connect(url)
        self.sock.settimeout(TIMEOUT)
        self._sent = 0  # cycles
        self._read = 0  # bytes of replies
        # Few large writes: each has half of the cycles in flight.
        self._block = max(1, in_flight // 2)
        cycles = [b"".join(pair(f"saturate:{number}", ttl)) for number in range(NAMES)]
        self._cycles = cycles + cycles[: in_flight + 1]  # a block may wrap around the end

    @property
    def done(self) -> int:
        """The number of cycles with all replies."""
        return self._read // len(CYCLE)

    def send(self, until: int) -> None:
        """Send up to this cycle, if that fills a block."""
        count = until - self._sent
        if count >= self._block:
            first = self._sent % NAMES
            self.sock.sendall(b"".join(self._cycles[first : first + count]))
            self._sent = until

    def receive(self) -> None:
        """Read the available replies and check them."""
        answer = self.sock.recv(_READ_BYTES)
        offset = self._read % len(CYCLE)
        if not answer or answer != _STREAM[offset : offset + len(answer)]:
            raise WrongAnswer(repr(answer[:80]))
        self._read += len(answer)

    def finish(self) -> None:
        """Read the remaining replies, so that no key is left behind."""
        while self._read < self._sent * len(CYCLE):
            self.receive()

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
