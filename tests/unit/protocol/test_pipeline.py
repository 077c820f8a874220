"""One connection's questions and answers: in order, however the bytes come, never invented."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock._core.commands import (
    JOIN,
    LEAVE,
    Acquire,
    AcquireAny,
    Command,
    Extend,
    Inspect,
    Look,
    Release,
    ScriptedAcquire,
)
from quorlock._core.config import KEY_BYTES_MAX
from quorlock._core.owner import OWNER_BYTES_MAX, secret_of
from quorlock._core.places import channel_of, place_of
from quorlock._core.rounds import NodeReply
from quorlock._core.votes import ABSENT, GRANTED, HELD, Answer, Vote
from quorlock._drivers.aio.batching import SharedPipeline
from quorlock._drivers.aio.connection import AsyncConnection
from quorlock._drivers.node_state import NodeState
from quorlock._nodes.node import Node
from quorlock._protocol.encoding import encode, encode_command, encode_eval
from quorlock._protocol.pipeline import (
    UNCOUNTED_MAX,
    UNREAD_MAX,
    Demoted,
    PendingRequest,
    RequestPipeline,
    exceed_unread_max,
)
from quorlock._protocol.reader import REPLY_BYTES_MAX, ProtocolError
from quorlock._protocol.replies import PLAIN_GRANTS
from quorlock._protocol.requests import ReleaseGroup
from quorlock.errors import VoteCode
from tests.harness.support.script import policy_of

PASSWORD = "canary-Pa55"
PATIENCE = 100


@dataclass
class Asker:
    over: bool = False
    round: int = 0

    def deliver(self, reply: NodeReply) -> None: ...


@dataclass
class Talk:
    """A conversation, with what a test does to it."""

    pipeline: RequestPipeline = field(default_factory=lambda: RequestPipeline(PASSWORD, PATIENCE))
    rounds: int = 0

    def ask(self, command: Command, *, over: bool = False, at: int = 0) -> int:
        self.rounds += 1
        self.pipeline.append(PendingRequest(command, Asker(over), self.rounds, at), encode(command))
        return self.rounds

    @classmethod
    def that_released(cls) -> Talk:
        """Return a pipeline after its first release and extension, which go in full."""
        talk = cls()
        talk.ask(release(b"first"))
        talk.ask(extend(b"first"))
        talk.deliver(b":-2\r\n:-1\r\n")
        talk.rounds = 0
        return talk

    def receive(self, part: bytes) -> list[tuple[int, Answer]]:
        """Return them for one part, also if it ends the connection."""
        self.pipeline.feed(bytearray(part), len(part))
        return [(request.round, answer) for request, answer in self.pipeline.parse_replies()]

    def deliver(self, *parts: bytes) -> list[tuple[int, Answer]]:
        """The rounds that got their answers, with them."""
        received = []
        for part in parts:
            received += self.receive(part)
            if self.pipeline.protocol_error:
                raise self.pipeline.protocol_error
        return received


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
    (acquire(), b"-BUSY x\r\n", Answer(Vote.REFUSED, VoteCode.TRANSIENT_ERROR, "BUSY x")),
    (extend(), b":1\r\n", GRANTED),
    (extend(), b":-1\r\n", ABSENT),
    (release(), b":-3\r\n", GRANTED),
    (release(), b":77\r\n", Answer(Vote.REFUSED, VoteCode.HELD, "", 77)),
    (
        INSPECT,
        b"*3\r\n$3\r\n\r\n*\r\n:5\r\n:2\r\n",
        Answer(Vote.REFUSED, VoteCode.HELD, "", 5, b"\r\n*", ahead=2),
    ),
    (Inspect(b"k"), b"*3\r\n_\r\n:-2\r\n:0\r\n", ABSENT._replace(ahead=0)),
    (Inspect(b"k"), b"*3\r\n$-1\r\n:-2\r\n:9\r\n", ABSENT._replace(ahead=9)),
]
PUSHES = [b">2\r\n+invalidate\r\n*1\r\n+k\r\n", b">1\r\n_\r\n", b">3\r\n+m\r\n:1\r\n#f\r\n"]


@settings(deadline=None)
@given(st.lists(st.integers(0, len(EXCHANGES) - 1), min_size=1, max_size=8), st.data())
def test_answers_come_in_the_order_of_the_requests(chosen: list[int], data: st.DataObject) -> None:
    """Each reply belongs to the oldest question that waits, however the bytes are cut and
    whatever is pushed between them.
    """
    talk = Talk()
    expected = [(talk.ask(EXCHANGES[i][0]), EXCHANGES[i][2]) for i in chosen]
    pushes = [b"".join(data.draw(st.lists(st.sampled_from(PUSHES), max_size=2))) for _ in chosen]
    stream = b"".join(push + EXCHANGES[i][1] for push, i in zip(pushes, chosen, strict=True))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream)), max_size=6)))
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert talk.deliver(*parts) == expected
    assert not talk.pipeline.pending


@pytest.mark.parametrize("exchange", EXCHANGES, ids=range(len(EXCHANGES)))
def test_a_reply_split_at_every_byte(exchange: tuple[Command, bytes, Answer]) -> None:
    """Two parts, at every boundary, and byte by byte: the same answer, not a byte too early."""
    command, reply, answer = exchange
    for cut in range(1, len(reply)):
        talk = Talk()
        talk.ask(command)
        assert talk.deliver(reply[:cut]) == []
        assert talk.deliver(reply[cut:]) == [(1, answer)]
    talk = Talk()
    talk.ask(command)
    assert talk.deliver(*(reply[i : i + 1] for i in range(len(reply)))) == [(1, answer)]


# What a command may be answered with, also by what looks like another's whole answer inside.
REPLIES: dict[type[Command], tuple[bytes, ...]] = {
    Acquire: (b"+OK\r\n", b"_\r\n", b"$-1\r\n", b"-ERR +OK\r\n", b"$2\r\nOK\r\n"),
    Extend: (b":1\r\n", b":0\r\n", b":-1\r\n", b"-BUSY :1\r\n"),
    Release: (b":-3\r\n", b":-2\r\n", b":1234\r\n", b"-ERR :-3\r\n"),
    Inspect: (b"*3\r\n$5\r\n+OK\r\n\r\n:7\r\n:0\r\n", b"*3\r\n$-1\r\n:-2\r\n:1\r\n"),
}
PUSH = b">2\r\n+OK\r\n+OK\r\n"
PLAIN: tuple[Command, ...] = (
    Acquire(b"k", b"t", 1_000),
    Extend(b"k", b"t", 1_000),
    Release(b"k", b"t"),
    Inspect(b"k"),
)


@given(st.lists(st.tuples(st.sampled_from(PLAIN), st.integers(0, 9)), min_size=1, max_size=6))
def test_grants_that_come_together_are_all_matched_or_none_is(
    asked: list[tuple[Command, int]],
) -> None:
    quick, slow = Talk.that_released(), Talk.that_released()
    stream = []
    for command, choice in asked:
        quick.ask(command)
        slow.ask(command)
        replies = REPLIES[type(command)]
        stream.append(replies[choice if choice < len(replies) else 0])
    plain = all(
        reply == PLAIN_GRANTS.get(type(command))
        for reply, (command, _) in zip(stream, asked, strict=True)
    )
    granted = quick.pipeline.match_grants(b"".join(stream))
    assert bool(granted) == plain
    received = [(request.round, GRANTED) for request in granted]
    assert slow.deliver(*stream) == (received or quick.deliver(*stream))
    assert not quick.pipeline.pending


def test_grants_are_not_matched_in_the_middle_of_a_reply_or_without_requests() -> None:
    talk = Talk.that_released()
    talk.ask(release())
    assert talk.pipeline.match_grants(b":-3\r\n:-3\r\n") == []
    assert talk.deliver(b":-") == []
    assert talk.pipeline.match_grants(b":-3\r\n") == []
    assert talk.deliver(b"3\r\n") == [(1, GRANTED)]


def test_only_the_filled_part_of_a_buffer_counts() -> None:
    """A driver's buffer holds old bytes behind the new ones."""
    talk = Talk()
    talk.ask(acquire())
    talk.pipeline.feed(bytearray(b"+OK\r\n+OK\r\n"), 5)
    assert [answer for _, answer in talk.pipeline.parse_replies()] == [GRANTED]


