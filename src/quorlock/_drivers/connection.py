"""One connection of the blocking driver: a non-blocking socket and its conversation.

It belongs to a bundle, whose owner reads it; any thread may write to it (a release goes behind
its acquire), so its lock covers queue, socket and parser.  A call that is interrupted half way
(Ctrl-C) leaves nobody knowing which bytes went out: the connection is given up then, and what
was in flight becomes a debt.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING

from quorlock._core.effects import Replied
from quorlock._core.outcomes import Answer, Cause, Vote
from quorlock._drivers.clock import now
from quorlock._wire.conversation import Conversation, Nonsense, Question

if TYPE_CHECKING:
    from quorlock._core.time import Instant
    from quorlock._drivers.members import Member


class Exchange:
    """One flow's letter box. `over`: the flow has ended, nobody reads it any more."""

    __slots__ = ("mail", "over", "round")

    def __init__(self) -> None:
        self.mail: deque[Replied] = deque()
        self.over = False
        self.round = 0

    def deliver(self, question: Question, node: int, answer: Answer, at: Instant) -> None:
        """Put one answer in; dropped when the flow has ended."""
        if not self.over:
            self.mail.append(Replied(question.round, node, answer, at))


class Connection:
    """See the module."""

    def __init__(
        self,
        sock: socket.socket,
        member: Member,
        would_block: tuple[type[Exception], ...],
        secret: str | None,
    ) -> None:
        self.sock = sock
        self.member = member
        self.lock = threading.Lock()
        self.lost = False
        self._buried = False  # its debts are noted, its askers told
        self.run_id = member.run_id
        self.conversation = Conversation(secret, member.patience)
        self._fd = sock.fileno()
        self._unsent = b""
        self._would_block = would_block
        # TLS keeps decrypted bytes that poll does not see: read until it would block.
        self._reads_on = len(would_block) > 1

    def fileno(self) -> int:
        """The socket's number, also after it was closed."""
        return self._fd

    @property
    def has_unsent(self) -> bool:
        """Bytes wait for room in the socket."""
        return bool(self._unsent)

    def ask(self, data: bytes, question: Question) -> bool:
        """Queue a question and send its bytes; False if the connection is lost already."""
        with self.lock:
            if self.lost:
                return False
            try:
                # Into the queue first: if we are interrupted after the bytes left, the acquire
                # is known to be in flight.
                self._write(self.conversation.ask(question, data))
            except BaseException as error:
                self._broken(error)
                if not isinstance(error, (OSError, Nonsense)):
                    raise
        return True

    def receive(self, buffer: bytearray) -> None:
        """Read what has come and deliver the answers; marks itself lost at the end of it."""
        with self.lock:
            if self.lost:
                return
            try:
                self._read(buffer)
                if self.conversation.unsent:
                    data, self.conversation.unsent = self.conversation.unsent, b""
                    self._write(data)
            except BaseException as error:
                self._broken(error)
                if not isinstance(error, (OSError, Nonsense)):
                    raise

    def flush(self) -> None:
        """Send what had to wait for room."""
        with self.lock:
            if self.lost or not self._unsent:
                return
            try:
                self._write(b"")
            except BaseException as error:
                self._broken(error)
                if not isinstance(error, OSError):
                    raise

    def close(self) -> None:
        """Close the socket; for the owner only. What is open becomes a debt, and no blame."""
        with self.lock:
            self._give_up("closed", blame=False)
        self.sock.close()

    def _write(self, data: bytes) -> None:
        # A command that went out in part is finished before anything else.
        data = self._unsent + data if self._unsent else data
        try:
            sent = self.sock.send(data)
        except self._would_block:
            sent = 0
        self._unsent = data[sent:] if sent < len(data) else b""

    def _read(self, buffer: bytearray) -> None:
        while True:
            try:
                size = self.sock.recv_into(buffer)
            except self._would_block:
                return
            if size == 0:
                raise ConnectionResetError(0, "closed by the server")
            at = now()
            self.conversation.heard(at)
            self.conversation.feed(buffer, size)
            self._deliver(at)
            if size < len(buffer) and not self._reads_on:
                return

    def _deliver(self, at: Instant) -> None:
        member = self.member
        for question, answer in self.conversation.answers():
            asker = question.asker
            assert isinstance(asker, Exchange)
            member.answered(question, answer, at)
            asker.deliver(question, member.index, answer, at)

    def _broken(self, error: BaseException) -> None:
        if isinstance(error, Nonsense):
            self._give_up(str(error), Cause.NONSENSE)
        elif isinstance(error, OSError):
            self._give_up(f"connection lost: {(error.strerror or type(error).__name__).lower()}")
        else:
            self._give_up("connection given up: the call was interrupted")

    def _give_up(self, text: str, cause: Cause = Cause.LOST, *, blame: bool = True) -> None:
        # `lost` first and `_buried` last: interrupted in between, closing goes through it again.
        self.lost = True
        if self._buried:
            return
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        at = now()
        self._leave_debts(at)
        if blame:
            self.member.lost(text, cause)
        answer = Answer(Vote.UNKNOWN, cause, text)
        for question in self.conversation.questions:
            asker = question.asker
            assert isinstance(asker, Exchange)
            asker.deliver(question, self.member.index, answer, at)
        self._buried = True

    def _leave_debts(self, at: Instant) -> None:
        for command in self.conversation.owed_releases():
            self.member.owe(command, self.run_id, at)
