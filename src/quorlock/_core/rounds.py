"""Rounds: one request to all nodes, the record of its sending, and the nodes' replies.

Named tuples, not dataclasses: a `NodeReply` is made for every reply, and a frozen dataclass takes
three times as long to make (docs/contributing/decisions/0011-named-tuples-for-facts.md).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

from quorlock._core.time import Instant
from quorlock._core.votes import Answer

# As the classes below, without the Python call of a named tuple: a third of the time.  With the
# calls, a cycle of asyncio has 1 % more instructions and 4 % more calls of C functions
# (`make bench-guard`).
_new = getattr(tuple, "__new__")  # noqa: B009 (as an attribute its type is half unknown)


class Target(NamedTuple):
    """The nodes that a command was sent to, and the connections that carried it.

    A command that must not overtake it (rule 3) goes to the same nodes, over the same connections.

    nodes: bit i is set if anything was sent to node i.
    path: the driver's record of the connections; a tuple of such records if keys were set over
    several (`joined`).
    """

    nodes: int
    path: object

    @property
    def paths(self) -> tuple[object, ...]:
        """Return the path, or all paths that are joined in it."""
        path = self.path
        return cast("tuple[object, ...]", path) if isinstance(path, tuple) else (path,)


def joined(first: Target | None, later: Target, everywhere: int) -> Target:
    """Return what a release of the keys set by both commands must follow.

    first: None if another process has set the keys: its nodes are unknown.
    """
    if first is None:
        return Target(everywhere, later.path)
    path = first.path if later.path in first.paths else (*first.paths, later.path)
    return Target(first.nodes | later.nodes, path)


class SentRound(NamedTuple):
    """The record of a round that was sent.

    started_at: read before the first byte was sent: the validity counts from here.
    sent_at: read after the last byte was sent: the nodes' time to reply counts from here.
    target: what a later command must follow.
    """

    round: int
    started_at: Instant
    sent_at: Instant
    target: Target = Target(0, None)


class NodeReply(NamedTuple):
    """One node's reply, with the number of its round."""

    round: int
    node: int
    answer: Answer
    at: Instant


replied: Callable[[tuple[int, int, Answer, Instant]], NodeReply] = partial(_new, NodeReply)
round_sent: Callable[[tuple[int, Instant, Instant, Target]], SentRound] = partial(_new, SentRound)
