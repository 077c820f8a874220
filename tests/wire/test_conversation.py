"""One connection's questions and answers: in order, however the bytes come, never invented."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock._core.commands import Acquire, Command, Extend, Inspect, Release
from quorlock._core.effects import Replied
from quorlock._core.outcomes import ABSENT, GRANTED, HELD, Answer, Cause, Vote
from quorlock._drivers.convoy import Convoy
from quorlock._drivers.link import Hears, Link
from quorlock._drivers.members import Member
from quorlock._wire.conversation import (
    ANSWERS_OWED_MAX,
    REPLY_BYTES_MAX,
    Conversation,
    Nonsense,
    Question,
)
from quorlock._wire.handshake import Handshake
from quorlock._wire.nodes import Node
from quorlock._wire.packing import pack, pack_in_full, pack_words
from tests.support.script import policy_of

PASSWORD = "canary-Pa55"
PATIENCE = 100


@dataclass
class Asker:
    over: bool = False
    round: int = 0


@dataclass
class Talk:
    """A conversation, with what a test does to it."""

    conversation: Conversation = field(default_factory=lambda: Conversation(PASSWORD, PATIENCE))
    rounds: int = 0

    def ask(self, command: Command, *, over: bool = False, at: int = 0) -> int:
        self.rounds += 1
        self.conversation.ask(Question(command, Asker(over), self.rounds, at), pack(command))
        return self.rounds

    @classmethod
    def that_released(cls) -> Talk:
        """Its first release and extension, which go in full, are behind it."""
        talk = cls()
        talk.ask(release(b"first"))
        talk.ask(extend(b"first"))
        talk.hear(b":-2\r\n:-1\r\n")
        talk.rounds = 0
        return talk

    def hear(self, *parts: bytes) -> list[tuple[int, Answer]]:
        """The rounds that got their answers, with them."""
        heard = []
        for part in parts:
            self.conversation.feed(bytearray(part), len(part))
            heard += [(question.round, answer) for question, answer in self.conversation.answers()]
            if self.conversation.nonsense:
                raise self.conversation.nonsense
        return heard


def acquire(token: bytes = b"t") -> Acquire:
    return Acquire(b"k", token, 1_000)


def extend(token: bytes = b"t") -> Extend:
    return Extend(b"k", token, 1_000)


def release(token: bytes = b"t") -> Release:
    return Release(b"k", token)


INSPECT = Inspect(b"k")

# Every kind of reply that a node gives to us, RESP2 and RESP3.
EXCHANGES: list[tuple[Command, bytes, Answer]] = [
    (acquire(), b"+OK\r\n", GRANTED),
    (acquire(), b"$-1\r\n", HELD),
    (acquire(), b"_\r\n", HELD),
    (acquire(), b"-LOADING x\r\n", Answer(Vote.REFUSED, Cause.FAILED, "LOADING x")),
    (extend(), b":1\r\n", GRANTED),
    (extend(), b":-1\r\n", ABSENT),
    (release(), b":-3\r\n", GRANTED),
    (release(), b":77\r\n", Answer(Vote.REFUSED, Cause.HELD, "", 77)),
    (INSPECT, b"*2\r\n$3\r\n\r\n*\r\n:5\r\n", Answer(Vote.REFUSED, Cause.HELD, "", 5, b"\r\n*")),
    (Inspect(b"k"), b"*2\r\n_\r\n:-2\r\n", ABSENT),
    (Inspect(b"k"), b"*2\r\n$-1\r\n:-2\r\n", ABSENT),
]
PUSHES = [b">2\r\n+invalidate\r\n*1\r\n+k\r\n", b">1\r\n_\r\n", b">3\r\n+m\r\n:1\r\n#f\r\n"]


@settings(deadline=None)
@given(st.lists(st.integers(0, len(EXCHANGES) - 1), min_size=1, max_size=8), st.data())
def test_answers_come_in_the_order_of_the_questions(chosen: list[int], data: st.DataObject) -> None:
    """Each reply belongs to the oldest question that waits, however the bytes are cut and
    whatever is pushed between them.
    """
    talk = Talk()
    expected = [(talk.ask(EXCHANGES[i][0]), EXCHANGES[i][2]) for i in chosen]
    pushes = [b"".join(data.draw(st.lists(st.sampled_from(PUSHES), max_size=2))) for _ in chosen]
    stream = b"".join(push + EXCHANGES[i][1] for push, i in zip(pushes, chosen, strict=True))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream)), max_size=6)))
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert talk.hear(*parts) == expected
    assert not talk.conversation.questions


@pytest.mark.parametrize("exchange", EXCHANGES, ids=range(len(EXCHANGES)))
def test_a_reply_split_at_every_byte(exchange: tuple[Command, bytes, Answer]) -> None:
    """Two parts, at every boundary, and byte by byte: the same answer, not a byte too early."""
    command, reply, answer = exchange
    for cut in range(1, len(reply)):
        talk = Talk()
        talk.ask(command)
        assert talk.hear(reply[:cut]) == []
        assert talk.hear(reply[cut:]) == [(1, answer)]
    talk = Talk()
    talk.ask(command)
    assert talk.hear(*(reply[i : i + 1] for i in range(len(reply)))) == [(1, answer)]


# What a command may be answered with, also by what looks like another's whole answer inside.
REPLIES: dict[type[Command], tuple[bytes, ...]] = {
    Acquire: (b"+OK\r\n", b"_\r\n", b"$-1\r\n", b"-ERR +OK\r\n", b"$2\r\nOK\r\n"),
    Extend: (b":1\r\n", b":0\r\n", b":-1\r\n", b"-BUSY :1\r\n"),
    Release: (b":-3\r\n", b":-2\r\n", b":1234\r\n", b"-ERR :-3\r\n"),
    Inspect: (b"*2\r\n$5\r\n+OK\r\n\r\n:7\r\n", b"*2\r\n$-1\r\n:-2\r\n"),
}
PUSH = b">2\r\n+OK\r\n+OK\r\n"
PLAIN: tuple[Command, ...] = (
    Acquire(b"k", b"t", 1_000),
    Extend(b"k", b"t", 1_000),
    Release(b"k", b"t"),
    Inspect(b"k"),
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_reading_whole_answers_at_once_changes_nothing(data: st.DataObject) -> None:
    """However the bytes come: `at_once` where it can, the parser else, or the parser alone."""
    commands = data.draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=6))
    quick, slow = Talk.that_released(), Talk.that_released()
    stream: list[bytes] = []
    for command in commands:
        quick.ask(command)
        slow.ask(command)
        if data.draw(st.booleans()):
            stream.append(PUSH)
        stream.append(data.draw(st.sampled_from(REPLIES[type(command)])))
    whole = b"".join(stream)
    ends = {sum(map(len, stream[: i + 1])) for i in range(len(stream))}
    cuts = data.draw(st.sets(st.sampled_from([*ends, *range(1, len(whole) + 1)])))
    at, heard = 0, []
    for cut in sorted({*cuts, len(whole)}):
        part, at = whole[at:cut], cut
        one = quick.conversation.at_once(part)
        if one is None:
            heard += quick.hear(part)
        else:
            heard.append((one[0].round, one[1]))
    assert heard == slow.hear(whole)
    assert not quick.conversation.questions


def test_only_the_filled_part_of_a_buffer_counts() -> None:
    """A driver's buffer holds old bytes behind the new ones."""
    talk = Talk()
    talk.ask(acquire())
    talk.conversation.feed(bytearray(b"+OK\r\n+OK\r\n"), 5)
    assert [answer for _, answer in talk.conversation.answers()] == [GRANTED]


