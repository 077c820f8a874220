"""A command that a memory node executes, and the state of the connection that it came over."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorlock.testing.fake_keys import Push

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock.testing.fake_keys import Entry
    from quorlock.testing.fake_node import FakeNode


class SessionState:
    """The state of one connection to a node.

    Replies are Python objects: int, float, bytes, `Status`, `Text`, `Error`, None, list, dict for a
    map, and `Push`. They are sent in RESP3.

    Attributes:
        node: the node at the other end.
        id: the number of the connection.
        channels: those that it has subscribed to.
        on_push: takes the messages on these channels, one by one.
    """

    __slots__ = ("channels", "id", "node", "on_push")

    def __init__(self, node: FakeNode, number: int = 1) -> None:
        self.node: FakeNode = node
        self.id: int = number
        self.channels: list[bytes] = []
        self.on_push: Callable[[Push], None] = _ignore

    def hear(self, channel: bytes, message: bytes) -> None:
        """Take a message that was published."""
        self.on_push(Push([b"message", channel, message]))

    def close(self) -> None:
        """Unsubscribe from all channels."""
        for channel in self.channels:
            self.node.unsubscribe(channel, self.hear)
        self.channels.clear()


def _ignore(push: Push) -> None:
    del push


class CommandCall(NamedTuple):
    """A command that is being executed: the words after its name, and the instant."""

    session: SessionState
    node: FakeNode
    words: Sequence[bytes]
    at: int

    def alive(self) -> Entry | None:
        """Return the entry of the first key among the words."""
        return self.node.alive(self.words[0], self.at)
