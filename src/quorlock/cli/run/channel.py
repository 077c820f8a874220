"""Messages between `run` and its guard: lists, as lines of JSON over a pair of sockets. Knows
nothing of what they mean.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any


class Channel:
    """One end. `closed`: the other side is gone, and all that it had said was heard."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._heard = b""
        self.closed = False

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Both ends of a new one."""
        one, other = socket.socketpair()
        return cls(one), cls(other)

    def fileno(self) -> int:
        """For `select`."""
        return self._end.fileno()

    def say(self, *message: object) -> None:
        """Send it. To one who is gone it is not sent: that shows where we listen."""
        with suppress(BrokenPipeError, ConnectionResetError):
            # JSON in ASCII: names that are no UTF-8 come through as the escapes that Python has.
            self._end.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> list[list[Any]]:
        """What has come; waits for something to come, or for the other side's end."""
        try:
            data = self._end.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self.closed = not data
        *lines, self._heard = (self._heard + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """No more of it."""
        self._end.close()