def test_a_question_nobody_waits_for_keeps_its_place() -> None:
    """A timed-out question stays in the queue, and its late answer is not the next one's."""
    talk = Talk()
    first = talk.ask(acquire(b"1"), over=True)
    second = talk.ask(acquire(b"2"))
    assert talk.hear(b"+OK\r\n") == [(first, GRANTED)]
    assert talk.hear(b"$-1\r\n") == [(second, HELD)]


# --- nonsense --------------------------------------------------------------------------------


def test_an_answer_that_nobody_asked_for() -> None:
    """After it no reply can be matched with its question."""
    talk = Talk()
    with pytest.raises(Nonsense, match="answers what it was not asked"):
        talk.hear(b"+OK\r\n")
    talk = Talk()
    talk.ask(acquire())
    with pytest.raises(Nonsense, match="answers what it was not asked"):
        talk.hear(b"+OK\r\n+OK\r\n")


def test_pushes_are_no_answers() -> None:
    """Out-of-band messages are skipped, also when nothing was asked, also thousands of them."""
    talk = Talk()
    assert talk.hear(*PUSHES) == []
    talk.ask(acquire())
    assert talk.hear(b"".join(PUSHES) * 5_000 + b"+OK\r\n") == [(1, GRANTED)]


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (acquire(), b":1\r\n"),
        (acquire(), b"#f\r\n"),
        (acquire(), b"+QUEUED\r\n"),
        (extend(), b"#t\r\n"),
        (extend(), b":2\r\n"),
        (extend(), b"+OK\r\n"),
        (release(), b"$-1\r\n"),
        (release(), b",-3\r\n"),
        (release(), b"*1\r\n:-3\r\n"),
        (Inspect(b"k"), b"#f\r\n"),
        (Inspect(b"k"), b"*2\r\n#f\r\n:-2\r\n"),
        (Inspect(b"k"), b"%1\r\n$1\r\nt\r\n:5\r\n"),
    ],
)
def test_another_shape_is_nonsense_and_stays_owed(command: Command, reply: bytes) -> None:
    """The question is not answered: its key may be there, so its release is owed. RESP3's false
    is a reply like any other, not "nothing yet".
    """
    talk = Talk()
    talk.ask(command)
    name = type(command).__name__
    with pytest.raises(Nonsense, match=f"^answers {name} with another thing$"):
        talk.hear(reply)
    assert [question.command for question in talk.conversation.questions] == [command]


