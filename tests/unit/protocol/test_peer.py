"""The meaning of a reply, and of a lost connection, for the keys that are on the node."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock._core.commands import (
    JOIN,
    LEAVE,
    Acquire,
    Command,
    Extend,
    Inspect,
    Release,
    ScriptedAcquire,
)
from quorlock._core.effects import CALL
from quorlock._core.places import channel_of
from quorlock._core.rounds import NodeReply
from quorlock._core.time import NS_PER_MS, NS_PER_S
from quorlock._core.votes import NO_REPLY
from quorlock._drivers.node_state import NodeState
from quorlock._nodes.node import Node
from quorlock._protocol.encoding import encode, encode_message
from quorlock._protocol.peer import Peer
from quorlock._protocol.pipeline import PendingRequest
from tests.harness.support.script import policy_of

OLD, NEW, PLACE = b"o" * 32, b"n" * 32, b"00000000000000a1:1:100"
EXCHANGE = ScriptedAcquire(b"k", NEW, 1_000, instead=OLD)


class Asker:
    round = 1

    def __init__(self) -> None:
        self.over = False
        self.replies: list[NodeReply] = []

    def deliver(self, reply: NodeReply) -> None:
        self.replies.append(reply)


def asked(*commands: Command) -> Peer:
    """Return a peer that was sent these commands, after a first one of each kind."""
    peer = Peer(NodeState(0, Node(memory="a"), policy_of(3)), None, "run")
    for command in (Release(b"k", b"first"), ScriptedAcquire(b"k", b"first", 1_000), *commands):
        peer.pipeline.append(PendingRequest(command, Asker(), 1, 0), encode(command))
    peer.parse(b":-2\r\n*3\r\n:1\r\n:1\r\n:0\r\n", 1)
    return peer


def to_release(peer: Peer) -> set[bytes]:
    """Return the tokens of its pending releases."""
    assert isinstance(peer.node_state, NodeState)
    pending = peer.node_state.pending_releases
    return {copy.release.token for copy in pending.due(10**6 * NS_PER_MS, "run")}


@pytest.mark.parametrize(
    ("reply", "is_done"),
    [
        (b":-5\r\n", True),
        (b":-3\r\n", True),
        (b"*5\r\n:1\r\n:9\r\n:8\r\n:0\r\n:1\r\n", True),
        (b"*3\r\n:0\r\n:9\r\n:5\r\n", True),
        (b"-WRONGTYPE x\r\n", True),
        (b"*3\r\n:-1\r\n:9\r\n:5\r\n", False),
        (b"*3\r\n:-2\r\n:9\r\n:0\r\n", False),
        (b"-OOM command not allowed\r\n", False),
        (b"-BUSY x\r\n", False),
    ],
)
def test_a_refused_exchange_releases_the_old_token(reply: bytes, is_done: bool) -> None:
    """The node still has it, unless it replied that the key is another's."""
    peer = asked(EXCHANGE)
    peer.parse(reply, 2)
    assert to_release(peer) == (set() if is_done else {OLD})


def test_a_refused_request_for_a_place_leaves_nothing_to_release() -> None:
    """But the release of a lost attempt is sent again, without its place."""
    peer = asked(
        Release(b"k", b"", PLACE, JOIN),
        Release(b"k", b"", PLACE, LEAVE),
        Release(b"k", NEW, PLACE, 3),
    )
    peer.parse(b"-BUSY x\r\n" * 3, 2)
    assert to_release(peer) == {NEW}


def test_a_lost_connection_leaves_both_tokens_of_an_exchange_to_release() -> None:
    peer = asked(EXCHANGE, Release(b"k", b"", PLACE, JOIN))
    peer.register_loss(NO_REPLY, 2)
    assert to_release(peer) == {OLD, NEW}


PUSH = b">2\r\n+OK\r\n+OK\r\n"
CALL_BYTES = encode_message(channel_of(PLACE[:16]), PLACE + b" k")
OTHER_CALL = encode_message(channel_of(PLACE[:16]), PLACE + b" l")


@pytest.mark.parametrize(
    "data",
    [CALL_BYTES, CALL_BYTES + b":-3\r\n", CALL_BYTES + OTHER_CALL, CALL_BYTES + CALL_BYTES[:-1]],
)
def test_an_expected_call_is_delivered_without_the_parser(data: bytes) -> None:
    """Also if replies or other calls come behind it."""
    peer, asker = asked(), Asker()
    assert peer.deliver_call(data, {CALL_BYTES: asker}) == len(CALL_BYTES)
    assert [(reply.round, reply.node) for reply in asker.replies] == [(CALL, 0)]


@pytest.mark.parametrize(
    "data",
    [
        *(OTHER_CALL, OTHER_CALL + CALL_BYTES, b":-3\r\n" + CALL_BYTES, PUSH, b":-3\r\n"),
        *[CALL_BYTES[:size] for size in range(1, len(CALL_BYTES))],
    ],
)
def test_other_bytes_are_left_to_the_parser(data: bytes) -> None:
    peer, asker = asked(), Asker()
    assert peer.deliver_call(data, {CALL_BYTES: asker}) == 0
    assert asker.replies == []


