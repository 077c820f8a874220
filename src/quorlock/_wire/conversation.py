"""One node's side of one connection: what was asked, in order, and what has been answered.

Bytes in, answers out.  A Redis server answers in the order of the questions, so the oldest
question that waits is the one that a reply belongs to; a question that timed out stays in the
queue until its answer has come (rule 3).  Leaves sockets, locks and time to the drivers.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hiredis import PushNotification, Reader, ReplyError

from quorlock._core.commands import Acquire, Command, Release
from quorlock._core.outcomes import Cause
from quorlock._wire.answers import error_answer, interpret, redacted
from quorlock._wire.packing import pack_in_full

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock._core.outcomes import Answer
    from quorlock._core.time import Duration, Instant

# A lock's answers are small; the largest that we ask for is INFO (some 10 KB).
REPLY_BYTES_MAX = 1 << 20
# A node that owes so many answers, and has given none for a while, gets no new acquires: what
# it is owed is then bounded.  Releases of acquires that were sent always go out.
ANSWERS_OWED_MAX = 64
# An acquire may have been granted; a release may not have been carried out.
_LEAVES_A_KEY = (Acquire, Release)
# Not hiredis' own False, which is a reply as well (RESP3's #f).
_NOTHING_YET = object()


class Nonsense(Exception):
    """What came is not the answer to what was asked; the connection is of no more use."""


class Asker(Protocol):
    """Who waits for an answer. `over`: nobody does any more."""

    over: bool


class Question(NamedTuple):
    """A command that was sent, and for which of whose rounds."""

    command: Command
    asker: Asker
    round: int
    asked_at: Instant
    in_full: bool = False  # the script's text was sent, not its name


class Conversation:
    """The queue of questions on one connection, and the reader of its replies."""

    __slots__ = (
        "_knows_release",
        "_patience",
        "_reader",
        "_secret",
        "_silent_since",
        "_unread",
        "questions",
        "unsent",
    )

    def __init__(self, secret: str | None, patience: Duration) -> None:
        self._secret = secret  # taken out of whatever words the server sends
        self.questions: deque[Question] = deque()
        self._patience = patience  # how long a node may keep silent with a full queue
        self._silent_since: Instant = 0
        self._knows_release = False
        self.unsent = b""  # what the driver must send on our behalf (scripts in full)
        self._reader = Reader(notEnoughData=_NOTHING_YET)
        self._unread = 0

    def ask(self, question: Question, data: bytes) -> bytes:
        """Put a question at the end of the queue; what to send for it, `data` as a rule."""
        if not self.questions:
            self._silent_since = question.asked_at
        if not self._knows_release and isinstance(question.command, Release):
            # The first one in full, so that the node knows the script from then on: nobody may
            # be there to hear NOSCRIPT and ask again, and the key would stay.
            self._knows_release = True
            question, data = question._replace(in_full=True), pack_in_full(question.command)
        self.questions.append(question)
        return data

    def backlogged(self, at: Instant) -> bool:
        """The node owes many answers and has given none for a while."""
        return len(self.questions) >= ANSWERS_OWED_MAX and at - self._silent_since > self._patience

    def oldest(self, at: Instant) -> Instant:
        """When the oldest open question was asked; `at` if there is none."""
        questions = tuple(self.questions)
        return questions[0].asked_at if questions else at

    def heard(self, at: Instant) -> None:
        """Something came."""
        self._silent_since = at

    def feed(self, data: bytes | bytearray | memoryview, size: int) -> None:
        """Take in the first `size` bytes of what came."""
        self._unread += size
        if self._unread > REPLY_BYTES_MAX:
            raise Nonsense("sends a reply without an end")
        self._reader.feed(data, 0, size)  # type: ignore[arg-type] # any buffer will do

    def answers(self) -> Iterator[tuple[Question, Answer]]:
        """The questions that have their answers now. Raises Nonsense."""
        while (reply := self._next()) is not _NOTHING_YET:
            if isinstance(reply, PushNotification):
                continue  # out of band: a server may push, we have not subscribed to anything
            if not self.questions:
                raise Nonsense("answers what it was not asked")
            question = self.questions.popleft()
            if isinstance(reply, ReplyError):
                if self._asks_again(question, str(reply)):
                    continue
                yield question, error_answer(redacted(str(reply), self._secret))
                continue
            answer = interpret(question.command, reply)
            if answer.cause is Cause.NONSENSE:
                self.questions.appendleft(question)  # not answered: it may have been granted
                raise Nonsense(f"answers {type(question.command).__name__} with another thing")
            yield question, answer

    def owed_releases(self) -> Iterator[Acquire | Release]:
        """The questions without an answer after which a key of ours may be left on the node."""
        return (q.command for q in tuple(self.questions) if isinstance(q.command, _LEAVES_A_KEY))

    def awaits_acquire(self, token: bytes) -> bool:
        """Whether the acquire with this token is still unanswered here."""
        commands = (question.command for question in tuple(self.questions))
        return any(type(c) is Acquire and c.token == token for c in commands)

    def _next(self) -> Any:
        try:
            reply = self._reader.gets()
        except Exception as error:
            # Whatever the parser makes of a stranger's bytes.  Its words are not ours: they
            # quote bytes that came, and an echo server sends back our password.
            raise Nonsense("does not speak the Redis protocol") from error
        if reply is not _NOTHING_YET:
            self._unread = 0
        return reply

    def _asks_again(self, question: Question, error: str) -> bool:
        """Send a script in full that the node has forgotten, at the end of the queue; once.

        Releases always; anything else only while somebody waits for it: an acquire whose round
        is over would be a key that nobody gives back.
        """
        command = question.command
        if not error.startswith("NOSCRIPT") or question.in_full or isinstance(command, Acquire):
            return False
        if question.asker.over and not isinstance(command, Release):
            return False
        self.unsent += pack_in_full(command)
        self.questions.append(question._replace(in_full=True))
        return True
