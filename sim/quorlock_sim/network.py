"""The network of a simulated world: connections with delays and faults.

A connection is a TCP stream: it delivers in order, or it breaks.  Requests in flight at a break may
still arrive, because the kernel delivers the bytes of a closed socket. Or they are lost, but
without a gap in the middle.  Different connections have no common order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorlock._core.commands import Inspect
from quorlock._protocol.peer import Peer
from quorlock_sim.clock import NEVER

if TYPE_CHECKING:
    from random import Random

    from quorlock._core.commands import Command
    from quorlock._core.votes import Answer
    from quorlock._protocol.pipeline import PendingRequest
    from quorlock.testing.fake_node import Reply
    from quorlock_sim.client import Process
    from quorlock_sim.server import SimServer

# Requests of a broken connection reach the node within this part of max_ttl (per cent), or never.
# It is less than 100: a pending release lasts for max_ttl on a clock that may be fast.
LATE_MAX = 90
NO_COMMAND = Inspect(b"")  # of a push


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """The distribution of message delays. Durations in ns.

    Attributes:
        shortest: the shortest delay.
        spread: the width of the uniform distribution above it.
        tail: the share of late messages (per mille).
        tail_until: the width of their distribution.
    """

    shortest: int
    spread: int
    tail: int
    tail_until: int

    def delay(self, dice: Random) -> int:
        """Return the delay of one message."""
        draw = dice.random()
        if draw * 1000 < self.tail:
            return self.shortest + int(dice.random() * self.tail_until)
        return self.shortest + int(draw * self.spread)

    def calmed(self, node_timeout: int) -> NetworkProfile:
        """Return delays without a tail, short enough that every reply arrives in time."""
        spread = min(self.spread, node_timeout // 10)
        return NetworkProfile(min(self.shortest, spread), spread, 0, 0)


class Message:
    """One command that is sent to a node, and its reply."""

    __slots__ = (
        *("command", "copy", "found", "in_full", "link", "number", "place", "reply", "round"),
    )

    def __init__(self, number: int, link: Link, command: Command, round_: int, place: int) -> None:
        self.number = number
        self.link = link
        self.command = command
        self.round = round_
        self.place = place  # its number on the connection
        self.in_full = False  # sent with the script's text
        self.found = b""  # the value of the key when it was executed, for the trace
        self.copy = False  # a duplicate; its reply is not sent
        self.reply: Reply = None


class Push(list["Reply"]):
    """A message of a node without a request: a call, or the confirmation of a subscription."""


class Link(Peer):
    """One connection of a client to a node.

    Attributes:
        epoch: the epoch of the server that it belongs to.
        read: the message that the client reads now.
    """

    def __init__(
        self, number: int, process: Process, connection_set: int, server: SimServer
    ) -> None:
        super().__init__(process.nodes[server.index], None, server.node.run_id)
        self.resp3 = server.resp3
        self.number = number
        self.process = process
        self.connection_set = connection_set
        self.server = server
        self.epoch = server.epoch
        self.read: Message  # set before its reply is parsed
        self.rng = process.rng
        self.requests_until = 0  # the arrival of the last request: the next may not be earlier
        self.replies_until = 0
        self._request_at = self._reply_at = -1  # when the last of each was sent
        self.swallows_requests = False  # requests are dropped from now on
        self.swallows_replies = False
        self.duplicate_after = 0  # the delay of a duplicate of the next request; 0: none
        self.sent = 0  # the number of requests
        self.last_request: int | None = None  # after a break: the last one that still arrives
        self.late_until = 0  # ... not before this instant
        self.gone_by = NEVER  # ... nor after this one
        self.held_requests: list[Message] = []  # by a partition
        self.held_replies: list[Message] = []

    # --- to the node -------------------------------------------------------------------------

    def send(self, data: bytes, request: PendingRequest) -> None:
        """Send one command."""
        pipeline = self.pipeline
        told = pipeline.append(request, data)
        self.carry(request.command, request.round, in_full=told is not data)

    def ask_again(self) -> None:
        """Send a command again, with the script that the node has forgotten."""
        self.pipeline.outgoing = b""
        request = self.pipeline.pending[-1]
        self.carry(request.command, request.round, in_full=True)

    def carry(self, command: Command, round_: int, *, in_full: bool = False) -> None:
        """Send a message with a command."""
        world = self.process.world
        world.messages += 1
        self.sent += 1
        message = Message(world.messages, self, command, round_, self.sent)
        message.in_full = in_full
        if world.trace is not None:
            world.trace.send(message)
        if self.process.sending_late:
            world.schedule(world.now + self.process.sending_late, self.depart, message)
        else:
            self.depart(message)

    def depart(self, message: Message) -> None:
        """Schedule the arrival of a request, or hold it during a partition."""
        world = self.process.world
        if self.swallows_requests or self.lost:
            world.loses(message, "request")
            return
        if self.process.cut_off[self.server.index] & 1:
            self.held_requests.append(message)
            return
        at = self.requests_until
        if not (world.plan.tick and self._request_at == world.now):  # else in the same packet
            at = max(at, world.now + world.network_profile.delay(self.rng) + self.server.slow_by)
        self._request_at, self.requests_until = world.now, at
        world.schedule(at, self.server.arrive, message)
        if self.duplicate_after:
            twin = Message(message.number, self, message.command, message.round, message.place)
            twin.in_full, twin.copy = message.in_full, True
            world.schedule(at + self.duplicate_after, self.server.arrive, twin)
            self.duplicate_after = 0

    # --- to the client -----------------------------------------------------------------------

    def reply(self, message: Message) -> None:
        """Schedule the arrival of a reply, or hold it during a partition."""
        world = self.process.world
        if self.swallows_replies or self.lost:
            world.loses(message, "reply")
            return
        if self.process.cut_off[self.server.index] & 2:
            self.held_replies.append(message)
            return
        at = self.replies_until
        if not (world.plan.tick and self._reply_at == world.now):
            at = max(at, world.now + world.network_profile.delay(self.rng))
        self._reply_at, self.replies_until = world.now, at
        world.schedule(at, self._arrived, message)

    def push(self, push: Push) -> None:
        """Schedule the arrival of a push."""
        message = Message(0, self, NO_COMMAND, 0, 0)
        message.reply = push
        self.reply(message)

    def deliver(self, answered: tuple[PendingRequest, Answer], at: int) -> None:
        """Record the reply of the message that is read, and pass it to its receiver."""
        self.process.world.heard(self.read, *answered)
        super().deliver(answered, at)

    def _arrived(self, message: Message) -> None:
        if self.lost:
            self.process.world.loses(message, "reply")
        else:
            self.process.hears(self, message)

    def let_through(self) -> None:
        """End a partition: send the messages that it held."""
        held, self.held_requests = self.held_requests, []
        for message in held:
            self.depart(message)
        held, self.held_replies = self.held_replies, []
        for message in held:
            self.reply(message)

    # --- the end -----------------------------------------------------------------------------

    def supersede(self, text: str) -> None:
        """Close it: its server must not vote over it any more."""
        del text
        self.process.loses(self)

    def tear(self, survivors: int, late_by: int) -> None:
        """Close the client's end.

        Args:
            survivors: the share (per mille) of requests in flight that still arrive, oldest first.
            late_by: their earliest arrival, from now. None arrives so late that its pending release
                has ended (`_core.pending_releases`).
        """
        self.lost = True
        bound = self.process.policy.max_ttl * LATE_MAX // 100
        open_ = len(self.pipeline.pending)
        dropped = open_ - open_ * survivors // 1000
        self.last_request = self.sent - dropped
        self.gone_by = self.process.world.now + bound
        self.late_until = self.process.world.now + min(late_by, bound)
        held, self.held_requests = self.held_requests, []
        for message in held:
            self.process.world.schedule(self.late_until, self.server.arrive, message)
        trip = self.process.world.network_profile.delay(self.rng)
        closed = max(self.late_until, self.requests_until, self.process.world.now + trip)
        self.process.world.schedule(closed, self.server.on_closed, self)

    def still_arrives(self, message: Message) -> bool:
        """Return whether a request that reaches the node is executed."""
        if self.epoch != self.server.epoch:
            return False
        return self.last_request is None or message.place <= self.last_request
