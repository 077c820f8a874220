"""Errors of other locks before they hold a lock: each test is a case that a peer gets wrong.

docs/contributing/peers-defects.md names the peers and sources. Cases of earlier
tests are cited there and not
repeated here. No test needs the peer.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import Any

import pytest
import redis
import redis.asyncio

import quorlock
import quorlock.asyncio as aio
from quorlock import AcquireTimeout, ConfigError, LeaseLost, QuorlockError, QuorumUnreachable
from quorlock.testing.servers import Server, Servers
from tests.harness.support.impostors import Proxy
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, emptied, holders, left_over, raises, steal, wipe

QUICK: dict[str, Any] = {"retry_delay": (0.005, 0.02)}
# Who waits for nodes that can change nothing any more waits for longer than SOON.
PATIENT: dict[str, Any] = {"node_timeout": 9.0, "ttl": 30}
SOON = 5.0  # seconds; far more than a busy machine takes


# --- how many must agree -------------------------------------------------------------------------


async def test_two_of_three_are_enough(face: Face, mortal_nodes: Servers) -> None:
    """Three nodes bear the loss of one: a quorum is more than half, never all."""
    mortal_nodes[2].kill()
    async with face.redlock(mortal_nodes.urls[:3]) as redlock:
        lease = await redlock.lock("a").acquire(timeout=0)
        await lease.extend()
        assert await lease.release() is True
    assert left_over(mortal_nodes[:2]) == {}


@pytest.mark.parametrize("count", [2, 4])
async def test_an_even_split_is_decided(face: Face, nodes: Servers, count: int) -> None:
    """Half the nodes refuse: no majority is possible, so the call ends."""
    others, ours = nodes[: count // 2], nodes[count // 2 : count]
    steal(others, "a")
    async with face.redlock(nodes.urls[:count], **PATIENT) as redlock:
        began = quorlock.now()
        assert await redlock.lock("a").try_acquire() is None
        await raises(AcquireTimeout, redlock.lock("a").acquire(timeout=0))
        assert quorlock.now() - began < SOON
        assert await emptied(ours)
    assert holders(others, "a") == [b"theirs"] * len(others)


@pytest.mark.parametrize("count", [2, 4])
async def test_half_of_the_nodes_dead_is_decided(
    face: Face, mortal_nodes: Servers, count: int
) -> None:
    """Half of the nodes are dead: an error, at once."""
    for node in mortal_nodes[: count // 2]:
        node.kill()
    async with face.redlock(mortal_nodes.urls[:count], **PATIENT) as redlock:
        began = quorlock.now()
        await raises(QuorumUnreachable, redlock.lock("a").acquire(timeout=0))
        assert quorlock.now() - began < SOON
    assert left_over(mortal_nodes[count // 2 : count]) == {}


async def test_no_setting_makes_the_quorum_smaller(face: Face, nodes: Servers) -> None:
    """No such setting exists, and one free node of three is no lock."""
    with pytest.raises(TypeError, match="quorum"):
        face.redlock(nodes.urls[:3], quorum=1)
    steal(nodes[:2], "a")
    async with face.redlock(nodes.urls[:3]) as redlock:
        assert await redlock.lock("a").try_acquire() is None


async def test_no_nodes_are_an_error(face: Face) -> None:
    """The default is not a local server."""
    with pytest.raises(ConfigError):
        face.redlock([])


async def test_nodes_that_are_away_count(face: Face, mortal_nodes: Servers) -> None:
    """Two of five reachable are no majority, also for who has never seen the three others."""
    for node in mortal_nodes[2:]:
        node.kill()
    async with face.redlock(mortal_nodes.urls) as redlock:
        error = await raises(QuorumUnreachable, redlock.lock("a").acquire(timeout=0))
        assert len(error.votes) == 5
    assert left_over(mortal_nodes[:2]) == {}


# --- one attempt after another -------------------------------------------------------------------


async def test_a_lock_that_was_waited_for_is_valid(face: Face, nodes: Servers) -> None:
    """Waited for longer than the ttl: the validity counts from the attempt that won."""
    steal(nodes[:3], "a")
    for node in nodes[:3]:
        node.execute("PEXPIRE", "a", 1800)
    async with face.redlock(nodes.urls[:3], **QUICK) as redlock:
        began = quorlock.now()
        lease = await redlock.lock("a", ttl=1.0).acquire(timeout=30)
        assert lease.held
        assert lease.valid_until > began + 2 * 1.0, "or it did not wait that long"
        assert 0 < lease.validity < 1.0
        assert await lease.release() is True


async def test_our_own_keys_do_not_block_the_next_attempt(
    face: Face, mortal_nodes: Servers
) -> None:
    """One of three nodes is dead and one is busy for a while: the lock is won as soon as that one
    is free.
    """
    mortal_nodes[2].kill()
    steal(mortal_nodes[:1], "a")
    mortal_nodes[0].execute("PEXPIRE", "a", 300)
    async with face.redlock(mortal_nodes.urls[:3], **QUICK) as redlock:
        lease = await redlock.lock("a").acquire(timeout=30)
        assert {vote.node for vote in lease.votes if vote.vote == "granted"} == {
            node.path for node in mortal_nodes[:2]
        }
        assert await lease.release() is True
    assert left_over(mortal_nodes[:2]) == {}


async def test_a_failed_attempt_is_released_before_the_pause(face: Face, nodes: Servers) -> None:
    """The keys on a minority are free again while the client waits for its next attempt."""
    steal(nodes[:2], "a")
    free = nodes[2]
    redlock = face.redlock(nodes.urls[:3], retry_delay=(60, 60), waiting="poll")
    await (await redlock.lock("warm").acquire()).release()
    # Two refusals decide a round: a node that is still being connected would not be asked at all.
    assert await until_async(lambda: b" set=" in (free.execute("GET", "quorlock:config") or b""))
    sets_before = sets(free)

    async def part(index: int) -> bool:
        if index == 0:
            await redlock.lock("a").acquire()
        try:
            asked = await until_async(lambda: sets(free) > sets_before)
            return asked and await until_async(lambda: free.keys() == [])
        finally:
            await redlock.close()  # sends the waiter home

    waiter, released = await face.crowd(2, part)
    assert isinstance(waiter, QuorlockError)
    assert released is True
    assert holders(nodes[:2], "a") == [b"theirs"] * 2


def sets(node: Server) -> int:
    """Return the number of SETs that the node has executed."""
    stats: bytes = node.execute("INFO", "commandstats")
    line = next((x for x in stats.splitlines() if x.startswith(b"cmdstat_set:")), b":calls=0,")
    return int(line.partition(b"calls=")[2].partition(b",")[0])


@pytest.mark.parametrize("count", [1, 3])
async def test_a_set_without_a_reply_is_released(face: Face, nodes: Servers, count: int) -> None:
    """The SETs were done, the answers lost: nothing that was not acquired stays locked."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(url)) for url in nodes.urls[:count]]
        urls = [proxy.url for proxy in proxies]
        async with face.redlock(urls, node_timeout=0.1, connect_timeout=0.5) as redlock:
            assert await (await redlock.lock("warm").acquire()).release() is True
            for proxy in proxies:
                proxy.hold(requests=False)
            # Only then is there something to release on all nodes.
            before = [sets(node) for node in nodes[:count]]
            await raises(QuorumUnreachable, redlock.lock("a", ttl=30).acquire(timeout=0))
            assert await until_async(
                lambda: all(sets(n) > b for n, b in zip(nodes[:count], before, strict=True))
            )
            for proxy in proxies:
                proxy.cut()
                proxy.resume()
            assert await emptied(nodes[:count], 10)


