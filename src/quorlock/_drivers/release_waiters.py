"""Flows that wait for a pending release on one node, and get its reply.

A lease on a bare majority needs every one of its nodes to release it. If one connection has just
been lost (a Ctrl-C during an extension, a server that closed it), the release is retried a moment
later. Its reply counts like any other. The connectors send the releases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.rounds import replied
from quorlock._drivers.node_state import Reachability

if TYPE_CHECKING:
    from quorlock._core.time import Instant
    from quorlock._core.votes import Answer
    from quorlock._drivers.node_state import NodeState
    from quorlock._protocol.pipeline import PendingRequest


class ReleaseWaiters:
    """The requests that wait for a pending release on one node, by token.

    Each request gets one reply, from the first caller that removes it.
    """

    def __init__(self, node_state: NodeState) -> None:
        self._node_state = node_state
        self._by_token: dict[bytes, PendingRequest] = {}

    def add(self, request: PendingRequest, run_id: str = "", *, closing: bool) -> bool:
        """Register a pending release; return whether its receiver will get the reply.

        run_id: The process that may still get the acquire; "" if none can.
        """
        node_state, command = self._node_state, request.command
        token: bytes = getattr(command, "token", b"")
        self._by_token[token] = request  # first: another thread may send it at once
        node_state.release_later(command, run_id, request.asked_at)  # type: ignore[arg-type]
        if (
            token in node_state.pending_releases
            and node_state.reachability is not Reachability.DOWN
            and not closing
        ):
            return True
        return self._by_token.pop(token, None) is None

    def answer(self, token: bytes, answer: Answer, at: Instant) -> None:
        """Deliver the node's reply to the request that waits for it."""
        request = self._by_token.pop(token, None)
        if request is None:
            return
        receiver = request.receiver
        if not receiver.over:
            receiver.deliver(replied((request.round, self._node_state.index, answer, at)))

    def answer_all(self, at: Instant) -> None:
        """Reply to all requests in the name of a node that cannot be reached."""
        for token in list(self._by_token):
            self.answer(token, self._node_state.unavailable_answer, at)
