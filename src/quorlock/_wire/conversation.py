"""One node's side of one connection: what was asked, in order, and what has been answered.

Bytes in, answers out.  A Redis server answers in the order of the questions, so the oldest
question that waits is the one that a reply belongs to; a question that timed out stays in the
queue until its answer has come (rule 3).  Leaves sockets, locks and time to the drivers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hiredis import PushNotification, Reader, ReplyError

from quorlock._core.commands import (
    ACQUIRES,
    AcquireByScript,
    AnyAcquire,
    Command,
    Extend,
    Raise,
    Release,
    Track,
)
from quorlock._wire.answers import NONSENSE, READERS, WHOLE, error_answer, redacted
from quorlock._wire.packing import pack_in_full, pack_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorlock._core.outcomes import Answer
    from quorlock._core.time import Duration, Instant

# A lock's answers are small; the largest that we ask for is INFO (some 10 KB).
REPLY_BYTES_MAX = 1 << 20
# A node that owes so many answers, and has given none for a while, gets no new acquires: what
# it is owed is then bounded.  Releases of acquires that were sent always go out.
ANSWERS_OWED_MAX = 64
# The first of each on a connection is sent in full: to hear NOSCRIPT takes another round trip.
_FENCING = (AcquireByScript, Raise)
# An acquire may have been granted; a release may not have been carried out.
_LEAVES_A_KEY = (*ACQUIRES, Release)
# Not hiredis' own False, which is a reply as well (RESP3's #f).
_NOTHING_YET = object()


# Out of band, the server tells of these keys, read over this connection, that somebody else has
# changed them; None: it was emptied.
Hint = Callable[["Sequence[bytes] | None"], None]


class Nonsense(Exception):
    """What came is not the answer to what was asked; the connection is of no more use."""


class Asker(Protocol):
    """Who waits for an answer. `over`: nobody does any more. `round`: its last."""

    over: bool
    round: int


class Shared(Protocol):
    """Questions that come after those in the queue, and are kept elsewhere."""

    def next(self) -> Question:
        """Take the oldest of them; IndexError if there is none."""
        ...

    def settle(self) -> None:
        """Put all of them into the queue."""
        ...


class Question(NamedTuple):
    """A command that was sent, and for which of whose rounds."""

    command: Command
    asker: Asker
    round: int
    asked_at: Instant
    in_full: bool = False  # the script's text was sent, not its name


# As `Question(...)`; see `replied` in _core/effects.py.
questioned: Callable[[tuple[Command, Asker, int, Instant, bool]], Question] = partial(
    getattr(tuple, "__new__"),  # noqa: B009
    Question,
)


class _Nobody:
    over = True
    round = 0


# NOLOOP: what we do to the keys ourselves, over this connection, is no news.
_TRACK = pack_words(b"CLIENT", b"TRACKING", b"ON", b"NOLOOP")
_TRACKS = Track(b"")
_NOBODY = _Nobody()


class Conversation:
    """The queue of questions on one connection, and the reader of its replies."""

    __slots__ = (
        "_on_hint",
        "_reader",
        "_secret",
        "_tracks",
        "_unread",
        "known",
        "knows_extend",
        "knows_release",
        "midway",
        "nonsense",
        "patience",
        "questions",
        "shared",
        "silent_since",
        "unsent",
    )

    def __init__(self, secret: str | None, patience: Duration) -> None:
        self._secret = secret  # taken out of whatever words the server sends
        self.questions: deque[Question] = deque()
        self.shared: Shared | None = None
        self.patience = patience  # how long a node may keep silent with a full queue
        self.silent_since: Instant = 0  # when something came last, or the first was asked
        self.knows_release = False  # the node has been sent the script
        self.knows_extend = False
        self.known: set[str] = set()  # and those of these kinds of commands
        self.unsent = b""  # what the driver must send on our behalf (scripts in full)
        self._on_hint: Hint | None = None
        self._tracks = False  # the server was asked to
        self._reader = Reader(notEnoughData=_NOTHING_YET)
        self._unread = 0
        self.nonsense: Nonsense | None = None
        self.midway = False  # the parser has had a part of a reply

    def watch(self, on_hint: Hint) -> None:
        """From the next extension on, tell when others change a key that was extended."""
        self._on_hint = on_hint
        if not self._tracks:
            self.knows_extend = False

    def ask(self, question: Question, data: bytes) -> bytes:
        """Put a question at the end of the queue; what to send for it, `data` as a rule."""
        if not self.questions:
            self.silent_since = question.asked_at
        if not self.knows_release and isinstance(question.command, Release):
            # The first one in full, so that the node knows the script from then on: nobody may
            # be there to hear NOSCRIPT and ask again, and the key would stay.
            self.knows_release = True
            question, data = question._replace(in_full=True), pack_in_full(question.command)
        elif not self.knows_extend and isinstance(question.command, Extend):
            # So that a round of extensions is not one round trip longer than a lease has left.
            self.knows_extend = True
            data = self._track(question.asked_at) + pack_in_full(question.command)
            question = question._replace(in_full=True)
        elif type(question.command) in _FENCING and self._is_new(question.command):
            question, data = question._replace(in_full=True), pack_in_full(question.command)
        self.questions.append(question)
        return data

    def backlogged(self, at: Instant) -> bool:
        """The node owes many answers and has given none for a while."""
        return len(self.questions) >= ANSWERS_OWED_MAX and at - self.silent_since > self.patience

    def oldest(self, at: Instant) -> Instant:
        """When the oldest open question was asked; `at` if there is none."""
        questions = tuple(self.questions)
        return questions[0].asked_at if questions else at

    def at_once(self, data: bytes) -> tuple[Question, Answer] | None:
        """The question that is answered by these bytes, if they are one whole, plain answer.

        Nearly always, where answers are read one by one; a quarter of a cycle's time saved.  None:
        they may be anything, feed them.
        """
        if self.midway or not self.questions:
            return None
        answer = WHOLE[type(self.questions[0].command)].get(data)
        return None if answer is None else (self.questions.popleft(), answer)

    def feed(self, data: bytes | bytearray | memoryview, size: int) -> None:
        """Take in the first `size` bytes of what came; the driver notes when (`silent_since`)."""
        self._unread += size
        if self._unread > REPLY_BYTES_MAX:
            raise Nonsense("sends a reply without an end")
        self._reader.feed(data, 0, size)  # type: ignore[arg-type] # any buffer will do
        self.midway = True

    def answers(self) -> list[tuple[Question, Answer]]:
        """The questions that have their answers now.

        `nonsense` is set if something came that is none: to be raised when these are delivered.
        """
        reader, questions = self._reader, self.questions
        found: list[tuple[Question, Answer]] = []
        try:
            reply: Any
            while (reply := reader.gets()) is not _NOTHING_YET:
                self._unread = 0
                kind: object = reply.__class__
                if kind is PushNotification:
                    self._pushed(reply)
                    self.midway = reader.has_data()
                    continue
                # Without any: IndexError, as from a queue that is empty.
                question = (
                    questions.popleft() if questions or self.shared is None else self.shared.next()
                )
                if kind is not ReplyError:
                    answer = READERS[type(question.command)](reply)
                    if answer is NONSENSE:
                        questions.appendleft(question)  # not answered: it may have been granted
                        name = type(question.command).__name__
                        self.nonsense = Nonsense(f"answers {name} with another thing")
                        break
                    found.append((question, answer))
                elif type(question.command) is not Track and not self._asks_again(
                    question, str(reply)
                ):
                    error = error_answer(redacted(str(reply), self._secret))
                    found.append((question, error))
                # Nearly every answer is the last one that came: nothing is left to parse then.
                self.midway = reader.has_data()
                if not self.midway:
                    break
        except IndexError:
            self.nonsense = Nonsense("answers what it was not asked")
        except Exception:  # noqa: BLE001
            # Whatever the parser makes of a stranger's bytes.  Its words are not ours: they
            # quote bytes that came, and an echo server sends back our password.
            self.nonsense = Nonsense("does not speak the Redis protocol")
        return found

    def owed_releases(self) -> Iterator[AnyAcquire | Release]:
        """The questions without an answer after which a key of ours may be left on the node."""
        return (q.command for q in tuple(self.questions) if isinstance(q.command, _LEAVES_A_KEY))

    def awaits_acquire(self, token: bytes) -> bool:
        """Whether the acquire with this token is still unanswered here."""
        commands = (question.command for question in tuple(self.questions))
        return any(isinstance(c, ACQUIRES) and c.token == token for c in commands)

    def _track(self, at: Instant) -> bytes:
        """What to send before the first extension, where hints are wanted.

        The extension reads its key, so it is tracked from then on.  A server that can't, or may
        not, says so, and gives none: nobody listens to that.
        """
        if self._on_hint is None or self._tracks:
            return b""
        self._tracks = True
        self.questions.append(Question(_TRACKS, _NOBODY, 0, at))
        return _TRACK

    def _pushed(self, push: list[Any]) -> None:
        """Something that was not asked for; of interest if it tells of keys."""
        if self._on_hint is not None and len(push) == 2 and push[0] == b"invalidate":  # noqa: PLR2004
            keys: list[Any] | None = push[1]
            self._on_hint(None if keys is None else [k for k in keys if isinstance(k, bytes)])

    def _is_new(self, command: Command) -> bool:
        """Its script was not sent on this connection yet; from now on it was."""
        name = type(command).__name__
        is_new = name not in self.known
        self.known.add(name)
        return is_new

    def _asks_again(self, question: Question, error: str) -> bool:
        """Send a script in full that the node has forgotten, at the end of the queue; once.

        Releases always; anything else only while somebody waits for it: an acquire whose round
        is over would be a key that nobody gives back.  While it is not, the release of its token is
        still to come, behind it.
        """
        command = question.command
        if not error.startswith("NOSCRIPT") or question.in_full:
            return False
        if not isinstance(command, Release) and _is_over(question):
            self.known.discard(type(command).__name__)
            return False
        if self.shared is not None:
            self.shared.settle()
        self.unsent += pack_in_full(command)
        self.questions.append(question._replace(in_full=True))
        return True


def _is_over(question: Question) -> bool:
    """Nobody waits for its answer any more; an acquire's round must not be over either."""
    asker = question.asker
    return asker.over or (isinstance(question.command, ACQUIRES) and asker.round != question.round)