GARBAGE = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"\x16\x03\x01\x02\x00",
    b"\r\n\r\n",
    b"!5\r\nERR x\r\n",
    b",abc\r\n",
    b"*99999999999999999999\r\n",
    b"%1\r\n*0\r\n:1\r\n",
    b"%1\r\n%0\r\n:1\r\n",
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_what_is_no_resp_is_nonsense(data: bytes) -> None:
    """Another protocol, or a reply that the parser chokes on: one kind of error for all."""
    talk = Talk()
    talk.ask(acquire())
    with pytest.raises(Nonsense, match="does not speak the Redis protocol"):
        talk.hear(data)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_arbitrary_bytes_never_grant_and_never_crash(parts: list[bytes]) -> None:
    """Any bytes give answers or Nonsense; nothing is granted but by +OK."""
    talk = Talk()
    for _ in range(3):
        talk.ask(acquire())
    try:
        heard = talk.hear(*parts)
    except Nonsense:
        return
    assert b"OK" in b"".join(parts) or all(answer is not GRANTED for _, answer in heard)


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"$999999999\r\n", b"x" * 10_000),
        (b"+", b"x" * 10_000),
        (b"*1000000\r\n", b":1\r\n" * 2_500),
        (b"*1000000\r\n", b"*2\r\n:1\r\n:1\r\n" * 1_000),
        (b">1000000\r\n", b":1\r\n" * 2_500),
        (b"%1000000\r\n", b":1\r\n" * 2_500),
    ],
)
def test_a_reply_without_an_end(start: bytes, more: bytes) -> None:
    """What is read of one reply is bounded, whether it is one long string or many elements."""
    talk = Talk()
    talk.ask(Inspect(b"k"))
    before = (REPLY_BYTES_MAX - len(start)) // len(more)
    assert talk.hear(start, *[more] * before) == []
    with pytest.raises(Nonsense, match="sends a reply without an end"):
        talk.hear(more)


def test_many_small_replies_are_not_one_without_an_end() -> None:
    """The bound is for one reply: a busy connection may carry any number of bytes."""
    talk = Talk()
    part = b"*2\r\n$9000\r\n" + b"x" * 9_000 + b"\r\n:5\r\n"
    for _ in range(2 * REPLY_BYTES_MAX // len(part)):
        talk.ask(Inspect(b"k"))
        assert len(talk.hear(part[:5_000], part[5_000:])) == 1


# --- a server's words ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        f"-ERR you said {PASSWORD}",
        f"-{PASSWORD}",
        "-ERR " + "x" * 150 + PASSWORD,
        f"-ERR {PASSWORD}{PASSWORD}",
    ],
)
def test_a_server_that_plays_our_password_back(reply: str) -> None:
    """Its words are kept, without the password or a part of it, also where they are cut."""
    talk = Talk()
    talk.ask(acquire())
    ((_, answer),) = talk.hear(reply.encode() + b"\r\n")
    assert answer.cause is Cause.FAILED
    assert "***" in answer.text or answer.text.endswith("…")
    assert not any(PASSWORD[: i + 1] in answer.text for i in range(2, len(PASSWORD)))


