"""One connection of the asyncio driver: a protocol with its request pipeline.

It is a BufferedProtocol: for a plain one, CPython receives into a fresh 256 KiB buffer. That costs
mmap and munmap for every reply (half of the rate with one task). All tasks of the loop share the
connection, and commands are sent in the order of their requests. The connector reconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from quorlock._core.commands import ScriptedAcquire
from quorlock._core.votes import Answer, Vote
from quorlock._drivers.clock import now
from quorlock._drivers.sync.connection import is_closed_by_peer
from quorlock._drivers.tls_errors import tls_reason
from quorlock._protocol.handshake import CLOSED_IMMEDIATELY, Handshake, NodeRejected, ServerInfo
from quorlock._protocol.peer import Peer, end_of_call
from quorlock._protocol.reader import ProtocolError
from quorlock._protocol.replies import GRANTS_IN_TURN
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from quorlock._core.commands import Release
    from quorlock._core.time import Duration, Instant
    from quorlock._drivers.aio.batching import SharedPipeline
    from quorlock._drivers.node_state import NodeState
    from quorlock._protocol.pipeline import PendingRequest, ReplyReceiver

_BUFFER_BYTES = 65_536  # that a tick of the loop reads of a node
LOOK_AGAIN = 0.001  # seconds, see `sync.connect`
_LINES = (b"+", b"-", b":", b"_")  # replies of one line
_NIL = b"$-1\r\n"


class ConnectionOwner(Protocol):
    """The connector of a connection's node, and the events that it handles."""

    def wake(self) -> None: ...  # a release has become pending

    def on_change(self) -> None: ...  # the connection can join the shared pipeline again

    def on_lost(self, connection: AsyncConnection) -> None: ...  # it was admitted before

    expected_calls: dict[bytes, ReplyReceiver]  # see `Places.expected`

    def on_call(self, connection: AsyncConnection, place: bytes, key: bytes) -> None: ...

    def on_end(self, connection: AsyncConnection) -> None: ...  # its transport has ended

    def on_interrupt(self, error: BaseException, /) -> bool: ...  # false: raise it again


class AsyncHandshake:
    """The handshake of a connection, and its result."""

    def __init__(self, handshake: Handshake) -> None:
        self.server_info: asyncio.Future[ServerInfo] = asyncio.get_running_loop().create_future()
        self._handshake = handshake

    def begin(self, connection: AsyncConnection) -> None:
        """Send the first commands."""
        connection.write(self._handshake.to_send)

    def receive(self, data: bytes, connection: AsyncConnection) -> None:
        """Parse replies, and send what comes next."""
        self._handshake.to_send = b""
        self._advance(partial(self._handshake.feed, data), connection)

    def _look_again(self, connection: AsyncConnection) -> None:
        if not self.server_info.done() and self._handshake.is_waiting:
            self._advance(self._handshake.go_on, connection)

    def _advance(self, step: Callable[[], object], connection: AsyncConnection) -> None:
        handshake = self._handshake
        try:
            step()
            if handshake.is_waiting:
                self.server_info.get_loop().call_later(LOOK_AGAIN, self._look_again, connection)
            elif handshake.server_info is None:
                connection.write(handshake.to_send)
            else:
                connection.begin(handshake.server_info)
                if not self.server_info.done():
                    self.server_info.set_result(handshake.server_info)
        except NodeRejected as unfit:
            self._fail(unfit)
            connection.abort()

    def _fail(self, error: Exception) -> None:
        if not self.server_info.done():
            self.server_info.set_exception(error)

    def end(self, sock: socket.socket | None, error: Exception | None) -> None:
        """Fail as the connection is lost, with the server's last line as the reason, if any."""
        if error is not None and tls_reason(error):
            self._fail(error)
        # A server may refuse in one line and close the connection. If our next write fails then,
        # asyncio ends the connection without reading that line.
        if sock is not None and not self.server_info.done():
            try:
                with contextlib.suppress(OSError):
                    self._handshake.feed(os.read(sock.fileno(), _BUFFER_BYTES))
            except NodeRejected as unfit:
                self._fail(unfit)
        self._fail(NodeRejected(CLOSED_IMMEDIATELY, VoteCode.NOT_CONNECTED))
        if not self.server_info.cancelled():
            self.server_info.exception()  # marked as retrieved: its caller may be gone


