"""The scripts with several lock keys: all of them or none, on a real server."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import Any

import hiredis
import pytest

from quorlock._core.commands import (
    LEAVE,
    Command,
    Extend,
    IssueFence,
    Release,
    ScriptedAcquire,
)
from quorlock._core.places import QUEUE, RESERVED
from quorlock._protocol.encoding import COUNTER, encode_eval
from quorlock._protocol.replies import READERS
from quorlock.errors import VoteCode
from quorlock.testing.servers import Server, Servers
from tests.servers.scripts.test_queues import OneNode

KEYS = (b"a", b"b", b"c")
TOKEN, OTHER = b"0123456789abcdef", b"fedcba9876543210"
OWNED = b"0123456789abcdef0123456789abcdef@web-3"
PLACE, NEXT = b"00000000000000a1:1:5000", b"00000000000000a1:2:5000"


@pytest.fixture
def node(nodes: Servers) -> Server:
    return nodes[0]


def run(node: Server, command: Command) -> Any:
    """The very words that we send."""
    reader = hiredis.Reader()
    reader.feed(encode_eval(command))
    return node.execute(*reader.gets())


def acquire(
    grid_ms: int = 0, *, keys: tuple[bytes, ...] = KEYS, place: bytes = b""
) -> ScriptedAcquire:
    key, *also = keys
    return ScriptedAcquire(key, TOKEN, 9_000, grid_ms, place=place, also=tuple(also))


def release(token: bytes = TOKEN, place: bytes = b"", ticket: int = 0) -> Release:
    return Release(KEYS[0], token, place, ticket, KEYS[1:])


def values(node: Server, keys: tuple[bytes, ...] = KEYS) -> list[Any]:
    return [node.execute("GET", key) for key in keys]


def test_all_are_set_and_freed(node: Server) -> None:
    assert run(node, acquire())[0] == 1
    assert values(node) == [TOKEN] * 3
    assert all(8_000 < node.execute("PTTL", key) <= 9_000 for key in KEYS)
    assert run(node, release()) == [-3, b"", 0]
    assert values(node) == [None] * 3


@pytest.mark.parametrize("taken", range(3))
def test_none_is_set_if_one_is_held(node: Server, taken: int) -> None:
    """The reply says which one, and for how long; the others are not disturbed."""
    node.execute("SET", KEYS[taken], OWNED, "PX", 5_000)
    what, _, left, before = run(node, acquire())
    assert (what, before) == (0, taken)
    assert 4_000 < left <= 5_000
    assert [value for value in values(node) if value] == [OWNED]
    left, owner, before = run(node, release())
    assert (owner, before) == (b"web-3", taken)
    assert 4_000 < left <= 5_000
    assert [value for value in values(node) if value] == [OWNED], "another's key stays"


@pytest.mark.parametrize("taken", range(3))
def test_a_key_of_another_type_is_left_alone(node: Server, taken: int) -> None:
    node.execute("RPUSH", KEYS[taken], "x")
    for command in (acquire(), release(), Extend(KEYS[0], TOKEN, 10, KEYS[1:])):
        with pytest.raises(Exception, match="WRONGTYPE"):
            run(node, command)
    assert [key for key in KEYS if node.execute("EXISTS", key)] == [KEYS[taken]]


def test_an_acquire_sets_what_is_missing(node: Server) -> None:
    """Idempotent by token: a repeated one, or one that restores keys, changes no other key."""
    run(node, acquire())
    node.execute("DEL", KEYS[1])
    node.execute("PEXPIRE", KEYS[0], 20_000)
    assert run(node, acquire())[0] == 1
    assert values(node) == [TOKEN] * 3
    assert node.execute("PTTL", KEYS[0]) > 10_000


def test_all_are_extended_or_none(node: Server) -> None:
    extend = Extend(KEYS[0], TOKEN, 30_000, KEYS[1:])
    run(node, acquire())
    assert run(node, extend) == 1
    assert all(node.execute("PTTL", key) > 20_000 for key in KEYS)
    longer = extend._replace(ttl_ms=60_000)
    node.execute("DEL", KEYS[2])
    assert run(node, longer) == -1
    node.execute("SET", KEYS[1], OTHER)
    assert run(node, longer) == 0
    assert node.execute("PTTL", KEYS[0]) <= 30_000


def test_a_release_tells_of_another_before_it_tells_of_an_absent_key(node: Server) -> None:
    """A release is granted only if all were ours; it frees those that are ours in any case."""
    run(node, acquire())
    node.execute("DEL", KEYS[0])
    assert run(node, release()) == [-2, b"", 0]
    assert values(node) == [None] * 3
    run(node, acquire())
    node.execute("DEL", KEYS[0])
    node.execute("SET", KEYS[2], OTHER)
    assert run(node, release()) == [-1, b"", 2]
    assert values(node) == [None, None, OTHER]


def test_the_fence_is_above_all_counters(node: Server) -> None:
    """One fence, issued to every key: so the proof of decision 14 holds for each of them."""
    for number, key in enumerate(KEYS):
        node.execute("SET", COUNTER + key, 4_000_000_000_000_000 if number == 1 else 7)
    what, _, code = run(node, acquire(1_000))
    assert (what, code) == (-2, 0), "a counter that is far ahead of the clock is an error"
    assert values(node) == [None] * 3
    ahead = int(node.execute("TIME")[0]) * 1_000_000 + 3_600_000_000
    node.execute("SET", COUNTER + KEYS[1], ahead)
    what, _, fence = run(node, acquire(1_000))
    assert (what, fence) == (1, ahead + 1)
    assert [int(node.execute("GET", COUNTER + key)) for key in KEYS] == [fence] * 3


@pytest.mark.parametrize("low", range(3))
def test_a_fence_of_another_node_is_issued_to_all_or_none(node: Server, low: int) -> None:
    fence = run(node, acquire(1_000))[2]
    issue = IssueFence(KEYS[0], TOKEN, fence + 5, 15_000, KEYS[1:])
    node.execute("SET", COUNTER + KEYS[low], fence + 5)
    assert run(node, issue)[0] == -2
    node.execute("SET", COUNTER + KEYS[low], fence)
    assert run(node, issue)[::2] == [1, fence + 5]
    assert [int(node.execute("GET", COUNTER + key)) for key in KEYS] == [fence + 5] * 3
    node.execute("SET", KEYS[low], OTHER)
    assert run(node, issue._replace(fence=fence + 9))[0] == 0
    node.execute("DEL", KEYS[low])
    assert run(node, issue._replace(fence=fence + 9))[0] == -1
    assert [int(node.execute("GET", COUNTER + key)) for key in KEYS] == [fence + 5] * 3


def test_each_freed_key_is_passed_on_to_its_own_queue(node: Server) -> None:
    """Waiters of a plain lock on any of the keys are called as ever."""
    one = OneNode(node)
    listener = one.listener(NEXT.partition(b":")[0])
    with closing(one):
        run(node, acquire())
        node.execute("ZADD", QUEUE + KEYS[2], 1, NEXT)
        assert run(node, release()) == [-3, b"", 0]
        assert values(node) == [None, None, RESERVED + NEXT]
        assert listener.calls() == [NEXT + b" " + KEYS[2]]


def test_a_reserved_key_is_refused_to_all_but_its_place(node: Server) -> None:
    """A key that is kept for a waiter is not free, wherever it is among the keys."""
    for number in range(3):
        node.execute("FLUSHALL")
        node.execute("SET", KEYS[number], RESERVED + PLACE, "PX", 5_000)
        assert run(node, acquire())[3] == number
        refused = run(node, acquire(place=NEXT))
        assert (refused[0], refused[3]) == (0, number)
        of_place = READERS[ScriptedAcquire](run(node, acquire(place=PLACE)))
        expected = VoteCode.GRANTED if number == 0 else VoteCode.HELD
        assert of_place.code is expected, "the place is in the first key's queue"


def test_the_first_key_is_granted_to_its_place_with_all_others_or_not_at_all(node: Server) -> None:
    for holder, found in ((OTHER, [RESERVED + PLACE, OTHER, None]), (None, [TOKEN] * 3)):
        node.execute("FLUSHALL")
        node.execute("SET", KEYS[0], RESERVED + PLACE, "PX", 5_000)
        if holder:
            node.execute("SET", KEYS[1], holder, "PX", 5_000)
        answer = READERS[ScriptedAcquire](run(node, acquire(place=PLACE)))
        assert answer.code is (VoteCode.HELD if holder else VoteCode.GRANTED)
        assert values(node) == found


def test_a_place_leaves_the_queue_of_the_first_key(node: Server) -> None:
    """A reservation there is passed on; the other keys' queues are not touched."""
    node.execute("SET", KEYS[0], RESERVED + PLACE, "PX", 5_000)
    node.execute("ZADD", QUEUE + KEYS[1], 1, NEXT)
    left, owner, ticket, ahead, before = run(node, release(place=PLACE, ticket=LEAVE))
    assert (left, owner, ticket, ahead, before) == (-2, b"", 0, -1, 1)
    assert values(node) == [None] * 3
    assert node.execute("ZCARD", QUEUE + KEYS[1]) == 1


def test_every_reply_is_understood(node: Server) -> None:
    """No reply is malformed: of one to three keys, with and without a place, free, held, absent."""
    for keys, place, holder in itertools.product(
        [KEYS[:1], KEYS[:2], KEYS], (b"", PLACE), (None, OTHER, OWNED)
    ):
        node.execute("FLUSHALL")
        if holder:
            node.execute("SET", keys[-1], holder, "PX", 5_000)
        acquired = READERS[ScriptedAcquire](run(node, acquire(keys=keys, place=place)))
        assert acquired.code is (VoteCode.HELD if holder else VoteCode.GRANTED)
        assert acquired.before == (len(keys) - 1 if holder else 0)
        back = Release(keys[0], TOKEN, place, LEAVE, keys[1:])
        released = READERS[Release](run(node, back))
        assert released.code is (VoteCode.HELD if holder else VoteCode.GRANTED)
        assert released.owner == (b"web-3" if holder == OWNED else b"")
        assert released.before == acquired.before
