"""The limit: bare sockets, precomputed bytes, nothing of a library. The floor for one thread in
CPython, against which every row is held.

It sends what quorlock sends (SET NX PX with a token of the same length, and quorlock's own release
script by EVALSHA) and checks every byte that comes back. What it saves is what a lock is: fresh
tokens, deadlines, leases, errors, nodes that fail. A wrong or missing answer raises `WrongAnswer`.
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
RELEASED = b":-3\r\n"  # scripts/release.lua: it was ours and is deleted
CYCLE = GRANTED + RELEASED
TIMEOUT = 5.0

# A node's answers are one cycle over and over, so any piece of the stream can be compared at once.
_READ_BYTES = 65536
_STREAM = CYCLE * (_READ_BYTES // len(CYCLE) + 2)

Pair = tuple[bytes, bytes]


class WrongAnswer(Exception):
    """A node said anything but what a free lock makes it say."""


def words(*parts: bytes) -> bytes:
    """A command in RESP."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def pair(resource: str, ttl: float) -> Pair:
    """The bytes that acquire and release it."""
    key, ttl_ms = resource.encode(), b"%d" % int(ttl * 1000)
    take = words(b"SET", key, TOKEN, b"NX", b"PX", ttl_ms)
    return take, words(b"EVALSHA", scripts.RELEASE.sha, b"1", key, TOKEN)


def connect(url: str) -> socket.socket:
    """A blocking socket on which the release script is known."""
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
    """What both blocking limits have in common. For one thread."""

    def __init__(self, urls: Sequence[str], ttl: float, pause: float | None = None) -> None:
        assert pause is None, "it has no way of waiting"
        self._ttl = ttl
        self._socks = [connect(url) for url in urls]
        self._sends = [sock.send for sock in self._socks]
        self._pairs: dict[str, Pair] = {}

    def acquire(self, resource: str) -> Pair:
        """SET on every node."""
        both = self._pairs.get(resource)
        if both is None:
            both = self._pairs[resource] = pair(resource, self._ttl)
        self._ask(both[0], GRANTED)
        return both

    def release(self, handle: Pair) -> None:
        """The release script on every node."""
        self._ask(handle[1], RELEASED)

    def wait(self, resource: str) -> Pair:
        """It has no way of waiting."""
        raise NotImplementedError

    def extend(self, handle: Pair) -> None:
        """It has none."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._socks:
            sock.close()

    def _ask(self, data: bytes, wanted: bytes) -> None:
        raise NotImplementedError


class All(_Sockets):
    """Waits for all nodes, each in turn: a recv that blocks needs no poll before it. Measured
    against poll and epoll with N = 1, 3, 5: it takes less time and less CPU than either.
    """

    def __init__(self, urls: Sequence[str], ttl: float, pause: float | None = None) -> None:
        super().__init__(urls, ttl, pause)
        self._recvs = [sock.recv for sock in self._socks]
        for sock in self._socks:
            sock.settimeout(None)  # with one, Python would poll before every recv

    def _ask(self, data: bytes, wanted: bytes) -> None:
        for send in self._sends:
            send(data)
        for recv in self._recvs:
            answer = recv(64)
            if answer != wanted:
                raise WrongAnswer(repr(answer))


class Quorum(_Sockets):
    """Goes on as soon as a majority has answered; what comes later is read, and checked, in a
    later round.
    """

    def __init__(self, urls: Sequence[str], ttl: float, pause: float | None = None) -> None:
        super().__init__(urls, ttl, pause)
        self._quorum = len(urls) // 2 + 1
        self._poll = poll = select.poll()
        self._recv: dict[int, Callable[[int], bytes]] = {}
        self._read: dict[int, int] = {}  # bytes of answers read from each node so far
        self._spoilt = False  # by a wrong answer
        self._asked = 0  # bytes of answers that each node owes from the beginning on
        for sock in self._socks:
            sock.setblocking(False)
            poll.register(sock, select.POLLIN)
            self._recv[sock.fileno()] = sock.recv
            self._read[sock.fileno()] = 0

    def close(self) -> None:
        """Hear the rest first: a socket closed before that may take its last release with it."""
        try:
            if not self._spoilt:
                silent = sum(read < self._asked for read in self._read.values())
                self._hear(silent)
        finally:
            super().close()

    def _ask(self, data: bytes, wanted: bytes) -> None:
        for send in self._sends:
            send(data)
        self._asked += len(wanted)
        self._hear(self._quorum)

    def _hear(self, missing: int) -> None:
        """Until that many nodes more have answered everything."""
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
    """Keep `in_flight` cycles under way for so long: what the nodes can do at all.

    A cycle is done when all nodes have answered; none of them is ahead of the slowest by more than
    what is in flight. Times of single cycles mean nothing here.
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
                by_number[number].hear()
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
        self._read = 0  # bytes of answers
        # Few large writes: each is worth half of what is in flight.
        self._block = max(1, in_flight // 2)
        cycles = [b"".join(pair(f"saturate:{number}", ttl)) for number in range(NAMES)]
        self._cycles = cycles + cycles[: in_flight + 1]  # any run of them without a seam

    @property
    def done(self) -> int:
        """Whole cycles that are answered."""
        return self._read // len(CYCLE)

    def send(self, until: int) -> None:
        """Up to that cycle, if it is worth it."""
        count = until - self._sent
        if count >= self._block:
            first = self._sent % NAMES
            self.sock.sendall(b"".join(self._cycles[first : first + count]))
            self._sent = until

    def hear(self) -> None:
        """Read what is there, and check it."""
        answer = self.sock.recv(_READ_BYTES)
        offset = self._read % len(CYCLE)
        if not answer or answer != _STREAM[offset : offset + len(answer)]:
            raise WrongAnswer(repr(answer[:80]))
        self._read += len(answer)

    def finish(self) -> None:
        """Hear the rest, or keys would stay."""
        while self._read < self._sent * len(CYCLE):
            self.hear()

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