def test_an_echo_shows_nothing() -> None:
    """Our own bytes coming back are nonsense, with a fixed text and no quotation of them."""
    talk = Talk()
    command = Acquire(b"key", PASSWORD.encode(), 1)
    talk.ask(command)
    with pytest.raises(Nonsense) as caught:
        talk.hear(pack(command))
    assert str(caught.value) == "answers Acquire with another thing"
    assert PASSWORD not in str(caught.value.__cause__)


def test_bytes_that_are_no_text() -> None:
    """An error text that is not UTF-8 is still an error text."""
    talk = Talk()
    talk.ask(acquire())
    ((_, answer),) = talk.hear(b"-ERR \xff\xfe\x1b[31m\r\n")
    assert answer.cause is Cause.FAILED
    assert answer.text.isprintable()


# --- what comes unasked ----------------------------------------------------------------------

TRACKING = pack_words(b"CLIENT", b"TRACKING", b"ON", b"NOLOOP")
OF_A_KEY = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
OF_ALL = b">2\r\n$10\r\ninvalidate\r\n_\r\n"


def watched() -> tuple[Talk, list[Any]]:
    """A conversation that tracks, and the hints that it gave."""
    talk, hints = Talk(), list[Any]()
    talk.conversation.watch(hints.append)
    return talk, hints


def test_hints_are_asked_for_once_before_the_first_extension() -> None:
    """Also where one was sent before they were wanted; nobody waits for the answer."""
    conversation, hints = Conversation(None, PATIENCE), list[Any]()
    ask = Question(extend(), Asker(), 1, 0)
    plain, full = pack(extend()), pack_in_full(extend())
    assert [conversation.ask(ask, plain) for _ in range(2)] == [full, plain]
    conversation.watch(hints.append)
    conversation.watch(hints.append)
    assert [conversation.ask(ask, plain) for _ in range(2)] == [TRACKING + full, plain]
    conversation.watch(hints.append)
    assert conversation.ask(ask, plain) == plain
    assert len(conversation.questions) == 6


@pytest.mark.parametrize(
    "refusal",
    [
        b"+OK\r\n",
        b"-NOPERM User default has no permissions to run the 'client|tracking' command\r\n",
        b"-ERR unknown command 'CLIENT'\r\n",
        b"-ERR Client tracking can be enabled only in RESP3 mode\r\n",
        b"$-1\r\n",
        b"*0\r\n",
    ],
)
def test_whatever_a_server_says_to_it_is_for_nobody(refusal: bytes) -> None:
    """The extension behind it gets its own answer, and the node is in no trouble."""
    talk, hints = watched()
    talk.ask(extend())
    heard = talk.hear(refusal, b":1\r\n")
    assert heard[-1] == (1, GRANTED)
    assert all(answer is GRANTED for _, answer in heard)
    assert not hints
    assert not talk.conversation.questions


@settings(max_examples=60)
@given(st.integers(0, 3), st.lists(st.integers(1, 40), max_size=6))
def test_hints_are_no_answers_however_they_come(place: int, cuts: list[int]) -> None:
    """Between answers, before, behind, in pieces: each is a hint, and every answer its own."""
    talk, hints = watched()
    rounds = [talk.ask(command) for command in (extend(), acquire(), extend())]
    parts = [b"+OK\r\n", b":1\r\n", b"_\r\n", b":0\r\n"]
    parts.insert(place + 1, OF_A_KEY + OF_ALL)
    stream, pieces = b"".join(parts), []
    for cut in cuts:
        pieces.append(stream[:cut])
        stream = stream[cut:]
    heard = [told for told in talk.hear(*filter(None, [*pieces, stream])) if told[0]]
    assert heard == list(zip(rounds, [GRANTED, HELD, HELD], strict=True))
    assert hints == [[b"k"], None]
    talk.ask(release())
    assert talk.conversation.at_once(b":-3\r\n") is not None, "it is at no answer's middle"