def test_a_request_without_a_receiver_keeps_its_place() -> None:
    """A timed-out question stays in the queue, and its late answer is not the next one's."""
    talk = Talk()
    first = talk.ask(acquire(b"1"), over=True)
    second = talk.ask(acquire(b"2"))
    assert talk.deliver(b"+OK\r\n") == [(first, GRANTED)]
    assert talk.deliver(b"$-1\r\n") == [(second, HELD)]


# --- nonsense --------------------------------------------------------------------------------


def test_a_reply_without_a_request() -> None:
    """No reply can be matched with its request after such a reply."""
    talk = Talk()
    with pytest.raises(ProtocolError, match="replies without a request"):
        talk.deliver(b"+OK\r\n")
    talk = Talk()
    talk.ask(acquire())
    with pytest.raises(ProtocolError, match="replies without a request"):
        talk.deliver(b"+OK\r\n+OK\r\n")


def test_pushes_are_no_answers() -> None:
    """Out-of-band messages are skipped, also when nothing was asked, also thousands of them."""
    talk = Talk()
    assert talk.deliver(*PUSHES) == []
    talk.ask(acquire())
    assert talk.deliver(b"".join(PUSHES) * 5_000 + b"+OK\r\n") == [(1, GRANTED)]


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
        (Inspect(b"k"), b"*3\r\n#f\r\n:-2\r\n:0\r\n"),
        (Inspect(b"k"), b"%1\r\n$1\r\nt\r\n:5\r\n"),
    ],
)
def test_another_shape_is_a_protocol_error_and_leaves_a_pending_release(
    command: Command, reply: bytes
) -> None:
    """The request counts as unanswered: its key may be there, so its release is pending. RESP3's
    false is a reply like any other, not "nothing yet".
    """
    talk = Talk()
    talk.ask(command)
    name = type(command).__name__
    with pytest.raises(ProtocolError, match=f"^unexpected reply to {name}$"):
        talk.deliver(reply)
    assert [request.command for request in talk.pipeline.pending] == [command]


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
def test_what_is_no_resp_is_a_protocol_error(data: bytes) -> None:
    """Another protocol, or a reply that the parser chokes on: one kind of error for all."""
    talk = Talk()
    talk.ask(acquire())
    with pytest.raises(ProtocolError, match="does not speak the Redis protocol"):
        talk.deliver(data)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_arbitrary_bytes_never_grant_and_never_crash(parts: list[bytes]) -> None:
    """Any bytes give answers or Nonsense; nothing is granted but by +OK."""
    talk = Talk()
    for _ in range(3):
        talk.ask(acquire())
    try:
        received = talk.deliver(*parts)
    except ProtocolError:
        return
    assert b"OK" in b"".join(parts) or all(answer is not GRANTED for _, answer in received)


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
    """The size of one reply is limited, whether it is one long string or many elements."""
    talk = Talk()
    talk.ask(Inspect(b"k"))
    before = (REPLY_BYTES_MAX - len(start)) // len(more)
    assert talk.deliver(start, *[more] * before) == []
    with pytest.raises(ProtocolError, match="sends a reply without an end"):
        talk.deliver(more)


