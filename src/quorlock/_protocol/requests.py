"""Requests in flight, and the receivers of their replies."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.commands import Command
    from quorlock._core.rounds import NodeReply
    from quorlock._core.time import Instant


class ReplyReceiver(Protocol):
    """The receiver of replies. `over`: it waits no longer. `round`: its last round."""

    round: int

    @property
    def over(self) -> bool: ...

    @property
    def deliver(self) -> Callable[[NodeReply], None]:
        """Receive one reply."""
        ...


class SharedQueue(Protocol):
    """Requests that come after those in the queue, and are kept elsewhere."""

    def take_next(self) -> PendingRequest:
        """Take the oldest of them; IndexError if there is none."""
        ...

    def flush_to_private(self) -> None:
        """Put all of them into the queue."""
        ...


class PendingRequest(NamedTuple):
    """A command that was sent, and the receiver and round that it was sent for."""

    command: Command
    receiver: ReplyReceiver
    round: int
    asked_at: Instant
    in_full: bool = False  # the script's text was sent, not its name


# As `PendingRequest(...)`; see `replied` in _core/rounds.py.
requested: Callable[[tuple[Command, ReplyReceiver, int, Instant, bool]], PendingRequest] = partial(
    getattr(tuple, "__new__"),  # noqa: B009
    PendingRequest,
)


class _NoReceiver:
    over = True
    round = 0

    def deliver(self, reply: NodeReply) -> None: ...


NO_RECEIVER = _NoReceiver()