@pytest.mark.parametrize(
    "push",
    [
        b">2\r\n$10\r\ninvalidate\r\n*2\r\n:1\r\n*1\r\n$1\r\nk\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nk\r\n",
        b">2\r\n$4\r\nelse\r\n*1\r\n$1\r\nk\r\n",
    ],
)
def test_other_pushes_name_no_key(push: bytes) -> None:
    """Of whatever shape: nothing is made of it, and the conversation goes on."""
    talk, hints = watched()
    talk.ask(extend())
    assert talk.hear(b"+OK\r\n", push, b":1\r\n")[-1] == (1, GRANTED)
    assert hints in ([], [[]])


# --- a node that has forgotten a script ------------------------------------------------------

NOSCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"


def test_the_first_release_and_the_first_extension_go_in_full() -> None:
    """So that the node knows the script from then on, also when nobody stays to hear NOSCRIPT or
    has the time for another round trip; everything else goes as it was packed.
    """
    conversation = Conversation(None, PATIENCE)
    first: list[Command] = [extend(b"1"), release(b"1")]
    asked: list[Command] = [acquire(), first[0], INSPECT, first[1], release(b"2"), extend(b"2")]
    sent = [conversation.ask(Question(c, Asker(), 1, 0), pack(c)) for c in asked]
    assert sent == [pack_in_full(c) if c in first else pack(c) for c in asked]
    assert [question.command for question in conversation.questions] == asked


def test_a_release_is_always_sent_again_in_full() -> None:
    """Also when nobody waits for it any more: else a key of ours stays (rule 3)."""
    for over in (False, True):
        talk = Talk.that_released()
        first = talk.ask(release(b"1"), over=over)
        second = talk.ask(acquire(b"2"))
        assert talk.hear(NOSCRIPT) == []
        assert talk.conversation.unsent == pack_in_full(release(b"1"))
        assert talk.hear(b"+OK\r\n:-3\r\n") == [(second, GRANTED), (first, GRANTED)]


def test_an_extension_is_sent_again_only_while_its_asker_waits() -> None:
    """One that comes after its round is over would be an extension that nobody knows of."""
    for command in (extend(), Inspect(b"k")):
        waited, over = Talk.that_released(), Talk.that_released()
        waited.ask(command)
        assert waited.hear(NOSCRIPT) == []
        assert waited.conversation.unsent == pack_in_full(command)
        over.ask(command, over=True)
        ((_, answer),) = over.hear(NOSCRIPT)
        assert answer.cause is Cause.FAILED
        assert over.conversation.unsent == b""
        assert not over.conversation.questions


def test_what_is_sent_again_keeps_its_order() -> None:
    """Bytes and questions stand in the same order, so answers still find their questions."""
    talk = Talk.that_released()
    commands: list[Command] = [extend(b"1"), release(b"2"), extend(b"3")]
    rounds = [talk.ask(command) for command in commands]
    assert talk.hear(NOSCRIPT * 3) == []
    assert talk.conversation.unsent == b"".join(pack_in_full(command) for command in commands)
    answers = [GRANTED, GRANTED, ABSENT]
    assert talk.hear(b":1\r\n:-3\r\n:-1\r\n") == list(zip(rounds, answers, strict=True))


def test_a_node_that_knows_no_script_is_asked_twice_at_most() -> None:
    """NOSCRIPT in answer to the script's own text would go round for ever."""
    for command in (release(), extend()):
        talk = Talk.that_released()
        talk.ask(command)
        assert talk.hear(NOSCRIPT) == []
        talk.conversation.unsent = b""
        ((_, answer),) = talk.hear(NOSCRIPT)
        assert answer == Answer(Vote.REFUSED, Cause.FAILED, NOSCRIPT[1:-2].decode())
        assert talk.conversation.unsent == b""


def test_an_acquire_is_never_sent_again() -> None:
    """It needs no script; a server that says so anyway gets no second one."""
    for over in (False, True):
        talk = Talk()
        talk.ask(acquire(), over=over)
        ((_, answer),) = talk.hear(NOSCRIPT)
        assert answer.cause is Cause.FAILED
        assert talk.conversation.unsent == b""