def test_many_small_replies_are_not_one_without_an_end() -> None:
    """The bound is for one reply: a busy connection may carry any number of bytes."""
    talk = Talk()
    part = b"*3\r\n$9000\r\n" + b"x" * 9_000 + b"\r\n:5\r\n:0\r\n"
    for _ in range(2 * REPLY_BYTES_MAX // len(part)):
        talk.ask(Inspect(b"k"))
        assert len(talk.deliver(part[:5_000], part[5_000:])) == 1


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
    """The message is kept, without the password or a part of it, also if it is truncated."""
    talk = Talk()
    talk.ask(acquire())
    ((_, answer),) = talk.deliver(reply.encode() + b"\r\n")
    assert answer.code is VoteCode.TRANSIENT_ERROR
    assert "***" in answer.text or answer.text.endswith("…")
    assert not any(PASSWORD[: i + 1] in answer.text for i in range(2, len(PASSWORD)))


@pytest.mark.parametrize(
    "reply", [b":1\r\n", b",-3\r\n", b"#f\r\n", b"+OK\r\n", b"_\r\n", b"*0\r\n"]
)
def test_nonsense_about_a_group_ends_the_connection(reply: bytes) -> None:
    """Every release of it is still in doubt then."""
    talk = Talk()
    requests = [PendingRequest(Release(b"k", b"t%d" % n), Asker(), 1, 0) for n in range(3)]
    first = requests[0].command
    talk.pipeline.pending.append(PendingRequest(first, ReleaseGroup(requests), 0, 0))
    with pytest.raises(ProtocolError, match="unexpected reply to Release"):
        talk.deliver(reply)
    assert list(talk.pipeline.keys_in_doubt()) == [q.command for q in requests]


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (AcquireAny(b"a", b"t", 1_000, also=(b"b",)), b"*4\r\n:1\r\n:1\r\n:0\r\n:%d\r\n"),
        (AcquireAny(b"a", b"t", 1_000, also=(b"b",)), b"*4\r\n:0\r\n:1\r\n:9\r\n:%d\r\n"),
        (
            ScriptedAcquire(b"a", b"t", 1_000, also=(b"b",)),
            b"*4\r\n:0\r\n:1\r\n:9\r\n:%d\r\n",
        ),
    ],
)
def test_an_answer_about_a_key_that_was_not_named(command: Command, reply: bytes) -> None:
    """The second of two keys is the last that a reply can be about."""
    talk = Talk()
    talk.ask(command)
    ((_, answer),) = talk.deliver(reply % 1)
    assert answer.before == 1
    talk.ask(command)
    with pytest.raises(ProtocolError, match="unexpected reply to"):
        talk.deliver(reply % 2)


@pytest.mark.parametrize("grouped", [False, True])
def test_each_release_of_a_group_counts_as_unread(grouped: bool) -> None:
    size = len(encode(Release(b"k", b"t")))
    for count in (UNREAD_MAX // size, UNREAD_MAX // size + 1):
        requests = [PendingRequest(Release(b"k", b"t"), Asker(), 1, 0)] * count
        group = PendingRequest(requests[0].command, ReleaseGroup(requests), 0, 0)
        assert exceed_unread_max([group] if grouped else requests) is (count * size > UNREAD_MAX)


def test_no_more_is_counted_than_decides() -> None:
    """Thousands of releases may be pending, and each send counts them."""
    assert exceed_unread_max(repeat(PendingRequest(Release(b"k", b"t"), Asker(), 1, 0)))


def test_an_echo_shows_no_token_of_a_group() -> None:
    """Every release of it is still to be answered, and so is its token."""
    talk = Talk()
    tokens = [b"%032d" % number for number in range(3)]
    requests = [PendingRequest(Release(b"k", token), Asker(), 1, 0) for token in tokens]
    talk.ask(acquire())
    group = ReleaseGroup(requests)
    talk.pipeline.pending.append(PendingRequest(requests[0].command, group, 0, 0))
    echo = b"-ERR you said " + b" ".join(tokens) + b"\r\n"
    ((_, answer),) = talk.deliver(echo)
    assert answer.text.startswith("ERR you said")
    assert not any(token.decode() in answer.text for token in tokens)
    assert list(talk.pipeline.keys_in_doubt()) == [q.command for q in requests]


def test_an_echo_shows_nothing() -> None:
    """Our own bytes coming back are nonsense, with a fixed text and no quotation of them."""
    talk = Talk()
    command = Acquire(b"key", PASSWORD.encode(), 1)
    talk.ask(command)
    with pytest.raises(ProtocolError) as caught:
        talk.deliver(encode(command))
    assert str(caught.value) == "unexpected reply to Acquire"
    assert PASSWORD not in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "error",
    [
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "ERR Error running script (call to f): @user_script: 1: -READONLY You can't write against",
    ],
)
def test_no_reply_after_that_of_a_replica_counts(error: str) -> None:
    """The server may be a master again by then, without the keys that it had."""
    talk = Talk.that_released()
    first = talk.ask(Acquire(b"a", b"A" * 32, 1))
    talk.ask(Acquire(b"b", b"B" * 32, 1))
    received = talk.receive(f"-{error}\r\n+OK\r\n".encode())
    assert [round_ for round_, _ in received] == [first]
    assert isinstance(talk.pipeline.protocol_error, Demoted)
    assert [command.token for command in talk.pipeline.keys_in_doubt()] == [b"B" * 32]


