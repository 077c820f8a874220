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
from typing import TYPE_CHECKING, Protocol, cast

from quorlock._core.commands import Release
from quorlock._core.votes import Answer, Vote
from quorlock._drivers.clock import now
from quorlock._drivers.tls_errors import tls_reason
from quorlock._protocol.peer import Peer
from quorlock._protocol.pipeline import NO_RECEIVER, PendingRequest
from quorlock._protocol.reader import ProtocolError
from quorlock._protocol.replies import PLAIN_GRANT_SIZE
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from quorlock._core.rounds import NodeReply
    from quorlock._core.time import Instant
    from quorlock._drivers.node_state import NodeState
    from quorlock._drivers.places import Places


# Small: a reply has five bytes, and Python allocates the buffer for each call. It ends with a reply
# if all of them are usual.
_READ_BYTES = 95 * PLAIN_GRANT_SIZE
# At a time, so that a node that sends without an end does not keep calls from the other nodes.
_READS_MAX = 500
NO_REQUEST = PendingRequest(Release(b"", b""), NO_RECEIVER, 0, 0)  # no grant is counted
# Linux reports the end of the stream while data before it is unread (POLLRDHUP).
_HUNG_UP = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


class _Deliver(Protocol):
    def __call__(self, reply: NodeReply, /) -> None: ...


class Inbox:
    """The queue of replies for one flow. `over`: the flow has ended and reads no more.

    deliver: Adds one reply; safe from any thread. An attribute: it saves a call for every reply.
    counts_grants: The plain grants of its first round are counted (`ConnectionSet.granted`).
    """

    __slots__ = ("deliver", "inbox", "over", "round")

    deliver: _Deliver
    counts_grants = False

    def __init__(self) -> None:
        self.inbox: deque[NodeReply] = deque()
        self.deliver = self.inbox.append
        self.over = False
        self.round = 0

    def on_sent(self, round_: int, at: Instant) -> None:
        """Note that another thread has sent this round."""


class ConnectionOwner(Protocol):
    """The connection set that a connection belongs to.

    has_unsent: Some connection may have bytes that are not sent, and is to be flushed.
    visit: Sends and receives what is possible, if the set has no borrower. Safe from any thread.
    """

    has_unsent: bool
    visit: Callable[[], None]

    def add(self, connection: Connection) -> None:
        """Take a new connection; safe from any thread."""
        ...


