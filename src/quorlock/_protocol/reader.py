"""The one wrapper around hiredis: bytes in, replies out, and a bound on the bytes of one reply.

Whether a reply fits its request is decided by the callers.
"""

from __future__ import annotations

from typing import Any

from hiredis import HiredisError, PushNotification, Reader, ReplyError

from quorlock.errors import VoteCode

__all__ = [
    "NEED_DATA",
    "PARSER_ERRORS",
    "REPLY_BYTES_MAX",
    "ProtocolError",
    "PushNotification",
    "ReplyError",
    "ReplyReader",
    "not_redis",
]

# A lock's replies are small; the largest that is requested is INFO (some 10 KB).
REPLY_BYTES_MAX = 1 << 20
NEED_DATA = object()  # hiredis's own sign for it is False, which is a reply as well (RESP3's #f)

# All that the parser raises on bytes that are no replies. Listed one by one: the exception of a
# signal handler (a soft time limit) may be raised inside of it as well, and has to pass.
PARSER_ERRORS = (
    HiredisError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class ProtocolError(Exception):
    """Bytes that are not the reply to what was asked; the connection is of no more use."""

    code = VoteCode.PROTOCOL_ERROR


def not_redis() -> ProtocolError:
    """Return the error for bytes that cannot be parsed.

    It has none of the parser's words: they quote the bytes, and an echo server sends back our
    password.
    """
    return ProtocolError("does not speak the Redis protocol")


class ReplyReader:
    """The parser of the replies on one connection.

    Attributes:
        gets: hiredis's own method: the next reply, or NEED_DATA. Raises PARSER_ERRORS. For
            callers that parse many replies and set `unread` to 0 at each; see `next_reply`.
        has_data: hiredis's own method: whether bytes are left that are not parsed yet.
        unread: the bytes taken in since the last whole reply.
    """

    __slots__ = ("_feed", "gets", "has_data", "unread")

    def __init__(self) -> None:
        parser = Reader(notEnoughData=NEED_DATA)
        self._feed = parser.feed
        self.gets = parser.gets
        self.has_data = parser.has_data
        self.unread = 0

    def feed(self, data: bytes | bytearray | memoryview, size: int) -> None:
        """Take in the first `size` bytes of `data`.

        Raises:
            ProtocolError: one reply has more than REPLY_BYTES_MAX bytes.
        """
        self.unread += size
        if self.unread > REPLY_BYTES_MAX:
            raise ProtocolError("sends a reply without an end")
        self._feed(data, 0, size)  # type: ignore[arg-type] # any buffer will do

    def next_reply(self) -> Any:
        """Return the next reply, or NEED_DATA; an error reply is a `ReplyError`.

        Raises:
            ProtocolError: the bytes cannot be parsed.
        """
        try:
            reply = self.gets()
        except PARSER_ERRORS:
            raise not_redis() from None
        if reply is not NEED_DATA:
            self.unread = 0
        return reply
