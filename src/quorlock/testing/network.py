"""The way between clients and nodes in a simulated world: delays, and everything that goes wrong.

A connection is a TCP stream: it delivers in order, or it breaks.  What was under way when it
broke may still arrive (the kernel delivers the bytes of a closed socket) or be lost, but never
with a hole in the middle.  Between connections there is no order at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorlock._wire.conversation import Conversation

if TYPE_CHECKING:
    from random import Random

    from quorlock._core.commands import Command
    from quorlock._core.guard import Quarantine
    from quorlock._wire.conversation import Question
    from quorlock.testing.node import Reply
    from quorlock.testing.process import Process
    from quorlock.testing.server import Server

# What was under way when a connection broke reaches the node's door within such a part of max_ttl
# (per cent), or never.  Not all of it: who owes counts max_ttl by a clock that may be fast.
LATE_MAX = 90


@dataclass(frozen=True, slots=True)
class Weather:
    """How long messages take. Durations in ns.

    Attributes:
        shortest: no message is quicker.
        spread: most take up to so much longer, evenly.
        tail: this share (per mille) ...
        tail_until: ... takes up to this long.
    """

    shortest: int
    spread: int
    tail: int
    tail_until: int

    def delay(self, dice: Random) -> int:
        """One message's time on its way."""
        draw = dice.random()
        if draw * 1000 < self.tail:
            return self.shortest + int(dice.random() * self.tail_until)
        return self.shortest + int(draw * self.spread)

    def calmed(self, node_timeout: int) -> Weather:
        """The same on a good day: every answer is there in time."""
        spread = min(self.spread, node_timeout // 10)
        return Weather(min(self.shortest, spread), spread, 0, 0)


class Message:
    """One command on its way to a node, and its reply on its way back."""

    __slots__ = ("command", "copy", "in_full", "link", "number", "place", "reply", "round")

    def __init__(self, number: int, link: Link, command: Command, round_: int, place: int) -> None:
        self.number = number
        self.link = link
        self.command = command
        self.round = round_
        self.place = place  # among those of its connection
        self.in_full = False  # the script's text was sent along
        self.copy = False  # a duplicate, whose reply nobody reads
        self.reply: Reply = None


class Link:
    """One connection of a client to a node.

    `lost`: the client knows that it is gone. `epoch`: the server's life that it belongs to.
    """

    __slots__ = (
        "bundle",
        "conversation",
        "dice",
        "duplicate_after",
        "epoch",
        "gone_by",
        "held_replies",
        "held_requests",
        "last_request",
        "late_until",
        "lost",
        "number",
        "process",
        "quarantine",
        "replies_until",
        "requests_until",
        "run_id",
        "sent",
        "server",
        "swallows_replies",
        "swallows_requests",
    )

    def __init__(self, number: int, process: Process, bundle: int, server: Server) -> None:
        self.number = number
        self.process = process
        self.bundle = bundle
        self.server = server
        self.run_id = server.node.run_id
        self.epoch = server.epoch
        self.quarantine: Quarantine | None = None  # it must not vote yet
        self.conversation = Conversation(None, 2 * process.policy.node_timeout)
        self.dice = process.dice
        self.lost = False
        self.requests_until = 0  # when the last one arrives: the next may not be earlier
        self.replies_until = 0
        self.swallows_requests = False  # a hole in the stream: nothing behind it arrives
        self.swallows_replies = False
        self.duplicate_after = 0  # the next request arrives once more, so much later
        self.sent = 0  # how many requests so far
        self.last_request: int | None = None  # after it broke: the last one that still arrives
        self.late_until = 0  # ... and not before that
        self.gone_by = 1 << 62  # ... nor after this
        self.held_requests: list[Message] = []  # by a partition
        self.held_replies: list[Message] = []

    # --- to the node -------------------------------------------------------------------------

    def ask(self, data: bytes, question: Question) -> None:
        """Send one command."""
        conversation = self.conversation
        told = conversation.ask(question, data)
        self._carry(question.command, question.round, in_full=told is not data)

    def ask_again(self) -> None:
        """Send what the conversation wants to: a script in full that the node has forgotten."""
        self.conversation.unsent = b""
        question = self.conversation.questions[-1]
        self._carry(question.command, question.round, in_full=True)

    def _carry(self, command: Command, round_: int, *, in_full: bool) -> None:
        world = self.process.world
        world.messages += 1
        self.sent += 1
        message = Message(world.messages, self, command, round_, self.sent)
        message.in_full = in_full
        if world.trace is not None:
            world.trace.send(message)
        if self.process.sending_late:
            world.at(world.now + self.process.sending_late, self.depart, message)
        else:
            self.depart(message)

    def depart(self, message: Message) -> None:
        """Put a request on its way, or hold it where there is a partition."""
        world = self.process.world
        if self.swallows_requests or self.lost:
            world.loses(message, "request")
            return
        if self.process.cut_off[self.server.index] & 1:
            self.held_requests.append(message)
            return
        at = world.now + world.weather.delay(self.dice) + self.server.slow_by
        self.requests_until = at = max(at, self.requests_until)
        world.at(at, self.server.arrive, message)
        if self.duplicate_after:
            twin = Message(message.number, self, message.command, message.round, message.place)
            twin.in_full, twin.copy = message.in_full, True
            world.at(at + self.duplicate_after, self.server.arrive, twin)
            self.duplicate_after = 0

    # --- and back ----------------------------------------------------------------------------

    def reply(self, message: Message) -> None:
        """Put a reply on its way."""
        world = self.process.world
        if self.swallows_replies or self.lost:
            world.loses(message, "reply")
            return
        if self.process.cut_off[self.server.index] & 2:
            self.held_replies.append(message)
            return
        at = max(world.now + world.weather.delay(self.dice), self.replies_until)
        self.replies_until = at
        world.at(at, self._arrived, message)

    def _arrived(self, message: Message) -> None:
        if self.lost:
            self.process.world.loses(message, "reply")
        else:
            self.process.hears(self, message)

    def let_through(self) -> None:
        """The partition is over: what it held goes on its way."""
        held, self.held_requests = self.held_requests, []
        for message in held:
            self.depart(message)
        held, self.held_replies = self.held_replies, []
        for message in held:
            self.reply(message)

    # --- the end -----------------------------------------------------------------------------

    def tear(self, survivors: int, late_by: int) -> None:
        """The client's side is gone.

        survivors: how many (per mille) of the requests under way still arrive, the oldest of
        them.  late_by: and how much later than now, at the earliest; none comes so late that debts
        would not cover it any more (`_core.debts`).
        """
        self.lost = True
        bound = self.process.policy.max_ttl * LATE_MAX // 100
        open_ = len(self.conversation.questions)
        dropped = open_ - open_ * survivors // 1000
        self.last_request = self.sent - dropped
        self.gone_by = self.process.world.now + bound
        self.late_until = self.process.world.now + min(late_by, bound)
        held, self.held_requests = self.held_requests, []
        for message in held:
            self.process.world.at(self.late_until, self.server.arrive, message)

    def still_arrives(self, message: Message) -> bool:
        """Whether a request that reaches the node's door gets in."""
        if self.epoch != self.server.epoch:
            return False
        return self.last_request is None or message.place <= self.last_request
