"""RESP by hand: a plain connection to a server or a proxy, commands and replies as bytes.

Independent of quorlock's own client and encoding, on purpose.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import hiredis

if TYPE_CHECKING:
    from quorlock.testing.servers import Server

_MORE = object()  # hiredis' sign that a reply is not complete yet

Address = str | tuple[str, int]
Argument = bytes | str | int | float


class Talk:
    """A connection by unix path, by (host, port), or one that is made. Error replies are returned
    as values.
    """

    def __init__(self, address: Address | socket.socket, *, timeout: float = 5.0) -> None:
        self.timeout = timeout  # seconds for one reply
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        if isinstance(address, socket.socket):
            self.socket = address
            return
        self.socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(address)
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Twice does no harm."""
        self.socket.close()

    def send(self, *args: Argument) -> None:
        """Send a command and do not wait."""
        self.socket.sendall(pack(*args))

    def read(self) -> Any:
        """The next reply. TimeoutError when none comes, ConnectionError when none will."""
        deadline = time.monotonic() + self.timeout
        while (reply := self._reader.gets()) is _MORE:
            self._reader.feed(self.receive(max(1e-6, deadline - time.monotonic())))
        return reply

    def receive(self, seconds: float | None = None) -> bytes:
        """Some bytes, as they come, within the timeout or so many seconds. ConnectionError at the
        end.
        """
        self.socket.settimeout(self.timeout if seconds is None else seconds)
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionAbortedError("the connection was closed")
        return data

    def ask(self, *args: Argument) -> Any:
        """Send a command and return its reply."""
        self.send(*args)
        return self.read()


def pack(*args: Argument) -> bytes:
    """A command as it goes over the wire."""
    parts = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def bulk(text: bytes | None) -> bytes:
    """A string as it is replied; None is RESP2's null."""
    return b"$-1\r\n" if text is None else b"$%d\r\n%b\r\n" % (len(text), text)


def take_frames(buffer: bytearray) -> list[bytes]:
    """Take all complete RESP values (2 and 3, attributes and pushes apart) off the front."""
    frames: list[bytes] = []
    start = 0
    while (end := _frame_end(buffer, start)) is not None:
        frames.append(bytes(buffer[start:end]))
        start = end
    del buffer[:start]
    return frames


def _frame_end(buffer: bytearray, start: int) -> int | None:
    line_end = buffer.find(b"\r\n", start)
    if line_end < 0:
        return None
    kind, end = buffer[start : start + 1], line_end + 2
    if kind in b"$!=*~>%|":
        size = int(buffer[start + 1 : line_end])
        if kind in b"$!=":
            end += size + 2 if size >= 0 else 0
            return end if end <= len(buffer) else None
        for _ in range(size * 2 if kind in b"%|" else size):
            inner = _frame_end(buffer, end)
            if inner is None:
                return None
            end = inner
    return end


def info(server: Server, section: str) -> Mapping[str, str]:
    """One section of INFO."""
    text: bytes = server.execute("INFO", section)
    pairs = (line.partition(":") for line in text.decode().splitlines())
    return {name: value for name, colon, value in pairs if colon}


def is_silent(address: Address, *command: str, seconds: float = 0.05) -> bool:
    """Return whether a server listens there and does not reply to the command (PING) for this
    long.
    """
    try:
        with Talk(address, timeout=seconds) as talk:
            talk.ask(*(command or ("PING",)))
    except TimeoutError:
        return True
    return False


def what_happens(address: Address, *command: str, seconds: float = 5.0) -> str:
    """Return the reply to a new client, or the name of its error."""
    try:
        with Talk(address, timeout=seconds) as talk:
            return repr(talk.ask(*(command or ("PING",))))
    except OSError as error:
        return type(error).__name__
