"""Errors of other locks while they hold, extend or release a lock.

docs/contributing/peers-defects.md names the peers and sources. No test needs the peer.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress

import pytest

from quorlock import ConfigError, LeaseLost, QuorlockError
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import Proxy
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, all_up, emptied, holders, left_over, raises, steal, wipe


def lives(nodes: Servers) -> list[int]:
    """Milliseconds that the key "a" has left on every node; -2 where it is not."""
    return [node.execute("PTTL", "a") for node in nodes]


# --- extending -----------------------------------------------------------------------------------


async def test_extensions_do_not_add_up(face: Face, nodes: Servers) -> None:
    """Ten times five seconds are five seconds from the last time on; ten times are allowed."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", ttl=5).acquire()
        for _ in range(10):
            await lease.extend(5)
        assert lease.validity <= 5
        assert all(left <= 5000 for left in lives(nodes))
        assert await lease.release() is True


@pytest.mark.parametrize("ttl", [-60, 0, 0.0004])
async def test_no_extension_takes_the_key_away(face: Face, nodes: Servers, ttl: float) -> None:
    """A ttl that is none is an error; the lease and its keys stay."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()
        assert await until_async(lambda: None not in holders(nodes, "a"))
        await raises(ConfigError, lease.extend(ttl))
        await raises(ConfigError, redlock.extend("a", lease.token, ttl=ttl))
        assert lease.held
        assert None not in holders(nodes, "a")
        assert await lease.release() is True


@pytest.mark.parametrize("how", ["vanished", "conflict"])
async def test_nothing_brings_a_lost_lease_back(face: Face, nodes: Servers, how: str) -> None:
    """A lost lease stays lost, also when the thief has gone or the keys are there again.

    No extension creates a key, so the next client that acquires gets the lock.
    """
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()
        wipe(nodes, "a")
        if how == "conflict":
            steal(nodes, "a")
        await raises(LeaseLost, lease.extend())
        wipe(nodes, "a")
        await raises(LeaseLost, lease.extend())
        assert left_over(nodes) == {}
        assert await redlock.extend("a", lease.token) is False
        assert left_over(nodes) == {}
        steal(nodes, "a", lease.token)
        assert not lease.held
        await raises(LeaseLost, lease.extend())
        assert await lease.release() is False
        wipe(nodes, "a")
        async with redlock.lock("a", timeout=10) as next_one:
            assert next_one.token != lease.token


async def test_validity_is_backed_by_a_quorum_of_keys(face: Face, nodes: Servers) -> None:
    """Three of five keys left, one with little life: after an extension these three live as long as
    the lease says, and the two are not made again.
    """
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", ttl=20).acquire()
        assert await until_async(lambda: None not in holders(nodes, "a"))
        wipe(nodes[:2], "a")
        nodes[2].execute("PEXPIRE", "a", 5_000)
        await lease.extend(25)
        left = lives(nodes)
        assert left[:2] == [-2, -2]
        # Read after the keys, so that time that passes makes it smaller.
        assert min(left[2:]) >= 1000 * lease.validity
        assert await lease.release() is True


# --- releasing -----------------------------------------------------------------------------------


class SlowSets(Proxy):
    """A network in which a SET is slow, and what other connections carry is not."""

    slow = 0.0
    carried = b""

    async def forward(self, data: bytes) -> bytes:
        if b"$3\r\nSET\r\n" in data:
            await asyncio.sleep(self.slow)
        self.carried += data
        return data


async def test_a_set_that_comes_after_the_release_leaves_no_key(face: Face, nodes: Servers) -> None:
    """Four nodes granted the lock; the SET to the fifth is still in flight at the release."""
    with SlowSets(nodes[4].url) as link:
        async with face.redlock([*nodes.urls[:4], link.url]) as redlock:
            assert await all_up(redlock)
            link.slow = 0.8
            lease = await redlock.lock("ghost", ttl=30).acquire(timeout=0)
            assert await lease.release() is True
            assert b"$5\r\nghost\r\n" not in link.carried, "or it was not late"
            assert await until_async(lambda: b"$5\r\nghost\r\n" in link.carried)
            assert await emptied(nodes)
            await asyncio.sleep(0.1)
            assert left_over(nodes) == {}


async def test_a_release_that_met_a_broken_connection_is_made_good(
    face: Face, nodes: Servers
) -> None:
    """The release gets no reply, then the connections break: the keys are deleted long before their
    ttl, without another call.
    """
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(url)) for url in nodes.urls[:3]]
        urls = [proxy.url for proxy in proxies]
        settings = {"node_timeout": 0.1, "connect_timeout": 0.5}
        async with face.redlock(urls, **settings) as redlock:
            assert await all_up(redlock)
            lease = await redlock.lock("a", ttl=30).acquire()
            assert await until_async(lambda: None not in holders(nodes[:3], "a"))
            for proxy in proxies:
                proxy.hold()
            with suppress(QuorlockError):
                await lease.release()
            assert not lease.held
            for proxy in proxies:
                proxy.cut()
                proxy.resume()
            assert await emptied(nodes[:3], 10)
