"""The server at the other end of one connection: what its replies and its loss mean.

The connections of both drivers and of the simulator derive from `Peer`, and move the bytes.  A lost
connection leaves no key behind: its open acquires and releases become pending releases, before any
receiver is notified (rule 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quorlock._core.commands import Release, ScriptedAcquire
from quorlock._core.effects import CALL
from quorlock._core.rounds import replied
from quorlock._core.time import FOR_EVER
from quorlock._core.votes import GRANTED
from quorlock._protocol.pipeline import RequestPipeline, replaced_lease
from quorlock._protocol.replies import GRANTS_IN_TURN, PLAIN_GRANTS
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quorlock._core.commands import AnyAcquire, Command
    from quorlock._core.restart_guard import Quarantine
    from quorlock._core.time import Duration, Instant
    from quorlock._core.votes import Answer
    from quorlock._protocol.pipeline import PendingRequest, ReplyReceiver
    from quorlock._protocol.reader import ProtocolError


_GRANTED = VoteCode.GRANTED
_CALL = b">3\r\n$7\r\nmessage\r\n"  # and the channel, and the message
_PUSH = _CALL[0]


class PeerNode(Protocol):
    """The node of a peer, as its process knows it.

    is_healthy: a grant carries no information except its latency.
    """

    index: int
    is_healthy: bool
    latency: Duration | None

    def on_answer(self, request: PendingRequest, answer: Answer, at: Instant) -> None:
        """Record a reply."""
        ...

    def on_release_refused(self, release: Release, run_id: str, at: Instant) -> None:
        """Retry a release that the server answered with an error."""
        ...

    def on_protocol_error(self, error: ProtocolError, peer: Peer) -> None:
        """Record what a reply of this peer has shown that no request gets as its answer."""
        ...

    def on_connection_lost(self, answer: Answer) -> None:
        """Record that a connection was lost, for this reason."""
        ...

    def release_later(self, command: AnyAcquire | Release, run_id: str, at: Instant) -> None:
        """Register a pending release, to be sent over another connection."""
        ...

    def on_alive(self, run_id: str, at: Instant) -> None:
        """Record that the server of a lost connection was alive at this instant."""
        ...


class Peer:
    """The server process `run_id` at the other end of a connection.

    Attributes:
        lost: The connection is lost or closed; nothing is sent over it.
        quarantine: Set while the server must not vote.
        ttl_ms_max: The longest lease for requests over it; 0: only the client's limit.
        resp3: The server speaks RESP3, so it can send calls among its replies.
        alive_at: The time of the latest request that it replied to: the server was alive then. The
            reply, or a call, may have been sent long before a paused process reads it.
    """

    def __init__(
        self, node_state: PeerNode, secret: str | None, run_id: str, max_silence: Duration = 0
    ) -> None:
        self.node_state = node_state
        self.run_id = run_id
        self.lost = False
        self.quarantine: Quarantine | None = None
        self.ttl_ms_max = 0
        self.resp3 = False
        self.alive_at: Instant = -FOR_EVER
        self.pipeline = RequestPipeline(secret, max_silence)

    @property
    def replied_at(self) -> Instant:
        """The time of the latest reply from its server."""
        return self.pipeline.replied_at

    @property
    def listen_error(self) -> str:
        """The reason why the server does not send calls; "" if it does, or was not asked."""
        return self.pipeline.listen_error

    def has_pending_acquire(self, token: bytes) -> bool:
        """Return whether the acquire with this token has no reply yet. Safe from any thread."""
        return self.pipeline.has_pending_acquire(token)

    def is_backlogged(self, at: Instant) -> bool:
        """Return whether a new acquire could be cut off from its release."""
        return self.pipeline.is_backlogged(at)

    def silence(self, at: Instant) -> Duration:
        """Return for how long requests have been pending without any reply."""
        return self.pipeline.silence(at)

    def parse(self, data: bytes, at: Instant) -> None:
        """Deliver the replies in `data`. Raises ProtocolError."""
        pipeline = self.pipeline
        pipeline.replied_at = at
        pipeline.feed(data, len(data))
        for answered in pipeline.parse_replies():
            self.deliver(answered, at)
        if pipeline.protocol_error is not None:
            raise pipeline.protocol_error

    def deliver(self, answered: tuple[PendingRequest, Answer], at: Instant) -> None:
        """Record one reply and pass it to its receiver."""
        request, answer = answered
        node_state = self.node_state
        self.alive_at = request.asked_at
        if answer.code is _GRANTED and not answer.ticket and node_state.is_healthy:
            node_state.latency = at - request.asked_at
        else:
            if answer.ticket and not self.pipeline.is_listening:
                answer = answer._replace(ticket=0)  # it has a place, and cannot be called
            node_state.on_answer(request, answer, at)
            if not answer.is_done:
                self._release_again(request.command, answer, at)
        receiver = request.receiver
        if not receiver.over:
            receiver.deliver(replied((request.round, node_state.index, answer, at)))

    def deliver_grant(self, data: bytes, at: Instant) -> bool:
        """Deliver the reply to the oldest request if these bytes are its plain grant, and no more.

        They nearly always are where replies are read one by one, and need no parser then.

        Returns:
            Whether it was delivered; else the bytes may be anything.
        """
        pipeline, node_state = self.pipeline, self.node_state
        pending = pipeline.pending
        if pipeline.has_partial_reply or not (pending and node_state.is_healthy):
            return False
        command, receiver, round_, asked_at, _ = pending[0]
        answer, kind = GRANTED, type(command)
        if PLAIN_GRANTS.get(kind) != data:
            answer = GRANTS_IN_TURN.get(data, GRANTED)
            if kind is not ScriptedAcquire or answer is GRANTED:
                return False
        pending.popleft()
        pipeline.replied_at = at
        self.alive_at = asked_at
        node_state.latency = at - asked_at
        if not receiver.over:
            receiver.deliver(replied((round_, node_state.index, answer, at)))
        return True

    def deliver_grants(
        self, requests: list[PendingRequest], at: Instant, but: PendingRequest | None = None
    ) -> None:
        """Record a plain grant of each of these requests, and pass all but one to the receiver."""
        node_state = self.node_state
        if not node_state.is_healthy:
            for request in requests:
                self.deliver((request, GRANTED), at)
            return
        self.alive_at = asked_at = requests[-1].asked_at
        node_state.latency = at - asked_at
        for request in requests:
            receiver = request.receiver
            if not receiver.over and request is not but:
                receiver.deliver(replied((request.round, node_state.index, GRANTED, at)))

    def deliver_call(self, data: bytes, expected: Mapping[bytes, ReplyReceiver]) -> int:
        """Deliver the call that these bytes begin with, if it is an expected one.

        Returns:
            Its length; 0 if it was not delivered, and the bytes may be anything.
        """
        if data[0] != _PUSH or self.pipeline.has_partial_reply:
            return 0
        size, receiver = len(data), expected.get(data)
        if receiver is None:
            # Calls of late nodes come with the replies to the attempt.
            size = end_of_call(data, 0)
            receiver = expected.get(data[:size])  # one step: a signal handler may end the wait
            if receiver is None:
                return 0
        if receiver.over:
            return 0
        receiver.deliver(replied((CALL, self.node_state.index, GRANTED, self.pipeline.replied_at)))
        return size

    def _release_again(self, command: Command, answer: Answer, at: Instant) -> None:
        """Retry a release, or the one in an exchange, that was not carried out."""
        release = replaced_lease(command)
        if type(command) is Release and command.token and answer.is_fault:
            release = command
        if release is not None:
            self.on_release_refused(release, at)

    def on_release_refused(self, release: Release, at: Instant) -> None:
        """Retry a release that the server answered with an error."""
        self.node_state.on_release_refused(release, self.run_id, at)

    def register_loss(self, answer: Answer, at: Instant, *, blame: bool = True) -> None:
        """Record that the connection is lost, and register pending releases for its open requests.

        `answer_open_requests` follows.  After an interrupt, a second call completes the first.

        Args:
            answer: The reason.
            at: The current time.
            blame: The node is the cause; else its state stays as it is.
        """
        self.lost = True
        if self.pipeline.protocol_error is not None:
            self.node_state.on_protocol_error(self.pipeline.protocol_error, self)
        self.node_state.on_alive(self.run_id, self.alive_at)
        if blame:
            self.node_state.on_connection_lost(answer)
        for command in self.pipeline.keys_in_doubt():
            self.node_state.release_later(command, self.run_id, at)

    def answer_open_requests(self, answer: Answer, at: Instant) -> None:
        """Reply to all open requests in the name of the lost server."""
        pending = self.pipeline.pending
        while pending:
            request = pending[0]
            if not request.receiver.over:
                request.receiver.deliver(
                    replied((request.round, self.node_state.index, answer, at))
                )
            pending.popleft()  # last: an interrupt before it repeats the reply


def end_of_call(data: bytes, start: int) -> int:
    """Return where the call at `start` ends; 0 if it is none, or not all of it has come."""
    if not data.startswith(_CALL, start):
        return 0
    start += len(_CALL)
    for _ in range(2):
        head = data.find(b"\r\n", start) + 2
        digits = data[start + 1 : head]
        if head < 2 or not digits.strip().isdigit():  # noqa: PLR2004
            return 0
        start = head + int(digits) + 2
    return start if start <= len(data) else 0
