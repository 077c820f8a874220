"""One waiter of a lock in this process, and the news that others in the process have for it.

Other threads write to it at any time, and no lock is taken: every change is one call of C.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.request import AcquireRequest
    from quorlock._core.results import Acquired


class Promoted:
    """News: the waiter is the first of its line, and is to ask the nodes."""


class Removed:
    """News: an exchange that has not won may have removed its place from the nodes' queues."""


PROMOTED = Promoted()
REMOVED = Removed()
News: TypeAlias = "Acquired | Promoted | Removed"


class Member:
    """One waiter of a line.

    Attributes:
        request: What it wants.
        place: Its place in the queues of the nodes; b"" while it has none.
        is_asking: It was promoted, and asks the nodes.
        news: Its news that it has not read yet.
        wake: Has its flow read the news; the driver of the flow supplies it (`effects.Wait`).
    """

    __slots__ = ("_lease", "is_asking", "news", "place", "request", "wake")

    def __init__(self, request: AcquireRequest) -> None:
        self.request = request
        self.place = b""
        self.is_asking = False
        self.news: deque[News] = deque()
        self.wake: Callable[[], None] = _nothing
        # At most one entry: the lease that it was given, or None once it takes no more.
        self._lease: dict[None, Acquired | None] = {}

    @property
    def is_open(self) -> bool:
        """Return whether it would take a lease."""
        return not self._lease

    def give(self, lease: Acquired) -> bool:
        """Give it a lease that was won for it; return false if it takes none any more."""
        return self._lease.setdefault(None, lease) is lease and self.notify_again(lease.token)

    def notify_again(self, token: bytes) -> bool:
        """Return whether it has the lease with this token; if so, notify it.

        It may have been notified before. An interrupt may have prevented that.
        """
        lease = self._lease.get(None)
        if lease is None or lease.token != token:
            return False
        self._notify(lease)
        return True

    def promote(self) -> None:
        """Have it ask the nodes."""
        self.is_asking = True
        self._notify(PROMOTED)

    def ask_again(self) -> None:
        """Have it queue again: its place may have been removed."""
        self._notify(REMOVED)

    def _notify(self, news: News) -> None:
        self.news.append(news)
        self.wake()

    def close(self) -> Acquired | None:
        """Take no lease from now on; return the one that it was given before."""
        return self._lease.setdefault(None, None)


def _nothing() -> None:
    pass
