"""acquire.lua and raise.lua keep the contracts of their headers, on a real server."""

from __future__ import annotations

import re
import time
from typing import Any

import hiredis
import pytest

from quorlock import scripts
from quorlock._core.commands import Command, IssueFence, ScriptedAcquire
from quorlock._protocol.encoding import COUNTER, MARKER, SCRIPTS, encode_eval
from quorlock.testing.servers import Server, ServerReplyError, Servers
from tests.servers.scripts.test_scripts import BINARY, header_of

KEY, TOKEN, OTHER = b"resource", b"0123456789abcdef", b"fedcba9876543210"
SIDE = COUNTER + KEY
DAY_US = 86_400_000_000
DAY_MS = 86_400_000
SKEW_US = 5_000_000  # more than a test takes


@pytest.fixture
def node(nodes: Servers) -> Server:
    return nodes[0]


def run(node: Server, command: Command) -> Any:
    """The very words that we send."""
    reader = hiredis.Reader()
    reader.feed(encode_eval(command))
    return node.execute(*reader.gets())


def acquire(
    node: Server,
    token: bytes = TOKEN,
    *,
    key: bytes = KEY,
    ttl_ms: int = 9_000,
    grid_ms: int = 1_000,
    marker_ms: int = 0,
) -> tuple[int, int]:
    """Return the status and the number; the node's time is compared with the server's."""
    began = clock_us(node)
    what, us, number = run(node, ScriptedAcquire(key, token, ttl_ms, grid_ms, marker_ms))
    assert began <= us <= clock_us(node)
    return what, number


def raise_to(
    node: Server, fence: int, token: bytes = TOKEN, *, key: bytes = KEY, ahead_ms: int = 15_000
) -> tuple[int, int]:
    began = clock_us(node)
    what, us, number = run(node, IssueFence(key, token, fence, ahead_ms))
    assert began <= us <= clock_us(node)
    return what, number


def clock_us(node: Server) -> int:
    seconds, microseconds = node.execute("TIME")
    return int(seconds) * 1_000_000 + int(microseconds)


def counter(node: Server, key: bytes = KEY) -> int | None:
    value = node.execute("GET", COUNTER + key)
    return None if value is None else int(value)


# --- acquire.lua ------------------------------------------------------------------------------


def test_acquire_sets_a_free_key_and_issues_a_fence(node: Server) -> None:
    """1 and the fence: above the clock, at a multiple of the grid; key and counter are there."""
    before = clock_us(node)
    what, fence = acquire(node, grid_ms=1_000)
    assert what == 1
    assert before < fence <= clock_us(node) + 1_000_000
    assert fence % 1_000_000 == 0
    assert node.execute("GET", KEY) == TOKEN
    assert 8_000 < node.execute("PTTL", KEY) <= 9_000
    assert counter(node) == fence
    assert DAY_MS - 60_000 < node.execute("PTTL", SIDE) <= DAY_MS


def test_every_grant_issues_a_larger_one(node: Server) -> None:
    """Also to the same token, which is granted again: no value is ever issued twice."""
    first = clock_us(node) + 60_000_000
    node.execute("SET", SIDE, first)
    assert acquire(node) == (1, first + 1)
    assert acquire(node) == (1, first + 2)
    node.execute("DEL", KEY)
    assert acquire(node, OTHER) == (1, first + 3)
    assert counter(node) == first + 3


@pytest.mark.parametrize("old", ["0", "7", None])
def test_a_counter_that_is_behind_the_clock_catches_up(node: Server, old: str | None) -> None:
    """The counter was lost, or an old snapshot is back: the clock is above all numbers issued
    since.
    """
    if old is not None:
        node.execute("SET", SIDE, old)
    before = clock_us(node)
    what, fence = acquire(node)
    assert what == 1
    assert fence > before
    assert fence % 1_000_000 == 0


def test_acquiring_again_leaves_the_key_as_it_is(node: Server) -> None:
    """A duplicate may arrive after an extension: the key must not live shorter."""
    acquire(node, ttl_ms=60_000)
    acquire(node, ttl_ms=1_000)
    assert node.execute("PTTL", KEY) > 50_000