def test_a_call_for_a_wait_that_is_over_is_left_to_the_parser() -> None:
    """The parser answers for the wait.  After a part of a reply, the bytes are the rest of that."""
    peer, asker = asked(Release(b"k", b"t")), Asker()
    asker.over = True
    assert peer.deliver_call(CALL_BYTES, {CALL_BYTES: asker}) == 0
    asker.over = False
    peer.parse(b":-", 2)
    assert peer.deliver_call(CALL_BYTES, {CALL_BYTES: asker}) == 0
    assert asker.replies == []


# Commands, and replies to each: among them some that contain another command's plain grant.
REPLIES: dict[Command, tuple[bytes, ...]] = {
    Acquire(b"k", b"t", 1_000): (b"+OK\r\n", b"_\r\n", b"-ERR +OK\r\n", b"$2\r\nOK\r\n"),
    Extend(b"k", b"t", 1_000): (b":1\r\n", b":0\r\n", b"-BUSY :1\r\n"),
    Release(b"k", b"t"): (b":-3\r\n", b":-2\r\n", b":1234\r\n", b"-ERR :-3\r\n"),
    Inspect(b"k"): (b"*3\r\n$5\r\n+OK\r\n\r\n:7\r\n:0\r\n", b"*3\r\n$-1\r\n:-2\r\n:1\r\n"),
    ScriptedAcquire(b"k", NEW, 1_000, place=PLACE, instead=OLD): (
        *(b":-3\r\n", b":-4\r\n", b":-5\r\n", b":-6\r\n"),
        *(b"-ERR :-4\r\n", b"*3\r\n:0\r\n:9\r\n:5\r\n", b"*3\r\n:1\r\n:9\r\n:0\r\n"),
    ),
}


@settings(max_examples=300)
@given(st.data())
def test_a_grant_that_is_not_parsed_counts_as_one_that_is(data: st.DataObject) -> None:
    """However the bytes come: the receivers get the same, and so does the state of the node."""
    commands = data.draw(st.lists(st.sampled_from(list(REPLIES)), min_size=1, max_size=6))
    stream: list[bytes] = []
    for command in commands:
        if data.draw(st.booleans()):
            stream.append(PUSH)
        stream.append(data.draw(st.sampled_from(REPLIES[command])))
    whole = b"".join(stream)
    ends = {sum(map(len, stream[: i + 1])) for i in range(len(stream))}
    cuts = data.draw(st.sets(st.sampled_from([*ends, *range(1, len(whole) + 1)])))
    asker, other_asker = Asker(), Asker()
    quick, slow = asked(), asked()
    for peer, receiver in ((quick, asker), (slow, other_asker)):
        for number, command in enumerate(commands):
            request = PendingRequest(command, receiver, number, number)
            peer.pipeline.append(request, encode(command))
    begin = 0
    for at, cut in enumerate(sorted({*cuts, len(whole)}), 10):
        part, begin = whole[begin:cut], cut
        if not quick.deliver_grant(part, at):
            quick.parse(part, at)
        slow.parse(part, at)
    assert asker.replies == other_asker.replies
    assert not quick.pipeline.pending
    assert (quick.alive_at, quick.replied_at) == (slow.alive_at, slow.replied_at)
    found, expected = quick.node_state, slow.node_state
    assert (found.is_healthy, found.latency) == (expected.is_healthy, expected.latency)


SUBSCRIBED = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"


@pytest.mark.parametrize(
    ("replies", "ticket"),
    [
        (SUBSCRIBED + b":1\r\n", 4),
        (b"-NOPERM x\r\n:0\r\n", 0),
        (SUBSCRIBED + b"-NOPERM x\r\n", 0),
        (b"", 0),
    ],
    ids=["can call", "may not subscribe", "may not publish", "was not asked"],
)
def test_a_place_that_cannot_be_called_counts_as_none(replies: bytes, ticket: int) -> None:
    """Then too few nodes queue the waiter, and it polls."""
    peer, asker = asked(), Asker()
    if replies:
        peer.pipeline.subscribe(b"00000000000000a1", lambda *_: None, 1)
    join = Release(b"k", b"", PLACE, JOIN)
    peer.pipeline.append(PendingRequest(join, asker, 1, 1), encode(join))
    peer.parse(replies + b"*4\r\n:5000\r\n$0\r\n\r\n:4\r\n:0\r\n", 2)
    (reply,) = asker.replies
    assert (reply.answer.ticket, reply.answer.ahead) == (ticket, 0)


@pytest.mark.parametrize("content", [b"", b":-2\r\n"], ids=["a call", "a call and a reply"])
def test_what_a_paused_process_reads_does_not_show_that_the_server_is_alive(content: bytes) -> None:
    """The server sent a call and a reply, and restarted before the process has read them.

    Its successor is no other living server: it votes when the quarantine of its restart ends.
    """
    peer = asked(Release(b"k", OLD))
    state = peer.node_state
    assert isinstance(state, NodeState)
    state.guard.on_connect("run", 1_000, 1)
    call = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"
    peer.parse(call + content, 100 * NS_PER_S)
    peer.register_loss(NO_REPLY, 100 * NS_PER_S)
    assert state.guard.on_connect("next", 95, 101 * NS_PER_S) is None
