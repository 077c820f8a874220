"""One caller's connection through a proxy: two streams of bytes, and what can be done to them.

Owns the two sockets of a link and when each byte goes out; leaves what is to be done, and to which
link, to `modes`. Everything here runs in the relay's thread.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.harness.faults.relay import Relay
from tests.harness.support.resp import take_frames

if TYPE_CHECKING:
    from tests.harness.faults.modes import Mode

_CHUNK = 65536
_BACKLOG_BYTES_MAX = 1 << 20  # of what waits to go out; beyond it the sender is no longer read
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # linger for 0 s: close() sends RST


class Stream:
    """Bytes on their way to one socket: each piece goes out in its turn, when its time has come."""

    def __init__(self, relay: Relay, sink: socket.socket, changed: Callable[[], None]) -> None:
        self._relay = relay
        self._sink = sink
        self._changed = changed  # what this stream waits for may be another thing now
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._due_last = 0.0
        self._held = False
        self._ending = False
        self._scheduled = False  # `_on_due` will be called, not later than the first piece is due
        self.size = 0  # bytes that wait here
        self.blocked = False  # the sink takes no more for now
        self.ended = False  # the end was passed on to the sink

    def push(self, data: bytes, later: float = 0.0) -> None:
        """Send these bytes after those that wait, `later` seconds from now at the earliest."""
        if self._ending:
            return
        self._due_last = max(self._due_last, time.monotonic() + later) if later else self._due_last
        self._pieces.append((self._due_last, data))
        self.size += len(data)
        # Behind others it waits for what they wait for.
        if len(self._pieces) == 1:
            self.flush()
        else:
            self._changed()

    def trickle(self, data: bytes, piece: int, pause: float) -> None:
        """Send these bytes, `piece` of them every `pause` seconds."""
        for start in range(0, len(data), piece):
            behind = max(0.0, self._due_last - time.monotonic())
            self.push(data[start : start + piece], later=behind + pause)

    def hold(self) -> None:
        """Send nothing, whatever is pushed, until `release()`."""
        self._held = True

    def release(self) -> None:
        """Send what was held."""
        self._held = False
        self.flush()

    def hurry(self) -> None:
        """Send what waits for its time, in its order, without waiting any longer."""
        self._due_last = 0.0
        waiting = b"".join(data for _, data in self._pieces)
        self._pieces = deque([(0.0, waiting)] if waiting else [])
        self.flush()

    def end(self) -> None:
        """Half-close the sink once everything is sent."""
        self._ending = True
        self.flush()

    def flush(self) -> None:
        """Send what may be sent now, and come back when the next piece may."""
        if self.ended:
            return
        while self._pieces and not self._held and self._pieces[0][0] <= time.monotonic():
            if not self._send_first():
                break
        self._await_first()
        if self._ending and not self._pieces and not self._held:
            self.ended = True
            with suppress(OSError):
                self._sink.shutdown(socket.SHUT_WR)
        self._changed()

    def _await_first(self) -> None:
        if self._pieces and not self._scheduled and self._pieces[0][0] > time.monotonic():
            self._scheduled = True
            self._relay.at(self._pieces[0][0], self._on_due)

    def _on_due(self) -> None:
        self._scheduled = False
        self.flush()

    def _send_first(self) -> bool:
        due, data = self._pieces.popleft()
        try:
            sent = self._sink.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the receiver is gone: so are the bytes
            sent = len(data)
        self.size -= sent
        self.blocked = sent < len(data)
        if self.blocked:
            self._pieces.appendleft((due, data[sent:]))
        return not self.blocked


class Link:
    """A caller, a server, and the two streams between them.

    `close()` is final. Until then the link lives as long as anything may still pass: a caller that
    has left does not end it before its requests were delivered, as with a real network.
    """

    def __init__(
        self,
        relay: Relay,
        caller: socket.socket,
        server: socket.socket,
        mode: Callable[[], Mode],
        gone: Callable[[Link], None],
    ) -> None:
        self._relay = relay
        self._caller = caller
        self._server = server
        self._mode = mode
        self._gone = gone
        self._replies = bytearray()
        self._caller_left = False
        self._server_left = False
        self.closed = False
        self.to_server = Stream(relay, server, self._watch)
        self.to_caller = Stream(relay, caller, self._watch)
        self._watch()

    def close(self, *, reset: bool = False) -> None:
        """End the connection at both sides at once, unsent bytes lost; with `reset` the caller, if
        it came by TCP, gets RST.
        """
        if self.closed:
            return
        self.closed = True
        if reset and self._caller.family == socket.AF_INET:
            self._caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        for sock in (self._caller, self._server):
            self._relay.forget(sock)
            sock.close()
        self._gone(self)

    def _watch(self) -> None:
        if self.closed:
            return None
        if self.to_caller.ended and (self._caller_left or self._server_left):
            return self.close()
        if self._caller_left and self.to_server.ended and self._server_left:
            return self.close()
        self._relay.watch(
            self._caller,
            _events(self._caller_left, self.to_server, self.to_caller),
            self._on_caller,
        )
        self._relay.watch(
            self._server,
            _events(self._server_left, self.to_caller, self.to_server),
            self._on_server,
        )
        return None

    def _on_caller(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self.to_caller.flush()
        if events & selectors.EVENT_READ and not self.closed:
            data = _receive(self._caller)
            if data:
                self._mode().request(self, data)
            elif data is not None:
                self._caller_left = True
                self.to_server.end()

    def _on_server(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self.to_server.flush()
        if events & selectors.EVENT_READ and not self.closed:
            data = _receive(self._server)
            if data:
                self._take_replies(data)
            elif data is not None:
                self._server_left = True
                self.to_caller.end()

    def _take_replies(self, data: bytes) -> None:
        self._replies += data
        for frame in take_frames(self._replies):
            if not self.closed:
                self._mode().reply(self, frame)


def _events(source_left: bool, out: Stream, back: Stream) -> int:
    """Return the events to wait for at a socket whose bytes go to `out` and which gets those of
    `back`.
    """
    reads = not source_left and out.size < _BACKLOG_BYTES_MAX
    return (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if back.blocked else 0)


def _receive(sock: socket.socket) -> bytes | None:
    """Return the received bytes; b"" at the end of the stream; None if there was nothing to
    read.
    """
    try:
        return sock.recv(_CHUNK)
    except BlockingIOError:
        return None
    except OSError:  # reset: for the proxy the same as an end
        return b""
