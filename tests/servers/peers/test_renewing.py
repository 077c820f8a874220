"""Errors of other locks during renewal: they stall, never stop, spin, or restore a key.

docs/contributing/peers-defects.md names the peers and sources. No test needs the peer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import quorlock
import quorlock.asyncio as aio
from quorlock import LeaseLost
from quorlock.testing.servers import Servers
from tests.harness.support.stats import scripts_asked
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, emptied, holders, raises, wipe

SETTINGS: dict[str, Any] = {"node_timeout": 0.1, "retry_delay": (0.01, 0.03)}


async def lives_on(lease: aio.Lease, end: float | None = None) -> bool:
    """Return whether it is extended beyond that end, or its current one."""
    end = lease.valid_until if end is None else end
    return await until_async(lambda: lease.valid_until != end, 10) and lease.valid_until > end


def scripts_run(nodes: Servers) -> list[int]:
    """Return how many scripts every node has run."""
    return list(map(scripts_asked, nodes))


# --- it stalls -----------------------------------------------------------------------------------


async def test_renewal_outlives_a_blink_of_all_nodes(face: Face, mortal_nodes: Servers) -> None:
    """No node answers for a while, and extensions fail: tried again while it is valid, and kept."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=3, renew=True).acquire()
        for _ in range(2):
            end = lease.valid_until
            for node in mortal_nodes:
                node.stop()
            # Two thirds of the ttl are left when it is tried, one third when it works again.
            assert await until_async(lambda: lease.validity < 1.2, 10)
            assert lease.valid_until == end, "it was extended by nodes that stand still"
            for node in mortal_nodes:
                node.cont()
            assert await lives_on(lease, end)
        assert await lease.release() is True


async def test_renewal_continues_over_new_connections(face: Face, nodes: Servers) -> None:
    """Every connection to every node is cut repeatedly, also during extensions."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=2, renew=True).acquire()
        for _ in range(3):
            for node in nodes:
                node.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert await lives_on(lease)
        assert await lease.release() is True


async def test_the_next_lease_of_a_name_is_renewed_too(face: Face, mortal_nodes: Servers) -> None:
    """The previous lease was lost because no node answered, or because its key was deleted."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lock = redlock.lock("a", ttl=1, renew=True, timeout=10)
        lost = await lock.acquire()
        for node in mortal_nodes:
            node.stop()
        assert await until_async(lambda: not lost.held)
        for node in mortal_nodes:
            node.cont()
        deleted = await lock.acquire()
        assert await lives_on(deleted)
        wipe(mortal_nodes, "a")
        assert await until_async(lambda: not deleted.held)
        last = await lock.acquire()
        assert await lives_on(last)
        assert await last.release() is True


# --- it spins ------------------------------------------------------------------------------------


async def test_short_leases_are_not_renewed_in_a_hot_loop(face: Face, nodes: Servers) -> None:
    """However short: no more than one extension in a quarter of the ttl, at any node."""
    ttl = 0.4
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=ttl, renew=True).acquire()
        before, began = scripts_run(nodes), quorlock.now()
        for _ in range(10):
            assert await lives_on(lease)
        after = scripts_run(nodes)
        most = (quorlock.now() - began) / (ttl / 4) + 1
        made = [late - early for early, late in zip(before, after, strict=True)]
        assert max(made) <= most, made
        assert min(made) >= 9
        assert await lease.release() is True


# --- it never stops, or brings a key back --------------------------------------------------------


async def test_what_an_operator_deletes_is_not_made_again(face: Face, nodes: Servers) -> None:
    """A lock that is broken by hand stays broken: its holder is notified, and the next client gets
    it.
    """
    async with face.redlock(nodes.urls, **SETTINGS) as redlock, face.redlock(nodes.urls) as other:
        lease = await redlock.lock("a", ttl=3, renew=True).acquire()
        assert await until_async(lambda: None not in holders(nodes, "a"))
        wipe(nodes, "a")
        assert await until_async(lambda: not lease.held)
        assert await emptied(nodes)
        assert (await raises(LeaseLost, lease.extend())).reason == "evicted"
        async with other.lock("a", timeout=0) as next_one:
            token = next_one.token.encode()
            assert await until_async(lambda: holders(nodes, "a") == [token] * 5)
            assert await lease.release() is False
            assert next_one.held
            assert holders(nodes, "a") == [token] * 5


async def test_an_acquire_that_was_cancelled_is_not_renewed(nodes: Servers) -> None:
    """No one owns a lease that was cancelled at any moment, so it is not renewed."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        lock = redlock.lock("a", ttl=5, renew=True)
        for number in range(40):
            attempt = asyncio.ensure_future(lock.acquire())
            await asyncio.sleep(0.00005 * number)
            attempt.cancel()
            with suppress(asyncio.CancelledError):
                await (await attempt).release()
            assert await emptied(nodes)
        assert await until_async(lambda: "quorlock renewal" not in task_names())


def task_names() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def test_a_fenced_lease_ends_like_any_other(face: Face, nodes: Servers) -> None:
    """A fenced lease expires after its ttl, and is not extended without renew=True."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=0.8, fencing=True).acquire()
        assert lease.fence is not None
        assert all(node.execute("PTTL", "a") <= 800 for node in nodes)
        assert await until_async(lambda: not lease.held)
        assert await emptied(nodes)
