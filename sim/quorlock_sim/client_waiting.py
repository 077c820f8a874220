"""Waiting in one simulated process: its lines, its places in the queues of nodes, and their calls.

This module does what the drivers do for `Enlist`: connections subscribe to an inbox, calls go to
the flow whose place is called, and a call for a place that is gone is answered.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from quorlock._core.commands import LEAVE, Publish, Release, Subscribe
from quorlock._core.effects import CALL
from quorlock._core.line import Lines
from quorlock._core.places import channel_of, enlisted_place, place_of
from quorlock._core.rounds import NodeReply
from quorlock._core.tally import quorum
from quorlock._core.votes import GRANTED
from quorlock._protocol.encoding import encode
from quorlock._protocol.pipeline import PendingRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorlock_sim.client import Process, SimFlow
    from quorlock_sim.network import Link


class Waiting:
    """The waiters of one process.

    Attributes:
        lines: its lines; None if its callers poll.
    """

    def __init__(self, process: Process, index: int, *, polls: bool) -> None:
        self.lines = None if polls else Lines()
        self._process = process
        self._index = index
        self._flows: dict[bytes, SimFlow[Any]] = {}  # by place
        self._serial = 0
        self._listening: set[int] = set()  # connection sets

    def enlist(self, turn: SimFlow[Any]) -> bytes:
        """Return a place for a flow; b"" if fewer than a quorum of its connections can listen."""
        process, connection_set = self._process, turn.connection_set
        self.forget(turn)  # it has left the queue that it was in
        self._listening.add(connection_set)
        links = [link for link in process.links[connection_set] if link is not None]
        if sum(self.listen(link) for link in links) < quorum(process.policy.n):
            return b""
        self._serial += 1
        place = place_of(self._inbox(connection_set), self._serial, 2 * process.policy.node_timeout)
        self._flows[place] = turn
        process.world.enlisted(process, place, turn.call)
        return place

    def _inbox(self, connection_set: int) -> bytes:
        return b"%016x" % (self._index << 8 | connection_set)

    def connected(self, link: Link) -> None:
        """Subscribe over a new connection, if another one of its set has subscribed."""
        if link.connection_set in self._listening:
            self.listen(link)

    def listen(self, link: Link) -> bool:
        """Subscribe over a connection, once; return whether calls can come over it."""
        pipeline = link.pipeline
        if not link.resp3:
            return False
        if not pipeline.is_listening and not pipeline.listen_error:
            inbox = self._inbox(link.connection_set)
            pipeline.subscribe(inbox, partial(self.on_call, link), self._process.now())
            channel = channel_of(inbox)
            link.carry(Subscribe(channel), 0)
            link.carry(Publish(channel), 0)
        return pipeline.is_listening

    def on_call(self, link: Link, place: bytes, key: bytes) -> None:
        """Deliver a call to its flow, or have the node forget a place that is gone."""
        process, node = self._process, link.server.index
        if process.world.trace is not None:
            process.world.trace.pushed(link, place, key)
        turn = self._flows.get(enlisted_place(place))
        if turn is not None:
            turn.deliver(NodeReply(CALL, node, GRANTED, process.now()))
        elif not link.lost:
            leave = Release(key, b"", place, LEAVE)
            link.send(encode(leave), PendingRequest(leave, NOT_AWAITED, 0, process.now()))

    @property
    def places(self) -> Iterable[bytes]:
        """The places of its flows."""
        return self._flows

    def is_open(self, place: bytes) -> bool:
        """Return whether the flow of a place still runs."""
        return place in self._flows

    def is_own(self, place: bytes) -> bool:
        """Return whether the place was given out by this process."""
        return int(place.partition(b":")[0], 16) >> 8 == self._index

    def forget(self, turn: SimFlow[Any]) -> None:
        """Forget the place of a flow that has ended."""
        for place in [place for place, other in self._flows.items() if other is turn]:
            del self._flows[place]

    def end(self) -> None:
        """Forget all places: the process is dead."""
        self._flows.clear()


class _NotAwaited:
    """The receiver of a reply that no flow waits for."""

    over = True
    round = 0

    def deliver(self, reply: NodeReply) -> None:
        """Do nothing."""


NOT_AWAITED = _NotAwaited()
