"""Queues of a lock: release.lua, acquire.lua and inspect.lua, on servers and on memory nodes.

A release passes the lock on to the first waiter that can be called, and never fails for the queue.
"""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import hiredis
import pytest

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
from quorlock._core.places import QUEUE, RESERVED, channel_of
from quorlock._protocol.encoding import MARKER, encode, encode_eval
from quorlock.testing import memory
from quorlock.testing.fake_keys import Push
from quorlock.testing.fake_node import Error
from quorlock.testing.memory import MemoryNodes
from quorlock.testing.servers import Server, Servers, find_binary
from tests.harness.support.resp import pack
from tests.harness.support.wait import until
from tests.servers.api.test_acl import PAGE
from tests.servers.testing.twins import read

KEY, TOKEN, OTHER = b"app:x", b"0123456789abcdef" * 2, b"fedcba9876543210" * 2
QUEUE_KEY = QUEUE + KEY
INBOXES = (b"00000000000000a1", b"00000000000000b2", b"00000000000000c3")
A, B, C = (inbox + b":1:5000" for inbox in INBOXES)
RESERVED_FOR_A = RESERVED + A
FREED, ABSENT = -3, -2
# Of an acquire with a place or in exchange, without a fence.
GRANTED, OTHERS_WAIT, REPLACED = -3, -4, -5
SECRET = "canary"
# The lines of docs/how-to/acl.md: for locks, and for queues.
LOCKS, QUEUES = (
    [word for word in line.split() if word[0] in "+~&"]
    for line in re.findall("^ACL SETUSER quorlock (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)
)


class Client:
    """One connection to a node, in RESP3."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(10)
        self.file = sock.makefile("rb")
        self.heard: list[Any] = []
        self.ask(b"HELLO", b"3")

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def ask(self, *words: bytes) -> Any:
        """Return the reply to one command, and note the messages that come before it."""
        self.sock.sendall(pack(*words))
        while isinstance(reply := read(self.file), Push) and reply[0] == b"message":
            self.heard.append(reply[2])
        return reply

    def run(self, command: Command) -> Any:
        """Send the very words that we send."""
        reader = hiredis.Reader()
        reader.feed((encode if type(command) is Acquire else encode_eval)(command))
        words: list[bytes] = reader.gets()
        return self.ask(*words)

    def listen(self, inbox: bytes) -> None:
        self.ask(b"SUBSCRIBE", channel_of(inbox))

    def calls(self) -> list[Any]:
        """Return the calls that it has got until now."""
        self.ask(b"PING")
        heard, self.heard = self.heard, []
        return heard


class OneNode:
    """A node, and clients of it."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self._stack = ExitStack()
        self.client = self.connect()

    def connect(self) -> Client:
        if isinstance(self.node, Server):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.connect(self.node.path)
        else:
            sock = memory.connect(self.node.name, forked=False)
        return self._stack.enter_context(closing(Client(sock)))

    def listener(self, *inboxes: bytes) -> Client:
        client = self.connect()
        for inbox in inboxes:
            client.listen(inbox)
        return client

    def close(self) -> None:
        self._stack.close()

    def value(self, key: bytes = KEY) -> Any:
        return self.node.execute("GET", key)

    def queue(self) -> list[tuple[bytes, float]]:
        members = self.client.ask(b"ZRANGE", QUEUE_KEY, b"0", b"-1", b"WITHSCORES")
        return [(member, score) for member, score in members]

    def hold(self, token: bytes = TOKEN) -> None:
        self.node.execute("SET", KEY, token, "PX", 9_000)

    def join(self, place: bytes, ticket: int = JOIN, token: bytes = b"") -> Any:
        return self.client.run(Release(KEY, token, place, ticket))


@pytest.fixture(scope="module")
def started() -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        nodes: dict[str, Any] = {"memory": stack.enter_context(MemoryNodes(1))[0]}
        for which, binary in (("valkey", find_binary()), ("redis", shutil.which("redis-server"))):
            if binary:
                nodes[which] = stack.enter_context(Servers(1, binary=binary))[0]
        yield nodes


def opened(started: dict[str, Any], which: str) -> Iterator[OneNode]:
    node = started.get(which) or pytest.skip("there is no redis-server on the PATH")
    node.execute("FLUSHALL")
    with closing(OneNode(node)) as one:
        yield one


@pytest.fixture(params=["valkey", "redis", "memory"])
def at(request: pytest.FixtureRequest, started: dict[str, Any]) -> Iterator[OneNode]:
    yield from opened(started, request.param)


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest, started: dict[str, Any]) -> Iterator[OneNode]:
    yield from opened(started, request.param)


