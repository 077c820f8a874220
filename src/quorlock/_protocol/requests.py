"""Requests in flight, and the receivers of their replies."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from quorlock._core.rounds import replied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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


class ReleaseGroup:
    """Releases that are sent as one command, which frees all of their locks or changes nothing.

    It receives the reply for all of them.  The command of its request is the first release.
    """

    __slots__ = ("requests",)

    over = False
    round = 0

    def __init__(self, requests: list[PendingRequest]) -> None:
        self.requests = requests

    def deliver(self, reply: NodeReply) -> None:
        """Pass a reply on to each of the receivers, as one to its own release."""
        _, node, answer, at = reply
        for _, receiver, round_, _, _ in self.requests:
            if not receiver.over:
                receiver.deliver(replied((round_, node, answer, at)))

    def separate(self) -> list[PendingRequest]:
        """Return the releases, to be sent one by one: the node has carried out none of them."""
        return self.requests


def each_of(requests: Iterable[PendingRequest]) -> Iterator[PendingRequest]:
    """Yield these requests, and of each group its releases."""
    for request in requests:
        if isinstance(request.receiver, ReleaseGroup):
            yield from tuple(request.receiver.requests)
        else:
            yield request


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