def test_a_group_that_a_replica_refused_ends_the_connection() -> None:
    """Each of its releases would be sent alone, and the server could be a master again by then."""
    talk = Talk.that_released()
    requests = [PendingRequest(release(token), Asker(), 1, 0) for token in (b"1", b"2")]
    group = ReleaseGroup(requests)
    talk.pipeline.pending.append(PendingRequest(release(b"1"), group, 0, 0))
    assert talk.receive(b"-READONLY You can't write against a read only replica.\r\n") == []
    assert isinstance(talk.pipeline.protocol_error, Demoted)
    assert [command.token for command in talk.pipeline.keys_in_doubt()] == [b"1", b"2"]


def test_bytes_that_are_no_text() -> None:
    """An error text that is not UTF-8 is still an error text."""
    talk = Talk()
    talk.ask(acquire())
    ((_, answer),) = talk.deliver(b"-ERR \xff\xfe\x1b[31m\r\n")
    assert answer.code is VoteCode.TRANSIENT_ERROR
    assert answer.text.isprintable()


# --- pushes ----------------------------------------------------------------------------------

TRACKING = encode_command(b"CLIENT", b"TRACKING", b"ON", b"NOLOOP")
OF_A_KEY = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
OF_ALL = b">2\r\n$10\r\ninvalidate\r\n_\r\n"


def watched() -> tuple[Talk, list[Any]]:
    """A pipeline that tracks, and the invalidations that it received."""
    talk, pushes = Talk(), list[Any]()
    talk.pipeline.tracking.is_able = True
    talk.pipeline.on_invalidation(pushes.append)
    return talk, pushes


def test_tracking_is_enabled_once_before_the_first_extension() -> None:
    """Also if an extension was sent before tracking was enabled; the reply is ignored."""
    pipeline, pushes = RequestPipeline(None, PATIENCE), list[Any]()
    pipeline.tracking.is_able = True
    ask = PendingRequest(extend(), Asker(), 1, 0)
    plain, full = encode(extend()), encode_eval(extend())
    assert [pipeline.append(ask, plain) for _ in range(2)] == [full, plain]
    pipeline.on_invalidation(pushes.append)
    pipeline.on_invalidation(pushes.append)
    assert [pipeline.append(ask, plain) for _ in range(2)] == [TRACKING + full, plain]
    pipeline.on_invalidation(pushes.append)
    assert pipeline.append(ask, plain) == plain
    assert len(pipeline.pending) == 6


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
def test_the_reply_to_it_is_ignored(refusal: bytes) -> None:
    """The extension behind it gets its own answer, and the node is in no trouble."""
    talk, pushes = watched()
    talk.ask(extend())
    received = talk.deliver(refusal, b":1\r\n")
    assert received[-1] == (1, GRANTED)
    assert all(answer is GRANTED for _, answer in received)
    assert not pushes
    assert not talk.pipeline.pending


def test_a_server_that_is_not_known_to_track_is_not_asked() -> None:
    """Some servers crash or hang on it."""
    pipeline = RequestPipeline(None, PATIENCE)
    pipeline.on_invalidation(lambda _: None)
    for command in (extend(), look()):
        full = encode_eval(command)
        assert pipeline.append(PendingRequest(command, Asker(), 1, 0), encode(command)) == full
    assert len(pipeline.pending) == 2


@settings(max_examples=60)
@given(st.integers(0, 3), st.lists(st.integers(1, 40), max_size=6))
def test_invalidations_are_no_replies_however_they_arrive(place: int, cuts: list[int]) -> None:
    """Between replies, before, behind, in pieces: each is handled, and every reply is matched."""
    talk, pushes = watched()
    rounds = [talk.ask(command) for command in (extend(), acquire(), extend())]
    parts = [b"+OK\r\n", b":1\r\n", b"_\r\n", b":0\r\n"]
    parts.insert(place + 1, OF_A_KEY + OF_ALL)
    stream, pieces = b"".join(parts), []
    for cut in cuts:
        pieces.append(stream[:cut])
        stream = stream[cut:]
    received = [
        reply_of for reply_of in talk.deliver(*filter(None, [*pieces, stream])) if reply_of[0]
    ]
    assert received == list(zip(rounds, [GRANTED, HELD, HELD], strict=True))
    assert pushes == [[b"k"], None]
    assert not talk.pipeline.has_partial_reply, "it is at no reply's middle"


@pytest.mark.parametrize(
    "push",
    [
        b">2\r\n$10\r\ninvalidate\r\n*2\r\n:1\r\n*1\r\n$1\r\nk\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nk\r\n",
        b">2\r\n$4\r\nelse\r\n*1\r\n$1\r\nk\r\n",
    ],
)
def test_other_pushes_name_no_key(push: bytes) -> None:
    """Pushes of any other shape are ignored, and the pipeline continues."""
    talk, pushes = watched()
    talk.ask(extend())
    assert talk.deliver(b"+OK\r\n", push, b":1\r\n")[-1] == (1, GRANTED)
    assert pushes in ([], [[]])


# --- looks -----------------------------------------------------------------------------------

OPT_IN = encode_command(b"CLIENT", b"TRACKING", b"ON", b"OPTIN", b"NOLOOP")
OFF = encode_command(b"CLIENT", b"TRACKING", b"OFF")
NEXT = encode_command(b"CLIENT", b"CACHING", b"YES")


def look(key: bytes = b"k") -> Look:
    return Look(key, b"", PLACE, 3)


def able() -> RequestPipeline:
    """A pipeline whose server can track, and has the scripts."""
    pipeline = RequestPipeline(None, PATIENCE)
    pipeline.tracking.is_able = True
    pipeline.sent_scripts.has_release = True
    return pipeline


