"""The parts of the asyncio driver as the parts below them know them.

A running flow uses the loop driver, which uses the shared pipeline, which uses connections. Each
part calls back the ones above it by these Protocols, so the modules import one way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from quorlock._protocol.pipeline import ReplyReceiver

if TYPE_CHECKING:
    import asyncio

    from quorlock._core.rounds import NodeReply
    from quorlock._core.time import Duration, Instant
    from quorlock._drivers.aio.flow_state import FlowState
    from quorlock._protocol.peer import PeerNode
    from quorlock._protocol.pipeline import RequestPipeline


class SharedConnection(Protocol):
    """A connection as the shared pipeline knows it."""

    node_state: PeerNode
    pipeline: RequestPipeline
    shared_index: int  # in the shared pipeline; -1: not in it
    is_private: bool  # backlogged, until all its replies have come
    alive_at: Instant  # its server process was alive then

    def write(self, data: bytes) -> None: ...

    def silence(self, at: Instant) -> Duration: ...


class SharedReceiver(ReplyReceiver, Protocol):
    """The receiver of the replies to shared rounds.

    Of all its rounds only the last may be on the fast path.
    """

    shared_number: int  # of its last round in the shared pipeline

    def expect_quorum(self) -> None:
        """Continue at `deliver_quorum`, which is about to come, and not at a reply before it."""
        ...

    def deliver_quorum(self, nodes: int, last: int, at: Instant) -> None:
        """Receive a quorum of grants: the nodes (bit i: node i), the last of them, and its time.

        Nothing happens if it waits for no reply.
        """
        ...


class RunningFlow(SharedReceiver, Protocol):
    """A running flow as the driver of its event loop knows it."""

    state: FlowState
    last_sent_at: Instant  # the last send that the flow knows of
    replies_until: Instant  # the end of its wait for replies, as the flow has it
    reply_deadline: Instant  # the deadline of its nodes' replies, or of its wait for a slot
    inbox: tuple[NodeReply, ...]
    future: asyncio.Future[Any]  # the outcome, for its caller

    def on_deadline(self, until: Instant) -> None:
        """Receive the end of its nodes' time to reply, or of its wait for a slot."""
        ...

    def set_timer(self, until: Instant) -> None:
        """Wait until this instant with a timer that serves no other flow."""
        ...

    def admitted(self) -> bool:
        """Take the slot that has become free; return false if it has no use for one."""
        ...

    def fail_closed(self) -> None:
        """End early, because the loop ends: release what was acquired."""
        ...

    def interrupt(self, error: BaseException) -> None:
        """End with this exception, after an interrupt in the driver."""
        ...