class Recorder(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.written += b"aborted"


class Sender(Hears):
    """A flow that sends something as soon as it hears an answer, as a lost attempt does."""

    over = False

    def __init__(self, link: Link, then: Command | None = None) -> None:
        self.link = link
        self.then = then
        self.heard: list[Answer] = []

    def hear(self, reply: Replied) -> None:
        self.heard.append(reply.answer)
        if self.then is not None:
            self.link.ask(pack(self.then), Question(self.then, Sender(self.link), 2, 0))
            self.then = None


def test_a_link_keeps_the_order_of_a_resent_script() -> None:
    """asyncio: when one read brings NOSCRIPT and then an answer whose flow sends at once, the
    bytes go out in the order in which the answers are expected.
    """

    async def scene() -> tuple[bytes, list[Command]]:
        member = Member(0, Node(), policy_of(1))
        convoy = Convoy(1, lambda: None)
        link = Link(member, Handshake(Node(), None, None), None, lambda *_: None, convoy)
        transport = Recorder()
        link.connection_made(transport)
        link._handshake = None
        for first in (release(b"0"), extend(b"0")):  # which go in full
            link.ask(pack(first), Question(first, Sender(link), 1, 0))
        for command, asker in (
            (extend(b"1"), Sender(link)),
            (acquire(b"2"), Sender(link, then=release(b"2"))),
        ):
            link.ask(pack(command), Question(command, asker, 1, 0))
        transport.written = b""
        data = b":-3\r\n:1\r\n" + NOSCRIPT + b"$-1\r\n"
        link.get_buffer(-1)[: len(data)] = data
        link.buffer_updated(len(data))
        return transport.written, [q.command for q in link.conversation.questions]

    written, waiting = asyncio.run(scene())
    sent = {pack_in_full(extend(b"1")): extend(b"1"), pack(release(b"2")): release(b"2")}
    assert waiting in ([extend(b"1"), release(b"2")], [release(b"2"), extend(b"1")])
    by_command = {command: data for data, command in sent.items()}
    assert written == b"".join(by_command[command] for command in waiting)


# --- what is owed ----------------------------------------------------------------------------


def test_unanswered_acquires_and_releases_leave_debts() -> None:
    """What may have left, or may not have removed, a key of ours; in order, until answered."""
    talk = Talk()
    for command in (acquire(b"1"), extend(b"1"), release(b"1"), Inspect(b"k"), acquire(b"2")):
        talk.ask(command)
    owed = [acquire(b"1"), release(b"1"), acquire(b"2")]
    assert list(talk.conversation.owed_releases()) == owed
    assert talk.conversation.awaits_acquire(b"1")
    talk.hear(b"+OK\r\n:1\r\n")
    assert list(talk.conversation.owed_releases()) == owed[1:]
    assert not talk.conversation.awaits_acquire(b"1")
    assert talk.conversation.awaits_acquire(b"2")
    assert not talk.conversation.awaits_acquire(b"k")


def test_a_backlog_needs_many_answers_owed_and_silence() -> None:
    """64 unanswered questions and a silence longer than its patience; one word ends it."""
    talk = Talk()
    for i in range(ANSWERS_OWED_MAX):
        assert not talk.conversation.backlogged(10**9)
        talk.ask(acquire(), at=1_000 + i)
    assert not talk.conversation.backlogged(1_000 + PATIENCE)
    assert talk.conversation.backlogged(1_001 + PATIENCE), "counted from the first question"
    talk.conversation.silent_since = 2_000
    assert not talk.conversation.backlogged(2_000 + PATIENCE)
    assert talk.conversation.backlogged(2_001 + PATIENCE)
    talk.hear(b"$-1\r\n")
    assert not talk.conversation.backlogged(10**9), "63 are no backlog"


def test_silence_counts_from_the_first_question_after_a_pause() -> None:
    """A connection that had nothing to answer was not silent."""
    talk = Talk()
    talk.ask(acquire(), at=0)
    talk.hear(b"$-1\r\n")
    for _ in range(ANSWERS_OWED_MAX):
        talk.ask(acquire(), at=10_000)
    assert not talk.conversation.backlogged(10_000 + PATIENCE)
    assert talk.conversation.backlogged(10_001 + PATIENCE)