# --- the queue ------------------------------------------------------------------------------------


def test_places_queue_behind_one_another(at: OneNode) -> None:
    """Tickets begin with 1; a place that joins again keeps its own; the reply has the ttl."""
    at.hold(TOKEN + b"@web-3")
    for n, place in enumerate((A, B, C)):
        left, owner, ticket, ahead = at.join(place)
        assert 8_000 < left <= 9_000
        assert (owner, ticket, ahead) == (b"web-3", n + 1, n)
    assert at.join(A)[2:] == [1, 0]
    assert at.queue() == [(A, 1), (B, 2), (C, 3)]
    assert 59_000 < at.node.execute("PTTL", QUEUE_KEY) <= 60_000
    assert at.value() == TOKEN + b"@web-3"


def test_a_ticket_that_a_quorum_led_to_orders_the_queue(at: OneNode) -> None:
    """A place comes back with its ticket, and equal tickets are ordered by the places."""
    at.hold()
    at.join(A, 9)
    assert at.join(B, 4)[2:] == [4, 0]
    assert at.join(C)[2:] == [10, 2]
    assert at.join(C, 4)[2:] == [4, 1]
    assert at.queue() == [(B, 4), (C, 4), (A, 9)]


def test_a_correction_changes_what_is_queued_and_nothing_else(at: OneNode) -> None:
    """A correction does not queue a place again, nor pass the lock on, nor free a reservation."""
    listener = at.listener(*INBOXES)
    assert at.join(B, -7) == [ABSENT, b"", 0, -1]
    at.hold()
    at.join(A)
    at.join(B)
    assert at.join(A, -7)[2:] == [7, 1]
    assert at.join(C, -7)[2:] == [0, -1]
    assert at.queue() == [(B, 2), (A, 7)]
    at.node.execute("SET", KEY, RESERVED + C, "PX", 9_000)
    assert at.join(C, -7)[0] > 0
    assert at.value() == RESERVED + C
    assert listener.calls() == []


def test_leaving(at: OneNode) -> None:
    """The place is removed; the lock is another's, and stays."""
    at.hold()
    at.join(A)
    left, owner, ticket, ahead = at.join(A, LEAVE)
    assert left > 0
    assert (owner, ticket, ahead) == (b"", 0, -1)
    assert at.queue() == []
    assert at.node.execute("EXISTS", QUEUE_KEY) == 0
    assert at.value() == TOKEN


def test_an_inspection_counts_who_waits(at: OneNode) -> None:
    assert at.client.run(Inspect(KEY)) == [None, ABSENT, 0]
    at.hold()
    at.join(A)
    at.join(B)
    holder, left, waiters = at.client.run(Inspect(KEY))
    assert (holder, waiters) == (TOKEN, 2)
    assert left > 0


# --- passing on -----------------------------------------------------------------------------------


def test_a_release_reserves_the_lock_for_the_first_that_listens(at: OneNode) -> None:
    """The first place is called, and no other client can have the lock for that time."""
    listener = at.listener(*INBOXES)
    at.hold()
    at.join(A)
    at.join(B)
    assert at.client.run(Release(KEY, TOKEN)) == FREED
    assert listener.calls() == [A + b" " + KEY]
    assert at.value() == RESERVED_FOR_A
    assert 4_000 < at.node.execute("PTTL", KEY) <= 5_000
    assert at.queue() == [(B, 2)]
    assert at.node.execute("SET", KEY, OTHER, "NX", "PX", 9_000) is None
    assert at.client.run(ScriptedAcquire(KEY, OTHER, 9_000, place=B, instead=b""))[0] == 0
    assert at.client.run(ScriptedAcquire(KEY, OTHER, 9_000, place=A)) == GRANTED
    assert at.value() == OTHER


def test_dead_places_are_skipped_and_forgotten(at: OneNode) -> None:
    """The connections of dead places are gone. Malformed places are no obstacle either."""
    dead = at.listener(INBOXES[0])
    listener = at.listener(INBOXES[2])
    at.hold()
    for place in (A, B, C):
        at.join(place)
    for junk in (b"", b"junk", b"::", b"00000000000000c3:x:1"):
        at.client.ask(b"ZADD", QUEUE_KEY, b"0", junk)
    dead.ask(b"UNSUBSCRIBE", channel_of(INBOXES[0]))
    assert at.client.run(Release(KEY, TOKEN)) == FREED
    assert at.value() == RESERVED + C
    assert at.queue() == []
    assert listener.calls() == [C + b" " + KEY]