def before(pipeline: RequestPipeline, command: Command) -> bytes:
    """Send a command, and return the bytes before its own."""
    own = encode(command)
    data = pipeline.append(PendingRequest(command, Asker(), 1, 0), own)
    return data.removesuffix(own)


def test_a_look_is_that_release_for_the_node() -> None:
    """The bytes are the same; only what precedes them differs."""
    assert encode(look()) == encode(Release(*look()))
    assert encode_eval(look()) == encode_eval(Release(*look()))


def test_each_look_is_tracked_and_nothing_else() -> None:
    """The mode is requested once, and every look has its own word."""
    pipeline = able()
    assert before(pipeline, look()) == OPT_IN + NEXT
    assert before(pipeline, look()) == NEXT
    assert before(pipeline, release()) == before(pipeline, acquire()) == b""
    assert before(pipeline, Release(b"k", b"", PLACE, 3)) == b""
    assert len(pipeline.pending) == 8


def test_a_look_that_needs_the_script_in_full() -> None:
    """The first release of a connection may be a look, which is tracked all the same."""
    pipeline = able()
    pipeline.sent_scripts.has_release = False
    sent = pipeline.append(PendingRequest(look(), Asker(), 1, 0), encode(look()))
    assert sent == OPT_IN + NEXT + encode_eval(look())


def test_renewal_tracks_everything_and_looks_need_no_more() -> None:
    """Whichever comes first: the mode changes, and extensions need no words."""
    pipeline = able()
    assert before(pipeline, look()) == OPT_IN + NEXT
    pipeline.on_invalidation(lambda _: None)
    assert pipeline.append(PendingRequest(extend(), Asker(), 1, 0), b"") == (
        OFF + TRACKING + encode_eval(extend())
    )
    assert before(pipeline, look()) == before(pipeline, extend()) == b""
    pipeline.on_invalidation(lambda _: None)
    assert before(pipeline, extend()) == b""


NO_RIGHT = b"-NOPERM User q has no permissions to run the 'client|caching' command\r\n"


@pytest.mark.parametrize("replies", [NO_RIGHT + NO_RIGHT, b"+OK\r\n" + NO_RIGHT])
def test_a_server_that_refuses_is_not_asked_again(replies: bytes) -> None:
    """The look has its reply; renewal asks for what it needs itself."""
    talk = Talk()
    talk.pipeline.tracking.is_able = True
    round_ = talk.ask(look())
    received = talk.deliver(replies, b"*4\r\n:500\r\n$0\r\n\r\n:3\r\n:0\r\n")
    assert [(number, answer.ticket) for number, answer in received if number] == [(round_, 3)]
    assert before(talk.pipeline, look()) == b""
    talk.pipeline.on_invalidation(lambda _: None)
    assert before(talk.pipeline, extend()) != b""


def test_changes_are_calls_without_a_place() -> None:
    """Waiters of the connection and renewal get them, each if it has asked."""
    talk, calls = listening()
    talk.ask(release())
    received = talk.deliver(SUBSCRIBED, OF_A_KEY, b":-3\r\n", OF_ALL)
    assert [answer for _, answer in received] == [GRANTED]
    assert calls == [(b"", b"k"), (b"", b"")]
    pushes = list[Any]()
    talk.pipeline.on_invalidation(pushes.append)
    talk.deliver(OF_A_KEY)
    assert (calls[2:], pushes) == ([(b"", b"k")], [[b"k"]])


# --- calls -----------------------------------------------------------------------------------

INBOX = b"00000000000000a1"
CHANNEL = channel_of(INBOX)
PLACE = place_of(INBOX, 7, 50_000_000)
SUBSCRIBED = b">3\r\n$9\r\nsubscribe\r\n$%d\r\n%b\r\n:1\r\n" % (len(CHANNEL), CHANNEL)


def message(content: bytes) -> bytes:
    head = b">3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n" % (len(CHANNEL), CHANNEL)
    return head + b"$%d\r\n%b\r\n" % (len(content), content)


# Subscribed, and an empty message to the own inbox: it has come, as has the number of receivers.
LISTENS = SUBSCRIBED + message(b"") + b":1\r\n"
PROBED = [(0, GRANTED)]


def listening() -> tuple[Talk, list[tuple[bytes, bytes]]]:
    """A pipeline that was asked to subscribe, and the calls that it received."""
    talk, calls = Talk.that_released(), list[tuple[bytes, bytes]]()
    sent = talk.pipeline.subscribe(INBOX, lambda *call: calls.append(call), 5)
    probe = encode_command(b"PUBLISH", CHANNEL, b"")
    assert sent == encode_command(b"SUBSCRIBE", CHANNEL) + probe
    assert talk.pipeline.is_listening
    return talk, calls