def test_acquire_leaves_anothers_alone(node: Server) -> None:
    """0 and the rest of its life; nothing is issued."""
    node.execute("SET", KEY, OTHER, "PX", 5_000)
    what, left = acquire(node)
    assert what == 0
    assert 4_000 < left <= 5_000
    node.execute("PERSIST", KEY)
    assert acquire(node) == (0, -1)
    assert (node.execute("GET", KEY), counter(node)) == (OTHER, None)


def test_without_a_fence_it_is_a_plain_acquire(node: Server) -> None:
    """1 and 0; no counter is made, and one that is there stays as it is."""
    assert acquire(node, grid_ms=0) == (1, 0)
    assert counter(node) is None
    assert acquire(node, OTHER, grid_ms=0)[0] == 0
    node.execute("SET", SIDE, 7)
    assert acquire(node, grid_ms=0) == (1, 0)
    assert counter(node) == 7


@pytest.mark.parametrize(
    "poison", ["x", "", "-5", "1e3", "7.0", " 7", "9007199254740993", "9" * 60]
)
def test_a_counter_that_cannot_be_followed_grants_nothing(node: Server, poison: str) -> None:
    """-2: no number, or more than a day ahead of the clock."""
    node.execute("SET", SIDE, poison)
    assert acquire(node) == (-2, 0)
    assert node.execute("GET", SIDE) == poison.encode()
    assert node.execute("EXISTS", KEY) == 0


def test_a_day_ahead_is_followed(node: Server) -> None:
    value = clock_us(node) + DAY_US - 60_000_000
    node.execute("SET", SIDE, value)
    assert acquire(node) == (1, value + 1)
    node.execute("DEL", KEY)
    node.execute("SET", SIDE, clock_us(node) + DAY_US + 60_000_000)
    assert acquire(node) == (-2, 0)


# --- the marker -------------------------------------------------------------------------------


def test_a_node_without_its_marker_is_kept_out_and_writes_it(node: Server) -> None:
    """-1 and the ms left; the marker says which process it is, and since when."""
    what, left = acquire(node, marker_ms=30_000)
    assert (what, left) == (-1, 30_000)
    run_id, since = node.execute("GET", MARKER).split(b":")
    assert f"run_id:{run_id.decode()}\r\n" in node.execute("INFO", "server").decode()
    assert abs(int(since) * 1_000 - clock_us(node)) < SKEW_US
    assert node.execute("PTTL", MARKER) == -1
    assert node.execute("EXISTS", KEY, SIDE) == 0, "no counter begins while it is kept out"
    time.sleep(0.002)
    what, left = acquire(node, marker_ms=30_000)
    assert what == -1
    assert left < 30_000


def test_a_marker_that_is_old_enough_lets_it_vote(node: Server) -> None:
    since = clock_us(node) // 1_000 - 30_000
    node.execute("SET", MARKER, b"run:%d" % since)
    assert acquire(node, marker_ms=30_000)[0] == 1
    node.execute("DEL", KEY)
    assert acquire(node, marker_ms=90_000)[0] == -1
    assert node.execute("GET", MARKER) == b"run:%d" % since


@pytest.mark.parametrize("marker", ["nonsense", "run:", "run:x", ":", "run:99999999999999"])
def test_an_invalid_marker_is_overwritten(node: Server, marker: str) -> None:
    """Or one of the future: the clock was set back."""
    node.execute("SET", MARKER, marker)
    assert acquire(node, marker_ms=30_000) == (-1, 30_000)
    assert node.execute("GET", MARKER) != marker.encode()


def test_who_wants_no_marker_needs_none(node: Server) -> None:
    assert acquire(node)[0] == 1
    assert node.execute("EXISTS", MARKER) == 0


# --- raise.lua --------------------------------------------------------------------------------


def test_raise_issues_what_is_higher(node: Server) -> None:
    """1 and the fence, which the counter holds then; the next one is higher."""
    acquire(node)
    fence = clock_us(node) + 10_000_000
    assert raise_to(node, fence) == (1, fence)
    assert counter(node) == fence
    assert DAY_MS - 60_000 < node.execute("PTTL", SIDE) <= DAY_MS
    node.execute("DEL", KEY)
    assert acquire(node, OTHER) == (1, fence + 1)