def test_a_lock_that_no_waiter_can_hear_of_is_deleted(at: OneNode) -> None:
    at.hold()
    at.join(A)
    at.join(B)
    assert at.client.run(Release(KEY, TOKEN)) == FREED
    assert at.client.ask(b"KEYS", b"*app:x") == []


def test_a_place_with_no_time_to_reserve_is_called_once(at: OneNode) -> None:
    """The lock is deleted: its process finds it free."""
    place = INBOXES[0] + b":1:0"
    listener = at.listener(*INBOXES)
    at.hold()
    at.client.ask(b"ZADD", QUEUE_KEY, b"0", place)
    assert at.client.run(Release(KEY, TOKEN)) == FREED
    assert listener.calls() == [place + b" " + KEY]
    assert at.client.ask(b"KEYS", b"*app:x") == []


def test_a_place_that_cannot_be_called_is_not_queued(at: OneNode) -> None:
    """The reply says so: its process polls."""
    assert at.join(A) == [ABSENT, b"", 0, -1]
    at.listener(INBOXES[0])
    left, _, ticket, ahead = at.join(A)
    assert left > 0
    assert (ticket, ahead) == (1, -1)


def test_a_lost_attempt_queues_again_and_passes_on(at: OneNode) -> None:
    """One command gives the token back, keeps the ticket, and calls the first."""
    listener = at.listener(*INBOXES)
    at.hold()
    at.join(A, 3)
    assert at.join(B, 5, token=TOKEN) == [FREED, b"", 5, 0]
    assert listener.calls() == [A + b" " + KEY]
    assert at.value() == RESERVED_FOR_A


def test_a_look_at_a_lock_that_has_expired_calls_the_first(at: OneNode) -> None:
    """The order is that of the tickets, not that of the looks."""
    listener = at.listener(*INBOXES)
    at.hold()
    at.join(A)
    at.join(B)
    at.node.execute("DEL", KEY)
    left, owner, ticket, ahead = at.join(B, 2)
    assert 4_000 < left <= 5_000
    assert (owner, ticket, ahead) == (b"", 2, 0)
    assert listener.calls() == [A + b" " + KEY]


def test_a_look_repeats_a_call_that_was_lost(at: OneNode) -> None:
    """The turn is kept, also after another with an earlier ticket has come."""
    listener = at.listener(*INBOXES)
    at.hold()
    at.join(B, 5)
    at.client.run(Release(KEY, TOKEN))
    for _ in range(2):
        left_ms, *rest = at.join(B, 5)
        assert 0 < left_ms <= 5_000
        assert rest == [b"", 5, 0]
        at.join(A, 3)
    assert at.value() == RESERVED + B
    assert listener.calls() == [B + b" " + KEY] * 3


def test_a_look_makes_a_place_again_that_the_node_has_lost(at: OneNode) -> None:
    at.hold()
    at.join(A, 3)
    at.node.execute("DEL", QUEUE_KEY)
    assert at.join(A, 3)[2:] == [3, 0]
    assert at.queue() == [(A, 3)]


def test_who_leaves_gives_its_reservation_to_the_next(at: OneNode) -> None:
    listener = at.listener(*INBOXES)
    at.hold()
    at.join(A)
    at.join(B)
    at.client.run(Release(KEY, TOKEN))
    assert at.join(A, LEAVE) == [FREED, b"", 0, -1]
    assert at.value() == RESERVED + B
    assert at.join(B, LEAVE)[0] == FREED
    assert at.value() is None
    assert listener.calls() == [A + b" " + KEY, B + b" " + KEY]


def test_without_a_token_only_a_reservation_is_ours(at: OneNode) -> None:
    """An empty value of another is not the empty token, nor is any key freed by a look."""
    for value in (b"", TOKEN, RESERVED + B, RESERVED):
        at.node.execute("SET", KEY, value, "PX", 9_000)
        for ticket in (JOIN, 4, LEAVE):
            assert at.join(A, ticket)[0] > 0
        assert at.client.run(Release(KEY, b"")) > 0
        assert at.client.run(ScriptedAcquire(KEY, OTHER, 9_000, place=A))[0] == 0
        assert at.value() == value


# --- exchange -------------------------------------------------------------------------------------


def exchange(at: OneNode, place: bytes = b"") -> list[Any]:
    command = ScriptedAcquire(KEY, OTHER, 9_000, 1_000, 0, place, TOKEN)
    reply: list[Any] = at.client.run(command)
    return reply


