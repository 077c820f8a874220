"""The descriptors that a connection set polls: its connections, and a pipe that wakes its owner."""

from __future__ import annotations

import contextlib
import os
import select
from collections import deque
from itertools import chain, starmap
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._protocol.peer import PeerNode
    from quorlock._protocol.pipeline import PendingRequest


class Polled(Protocol):
    """A connection or a pipe."""

    @property
    def lost(self) -> bool: ...

    @property
    def bit(self) -> int: ...

    @property
    def node_state(self) -> PeerNode: ...

    def fileno(self) -> int: ...

    def receive_grant(self, awaited: PendingRequest, grant: bytes) -> bool: ...


class Poll:
    """The descriptors of a set's connections, and the poll on them."""

    __slots__ = ("_registry", "by_fd", "poll")

    def __init__(self) -> None:
        self._registry = select.poll()
        self.poll = self._registry.poll  # without another call
        self.by_fd: dict[int, Polled] = {}

    def add(self, polled: Polled) -> None:
        """Poll a descriptor from now on."""
        fd = polled.fileno()
        self.by_fd[fd] = polled
        self._registry.register(fd, select.POLLIN)

    def remove(self, polled: Polled) -> None:
        """Poll it no more."""
        # Not by `fileno`: an interrupted owner may have closed the socket.
        for fd in [fd for fd, other in self.by_fd.items() if other is polled]:
            with contextlib.suppress(KeyError):
                self._registry.unregister(fd)
            self.by_fd.pop(fd, None)

    def poll_with(self, fd: int, timeout_ms: int) -> None:
        """Poll with one more descriptor, once."""
        self._registry.register(fd, select.POLLIN)
        try:
            self.poll(timeout_ms)
        finally:
            self._registry.unregister(fd)


class WakeupPipe:
    """A pipe that wakes a polling thread. Its ends are closed with the last reference."""

    lost = False
    bit = 0
    node_state: PeerNode  # never set: only that of a lost connection is read
    _made: Sequence[tuple[int, int]] = ()

    def __init__(self) -> None:
        # Made and stored in one call of C, so that an interrupt loses no descriptor.
        self._made = made = deque[tuple[int, int]]()
        made.extend(starmap(os.pipe, ((),)))
        self.end, self._other = made[0]
        os.set_blocking(self.end, False)
        os.set_blocking(self._other, False)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self.end

    def wake(self) -> None:
        """Wake the thread; safe from any thread."""
        with contextlib.suppress(BlockingIOError):  # full: the thread will wake
            os.write(self._other, b"\0")

    def receive(self) -> None:
        """Drop the wake-ups that have come."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.end, 4096)

    def receive_grant(self, awaited: PendingRequest, grant: bytes) -> bool:
        """Do the same: there is no grant."""
        del awaited, grant
        self.receive()
        return False

    def __del__(self) -> None:
        for fd in chain(*self._made):  # none, if no descriptor was left for it
            os.close(fd)