def test_raise_issues_nothing_twice(node: Server) -> None:
    """The reply is -2 for numbers that the counter has reached, also by this raise or acquire."""
    _, first = acquire(node)
    assert raise_to(node, first) == (-2, 0)
    assert raise_to(node, first - 1) == (-2, 0)
    assert raise_to(node, first + 5)[0] == 1
    assert raise_to(node, first + 5) == (-2, 0)
    assert counter(node) == first + 5


def test_raise_needs_the_lock(node: Server) -> None:
    """0 and the rest of its life where it is another's, -1 where it is gone."""
    _, first = acquire(node)
    assert raise_to(node, first + 5, OTHER)[0] == 0
    node.execute("PERSIST", KEY)
    assert raise_to(node, first + 5, OTHER) == (0, -1)
    node.execute("DEL", KEY)
    assert raise_to(node, first + 5) == (-1, 0)
    assert counter(node) == first


@pytest.mark.parametrize("value", [None, "x", "-5", "9" * 60])
def test_raise_needs_a_counter(node: Server, value: str | None) -> None:
    """The reply is -2 if the counter is absent: this node has forgotten its numbers."""
    _, first = acquire(node)
    node.execute("DEL", SIDE)
    if value is not None:
        node.execute("SET", SIDE, value)
    assert raise_to(node, first + 5) == (-2, 0)
    assert node.execute("GET", SIDE) == (None if value is None else value.encode())


def test_raise_keeps_near_its_own_clock(node: Server) -> None:
    """The reply is -3 for numbers too far ahead, so that the node can start again above all it
    issued.
    """
    acquire(node)
    far = clock_us(node) + 15_000_000 + SKEW_US
    assert raise_to(node, far, ahead_ms=15_000) == (-3, 0)
    assert raise_to(node, far - 2 * SKEW_US, ahead_ms=15_000)[0] == 1


# --- both -------------------------------------------------------------------------------------


@pytest.mark.parametrize("binary", BINARY, ids=range(len(BINARY)))
def test_names_and_tokens_are_bytes(node: Server, binary: bytes) -> None:
    _, fence = acquire(node, binary, key=binary)
    assert acquire(node, binary + b"x", key=binary)[0] == 0
    assert raise_to(node, fence + 1, binary, key=binary) == (1, fence + 1)
    assert counter(node, binary) == fence + 1


@pytest.mark.parametrize("key", [KEY, SIDE, MARKER])
def test_another_type_is_an_error_and_nothing_changes(node: Server, key: bytes) -> None:
    """WRONGTYPE, wherever it is met: before anything was written."""
    node.execute("SET", MARKER, "run:1")
    node.execute("DEL", key)
    node.execute("RPUSH", key, "x")
    with pytest.raises(ServerReplyError, match="WRONGTYPE"):
        acquire(node, marker_ms=1)
    assert node.execute("LRANGE", key, 0, -1) == [b"x"]
    assert node.execute("EXISTS", KEY, SIDE, MARKER) == (1 if key == MARKER else 2)


@pytest.mark.parametrize("key", [KEY, SIDE])
def test_another_type_is_an_error_for_raise_too(node: Server, key: bytes) -> None:
    _, fence = acquire(node)
    node.execute("DEL", key)
    node.execute("RPUSH", key, "x")
    with pytest.raises(ServerReplyError, match="WRONGTYPE"):
        raise_to(node, fence + 1)


@pytest.mark.parametrize("script", [scripts.ACQUIRE, scripts.RAISE])
def test_a_header_names_every_return_value(script: scripts.Script) -> None:
    head = header_of(script)
    for word in ("KEYS[1] lock key", "KEYS[2] fence counter", "returns {what, TIME in us, number}"):
        assert word in head
    returned = {int(n) for n in re.findall(r"return\{(-?\d+),", script.text.decode())}
    said = {int(n) for n in re.findall(r"(?:--   |; )(-?\d+) ", head)}
    assert said == returned
    assert script in SCRIPTS.values()
