"""One connection of the asyncio driver: a protocol with its conversation.

A BufferedProtocol: plain ones make CPython receive into a fresh 256 KiB buffer, which costs
mmap and munmap for every reply (half of the rate with one task).  Shared by all tasks of its
loop; commands go out in the order of the asking.  Leaves reconnecting to `way`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, Protocol, cast

from quorlock._core.commands import Release
from quorlock._core.effects import replied
from quorlock._core.outcomes import GRANTED, Answer, Cause, Vote
from quorlock._drivers.clock import now
from quorlock._wire.conversation import Conversation, Nonsense, Question
from quorlock._wire.handshake import HANGS_UP, Greeting, Handshake, Unfit

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from quorlock._core.effects import Replied
    from quorlock._core.guard import Quarantine
    from quorlock._core.time import Instant
    from quorlock._drivers.convoy import Convoy
    from quorlock._drivers.members import Member

_BUFFER_BYTES = 16_384
_LINES = (b"+", b"-", b":", b"_")  # replies of one line
_NIL = b"$-1\r\n"


class Hears(Protocol):
    """Who waits for answers in this loop."""

    over: bool
    round: int = 0

    def hear(self, reply: Replied) -> None:
        """Take one answer."""
        ...


class Link(asyncio.BufferedProtocol):
    """See the module."""

    def __init__(
        self,
        member: Member,
        handshake: Handshake,
        secret: str | None,
        on_lost: Callable[[Link], None],
        convoy: Convoy,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.member = member
        self.lost = False
        self.admitted = False  # its server may vote
        self.bit = 1 << member.index
        self.seat = -1  # in the convoy; -1: it is not in it
        self.apart = False  # it owes too much to be in it
        self.run_id = ""
        self.quarantine: Quarantine | None = None  # its server must not vote yet
        self.conversation = Conversation(secret, member.patience)
        self.conversation.shared = self
        self.greeted: asyncio.Future[Greeting] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._handshake: Handshake | None = handshake
        self.on_end: Callable[[], None] = lambda: None
        self.on_debt: Callable[[], None] = lambda: None
        self.on_fit: Callable[[], None] = lambda: None  # no longer apart
        self._on_lost = on_lost
        self._convoy = convoy
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._transport: asyncio.Transport | None = None
        self._ended = False  # the transport has told us so

    @property
    def connected(self) -> bool:
        """It had a socket at some time."""
        return self._transport is not None

    @property
    def owes(self) -> bool:
        """It has not answered everything."""
        shared = self.seat >= 0 and self._convoy.waits_for(self)
        return (shared or bool(self.conversation.questions)) and not self.lost

    def oldest(self, at: Instant) -> Instant:
        """When its oldest open question was asked; `at` if there is none."""
        own = self.conversation.oldest(at)
        return min(own, self._convoy.oldest(self, at)) if self.seat >= 0 else own

    def ask(self, data: bytes, question: Question) -> bool:
        """Queue a question and send its bytes; False if the connection is lost already."""
        if self.lost:
            return False
        self.settle()
        self.write(self.conversation.ask(question, data))
        return True

    def write(self, data: bytes) -> None:
        """Send."""
        conversation = self.conversation
        if conversation.unsent:
            # A script that goes again is in the queue before what is sent now.
            data, conversation.unsent = conversation.unsent + data, b""
        if self._transport is not None and not self.lost:
            self._transport.write(data)

    def next(self) -> Question:
        """Take the oldest question that it shares with the others, as `Conversation` wishes."""
        if self.seat < 0:
            raise IndexError
        return self._convoy.next_of(self)

    def settle(self) -> None:
        """Put the questions that it shares with the others into its own queue."""
        if self.seat >= 0:
            self._convoy.flush()  # what was asked before
            self._convoy.settle(self)

    def close(self) -> None:
        """Close when everything has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now."""
        # Not once more while it ends: asyncio would call connection_lost a second time, and fail.
        if self._transport is not None and not self._ended:
            self._transport.abort()

    # --- what the event loop calls -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        assert self._handshake is not None
        self.write(self._handshake.to_send)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._handshake is None:
                self._hear(bytes(self._buffer[:nbytes]))
            else:
                self._greet(self._handshake, bytes(self._buffer[:nbytes]))
        except Nonsense as nonsense:
            self._give_up(str(nonsense), Cause.NONSENSE)
        except Unfit as unfit:
            if not self.greeted.done():
                self.greeted.set_exception(unfit)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        words = getattr(exc, "strerror", None) or "closed by the server"
        self._give_up(f"connection lost: {words.lower()}")
        if not self.greeted.done():
            self._hear_last_words()
        if not self.greeted.done():
            self.greeted.set_exception(Unfit(HANGS_UP, lasting=False))
        if not self.greeted.cancelled():
            self.greeted.exception()  # seen: nobody may be left to ask for it
        if not self.closed.done():
            self.closed.set_result(None)
        self.on_end()

    def _hear_last_words(self) -> None:
        # A server may refuse us in one line and hang up; when our own words then meet a closed
        # door, asyncio ends the connection without reading what it said.
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None or self._handshake is None:
            return
        try:
            with contextlib.suppress(OSError):
                self._handshake.hear(os.read(sock.fileno(), _BUFFER_BYTES))
        except Unfit as unfit:
            self.greeted.set_exception(unfit)

    # --- inside ------------------------------------------------------------------------------

    def _greet(self, handshake: Handshake, data: bytes) -> None:
        handshake.to_send = b""
        handshake.hear(data)
        if handshake.greeting is None:
            self.write(handshake.to_send)
            return
        self._handshake = None
        self.run_id = handshake.greeting.run_id
        if not self.greeted.done():
            self.greeted.set_result(handshake.greeting)

    def _hear(self, data: bytes) -> None:
        conversation = self.conversation
        conversation.silent_since = at = now()
        while self.seat >= 0 and not (
            conversation.questions or conversation.midway or self.member.is_in_trouble
        ):
            size = self._convoy.hear(self, data, at)
            if size == len(data):
                return
            # One line that is not as hoped is read alone: what follows may be as hoped again.
            end = _end_of_line(data, size)
            if not end:
                data = data[size:]
                break
            conversation.feed(data[size:end], end - size)
            self._deliver(at)
            data = data[end:]
            if not data:
                return
        conversation.feed(data, len(data))
        self._deliver(at)

    def _deliver(self, at: Instant) -> None:
        conversation, member = self.conversation, self.member
        index, in_trouble = member.index, member.is_in_trouble
        for question, answer in conversation.answers():
            if answer is not GRANTED or in_trouble:
                member.answered(question, answer, at)
                if type(question.command) is Release and not answer.is_done:
                    self.on_debt()
            asker: Any = question.asker
            if not asker.over:
                asker.hear(replied((question.round, index, answer, at)))
                member.latency = at - question.asked_at
        if conversation.nonsense:
            raise conversation.nonsense
        if conversation.unsent:
            self.write(b"")
        if self.apart and not conversation.questions:
            self.apart = False
            self.on_fit()

    def _give_up(self, text: str, cause: Cause = Cause.LOST) -> None:
        if self.lost:
            return
        self.lost = True
        self.abort()
        if not self.admitted:
            return  # who connects tells the reason
        at = now()
        self.settle()
        for command in self.conversation.owed_releases():
            self.member.owe(command, self.run_id, at)
        self.member.lost(text, cause)
        self._on_lost(self)
        answer = Answer(Vote.UNKNOWN, cause, text)
        for question in self.conversation.questions:
            asker: Any = question.asker
            if not asker.over:
                asker.hear(replied((question.round, self.member.index, answer, at)))


def _end_of_line(data: bytes, start: int) -> int:
    """Where the reply ends that begins there; 0 if it is not one whole line."""
    if data[start : start + 1] in _LINES or data.startswith(_NIL, start):
        return data.find(b"\r\n", start) + 2 if b"\r\n" in data[start:] else 0
    return 0


def tuned(transport: asyncio.BaseTransport, tune: Callable[[socket.socket], None]) -> None:
    """Set socket options on a transport's socket, where it has one."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            tune(sock)
