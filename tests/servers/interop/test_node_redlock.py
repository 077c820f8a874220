"""Acceptance 10: the script semantics of node-redlock v5, and RedLock.net's key, against ours.

The stand-in below says in Lua what node-redlock's scripts do (acquire: refuse if any key exists,
then SET PX; extend: SET PX if all are ours; release: DEL what is ours), written from its described
behaviour, not copied. It asks the nodes one after the other and counts a majority.
"""

from __future__ import annotations

import secrets
import time

from quorlock import AcquireTimeout, LeaseLost
from quorlock.testing.servers import Server, Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, emptied, holders, left_over, raises

ROUNDS = 300

ACQUIRE = """
for _, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 1 then return 0 end
end
for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'PX', ARGV[2]) end
return #KEYS
"""
EXTEND = """
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) ~= ARGV[1] then return 0 end
end
for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'PX', ARGV[2]) end
return #KEYS
"""
RELEASE = """
local count = 0
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then count = count + redis.call('DEL', key) end
end
return count
"""


class NodeRedlock:
    """A majority of nodes, one value for all resources of a lock."""

    def __init__(self, nodes: Servers, *resources: str) -> None:
        self.nodes, self.resources = nodes, resources
        self.value = secrets.token_hex(16)

    def acquire(self, ttl_ms: int = 10_000) -> bool:
        self.value = secrets.token_hex(16)
        if self.majority(ACQUIRE, ttl_ms):
            return True
        self.release()
        return False

    def extend(self, ttl_ms: int) -> bool:
        return self.majority(EXTEND, ttl_ms)

    def release(self) -> bool:
        return self.majority(RELEASE)

    def majority(self, script: str, *more: int) -> bool:
        votes = [self.ask(node, script, *more) for node in self.nodes]
        return sum(votes) > len(votes) // 2

    def ask(self, node: Server, script: str, *more: int) -> bool:
        count = len(self.resources)
        reply = node.execute("EVAL", script, count, *self.resources, self.value, *more)
        return bool(reply == count)


async def test_each_keeps_the_other_out(face: Face, nodes: Servers) -> None:
    """300 rounds, both ways in each, on one key."""
    theirs = NodeRedlock(nodes, "shared")
    began = time.perf_counter()
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        ours = redlock.lock("shared", ttl=10.0)
        for turn in range(ROUNDS):
            lease = await ours.try_acquire()
            assert lease is not None, turn
            assert theirs.acquire() is False, turn
            assert await lease.release() is True
            assert theirs.acquire() is True, turn
            assert await ours.try_acquire() is None, turn
            assert theirs.release() is True
    assert left_over(nodes) == {}
    print(f"\n{face.name}: {ROUNDS} rounds both ways in {time.perf_counter() - began:.1f} s")


async def test_both_extend_their_own_and_not_the_others(face: Face, nodes: Servers) -> None:
    """node-redlock's extension (a SET) works on its keys and fails on ours, and the other way
    round.
    """
    theirs = NodeRedlock(nodes, "shared")
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        lease = await redlock.lock("shared", ttl=5).acquire()
        assert theirs.extend(60_000) is False
        assert theirs.release() is False
        await lease.extend(10)
        assert all(node.execute("PTTL", "shared") <= 10_000 for node in nodes)
        assert await lease.release() is True
        assert theirs.acquire(5_000)
        assert theirs.extend(20_000)
        assert await redlock.extend("shared", lease.token, ttl=30) is False
        assert await redlock.release("shared", lease.token) is False
        error = await raises(AcquireTimeout, redlock.lock("shared").acquire(timeout=0))
        assert error.holder_ttl is not None
        assert 10 < error.holder_ttl <= 20
        assert holders(nodes, "shared").count(theirs.value.encode()) >= 3
        assert theirs.release()
    assert left_over(nodes) == {}


async def test_many_resources_of_theirs_meet_each_of_ours(face: Face, nodes: Servers) -> None:
    """node-redlock's lock on several resources is all or nothing: one of our keys excludes it from
    all.
    """
    theirs = NodeRedlock(nodes, "one", "two", "three")
    async with face.redlock(nodes.urls) as redlock:
        async with redlock.lock("two"):
            assert await until_async(lambda: None not in holders(nodes, "two"))
            assert theirs.acquire() is False
            assert holders(nodes, "one") == [None] * 5
        assert await emptied(nodes)
        assert theirs.acquire()
        for name in ("one", "two", "three"):
            assert await redlock.lock(name).try_acquire() is None
        assert theirs.release()
    assert left_over(nodes) == {}


async def test_our_lost_lease_leaves_theirs_alone(face: Face, nodes: Servers) -> None:
    """Ours ran out, they have it: our extend raises, our release says False, theirs stays."""
    theirs = NodeRedlock(nodes, "shared")
    async with face.redlock(nodes.urls, node_timeout=0.03) as redlock:
        lease = await redlock.lock("shared", ttl=0.1).acquire()
        assert await emptied(nodes)
        assert theirs.acquire()
        await raises(LeaseLost, lease.extend())
        assert await lease.release() is False
        assert holders(nodes, "shared") == [theirs.value.encode()] * 5


async def test_redlock_nets_key_is_ours_with_a_prefix(face: Face, nodes: Servers) -> None:
    """RedLock.net locks `redlock:{resource}` with a GUID; prefix="redlock:" shares that key."""
    guid = "2f1c0a5e-8d7b-4a43-9a6e-0f4b7f1c9d10"

    def set_nx(node: Server) -> bool:
        return bool(node.execute("SET", "redlock:shared", guid, "PX", 10_000, "NX"))

    async with face.redlock(nodes.urls, prefix="redlock:") as redlock:
        async with redlock.lock("shared") as lease:
            assert holders(nodes, "redlock:shared").count(lease.token.encode()) >= 3
            assert sum(map(set_nx, nodes)) < 3
            # A failed attempt is released, as in that library.
            for node in nodes:
                if node.execute("GET", "redlock:shared") == guid.encode():
                    node.execute("DEL", "redlock:shared")
        assert await emptied(nodes)
        assert sum(map(set_nx, nodes)) == 5
        assert await redlock.lock("shared").try_acquire() is None
        assert holders(nodes, "redlock:shared") == [guid.encode()] * 5
    async with face.redlock(nodes.urls) as bare:
        assert await bare.lock("shared").locked() is False
        assert await bare.lock("redlock:shared").locked() is True