async def test_a_cancelled_acquire_leaves_no_key(nodes: Servers) -> None:
    """asyncio: cancelled while the answers are under way, the keys are there, then gone."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(url)) for url in nodes.urls[:3]]
        async with aio.Redlock([proxy.url for proxy in proxies], node_timeout=1.0) as redlock:
            await (await redlock.lock("warm").acquire()).release()
            assert await emptied(nodes)
            for proxy in proxies:
                proxy.hold(requests=False)
            waiting = asyncio.create_task(redlock.lock("a").acquire())
            assert await until_async(lambda: nodes[0].keys() == [b"a"])
            assert 0 < nodes[0].execute("PTTL", "a") <= 10_000, "a ttl from the beginning on"
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await emptied(nodes)
            for proxy in proxies:
                proxy.resume()
            lease = await redlock.lock("a").acquire(timeout=10)
            assert await lease.release() is True


# --- what goes to the nodes ----------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0.9999, 1.5, 2.25])
async def test_fractions_of_a_second_are_a_ttl(face: Face, nodes: Servers, ttl: float) -> None:
    """Neither for ever nor for no time at all: every key gets it in the SET that makes it."""
    async with face.redlock(nodes.urls, node_timeout=0.1) as redlock:
        lease = await redlock.lock("a", ttl=ttl).acquire()
        lives = [node.execute("PTTL", "a") for node in nodes]
        assert all(0 < left <= ttl * 1000 or left == -2 for left in lives), lives
        assert sum(left > 0 for left in lives) >= 3
        assert await lease.release() is True


@pytest.mark.parametrize("ttl", [0, -1, 0.0004, float("inf"), float("nan")])
async def test_a_ttl_that_is_none_is_refused(face: Face, nodes: Servers, ttl: float) -> None:
    """The argument is checked before anything is sent: no key lives for ever or expires at once."""
    async with face.redlock(nodes.urls) as redlock:
        with pytest.raises(ConfigError, match="ttl"):
            redlock.lock("a", ttl=ttl)
    assert left_over(nodes) == {}


async def test_a_ttl_that_is_left_out_is_no_eternity(face: Face, nodes: Servers) -> None:
    """ttl=None is the Redlock's own."""
    async with face.redlock(nodes.urls, ttl=7) as redlock, redlock.lock("a", ttl=None):
        lives = [node.execute("PTTL", "a") for node in nodes]
        assert all(0 < left <= 7000 or left == -2 for left in lives), lives