def test_an_exchange_replaces_the_token(at: OneNode) -> None:
    """A release and an acquire in one: with a fence, and whether others wait."""
    at.node.execute("SET", KEY, TOKEN, "PX", 50)
    at.join(A)
    at.join(B)
    what, us, fence, waiters, replaced = exchange(at, A)
    assert (what, waiters, replaced) == (1, 1, 1)
    assert fence >= us
    assert at.value() == OTHER
    assert at.node.execute("PTTL", KEY) > 8_000
    assert at.queue() == [(B, 2)]
    assert exchange(at)[3:] == [1, 0]


@pytest.mark.parametrize("marker_ms", [0, 30_000])
def test_an_exchange_without_a_fence_replies_with_a_number(at: OneNode, marker_ms: int) -> None:
    at.node.execute("SET", MARKER, b"run:1000")
    at.node.execute("SET", KEY, TOKEN, "PX", 50)
    at.join(A)
    at.join(B)
    command = ScriptedAcquire(KEY, OTHER, 9_000, 0, marker_ms, place=A, instead=TOKEN)
    assert at.client.run(command) == REPLACED - 1  # others wait
    assert (at.value(), at.queue()) == (OTHER, [(B, 2)])
    assert at.node.execute("PTTL", KEY) > 8_000
    at.client.run(Release(KEY, b"", B, LEAVE))
    again = ScriptedAcquire(KEY, TOKEN, 9_000, 0, marker_ms, place=b"", instead=OTHER)
    assert at.client.run(again) == REPLACED


def test_an_exchange_takes_a_free_lock_too_but_not_anothers(at: OneNode) -> None:
    """The reply has whether the old token was there."""
    assert exchange(at)[3:] == [0, 0]
    at.hold(b"third")
    what, _, left = exchange(at)
    assert what == 0
    assert left > 0
    at.node.execute("SET", KEY, RESERVED_FOR_A, "PX", 9_000)
    assert exchange(at)[0] == 0
    assert exchange(at, A)[0] == 1


@pytest.mark.parametrize(
    "late",
    [
        Release(KEY, TOKEN),
        Release(KEY, TOKEN, A, JOIN),
        Release(KEY, TOKEN, A, 4),
        Release(KEY, TOKEN, A, LEAVE),
        Release(KEY, b"", A, LEAVE),
        Extend(KEY, TOKEN, 60_000),
        Acquire(KEY, TOKEN, 60_000),
        ScriptedAcquire(KEY, TOKEN, 60_000),
        ScriptedAcquire(KEY, TOKEN, 60_000, place=A),
        ScriptedAcquire(KEY, b"third", 60_000, place=A, instead=TOKEN),
        ScriptedAcquire(KEY, OTHER, 60_000, place=A, instead=TOKEN),
    ],
    ids=str,
)
def test_what_comes_after_an_exchange_changes_nothing(at: OneNode, late: Command) -> None:
    """Commands for the old token or for the place, and the exchange again: the key and its ttl."""
    at.listener(*INBOXES)
    at.hold()
    at.join(A)
    exchange(at, A)
    at.client.run(late)
    assert at.value() == OTHER
    assert 8_000 < at.node.execute("PTTL", KEY) <= 9_000


# --- a queue never prevents a release -------------------------------------------------------------


def test_a_queue_of_another_type(at: OneNode) -> None:
    """The lock works as without a queue, and the key is left alone."""
    at.listener(*INBOXES)
    at.node.execute("RPUSH", QUEUE_KEY, "x")
    at.hold()
    assert at.join(A)[2:] == [0, -1]
    assert at.join(A, 4)[2:] == [0, -1]
    assert at.join(A, LEAVE)[0] > 0
    assert at.client.run(Inspect(KEY))[2] == 0
    assert exchange(at, A)[3:] == [0, 1]
    assert at.client.run(Release(KEY, OTHER)) == FREED
    assert at.join(A) == [ABSENT, b"", 0, -1]
    assert at.value() is None
    assert at.node.execute("KEYS", "*queue*") == [QUEUE_KEY]


def test_a_lock_of_another_type_changes_nothing(at: OneNode) -> None:
    """Nothing is changed, and the queue is not either."""
    at.hold()
    at.join(A)
    at.node.execute("DEL", KEY)
    at.node.execute("RPUSH", KEY, "x")
    for ticket in (LEAVE, 4, -5):
        reply = at.join(A, ticket)
        assert isinstance(reply, Error)
        assert reply.startswith("WRONGTYPE")
    assert at.queue() == [(A, 1)]


