"""Messages between `run` and its guard: lists, as lines of JSON over a pair of sockets."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar


class _Source(Protocol):
    def fileno(self) -> int: ...


S = TypeVar("S", bound=_Source)


def readable(sources: Sequence[S], seconds: float) -> list[S]:
    """Wait until one of the sources can be read, and return those that can."""
    by_fd = {source.fileno(): source for source in sources}
    poll = select.poll()  # select.select refuses descriptors above 1,023
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    return [by_fd[fd] for fd, _ in poll.poll(seconds * 1000)]


class Channel:
    """One end of the channel.

    closed: the other end is gone, and all its messages were received.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._heard = b""
        self.closed: bool = False

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return both ends of a new channel."""
        one, other = socket.socketpair()
        return cls(one), cls(other)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, *message: object) -> None:
        """Send a message. An error is ignored: `receive` detects that the other end is gone."""
        with suppress(BrokenPipeError, ConnectionResetError):
            # ASCII JSON: Python's surrogate escapes preserve names that are not UTF-8.
            self._end.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[list[Any]]:
        """Wait for messages or for the end of the channel, and return the messages."""
        try:
            data = self._end.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self.closed = not data
        *lines, self._heard = (self._heard + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._end.close()
