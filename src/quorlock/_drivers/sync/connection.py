"""One connection of the blocking driver: a non-blocking socket and its request pipeline.

Only the owner of its connection set uses it, so there is no lock. The owner may be interrupted at
any line, and then it is unknown which bytes were sent. The whole set is discarded, and requests in
flight become pending releases (`pool`).
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from quorlock._core.commands import Release
from quorlock._core.rounds import replied
from quorlock._core.votes import GRANTED, Answer, Vote
from quorlock._drivers.clock import now
from quorlock._protocol.pipeline import RequestPipeline
from quorlock._protocol.reader import ProtocolError
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.restart_guard import Quarantine
    from quorlock._core.rounds import NodeReply
    from quorlock._core.time import Instant
    from quorlock._drivers.node_state import NodeState
    from quorlock._protocol.pipeline import PendingRequest


# Small: a reply has five bytes, and Python allocates the buffer for each call.
_READ_BYTES = 256
# Linux reports the end of the stream while data before it is unread (POLLRDHUP).
_HUNG_UP = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


class Inbox:
    """The queue of replies for one flow. `over`: the flow has ended and reads no more."""

    __slots__ = ("inbox", "over", "round")

    def __init__(self) -> None:
        self.inbox: deque[NodeReply] = deque()
        self.over = False
        self.round = 0

    def deliver(self, reply: NodeReply) -> None:
        """Add one reply; safe from any thread."""
        self.inbox.append(reply)


class ConnectionOwner(Protocol):
    """The connection set that a connection belongs to.

    has_unsent: Some connection has bytes that its socket did not take, and is to be flushed.
    visit: Sends and receives what is possible, if the set has no borrower. Safe from any thread.
    """

    has_unsent: bool
    visit: Callable[[Any], None]


class Connection:
    """One connection to one node, used by the owner of its connection set."""

    def __init__(
        self,
        sock: socket.socket,
        node_state: NodeState,
        would_block: tuple[type[Exception], ...],
        secret: str | None,
        run_id: str,
    ) -> None:
        self.sock = sock
        self.node_state = node_state
        self.lost = False
        self.run_id = run_id
        self.quarantine: Quarantine | None = None  # its server must not vote yet
        self.ttl_ms_max = 0
        self.pipeline = RequestPipeline(secret, node_state.max_silence)
        self.pending = self.pipeline.pending
        self.owner: ConnectionOwner | None = None
        self._superseded = ""
        self.unsent: bytes = b""  # bytes that the socket did not take, or that are corked
        self.holds_back = False  # corked
        self._would_block = would_block
        # TLS keeps decrypted bytes that poll does not report: read until it would block.
        self._reads_on = len(would_block) > 1

    def fileno(self) -> int:
        """Return the socket's descriptor, for poll."""
        return self.sock.fileno()

    def send(self, data: bytes, request: PendingRequest) -> bool:
        """Queue a request and send its bytes; return false if the connection is already lost."""
        if self.lost:
            return False
        # The queue comes first: if the caller is interrupted after the bytes were sent, the acquire
        # is known to be in flight.
        data = self.pipeline.append(request, data)
        if self.holds_back:
            self.unsent += data
            return True
        if self.unsent:
            data = self.unsent + data  # a partly sent command is completed first
        try:
            self.unsent = data[self.sock.send(data) :]
        except self._would_block:
            self.unsent = data
        except OSError as error:
            is_release = type(request.command) is Release
            if is_release:
                self.pending.pop()  # it was not sent: the caller sends it elsewhere
            self._on_error(error)
            return not is_release
        if self.unsent:
            self._note_unsent()
        return True

    def has_pending_acquire(self, token: bytes) -> bool:
        """Return whether the acquire with this token has no reply yet; safe from any thread."""
        return self.pipeline.has_pending_acquire(token)

    def is_backlogged(self, at: Instant) -> bool:
        """Return whether many requests are pending and no reply came for a while."""
        return self.pipeline.is_backlogged(at)

    def receive(self) -> None:
        """Deliver the replies that have arrived; at the end of the stream, mark it lost."""
        if self.lost:
            return
        try:
            while True:
                data = self.sock.recv(_READ_BYTES)
                answered = self.pipeline.match_common_reply(data)
                if answered is None:
                    if not self._parse(data):
                        return
                else:
                    self._deliver(answered, now())
                    if not self._reads_on:
                        return
        except self._would_block:
            pass
        except (OSError, ProtocolError) as error:
            self._on_error(error)

    def flush(self) -> None:
        """Send the bytes that were corked, or that the socket did not take before."""
        self.holds_back = False
        if self.lost or not self.unsent:
            return
        try:
            self._write(b"")
        except OSError as error:
            self._on_error(error)

    @property
    def replied_at(self) -> Instant:
        """The time of the latest reply from its server."""
        return self.pipeline.replied_at

    def is_closed_by_peer(self) -> bool:
        """Return whether the server has closed the connection. Safe from any thread."""
        return is_closed_by_peer(self.sock.fileno())

    def supersede(self, text: str) -> None:
        """Have the owner close the connection: its address leads to another server now.

        Safe from any thread. Replies that the owner counts at this moment belong to earlier
        requests.
        """
        self._superseded = text
        self.lost = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # this wakes the owner
        if self.owner is not None:
            self.owner.visit(None)

    def close(self) -> None:
        """Close the socket. Unanswered requests become pending releases; the node gets no blame."""
        self._mark_lost(self._superseded or "closed", blame=False)
        self.sock.close()

    def discard(self) -> None:
        """Close the socket after an interrupt of the owner, perhaps in the middle of a command."""
        self._mark_lost("connection given up: the call was interrupted")
        self.sock.close()

    def _parse(self, data: bytes) -> bool:
        """Deliver the replies in `data`; return whether there may be more bytes to read."""
        if not data:
            raise ConnectionResetError(0, "closed by the server")
        pipeline, at = self.pipeline, now()
        pipeline.replied_at = at
        pipeline.feed(data, len(data))
        for answered in pipeline.parse_replies():
            self._deliver(answered, at)
        if pipeline.protocol_error:
            raise pipeline.protocol_error
        if pipeline.outgoing:
            data, pipeline.outgoing = pipeline.outgoing, b""
            self._write(data)
        return self._reads_on or len(data) == _READ_BYTES

    def _deliver(self, answered: tuple[PendingRequest, Answer], at: Instant) -> None:
        request, answer = answered
        node_state: NodeState = self.node_state
        receiver: Any
        _, receiver, round_, asked_at, _ = request
        self.pipeline.replied_at = at
        if answer is GRANTED and node_state.is_healthy:
            node_state.latency = at - asked_at
        else:
            node_state.on_answer(request, answer, at)
        if not receiver.over:
            receiver.inbox.append(replied((round_, node_state.index, answer, at)))

    def _write(self, data: bytes) -> None:
        # A partly sent command is completed before anything else.
        data = self.unsent + data
        try:
            self.unsent = data[self.sock.send(data) :]
        except self._would_block:
            self.unsent = data
        if self.unsent:
            self._note_unsent()

    def _note_unsent(self) -> None:
        if self.owner is not None:
            self.owner.has_unsent = True

    def _on_error(self, error: OSError | ProtocolError) -> None:
        if isinstance(error, ProtocolError):
            self.node_state.refuted(error, self.run_id)
            self._mark_lost(str(error), error.code)
        elif error.errno is None:
            raise error  # not from the socket: a signal handler's TimeoutError
        else:
            self._mark_lost(f"connection lost: {(error.strerror or type(error).__name__).lower()}")

    def _mark_lost(
        self, text: str, code: VoteCode = VoteCode.CONNECTION_LOST, *, blame: bool = True
    ) -> None:
        """Register pending releases for open requests. A second call completes a first."""
        was_lost, self.lost = self.lost, True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.node_state.depart(self)
        if blame and not was_lost:
            self.node_state.on_connection_lost(text, code)
        at = now()
        answer = Answer(Vote.UNKNOWN, code, text)
        for command in self.pipeline.keys_in_doubt():
            self.node_state.release_later(command, self.run_id, at)
        while self.pending:
            request = self.pending[0]
            receiver: Any = request.receiver
            if not receiver.over:
                receiver.inbox.append(replied((request.round, self.node_state.index, answer, at)))
            self.pending.popleft()
        self.unsent = b""


def is_closed_by_peer(fd: int) -> bool:
    """Return whether the socket's stream has ended, or the socket is closed on our side."""
    if fd < 0:
        return True
    poll = select.poll()
    poll.register(fd, _HUNG_UP)
    return bool(poll.poll(0))
