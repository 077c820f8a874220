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
from typing import TYPE_CHECKING, Any

from quorlock._core.effects import replied
from quorlock._core.outcomes import GRANTED, Answer, Cause, Vote
from quorlock._drivers.clock import now
from quorlock._wire.conversation import Conversation, Nonsense

if TYPE_CHECKING:
    from quorlock._core.effects import Replied
    from quorlock._core.guard import Quarantine
    from quorlock._core.time import Instant
    from quorlock._drivers.members import Member
    from quorlock._wire.conversation import Question


# Small: an answer has five bytes, and Python makes the buffer anew for each.
_READ_BYTES = 256


class Exchange:
    """One flow's letter box. `over`: the flow has ended, nobody reads it any more."""

    __slots__ = ("mail", "over", "round")

    def __init__(self) -> None:
        self.mail: deque[Replied] = deque()
        self.over = False
        self.round = 0

    def hear(self, reply: Replied) -> None:
        """Take one answer; called from any thread."""
        self.mail.append(reply)


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
        self.quarantine: Quarantine | None = None  # its server must not vote yet
        self.conversation = Conversation(secret, member.patience)
        self.questions = self.conversation.questions
        self._fd = sock.fileno()
        self.unsent: bytes = b""  # what waits for room in the socket, or for company
        self.corked = False
        self._send = sock.send
        self._recv = sock.recv
        self._would_block = would_block
        # TLS keeps decrypted bytes that poll does not see: read until it would block.
        self._reads_on = len(would_block) > 1

    def fileno(self) -> int:
        """The socket's number, also after it was closed."""
        return self._fd

    def ask(self, data: bytes, question: Question) -> bool:
        """Queue a question and send its bytes; False if the connection is lost already."""
        with self.lock:
            if self.lost:
                return False
            try:
                # Into the queue first: if we are interrupted after the bytes left, the acquire
                # is known to be in flight.
                data = self.conversation.ask(question, data)
                if self.corked:
                    self.unsent += data
                    return True
                if self.unsent:
                    data = self.unsent + data  # what went out in part is finished first
                self.unsent = data[self._send(data) :]
            except self._would_block:
                self.unsent = data
            except BaseException as error:
                self._broken(error)
                if not isinstance(error, (OSError, Nonsense)):
                    raise
        if self.unsent:
            self.member.on_unsent(self)
        return True

    def receive(self) -> None:
        """Read what has come and deliver the answers; marks itself lost at the end of it."""
        with self.lock:
            if self.lost:
                return
            try:
                while True:
                    data = self._recv(_READ_BYTES)
                    answered = self.conversation.at_once(data)
                    if answered is None:
                        reads_on = self._hear(data)
                    else:
                        self._deliver(answered, now())
                        reads_on = self._reads_on
                    if not reads_on:
                        break
            except self._would_block:
                pass
            except BaseException as error:
                self._broken(error)
                if not isinstance(error, (OSError, Nonsense)):
                    raise

    def flush(self) -> None:
        """Send what had to wait for room."""
        with self.lock:
            if self.lost or not self.unsent:
                return
            try:
                self._write(b"")
            except BaseException as error:
                self._broken(error)
                if not isinstance(error, OSError):
                    raise

    def uncork(self) -> None:
        """Send what was held back for company, in one packet."""
        self.corked = False
        self.flush()
        if self.unsent and not self.lost:
            self.member.on_unsent(self)

    def close(self) -> None:
        """Close the socket; for the owner only. What is open becomes a debt, and no blame."""
        with self.lock:
            self._give_up("closed", blame=False)
        self.sock.close()

    def _hear(self, data: bytes) -> bool:
        """Deliver the answers that are in it, if any is; True: there may be more to read."""
        if not data:
            raise ConnectionResetError(0, "closed by the server")
        conversation, at = self.conversation, now()
        conversation.silent_since = at
        conversation.feed(data, len(data))
        for answered in conversation.answers():
            self._deliver(answered, at)
        if conversation.nonsense:
            raise conversation.nonsense
        if conversation.unsent:
            data, conversation.unsent = conversation.unsent, b""
            self._write(data)
        return self._reads_on or len(data) == _READ_BYTES

    def _deliver(self, answered: tuple[Question, Answer], at: Instant) -> None:
        question, answer = answered
        member: Member = self.member
        asker: Any
        _, asker, round_, asked_at, _ = question
        self.conversation.silent_since = at
        if answer is GRANTED and member.is_calm:
            member.latency = at - asked_at
        else:
            member.answered(question, answer, at)
        if not asker.over:
            asker.mail.append(replied((round_, member.index, answer, at)))

    def _write(self, data: bytes) -> None:
        # A command that went out in part is finished before anything else.
        data = self.unsent + data
        try:
            sent = self._send(data)
        except self._would_block:
            sent = 0
        self.unsent = data[sent:]

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
            asker: Any = question.asker
            if not asker.over:
                asker.mail.append(replied((question.round, self.member.index, answer, at)))
        self._buried = True

    def _leave_debts(self, at: Instant) -> None:
        for command in self.conversation.owed_releases():
            self.member.owe(command, self.run_id, at)
