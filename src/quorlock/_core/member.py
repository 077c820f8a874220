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


PROMOTED = Promoted()
News: TypeAlias = "Acquired | Promoted"


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
        if self._lease.setdefault(None, lease) is not lease:
            return False
        self.news.append(lease)
        self.wake()
        return True

    def promote(self) -> None:
        """Have it ask the nodes."""
        self.is_asking = True
        self.news.append(PROMOTED)
        self.wake()

    def close(self) -> Acquired | None:
        """Take no lease from now on; return the one that it was given before."""
        return self._lease.setdefault(None, None)


def _nothing() -> None:
    pass