async def test_other_names_are_other_locks(face: Face, nodes: Servers) -> None:
    """Two locks of one Redlock, and of two, exclude each other by name and by nothing else."""
    async with face.redlock(nodes.urls) as redlock, face.redlock(nodes.urls) as second:
        leases = [await redlock.lock(name).acquire(timeout=0) for name in ("a", "b")]
        assert await second.lock("a").try_acquire() is None
        leases.append(await second.lock("c").acquire(timeout=0))
        assert await until_async(lambda: nodes[0].keys() == [b"a", b"b", b"c"])
        assert [await lease.release() for lease in leases] == [True] * 3
    assert left_over(nodes) == {}


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis], ids=["blocking", "asyncio"])
async def test_a_client_that_decodes_is_a_node_like_any(
    face: Face, nodes: Servers, kind: type[redis.Redis] | type[redis.asyncio.Redis]
) -> None:
    """decode_responses=True and other habits of a client are its own: we only take its address."""
    clients = [kind(unix_socket_path=node.path, decode_responses=True) for node in nodes]
    async with face.redlock(clients) as redlock, redlock.lock("with a space") as lease:
        assert holders(nodes, "with a space").count(lease.token.encode()) >= 3
    assert left_over(nodes) == {}


# --- who has it ----------------------------------------------------------------------------------


async def test_another_thread_does_not_enter_by_the_same_lock(face: Face, nodes: Servers) -> None:
    """One Lock in two threads (tasks): while one holds it the other is refused, and has nothing by
    which to release it.
    """
    async with face.redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        lease = await lock.acquire()

        async def other(_: int) -> object:
            assert not hasattr(lock, "release")
            return await lock.try_acquire()

        assert await face.crowd(2, other) == [None, None]
        assert lease.held
        assert await lease.release() is True


async def test_a_second_acquire_does_not_harm_the_first(face: Face, nodes: Servers) -> None:
    """Asking once more, and being refused, does not take the first lease's token away."""
    async with face.redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        lease = await lock.acquire()
        assert await lock.try_acquire() is None
        await raises(AcquireTimeout, lock.acquire(timeout=0))
        assert lease.held
        assert await lease.release() is True
    assert left_over(nodes) == {}


async def test_a_lock_is_as_good_as_new_after_a_loss(face: Face, nodes: Servers) -> None:
    """Run out, or lost: the same Lock acquires again, with keys on a quorum."""
    async with face.redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        lost = await lock.acquire()
        wipe(nodes, "a")
        await raises(LeaseLost, lost.extend())
        again = await lock.acquire(timeout=10)
        assert holders(nodes, "a").count(again.token.encode()) >= 3
        assert again.held
        assert not lost.held
        assert await again.release() is True
    assert left_over(nodes) == {}


@pytest.mark.parametrize("state", ["held by another", "out of reach"])
async def test_no_block_runs_without_the_lock(
    face: Face, mortal_nodes: Servers, state: str
) -> None:
    """An error is raised instead, which distinguishes the two cases."""
    if state == "held by another":
        steal(mortal_nodes, "a")
    else:
        for node in mortal_nodes[:3]:
            node.kill()
    async with face.redlock(mortal_nodes.urls) as redlock:
        wanted = AcquireTimeout if state == "held by another" else QuorumUnreachable
        with pytest.raises(wanted):
            async with redlock.lock("a", timeout=0):
                pytest.fail("the body ran without the lock")


async def test_three_failures_are_three_errors(face: Face, mortal_nodes: Servers) -> None:
    """Held by another, out of reach and lost: no two are the same, and each names the nodes."""
    async with face.redlock(mortal_nodes.urls) as redlock:
        lease = await redlock.lock("mine").acquire()
        wipe(mortal_nodes, "mine")
        lost = await raises(LeaseLost, lease.extend())
        steal(mortal_nodes, "theirs")
        held = await raises(AcquireTimeout, redlock.lock("theirs").acquire(timeout=0))
        for node in mortal_nodes[:3]:
            node.kill()
        away = await raises(QuorumUnreachable, redlock.lock("free").acquire(timeout=0))
    for error, cause in ((lost, "the key is gone"), (held, "held"), (away, "")):
        reported = [vote for vote in error.votes if vote.vote != "granted" and cause in vote.cause]
        assert len(reported) >= 3, error
        assert isinstance(error, AcquireTimeout) == (error is held)
        assert isinstance(error, QuorumUnreachable) == (error is away)
        assert isinstance(error, LeaseLost) == (error is lost)


async def test_the_wall_clock_does_not_matter(
    face: Face, nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour forth or back, within an attempt or while a lease is held, changes nothing."""
    assert abs(quorlock.now() - time.time()) > 86_400, "ours counts from a boot, not from 1970"
    number = 0

    def jumping() -> float:
        nonlocal number
        number += 1
        return 3600.0 * number * (1 if number % 2 else -1)

    async with face.redlock(nodes.urls) as redlock:
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", jumping)
            patch.setattr(time, "time_ns", lambda: int(jumping() * 1e9))
            lease = await redlock.lock("a", ttl=5).acquire()
            assert 0 < lease.validity < 5
            await lease.extend(9)
            assert 5 < lease.validity < 9
            assert lease.held
            assert await lease.release() is True