def test_a_call_names_the_place_and_the_key() -> None:
    """Any key; other messages are ignored, and so are those of others."""
    talk, calls = listening()
    assert talk.deliver(LISTENS) == PROBED
    for content in (PLACE + b" k", PLACE + b" a b\r\n", PLACE, b"", b" k"):
        talk.deliver(message(content))
    talk.deliver(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n_\r\n")
    assert calls == [(PLACE, b"k"), (PLACE, b"a b\r\n")]
    assert not talk.pipeline.pending


@settings(max_examples=60)
@given(st.integers(0, 4), st.integers(0, 4), st.lists(st.integers(1, 40), max_size=6))
def test_calls_are_no_replies_however_they_arrive(first: int, last: int, cuts: list[int]) -> None:
    """Calls come before or behind replies, in pieces, and every reply is matched."""
    talk, calls = listening()
    rounds = [talk.ask(command) for command in (acquire(), release(), acquire(), release())]
    parts = [b"+OK\r\n", b":-3\r\n", b"_\r\n", b":-2\r\n"]
    for place in sorted((first, last), reverse=True):
        parts.insert(place, message(PLACE + b" k"))
    stream, pieces = LISTENS + b"".join(parts), []
    for cut in cuts:
        pieces.append(stream[:cut])
        stream = stream[cut:]
    answers = talk.deliver(*filter(None, [*pieces, stream]))
    expected = zip(rounds, [GRANTED, GRANTED, HELD, ABSENT], strict=True)
    assert answers == [*PROBED, *expected]
    assert calls == [(PLACE, b"k")] * 2


def test_grants_are_matched_at_once_only_behind_the_subscription() -> None:
    """The confirmation takes its place among the replies."""
    talk, _ = listening()
    talk.ask(release())
    assert talk.pipeline.match_grants(b":-3\r\n") == []
    assert talk.deliver(SUBSCRIBED) == []
    assert talk.pipeline.match_grants(b":-3\r\n") == []
    assert talk.deliver(message(b"") + b":1\r\n") == PROBED
    assert len(talk.pipeline.match_grants(b":-3\r\n")) == 1


NO_CHANNEL = b"-NOPERM User u has no permissions to access the 'canary-Pa55' channel\r\n"


@pytest.mark.parametrize(
    "refusal",
    [
        NO_CHANNEL + NO_CHANNEL,
        b"-ERR unknown command 'SUBSCRIBE'\r\n:0\r\n",
        b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n:1\r\n",
        SUBSCRIBED + NO_CHANNEL,
    ],
)
def test_a_server_that_sends_no_calls(refusal: bytes) -> None:
    """The reason is kept, and the replies behind it are matched."""
    talk, _ = listening()
    talk.ask(acquire())
    received = talk.deliver(refusal, b"+OK\r\n")
    assert received[-1] == (1, GRANTED)
    assert not talk.pipeline.is_listening
    assert talk.pipeline.listen_error
    assert PASSWORD not in talk.pipeline.listen_error
    assert not talk.pipeline.pending


def test_the_first_refusal_of_calls_is_kept() -> None:
    """The reason is that of the subscription if both rights are missing."""
    talk, _ = listening()
    talk.deliver(b"-ERR one\r\n-ERR other\r\n")
    assert talk.pipeline.listen_error == "ERR one"


def test_a_pipeline_that_was_not_asked_does_not_listen() -> None:
    """A confirmation without a request takes no request away."""
    talk = Talk()
    assert not talk.pipeline.is_listening
    talk.ask(acquire())
    assert talk.deliver(SUBSCRIBED, message(PLACE + b" k"), b"+OK\r\n") == [(1, GRANTED)]
    talk, calls = listening()
    talk.ask(acquire())
    talk.deliver(LISTENS, SUBSCRIBED)
    assert [request.command for request in talk.pipeline.pending] == [acquire()]
    assert calls == []


def test_a_subscription_leaves_no_key_and_is_no_backlog() -> None:
    talk, _ = listening()
    assert list(talk.pipeline.keys_in_doubt()) == []
    for _ in range(UNCOUNTED_MAX):
        talk.ask(acquire())
    assert not talk.pipeline.is_backlogged(10**9)


# --- a node that has forgotten a script ------------------------------------------------------

NOSCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"


def test_the_first_release_and_the_first_extension_go_in_full() -> None:
    """The node then has the script, also if no flow waits for NOSCRIPT or has time for another
    round trip; everything else is sent as encoded.
    """
    pipeline = RequestPipeline(None, PATIENCE)
    first: list[Command] = [extend(b"1"), release(b"1")]
    asked: list[Command] = [acquire(), first[0], INSPECT, first[1], release(b"2"), extend(b"2")]
    sent = [pipeline.append(PendingRequest(c, Asker(), 1, 0), encode(c)) for c in asked]
    assert sent == [encode_eval(c) if c in first else encode(c) for c in asked]
    assert [request.command for request in pipeline.pending] == asked


def test_a_release_is_always_sent_again_in_full() -> None:
    """Even if nothing waits for it: otherwise a key stays (rule 3)."""
    for over in (False, True):
        talk = Talk.that_released()
        first = talk.ask(release(b"1"), over=over)
        second = talk.ask(acquire(b"2"))
        assert talk.deliver(NOSCRIPT) == []
        assert talk.pipeline.outgoing == encode_eval(release(b"1"))
        assert talk.deliver(b"+OK\r\n:-3\r\n") == [(second, GRANTED), (first, GRANTED)]


def test_an_extension_is_sent_again_only_while_its_receiver_waits() -> None:
    """An extension after its round would be unknown to its holder."""
    for command in (extend(), Inspect(b"k")):
        waited, over = Talk.that_released(), Talk.that_released()
        waited.ask(command)
        assert waited.deliver(NOSCRIPT) == []
        assert waited.pipeline.outgoing == encode_eval(command)
        over.ask(command, over=True)
        ((_, answer),) = over.deliver(NOSCRIPT)
        assert answer.code is VoteCode.TRANSIENT_ERROR
        assert over.pipeline.outgoing == b""
        assert not over.pipeline.pending


def test_a_place_is_queued_again_only_while_its_receiver_waits() -> None:
    """A place of a waiter that is gone would stay; its removal is sent again in any case."""
    for ticket, again in ((JOIN, False), (4, False), (LEAVE, True)):
        talk = Talk.that_released()
        command = Release(b"k", b"", b"0123456789abcdef:1:100", ticket)
        talk.ask(command, over=True)
        assert (talk.deliver(NOSCRIPT) == []) is again
        assert talk.pipeline.outgoing == (encode_eval(command) if again else b"")
        talk.pipeline.outgoing = b""
        asked = PendingRequest(release(), Asker(), 1, 0)
        in_full = talk.pipeline.append(asked, encode(release())) == encode_eval(release())
        assert in_full is not again, "the node has no script yet, or is about to get it"


@pytest.mark.parametrize("token", [b"", b"t"])
@pytest.mark.parametrize("ticket", [JOIN, 4])
def test_a_place_is_not_queued_again_behind_later_requests_of_it(token: bytes, ticket: int) -> None:
    """The acquire behind it may have won and removed the place; the token is still released."""
    place = b"0123456789abcdef:1:100"
    for later in (ScriptedAcquire(b"k", b"u", 100, 0, 0, place), Release(b"k", b"", place, LEAVE)):
        talk = Talk.that_released()
        talk.ask(Release(b"k", token, place, ticket))
        talk.ask(later)
        resent = talk.deliver(NOSCRIPT) == []
        assert resent is bool(token)
        assert talk.pipeline.outgoing == (encode_eval(Release(b"k", token)) if token else b"")


def test_what_is_sent_again_keeps_its_order() -> None:
    """Bytes and questions stand in the same order, so answers still find their questions."""
    talk = Talk.that_released()
    commands: list[Command] = [extend(b"1"), release(b"2"), extend(b"3")]
    rounds = [talk.ask(command) for command in commands]
    assert talk.deliver(NOSCRIPT * 3) == []
    assert talk.pipeline.outgoing == b"".join(encode_eval(command) for command in commands)
    answers = [GRANTED, GRANTED, ABSENT]
    assert talk.deliver(b":1\r\n:-3\r\n:-1\r\n") == list(zip(rounds, answers, strict=True))


def test_a_node_that_knows_no_script_is_asked_twice_at_most() -> None:
    """NOSCRIPT in answer to the script's own text would go round for ever."""
    for command in (release(), extend()):
        talk = Talk.that_released()
        talk.ask(command)
        assert talk.deliver(NOSCRIPT) == []
        talk.pipeline.outgoing = b""
        ((_, answer),) = talk.deliver(NOSCRIPT)
        assert answer == Answer(Vote.REFUSED, VoteCode.TRANSIENT_ERROR, NOSCRIPT[1:-2].decode())
        assert talk.pipeline.outgoing == b""


def test_an_acquire_is_never_sent_again() -> None:
    """The command needs no script; a server that claims otherwise gets no second one."""
    for over in (False, True):
        talk = Talk()
        talk.ask(acquire(), over=over)
        ((_, answer),) = talk.deliver(NOSCRIPT)
        assert answer.code is VoteCode.TRANSIENT_ERROR
        assert talk.pipeline.outgoing == b""


class Recorder(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.written += b"aborted"


class Sender:
    """A flow that sends as soon as it gets a reply, like a lost attempt."""

    over = False
    round = 0

    def __init__(self, link: AsyncConnection, then: Command | None = None) -> None:
        self.link = link
        self.then = then
        self.received: list[Answer] = []

    def deliver(self, reply: NodeReply) -> None:
        self.received.append(reply.answer)
        if self.then is not None:
            self.link.send(encode(self.then), PendingRequest(self.then, Sender(self.link), 2, 0))
            self.then = None


def test_a_link_keeps_the_order_of_a_resent_script() -> None:
    """asyncio: when one read brings NOSCRIPT and then an answer whose flow sends at once, the
    bytes go out in the order in which the answers are expected.
    """

    async def scene() -> tuple[bytes, list[Command]]:
        node_state = NodeState(0, Node(), policy_of(1))
        shared_pipeline = SharedPipeline(1, lambda: None)
        owner: Any = None
        link = AsyncConnection(node_state, None, None, owner, shared_pipeline)
        transport = Recorder()
        link.connection_made(transport)
        for first in (release(b"0"), extend(b"0")):  # which go in full
            link.send(encode(first), PendingRequest(first, Sender(link), 1, 0))
        for command, receiver in (
            (extend(b"1"), Sender(link)),
            (acquire(b"2"), Sender(link, then=release(b"2"))),
        ):
            link.send(encode(command), PendingRequest(command, receiver, 1, 0))
        transport.written = b""
        data = b":-3\r\n:1\r\n" + NOSCRIPT + b"$-1\r\n"
        link.get_buffer(-1)[: len(data)] = data
        link.buffer_updated(len(data))
        return transport.written, [q.command for q in link.pipeline.pending]

    written, waiting = asyncio.run(scene())
    sent: dict[bytes, Command] = {
        encode_eval(extend(b"1")): extend(b"1"),
        encode(release(b"2")): release(b"2"),
    }
    assert waiting in ([extend(b"1"), release(b"2")], [release(b"2"), extend(b"1")])
    by_command = {command: data for data, command in sent.items()}
    assert written == b"".join(by_command[command] for command in waiting)


# --- pending releases ------------------------------------------------------------------------


def test_unanswered_acquires_and_releases_leave_pending_releases() -> None:
    """Commands that may have set a key, or may not have removed one; in order, until answered."""
    talk = Talk()
    for command in (acquire(b"1"), extend(b"1"), release(b"1"), Inspect(b"k"), acquire(b"2")):
        talk.ask(command)
    in_doubt = [acquire(b"1"), release(b"1"), acquire(b"2")]
    assert list(talk.pipeline.keys_in_doubt()) == in_doubt
    assert talk.pipeline.has_pending_acquire(b"1")
    talk.deliver(b"+OK\r\n:1\r\n")
    assert list(talk.pipeline.keys_in_doubt()) == in_doubt[1:]
    assert not talk.pipeline.has_pending_acquire(b"1")
    assert talk.pipeline.has_pending_acquire(b"2")
    assert not talk.pipeline.has_pending_acquire(b"k")


def test_an_exchange_leaves_either_token() -> None:
    """Releases of both are pending then; of a place, nothing is left to release."""
    talk = Talk()
    exchange = ScriptedAcquire(b"k", b"new", 1_000, place=PLACE, instead=b"old")
    for command in (
        exchange,
        Release(b"k", b"new", PLACE, 5),
        Release(b"k", b"", PLACE, JOIN),
        Release(b"k", b"", PLACE, LEAVE),
    ):
        talk.ask(command)
    assert list(talk.pipeline.keys_in_doubt()) == [exchange, release(b"old"), release(b"new")]
    assert talk.pipeline.has_pending_acquire(b"new")
    assert not talk.pipeline.has_pending_acquire(b"old")


def test_an_error_shows_neither_token_of_an_exchange() -> None:
    talk = Talk()
    talk.ask(ScriptedAcquire(b"k", b"n" * 32, 1_000, instead=b"o" * 32))
    ((_, answer),) = talk.deliver(b"-ERR " + b"o" * 32 + b" and " + b"n" * 32 + b"\r\n")
    assert "oooo" not in answer.text
    assert "nnnn" not in answer.text


def test_pending_tokens_are_not_looked_at_for_each_of_many_equal_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3,000 tasks extended, one node of five refused all, and the event loop stood still for 15 s.

    The secrets of a text that is new are still looked for.
    """
    looks = 0

    def counted(token: bytes) -> bytes:
        nonlocal looks
        looks += 1
        return secret_of(token)

    monkeypatch.setattr("quorlock._protocol.refusals.secret_of", counted)
    talk = Talk()
    for number in range(2_000):
        talk.ask(Acquire(b"k", b"%032d" % number, 1_000))
    refused = b"-NOREPLICAS Not enough good replicas to write.\r\n"
    answers = talk.deliver(refused * 1_000)
    assert len(answers) == 1_000
    assert {answer.text for _, answer in answers} == {refused.decode()[1:-2]}
    assert looks <= 2 * 2_000
    for number in range(1_000, 1_100):
        ((_, answer),) = talk.deliver(b"-ERR you said %032d\r\n" % number)
        assert answer.text == "ERR you said ***"


def fill(talk: Talk, at: int = 0) -> None:
    """Leave as many bytes unread as a node may have, and one request more."""
    size = 0
    while size <= UNREAD_MAX:
        assert not talk.pipeline.is_backlogged(10**9)
        size += len(encode(acquire()))
        talk.ask(acquire(), at=at)


def test_a_backlog_is_counted_in_bytes() -> None:
    """One reply makes room; while there is none, the first count holds."""
    talk = Talk(RequestPipeline(None))
    fill(talk)
    assert talk.pipeline.is_backlogged(0)
    talk.ask(acquire())  # a release, say: those always go out
    assert talk.pipeline.is_backlogged(0)
    for replied_at in (1, 2):
        assert talk.pipeline.is_backlogged(replied_at)
        talk.pipeline.replied_at = replied_at
        talk.deliver(b"$-1\r\n")
    assert not talk.pipeline.is_backlogged(2)


def test_a_shared_connection_has_a_backlog_only_if_it_is_silent() -> None:
    """Silence counts from the last reply, or from the first request after a pause."""
    talk = Talk()
    talk.ask(acquire(), at=0)
    talk.deliver(b"$-1\r\n")
    fill(talk, at=10_000)
    assert not talk.pipeline.is_backlogged(9_999 + PATIENCE)
    assert talk.pipeline.is_backlogged(10_000 + PATIENCE)
    talk.pipeline.replied_at = 20_000
    assert not talk.pipeline.is_backlogged(19_999 + PATIENCE)
    assert talk.pipeline.is_backlogged(20_000 + PATIENCE)


@pytest.mark.parametrize("longest", [False, True])
@pytest.mark.parametrize("kind", ["plain", "fenced", "of a waiter", "exchange"])
def test_a_server_reads_every_acquire_with_its_release_at_once(longest: bool, kind: str) -> None:
    """The acquires that a node may have unread, and their releases, are less than 16 KiB.

    The first release is sent in full.  After an exchange, both tokens are released.
    """
    key = b"k" * (KEY_BYTES_MAX if longest else 1)
    token = b"0" * 32 + (b"@" + b"o" * OWNER_BYTES_MAX if longest else b"")
    place = INBOX + (b":%d:%d" % (10**18, 10**6) if longest else b":1:100")
    acquires: dict[str, Command] = {
        "plain": Acquire(key, token, 1_000_000),
        "fenced": ScriptedAcquire(key, token, 1_000_000, 1_000),
        "of a waiter": ScriptedAcquire(key, token, 1_000_000, 0, 0, place),
        "exchange": ScriptedAcquire(key, token, 1_000_000, 0, 0, b"", token),
    }
    releases = [Release(key, token)] * (1 + (kind == "exchange"))
    if kind == "of a waiter":
        releases = [Release(key, token, place, 10**15 if longest else 100)]
    pipeline, size = RequestPipeline(None), 0

    def send(command: Command) -> int:
        return len(pipeline.append(PendingRequest(command, Asker(), 1, 0), encode(command)))

    send(acquires[kind])  # in full, as the first one is; it was read
    pipeline.pending.clear()
    while not pipeline.is_backlogged(0):
        size += send(acquires[kind])
    size += sum(send(release) for _ in tuple(pipeline.pending) for release in releases)
    assert UNREAD_MAX < size <= 16_384