class _ThreadBuffer(threading.local):
    """The buffer of all reads of a thread: each is taken in before the next."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_BUFFER_BYTES))


_BUFFER = _ThreadBuffer()


class AsyncConnection(Peer, asyncio.BufferedProtocol):
    """One connection to one node, shared by all tasks of its event loop."""

    def __init__(
        self,
        node_state: NodeState,
        handshake: AsyncHandshake | None,
        secret: str | None,
        owner: ConnectionOwner,
        shared_pipeline: SharedPipeline,
    ) -> None:
        # The handshake reads the run_id. Many tasks may ask at once: silence is what counts.
        super().__init__(node_state, secret, run_id="", max_silence=node_state.max_silence)
        self.admitted = False  # its server may vote
        self.shared_index = -1  # in the shared pipeline; -1: not in it
        self.is_private = False  # backlogged, until all its replies have come
        self.pipeline.shared = self
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handshake = handshake
        self._owner = owner
        self._shared_pipeline = shared_pipeline
        self.may_have_more = False  # the last read has filled the buffer
        self._transport: asyncio.Transport | None = None
        self._calls: list[tuple[bytes, bytes]] = []  # that were read, and not delivered yet

    @property
    def is_closing(self) -> bool:
        """Return whether its transport ends; not if it has none, or uvloop has dropped that.

        uvloop does so, in silence, if its caller is cancelled as the connection is made.
        """
        return self._transport is not None and self._transport.is_closing()

    @property
    def is_limited(self) -> bool:
        """Return whether its server may refuse some requests, so that each one is checked."""
        return self.quarantine is not None or self.ttl_ms_max > 0

    @property
    def open_requests(self) -> int:
        """The number of requests that its server has not replied to; 0 once it is lost."""
        if self.lost:
            return 0
        shared = self._shared_pipeline.open_rounds(self) if self.shared_index >= 0 else 0
        return shared + len(self.pipeline.pending)

    def oldest_asked_at(self, at: Instant) -> Instant:
        """Return when its oldest open request was sent; `at` if there is none."""
        own = self.pipeline.oldest_asked_at(at)
        return (
            min(own, self._shared_pipeline.oldest_asked_at(self, at))
            if self.shared_index >= 0
            else own
        )

    def has_pending_acquire(self, token: bytes) -> bool:
        """Return whether this token's acquire has no reply here yet. Safe from any thread."""
        # In this order: a request leaves the shared pipeline when it is in the connection's queue.
        with contextlib.suppress(IndexError):  # it has just left the shared pipeline
            if self.shared_index >= 0 and self._shared_pipeline.has_pending_acquire(self, token):
                return True
        return super().has_pending_acquire(token)

    def is_backlogged(self, at: Instant) -> bool:
        """Return whether a new acquire could be cut off from its release."""
        return (self.is_private and bool(self.pipeline.pending)) or super().is_backlogged(at)

    def silence(self, at: Instant) -> Duration:
        """Return for how long requests have been pending without any reply."""
        return at - max(self.replied_at, self.oldest_asked_at(at))

    def send(self, data: bytes, request: PendingRequest) -> bool:
        """Queue a request and send its bytes; return false if the connection is already lost."""
        if self.lost:
            return False
        self.flush_to_private()
        self.write(self.pipeline.append(request, data))
        return True

    def listen(self, inbox: bytes) -> bool:
        """Subscribe to the calls to an inbox; return whether the node can call, as far as known."""
        pipeline = self.pipeline
        was_listening = pipeline.is_listening
        if was_listening:
            return not self.lost
        if self.resp3 and not (pipeline.listen_error or self.lost):
            self.write(pipeline.subscribe(inbox, self._note_call, now()))
        return pipeline.is_listening and not self.lost

    def _note_call(self, place: bytes, key: bytes) -> None:
        self._calls.append((place, key))  # delivered when the replies around it are read

    def write(self, data: bytes) -> None:
        """Send the bytes."""
        pipeline = self.pipeline
        if pipeline.outgoing:
            # A script that is sent again is in the queue before the bytes sent now.
            data, pipeline.outgoing = pipeline.outgoing + data, b""
        # Closing: it has failed, and `connection_lost` follows. asyncio would log further writes.
        if self._transport is not None and not (self.lost or self._transport.is_closing()):
            self._transport.write(data)

    def take_next(self) -> PendingRequest:
        """Return the oldest shared request, removed from there, as `RequestPipeline` requires."""
        if self.shared_index < 0:
            raise IndexError
        return self._shared_pipeline.next_for(self)

    def flush_to_private(self) -> None:
        """Move the pending requests of the shared pipeline to the connection's queue."""
        if self.shared_index >= 0:
            self._shared_pipeline.flush()  # the earlier requests
            self._shared_pipeline.flush_to_private(self)

    def is_closed_by_peer(self) -> bool:
        """Return whether the server has closed the connection. Safe from any thread."""
        sock = self._socket
        return sock is None or is_closed_by_peer(sock.fileno())

    def supersede(self, text: str) -> None:
        """Close it in its loop: its address leads to another server now.

        Safe from any thread. Replies that its loop still counts in this tick belong to earlier
        requests.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the connection with it
            self.closed.get_loop().call_soon_threadsafe(self._give_up, text)

    def _give_up(self, text: str) -> None:
        try:
            self._mark_lost(text, blame=False)
        except BaseException as error:
            if not self._owner.on_interrupt(error):
                raise

    def close(self) -> None:
        """Close the connection when everything has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection now."""
        # Not while it ends: asyncio would call connection_lost a second time, and fail.
        if self._transport is not None and not self.closed.done():
            self._transport.abort()

    # --- what the event loop calls -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.lost:
            self.abort()  # discarded before it had a socket: it would never send its handshake
        elif self._handshake is not None:
            self._handshake.begin(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return _BUFFER.view

    def buffer_updated(self, nbytes: int) -> None:
        self.may_have_more = nbytes == _BUFFER_BYTES
        try:
            self._take(bytes(_BUFFER.view[:nbytes]))
        except BaseException as error:
            if not self._owner.on_interrupt(error):
                raise

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)
        try:
            strerror = getattr(exc, "strerror", None) or "closed by the server"
            self._mark_lost(f"connection lost: {tls_reason(exc) or strerror.lower()}")
            if self._handshake is not None:
                self._handshake.end(self._socket, exc)
        except BaseException as error:
            if not self._owner.on_interrupt(error):
                raise
        finally:
            self._owner.on_end(self)

    # --- inside ------------------------------------------------------------------------------

    @property
    def _socket(self) -> socket.socket | None:
        return self._transport.get_extra_info("socket") if self._transport is not None else None

    def begin(self, server_info: ServerInfo) -> None:
        """Receive replies to requests from now on: the handshake is done."""
        self._handshake = None
        self.run_id, self.resp3 = server_info.run_id, server_info.resp3
        self.pipeline.tracking.is_able = server_info.tracks
        self.pipeline.replied_at = now()

    def _take(self, data: bytes) -> None:
        try:
            if self._handshake is None:
                self._receive(data)
            else:
                self._handshake.receive(data, self)
        except ProtocolError as nonsense:
            self._mark_lost(str(nonsense), nonsense.code)

    def _receive(self, data: bytes) -> None:
        pipeline = self.pipeline
        pipeline.replied_at = at = now()
        while self.shared_index >= 0 and not (
            pipeline.pending or pipeline.has_partial_reply or not self.node_state.is_healthy
        ):
            size = self._shared_pipeline.match(self, data, at)
            if size == len(data):
                return
            if not size and (size := self.deliver_call(data, self._owner.expected_calls)):
                data = data[size:]
                if not data:
                    return
                continue
            answer = GRANTS_IN_TURN.get(data)
            if answer is not None and self._shared_pipeline.awaits(self, ScriptedAcquire):
                self.deliver((self.take_next(), answer), at)
                return
            # One unexpected line is parsed alone: the next ones may be as expected again.
            end = _end_of_line(data, size)
            if not end:
                data = data[size:]
                break
            self._parse(data[size:end], at)
            data = data[end:]
            if not data:
                return
        self._parse(data, at)

    def _parse(self, data: bytes, at: Instant) -> None:
        self.parse(data, at)
        if self._calls:
            calls, self._calls = self._calls, []
            for place, key in calls:
                self._owner.on_call(self, place, key)
        pipeline = self.pipeline
        if pipeline.outgoing:
            self.write(b"")
        if self.is_private and not pipeline.pending:
            self.is_private = False
            self._owner.on_change()

    def on_release_refused(self, release: Release, at: Instant) -> None:
        """Retry a release that the server answered with an error."""
        super().on_release_refused(release, at)
        self._owner.wake()

    def _mark_lost(
        self, text: str, code: VoteCode = VoteCode.CONNECTION_LOST, *, blame: bool = True
    ) -> None:
        if self.lost:
            return
        self.lost = True
        self.abort()
        if not self.admitted:
            return  # the connecting task reports the reason
        self.flush_to_private()
        answer, at = Answer(Vote.UNKNOWN, code, text), now()
        self.register_loss(answer, at, blame=blame)
        self._owner.on_lost(self)
        self.answer_open_requests(answer, at)

    def discard(self) -> None:
        """Close now, notifying no receiver: an interrupt may have cut `_mark_lost` short."""
        self.lost = True
        self.abort()
        if self.admitted:
            text = "connection given up: the call was interrupted"
            self.register_loss(Answer(Vote.UNKNOWN, VoteCode.CONNECTION_LOST, text), now())
            self.pipeline.pending.clear()


def _end_of_line(data: bytes, start: int) -> int:
    """Return where the reply at `start` ends; 0 if it is not one whole line, or a whole call."""
    if data[start : start + 1] in _LINES or data.startswith(_NIL, start):
        return data.find(b"\r\n", start) + 2 if b"\r\n" in data[start:] else 0
    return end_of_call(data, start)
