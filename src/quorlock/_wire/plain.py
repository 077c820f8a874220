"""Reads the replies to plain questions, those of `quorlock doctor`: whatever they are, as they are.

Leaves what they mean to who asked; those to a lock's questions are read by `conversation`.
"""

from __future__ import annotations

from typing import Any

from hiredis import Reader, ReplyError

from quorlock._wire.answers import printable, redacted
from quorlock._wire.conversation import REPLY_BYTES_MAX, Nonsense

NOTHING_YET = object()  # not hiredis' own False, which is a reply as well (RESP3's #f)


class Refused(str):
    """An error reply: its text, without our password, fit for a terminal."""

    __slots__ = ()


class Replies:
    """Bytes in, replies out."""

    def __init__(self, secret: str | None) -> None:
        self._secret = secret
        self._unread = 0
        self._reader = Reader(notEnoughData=NOTHING_YET)

    def hear(self, data: bytes) -> None:
        """Take in what came. Raises Nonsense where a reply has no end."""
        self._unread += len(data)
        if self._unread > REPLY_BYTES_MAX:
            raise Nonsense
        self._reader.feed(data)

    def next(self) -> Any:
        """The next reply, an error as a `Refused`; or NOTHING_YET. Raises Nonsense."""
        try:
            reply = self._reader.gets()
        except Exception as error:
            # Whatever the parser makes of a stranger's bytes, which may be an echo: not shown.
            raise Nonsense from error
        if reply is not NOTHING_YET:
            self._unread = 0
        if isinstance(reply, ReplyError):
            return Refused(printable(redacted(str(reply), self._secret)))
        return reply
