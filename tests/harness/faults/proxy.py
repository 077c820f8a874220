"""A proxy in front of a real server, which disturbs the traffic on demand.

Owns the listening sockets and the mode in force; leaves the bytes to `links` and `modes`, the
thread to `relay`.

    with Relay() as relay, Proxy(relay, server.path, "/tmp/x/0.sock") as proxy:
        proxy.delay(0.1)
        proxy.transparent()

One mode is in force at a time, and each order replaces the one before. Refusing is another matter
than modes: `refuse()` makes the node unreachable until `accept()`, whatever mode is in force.
"""

from __future__ import annotations

import selectors
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

from tests.harness.faults import modes
from tests.harness.faults.links import Link
from tests.harness.faults.relay import Handler, Relay

_BACKLOG = 512


class Proxy:
    """Listens on a unix socket and on a TCP port of 127.0.0.1; speaks to its server's unix socket.

    By default all replies pass, whole and in order. Where the server does not take a
    connection, the caller sees its own close.
    """

    def __init__(self, relay: Relay, target: str, path: str, *, login: str = "") -> None:
        self._relay = relay
        self._target = target
        self._login = f"{login}@" if login else ""
        self._links: set[Link] = set()
        self._listeners: list[socket.socket] = []
        self._counts: Counter[str] = Counter()
        self._mode = modes.Mode(self._counts)
        self.path = path
        # Bound and never listening: no other process gets the port while we refuse.
        self._reservation = _tcp_socket(0)
        self.port = int(self._reservation.getsockname()[1])

    def __enter__(self) -> Self:
        try:
            self.accept()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self._reservation.close()
        Path(self.path).unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"<Proxy {self.path}: {type(self._mode).__name__}, {len(self._links)} links>"

    @property
    def url(self) -> str:
        """`unix://` URL, with the login."""
        return f"unix://{self._login}{quote(self.path)}?db=0"

    @property
    def tcp_url(self) -> str:
        """`redis://` URL, with the login."""
        return f"redis://{self._login}127.0.0.1:{self.port}"

    @property
    def counts(self) -> Counter[str]:
        """The actions so far, in numbers: `accepted`, `cut`, `refused to listen` and the counters
        of the modes.
        """
        return self._relay.call(self._counts.copy)

    @property
    def open_links(self) -> int:
        """The number of current connections, including those of callers that have left."""
        return self._relay.call(lambda: len(self._links))

    @property
    def refusing(self) -> bool:
        """True while `refuse()` is in force."""
        return not self._listeners

    def transparent(self) -> None:
        """End the mode in force; what it has kept is delivered. A refusal stays."""
        self._switch(modes.Mode(self._counts))

    def delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Let everything come later, either way, so that a round trip takes twice that; `jitter` is
        the most that is added by chance to each piece. Order is kept.
        """
        self._switch(modes.Delay(self._counts, seconds, jitter))

    def throttle(self, bytes_per_second: float) -> None:
        """Let so many bytes through a second, on each connection and either way."""
        self._switch(modes.Throttle(self._counts, bytes_per_second))

    def drop_replies(self, replies: int = 1) -> None:
        """Lose the next replies, whichever connection they come on, and those connections with
        them. Requests still reach the server.
        """
        self._switch(modes.DropReplies(self._counts, replies))

    def stall_reply(self, after_bytes: int = 2) -> None:
        """Give every caller so many bytes of its next reply, and the rest at `transparent()`."""
        self._switch(modes.Stall(self._counts, after_bytes))

    def half_close(self) -> None:
        """Show every caller the end of its connection in place of its next reply; what it sends
        still reaches the server.
        """
        self._switch(modes.HalfClose(self._counts))

    def reset(self) -> None:
        """Reset every connection after its next request, which still reaches the server. Only
        callers by TCP can be shown RST; those on the unix socket see the connection close.
        """
        self._switch(modes.Reset(self._counts))

    def cut_requests(self, after_bytes: int = 9) -> None:
        """Let the server have so many bytes of the next request of every connection, then close."""
        self._switch(modes.CutRequests(self._counts, after_bytes))

    def black_hole(self, *, deliver: bool = True, requests: bool = True) -> None:
        """Accept and never answer. `transparent()` delivers what was swallowed, the newest
        connection first, also for callers that have left (with `deliver=False`: closes those
        connections and forgets it). With `requests=False` the server still acts and only its
        replies are swallowed.
        """
        self._switch(modes.BlackHole(self._counts, deliver=deliver, requests=requests))

    def refuse(self) -> None:
        """Cut all connections, unsent bytes lost, and refuse new ones until `accept()`."""
        self._relay.call(self._refuse)

    def accept(self) -> None:
        """Take connections again, at the same addresses."""
        self._relay.call(self._accept)

    def cut(self) -> None:
        """Close all connections, unsent bytes lost; new ones are still taken."""
        self._relay.call(self._cut)

    def _switch(self, mode: modes.Mode) -> None:
        def switch() -> None:
            self._mode.leave(tuple(self._links))
            self._mode = mode
            mode.enter(tuple(self._links))

        self._relay.call(switch)

    def _refuse(self) -> None:
        if self._listeners:
            self._counts["refused to listen"] += 1
        for listener in self._listeners:
            self._relay.forget(listener)
            listener.close()
        self._listeners.clear()
        self._cut()

    def _cut(self) -> None:
        for link in tuple(self._links):
            self._counts["cut"] += 1
            link.close()

    def _accept(self) -> None:
        if self._listeners:
            return
        Path(self.path).unlink(missing_ok=True)
        for listener in (_unix_socket(self.path), _tcp_socket(self.port)):
            self._listeners.append(listener)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            self._relay.watch(listener, selectors.EVENT_READ, self._welcomer(listener))

    def _welcomer(self, listener: socket.socket) -> Handler:
        def welcome(_: int) -> None:
            with suppress(BlockingIOError, ConnectionAbortedError):
                caller, _address = listener.accept()
                self._link(caller)

        return welcome

    def _link(self, caller: socket.socket) -> None:
        caller.setblocking(False)
        if caller.family == socket.AF_INET:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._counts["accepted"] += 1
        server = socket.socket(socket.AF_UNIX)
        server.setblocking(False)
        try:
            server.connect(self._target)
        except OSError:  # no server there, or too many connections wait already
            server.close()
            caller.close()
            return
        link = Link(self._relay, caller, server, lambda: self._mode, self._links.discard)
        self._links.add(link)
        self._mode.enter((link,))


def _unix_socket(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _tcp_socket(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
    except BaseException:
        sock.close()
        raise
    return sock
