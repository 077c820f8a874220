"""any.lua on a real server: the first lock that is free, once for a token."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from quorlock._core.commands import AcquireAny, release_of
from quorlock._core.places import QUEUE, RESERVED
from quorlock._core.restart_guard import MARKED
from quorlock._core.votes import Answer
from quorlock._protocol.encoding import MARKER, encode, encode_eval
from quorlock._protocol.replies import NONSENSE, READERS
from quorlock.errors import VoteCode
from quorlock.testing.servers import Server, Servers

KEYS = (b"pool#0", b"pool#1", b"pool#2")
TOKEN, OTHER = b"0123456789abcdef", b"fedcba9876543210"


@pytest.fixture
def node(nodes: Servers) -> Server:
    return nodes[0]


def acquire(
    keys: tuple[bytes, ...] = KEYS, *, token: bytes = TOKEN, marker_ms: int = 0
) -> AcquireAny:
    return AcquireAny(keys[0], token, 9_000, marker_ms, keys[1:])


def run(node: Server, command: Any) -> Any:
    """Execute the very words that are sent, in full and then by the name of the script."""
    reader = hiredis.Reader()
    reader.feed(encode_eval(command))
    return node.execute(*reader.gets())


def answer(reply: Any) -> Answer:
    return READERS[AcquireAny](reply)


def values(node: Server) -> list[Any]:
    return [node.execute("GET", key) for key in KEYS]


@pytest.mark.parametrize("taken", range(4))
def test_the_first_that_is_free_is_set(node: Server, taken: int) -> None:
    """The reply says which; only that key is set, for the ttl, and the release frees it."""
    for key in KEYS[:taken]:
        node.execute("SET", key, OTHER, "PX", 5_000)
    reply = run(node, acquire())
    if taken == len(KEYS):
        assert (reply[0], answer(reply).code) == (0, VoteCode.HELD)
        assert values(node) == [OTHER] * 3
        return
    assert (reply[0], reply[2:]) == (1, [0, taken])
    assert (answer(reply).code, answer(reply).before) == (VoteCode.GRANTED, taken)
    assert values(node) == [OTHER] * taken + [TOKEN] + [None] * (2 - taken)
    assert 8_000 < node.execute("PTTL", KEYS[taken]) <= 9_000
    run(node, release_of(acquire()))
    assert values(node) == [OTHER] * taken + [None] * (3 - taken)


@pytest.mark.parametrize("ours", range(3))
def test_a_key_that_the_token_has_is_granted_again(node: Server, ours: int) -> None:
    """Although an earlier one is free: a token has one key at most."""
    node.execute("SET", KEYS[ours], TOKEN, "PX", 5_000)
    assert run(node, acquire())[2:] == [0, ours]
    assert [value for value in values(node) if value] == [TOKEN]
    assert node.execute("PTTL", KEYS[ours]) <= 5_000


def test_the_first_that_expires_is_named(node: Server) -> None:
    for key, ttl in zip(KEYS, (9_000, 3_000, 6_000), strict=True):
        node.execute("SET", key, OTHER, "PX", ttl)
    found = answer(run(node, acquire()))
    assert (found.code, found.before) == (VoteCode.HELD, 1)
    assert found.ttl_left_ms is not None
    assert 2_000 < found.ttl_left_ms <= 3_000
    for key in KEYS:
        node.execute("PERSIST", key)
    found = answer(run(node, acquire()))
    assert (found.code, found.before) == (VoteCode.HELD_WITHOUT_TTL, 0)


def test_a_key_that_is_reserved_is_held(node: Server) -> None:
    """Also for a place of our own process: it is of a waiter for that single lock."""
    place = b"00000000000000a1:1:5000"
    node.execute("SET", KEYS[0], RESERVED + place, "PX", 5_000)
    node.execute("ZADD", QUEUE + KEYS[1], 1, place)
    assert run(node, acquire())[2:] == [0, 1]
    assert node.execute("GET", KEYS[0]) == RESERVED + place
    assert node.execute("ZCARD", QUEUE + KEYS[1]) == 1


@pytest.mark.parametrize("strange", range(3))
def test_another_type_of_data_is_an_error_and_changes_nothing(node: Server, strange: int) -> None:
    node.execute("RPUSH", KEYS[strange], "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        run(node, acquire())
    assert [node.execute("TYPE", key) for key in KEYS].count(b"none") == 2


def test_the_marker_keeps_out(node: Server) -> None:
    """A marker that is too recent, or absent; nothing but the marker is set."""
    reply = run(node, acquire(marker_ms=30_000))
    assert (reply[0], len(reply)) == (-1, 3)
    assert answer(reply).code is VoteCode.QUARANTINED
    assert MARKED in answer(reply).text
    assert values(node) == [None] * 3
    owner, _, _ = node.execute("GET", MARKER).rpartition(b":")
    for age_ms, what in ((20_000, -1), (40_000, 1)):
        now_ms = int(node.execute("TIME")[0]) * 1_000
        node.execute("SET", MARKER, owner + b":%d" % (now_ms - age_ms))
        assert run(node, acquire(marker_ms=30_000))[0] == what


def test_it_is_named_by_its_hash_too(node: Server) -> None:
    run(node, acquire())
    reader = hiredis.Reader()
    reader.feed(encode(acquire()))
    assert node.execute(*reader.gets())[2:] == [0, 0]


@pytest.mark.parametrize(
    "reply",
    [
        *(None, b"OK", 1, [], [1], [1, 5, 0], [0, 5, 100], [1, 5, 7, 0], [1, 0, 0, 0]),
        *([1, 5, 0, -1], [1, 5, 0, b"0"], [1, 5, 0, 0, 0], [-1, 5, 100, 0], [-1, 5, 0]),
        *([-2, 5, 0], [-2, 5, 0, 0], [0, 5, -3, 0], [2, 5, 0, 0], [True, 5, 0, 0]),
    ],
)
def test_any_other_reply_is_nonsense(reply: Any) -> None:
    assert answer(reply) is NONSENSE