def test_a_full_node(server: OneNode) -> None:
    """A full node queues no place, and still frees the lock and passes it on to its queue."""
    listener = server.listener(*INBOXES)
    server.hold()
    server.join(A)
    server.node.execute("CONFIG", "SET", "maxmemory", 1)
    try:
        assert server.join(B)[2:] == [0, -1]
        assert server.join(B, 5)[2:] == [0, -1]
        assert server.client.run(Release(KEY, TOKEN)) == FREED
        assert server.value() == RESERVED_FOR_A
        assert listener.calls() == [A + b" " + KEY]
        assert server.join(A, LEAVE)[0] == FREED
        assert server.value() is None
    finally:
        server.node.execute("CONFIG", "SET", "maxmemory", 0)


def user(server: OneNode, words: list[str]) -> Client:
    """Return the connection of a user with these rights."""
    server.node.execute("ACL", "SETUSER", "waiter", "reset", "on", f">{SECRET}", *words)
    client = server.connect()
    assert client.ask(b"AUTH", b"waiter", SECRET.encode()) == b"OK"
    return client


def test_a_user_with_the_rights_of_locks_alone(server: OneNode) -> None:
    """A user without the words for waiting locks and releases, and has no queue."""
    client = user(server, LOCKS)
    server.hold()
    server.join(A)
    assert client.run(Release(KEY, b"", B, JOIN))[2:] == [0, -1]
    assert client.run(Release(KEY, b"", B, 3))[2:] == [0, -1]
    assert client.run(Release(KEY, b"", B, LEAVE))[0] > 0
    assert client.run(Inspect(KEY))[2] == 0
    assert client.run(ScriptedAcquire(KEY, OTHER, 9_000, 0, 0, B, TOKEN)) == REPLACED
    assert client.run(Release(KEY, OTHER)) == FREED
    assert server.value() is None
    assert server.queue() == [(A, 1)]
    assert isinstance(client.ask(b"SUBSCRIBE", channel_of(INBOXES[0])), Error)


def test_a_user_with_all_rights(server: OneNode) -> None:
    """Both lines of the page are enough for queues and calls."""
    *replies, calls, acquired = story(server, user(server, [*LOCKS, *QUEUES]))
    assert replies == [[1, 0], [5, 0], [6, 1], [0, -1], 1, FREED, RESERVED_FOR_A]
    assert calls == [A + b" " + KEY]
    assert acquired == GRANTED


def story(server: OneNode, client: Client) -> list[Any]:
    """Return the replies to everything that a waiter and a holder do."""
    server.node.execute("FLUSHALL")
    client.listen(INBOXES[0])
    server.hold()
    steps = ((A, JOIN), (A, -5), (B, JOIN), (B, LEAVE))
    replies = [client.run(Release(KEY, b"", *step))[2:] for step in steps]
    replies += [client.run(Inspect(KEY))[2], client.run(Release(KEY, TOKEN)), server.value()]
    acquired = client.run(ScriptedAcquire(KEY, OTHER, 9_000, place=A))
    return [*replies, client.calls(), acquired]


@pytest.mark.parametrize("word", QUEUES)
def test_no_word_for_queues_is_too_much(server: OneNode, word: str) -> None:
    """And without it every command is still carried out, and the lock released."""
    full = story(server, user(server, [*LOCKS, *QUEUES]))
    client = user(server, [*LOCKS, *(other for other in QUEUES if other != word)])
    replies = story(server, client)
    assert replies != full
    assert replies[5] == FREED
    assert replies[-1] in (GRANTED, OTHERS_WAIT)
    assert client.run(Release(KEY, OTHER)) == FREED


@pytest.mark.parametrize("word", ["+publish", "&quorlock:inbox:*", "+zpopmin"])
def test_who_may_not_call_frees_the_lock(server: OneNode, word: str) -> None:
    """The places stay in the queue: their processes find out when they look."""
    server.listener(*INBOXES)
    client = user(server, [*LOCKS, *(other for other in QUEUES if other != word)])
    server.hold()
    server.join(A)
    server.join(B)
    assert client.run(Release(KEY, TOKEN)) == FREED
    assert server.value() is None
    assert server.queue() == [(A, 1), (B, 2)]
    assert server.node.execute("PTTL", QUEUE_KEY) > 0
    assert client.run(Release(KEY, b"", A, 1)) == [ABSENT, b"", 1, 0]


def test_a_place_ends_with_its_connection(at: OneNode) -> None:
    """Nothing has to be removed: the node knows that no client listens any more."""
    dead = at.listener(INBOXES[0])
    at.hold()
    at.join(A)
    dead.close()
    assert until(lambda: at.node.execute("PUBLISH", channel_of(INBOXES[0]), "?") == 0)
    assert at.client.run(Release(KEY, TOKEN)) == FREED
    assert at.value() is None
    assert at.queue() == []
