"""Acceptance 10: redlock-py (from PyPI) and quorlock exclude each other on one key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import redis
import redlock as redlock_py

from quorlock import AcquireTimeout, LeaseLost
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import FACES, Face, emptied, holders, left_over, raises

ROUNDS = 300
TTL_MS = 10_000


@pytest.fixture
def theirs(nodes: Servers) -> Iterator[Any]:
    """Return their client on our five nodes, with one attempt per call."""
    clients = [redis.Redis(unix_socket_path=node.path) for node in nodes]
    # retry_count=0 would be 3 to it, and retry_delay=0 would be 0.2 s.
    yield redlock_py.Redlock(clients, retry_count=1, retry_delay=1e-6)
    for client in clients:
        client.close()


async def test_each_keeps_the_other_out(face: Face, nodes: Servers, theirs: Any) -> None:
    """300 rounds in both directions: a lock that one holds excludes the other, and is free after
    its release.
    """
    began = time.perf_counter()
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        ours = redlock.lock("shared", ttl=10.0)
        for turn in range(ROUNDS):
            lease = await ours.try_acquire()
            assert lease is not None, turn
            assert theirs.lock("shared", TTL_MS) is False, turn
            assert await lease.release() is True
            # Our release is done when a quorum has deleted: a straggler may refuse them still.
            held = theirs.lock("shared", TTL_MS)
            assert held is not False, turn
            assert await ours.try_acquire() is None, turn
            theirs.unlock(held)
    assert left_over(nodes) == {}
    print(f"\n{face.name}: {ROUNDS} rounds both ways in {time.perf_counter() - began:.1f} s")


async def test_what_each_says_of_the_others_lock(face: Face, nodes: Servers, theirs: Any) -> None:
    """Refused, with the time their lease has left; held in an inspection; not ours to release."""
    held = theirs.lock("shared", TTL_MS)
    token = held.key.decode()
    async with face.redlock(nodes.urls) as redlock:
        error = await raises(AcquireTimeout, redlock.lock("shared").acquire(timeout=0))
        assert error.holder_ttl is not None
        assert 5 < error.holder_ttl <= 10
        assert await redlock.lock("shared").locked()
        assert (await redlock.inspect("shared")).verdict == "held"
        assert await redlock.release("shared", "not theirs") is False
        # Their token allows extending and releasing like ours.
        assert await redlock.extend("shared", token, ttl=20) is True
        assert await redlock.release("shared", token) is True
        assert theirs.lock("shared", TTL_MS) is not False
    assert None not in holders(nodes, "shared")


async def test_our_lost_lease_leaves_theirs_alone(face: Face, nodes: Servers, theirs: Any) -> None:
    """Ours ran out, they have it: our extend raises, our release says False, theirs stays."""
    async with face.redlock(nodes.urls, node_timeout=0.03) as redlock:
        lease = await redlock.lock("shared", ttl=0.1).acquire()
        assert await emptied(nodes)
        held = theirs.lock("shared", TTL_MS)
        assert held is not False
        await raises(LeaseLost, lease.extend())
        assert await lease.release() is False
        assert await redlock.release("shared", lease.token) is False
        assert holders(nodes, "shared") == [held.key] * 5


async def test_they_cannot_release_ours(face: Face, nodes: Servers, theirs: Any) -> None:
    """redlock-py's unlock with its own token does not change our keys; with our token it does."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("shared").acquire()
        assert await until_async(lambda: None not in holders(nodes, "shared"))
        theirs.unlock(redlock_py.Lock(0, "shared", b"not ours"))
        assert holders(nodes, "shared") == [lease.token.encode()] * 5
        theirs.unlock(redlock_py.Lock(0, "shared", lease.token.encode()))
        assert left_over(nodes) == {}
        assert await lease.release() is False


async def test_contenders_of_both_kinds_never_meet(nodes: Servers, theirs: Any) -> None:
    """Both at once in threads on one resource: no two critical sections overlap, both get in."""
    ours_turns: list[tuple[float, float]] = []
    their_turns: list[tuple[float, float]] = []
    end = time.monotonic() + 1.5
    blocking = FACES[0]

    def is_running() -> bool:
        now = time.monotonic()
        return now < end or (now < end + 30 and not (ours_turns and their_turns))

    async with blocking.redlock(nodes.urls, retry_delay=(0.001, 0.005)) as redlock:

        async def ours() -> None:
            while is_running():
                lease = await redlock.lock("shared").acquire(timeout=60)
                note(ours_turns)
                await lease.release()
                await asyncio.sleep(0.002)

        def them() -> None:
            while is_running():
                held = theirs.lock("shared", TTL_MS)
                if held:
                    note(their_turns)
                    theirs.unlock(held)
                time.sleep(0.002)

        async def part(index: int) -> None:
            if index:
                await ours()
            else:
                await asyncio.to_thread(them)

        assert await blocking.crowd(3, part) == [None] * 3
    print(f"\nours {len(ours_turns)}, theirs {len(their_turns)} turns")
    in_order = sorted(ours_turns + their_turns)
    assert not [(a, b) for a, b in pairwise(in_order) if b[0] < a[1]]
    assert left_over(nodes) == {}


def note(turns: list[tuple[float, float]], clock: Callable[[], float] = time.monotonic) -> None:
    """One critical section of 1 ms."""
    began = clock()
    time.sleep(0.001)
    turns.append((began, clock()))


async def test_they_wait_beside_our_readers(face: Face, nodes: Servers, theirs: Any) -> None:
    """Neither SET NX nor the release by an older script changes a reader."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        lock = redlock.lock("shared", shared=True)
        leases = [await lock.acquire() for _ in range(2)]
        tokens = {lease.token.encode() for lease in leases}
        for _ in range(3):
            assert theirs.lock("shared", TTL_MS) is False  # its give-back meets the readers too
        for node in nodes:
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                redis.Redis(unix_socket_path=node.path).eval(OLD_RELEASE, 1, "shared", "another")
        found = [set(node.execute("ZRANGE", "shared", "0", "-1")) for node in nodes]
        assert sum(readers == tokens for readers in found) >= 3
        assert [await lease.release() for lease in leases] == [True, True]
        held = theirs.lock("shared", TTL_MS)
        assert held is not False
        assert await lock.try_acquire() is None
        theirs.unlock(held)
        async with lock:
            pass
    assert left_over(nodes) == {}


# The compare-and-delete that libraries send, quorlock's first version among them.
OLD_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return -3
end
return redis.call('PTTL', KEYS[1])
"""