class Connection(Peer):
    """One connection to one node, used by the owner of its connection set."""

    def __init__(
        self,
        sock: socket.socket,
        node_state: NodeState,
        would_block: tuple[type[Exception], ...],
        secret: str | None,
        run_id: str,
    ) -> None:
        super().__init__(node_state, secret, run_id)
        self.sock = sock
        self.pending = self.pipeline.pending
        self.bit = 1 << node_state.index
        self._granted: PendingRequest | None = None  # the last one that was awaited
        self.owner: ConnectionOwner | None = None
        self.places: Places | None = None  # of the waiters that its node may call
        self._superseded = ""
        # Bytes that the socket did not take, or that are corked: many, if a node hangs.
        self.unsent = bytearray()
        self.holds_back = False  # corked
        self._calls: list[tuple[bytes, bytes]] = []  # that were read, and not delivered yet
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
        try:
            if self.unsent:
                self._write(data)
            elif (sent := self.sock.send(data)) != len(data):
                self.keep(data[sent:])
        except OSError as error:
            return self.on_send_error(error, data, request)
        return True

    def keep(self, data: bytes) -> None:
        """Keep bytes that the socket did not take."""
        self.unsent += data
        if self.owner is not None:
            self.owner.has_unsent = True

    def on_send_error(self, error: OSError, data: bytes, request: PendingRequest) -> bool:
        """Handle an error of `send` for the last request; return as `send` does."""
        if isinstance(error, self._would_block):
            self.keep(data)
            return True
        is_release = type(request.command) is Release
        if is_release:
            self.pending.pop()  # it was not sent: the caller sends it elsewhere
        self._on_error(error)
        return not is_release

    def send_batch(self, data: bytes, requests: list[PendingRequest], uncounted: int) -> bool:
        """Queue plain requests while corked; return false if each has to be considered alone.

        uncounted: Fewer pending requests are no backlog.
        """
        is_short = len(self.pending) + len(requests) <= uncounted
        if self.lost or not (is_short and self.holds_back):
            return False
        if not self.pipeline.sent_scripts.has_release:
            return False
        self.pending.extend(requests)
        self.unsent += data
        return True

    def receive(self) -> None:
        """Deliver the replies that have arrived; at the end of the stream, mark it lost."""
        self.receive_grant(NO_REQUEST, b"")

    def receive_grant(self, awaited: PendingRequest, grant: bytes) -> bool:
        """Do the same, but deliver no plain grant of this request; return whether it has come."""
        if self.lost:
            return False
        pending, has_more, reads = self.pending, True, 0
        try:
            while has_more:
                data, at = self.sock.recv(_READ_BYTES), now()
                if (
                    data == grant
                    and pending
                    and pending[0] is awaited
                    and self.node_state.is_healthy
                    and not self.pipeline.has_partial_reply
                ):
                    self._granted = pending.popleft()
                    self.pipeline.replied_at = at
                    self.alive_at = asked_at = awaited.asked_at
                    self.node_state.latency = at - asked_at
                    has_more = self._reads_on
                else:
                    reads += 1
                    has_more = self._deliver(data, at, awaited) and (
                        reads < _READS_MAX or self._has_decrypted()
                    )
        except self._would_block:
            pass
        except (OSError, ProtocolError) as error:
            self._on_error(error)
        return self._granted is awaited

    def _has_decrypted(self) -> bool:
        """Return whether there are bytes that a poll of the socket does not show."""
        return self._reads_on and cast("ssl.SSLSocket", self.sock).pending() > 0

    def _deliver(self, data: bytes, at: Instant, awaited: PendingRequest) -> bool:
        """Deliver the replies in `data`; return whether there may be more bytes to read."""
        if self.deliver_grant(data, at):
            return self._reads_on
        granted = self.pipeline.match_grants(data)
        if not granted:
            return self._parse(data, at)
        self.pipeline.replied_at = at
        if granted[-1] is awaited and self.node_state.is_healthy:
            self._granted = awaited
        self.deliver_grants(granted, at, but=self._granted)
        return self._reads_on or len(data) == _READ_BYTES

    def listen(self, inbox: bytes) -> bool:
        """Have the node call this inbox; return whether it can, as far as known."""
        pipeline = self.pipeline
        was_listening = pipeline.is_listening
        if was_listening:
            return not self.lost
        if self.resp3 and not (pipeline.listen_error or self.lost):
            try:
                self._write(pipeline.subscribe(inbox, self._note_call, now()))
            except OSError as error:
                self._on_error(error)
        return pipeline.is_listening and not self.lost

    def _note_call(self, place: bytes, key: bytes) -> None:
        self._calls.append((place, key))  # delivered when the replies around it are read

    def flush(self) -> None:
        """Send the bytes that were corked, or that the socket did not take before."""
        self.holds_back = False
        if self.lost or not self.unsent:
            return
        try:
            self._write(b"")
        except OSError as error:
            self._on_error(error)

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
            # This wakes the owner.  `shutdown` of a TLS socket first makes a plain one of it, over
            # which the owner could send unencrypted at this moment.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
        if self.owner is not None:
            self.owner.visit()

    def close(self) -> None:
        """Close the socket. Unanswered requests become pending releases; the node gets no blame."""
        self._mark_lost(self._superseded or "closed", blame=False)
        self.sock.close()

    def discard(self) -> None:
        """Close the socket after an interrupt of the owner, perhaps in the middle of a command."""
        self._mark_lost("connection given up: the call was interrupted")
        self.sock.close()

    def _parse(self, data: bytes, at: Instant) -> bool:
        if not data:
            raise ConnectionResetError(0, "closed by the server")
        pipeline = self.pipeline
        pipeline.replied_at = at
        if self.places is not None and (size := self.deliver_call(data, self.places.expected)):
            data = data[size:]
            if not data or self.deliver_grant(data, at):
                return self._reads_on
        self.parse(data, at)
        if pipeline.outgoing:
            outgoing, pipeline.outgoing = pipeline.outgoing, b""
            self._write(outgoing)
        if self._calls:
            self._deliver_calls()
        return self._reads_on or len(data) == _READ_BYTES

    def _deliver_calls(self) -> None:
        calls, self._calls = self._calls, []
        if self.places is not None:
            for place, key in calls:
                self.places.on_call(self, place, key)

    def _write(self, data: bytes) -> None:
        self.unsent += data  # a partly sent command is completed before anything else
        with contextlib.suppress(*self._would_block):
            del self.unsent[: self.sock.send(self.unsent)]
        if self.unsent:
            self.keep(b"")

    def _on_error(self, error: OSError | ProtocolError) -> None:
        if isinstance(error, ProtocolError):
            self._mark_lost(str(error), error.code)
        elif error.errno is None:
            raise error  # not from the socket: a signal handler's TimeoutError
        else:
            words = tls_reason(error) or (error.strerror or type(error).__name__).lower()
            self._mark_lost(f"connection lost: {words}")

    def _mark_lost(
        self, text: str, code: VoteCode = VoteCode.CONNECTION_LOST, *, blame: bool = True
    ) -> None:
        """Register pending releases for open requests. A second call completes a first."""
        blame, self.lost = blame and not self.lost, True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        answer, at = Answer(Vote.UNKNOWN, code, text), now()
        self.register_loss(answer, at, blame=blame)
        self.answer_open_requests(answer, at)
        self.unsent = bytearray()


def is_closed_by_peer(fd: int) -> bool:
    """Return whether the socket's stream has ended, or the socket is closed on our side."""
    if fd < 0:
        return True
    poll = select.poll()
    poll.register(fd, _HUNG_UP)
    return bool(poll.poll(0))


def send_to_each(
    connections: Sequence[Connection | None], data: bytes, request: PendingRequest, most: int
) -> int:
    """Queue a request on each connection and send its bytes, up to a connection that takes more.

    Nothing has to precede it, neither a script nor bytes. Return how many connections got it. A
    connection with so many pending requests takes more, as does one whose socket fails or is full.
    """
    done, size = 0, len(data)
    for connection in connections:
        if connection is None or len(connection.pending) >= most or connection.lost:
            break
        connection.pending.append(request)  # first, as in `send`
        try:
            sent = connection.sock.send(data)
        except OSError as error:
            if not connection.on_send_error(error, data, request):
                break
        else:
            if sent != size:
                connection.keep(data[sent:])
        done += 1
    return done
