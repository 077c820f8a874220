"""Invalidations that nodes push for the keys of renewed leases, in both APIs.

An invalidation makes renewal check at once; the result of a check is the same as always. "At once"
is tested against the time at which a check would have been due, never against a fixed time.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import LeaseLost
from quorlock._core import renewal_schedule
from quorlock.testing.servers import Server, Servers, find_binary
from tests.harness.support.resp import Argument, Talk
from tests.harness.support.stats import scripts_asked
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, holders, raises, steal, wipe

TTL = 10.0
SETTINGS: dict[str, Any] = {"ttl": TTL, "restart_guard": None}
MAJORITY, MINORITY = slice(0, 3), slice(3, 5)


@pytest.fixture(
    scope="module",
    params=[
        "ours",
        pytest.param(
            "redis-server",
            marks=pytest.mark.skipif(
                shutil.which("redis-server") is None,
                reason="no redis-server: apt-get install redis-server",
            ),
        ),
    ],
)
def telling(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """Five servers, Valkey's and then Redis's."""
    binary = find_binary() if request.param == "ours" else request.param
    with Servers(5, binary=binary) as started:
        yield started


@pytest.fixture(autouse=True)
def fresh(telling: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    for server in telling:
        server.left_alone()
        server.flush()
        server.execute("CONFIG", "RESETSTAT")
    # The first extension, after which nodes send invalidations, is not waited for each time.
    monkeypatch.setattr(renewal_schedule, "FIRST_CHECK_SHARE", 50)


def looks(server: Server) -> int:
    """Return the number of requested scripts: extensions, as long as nothing is released."""
    return scripts_asked(server)


async def watched(redlock: aio.Redlock, resource: str = "a") -> aio.Lease:
    """A renewed lease whose key all nodes track: it has been extended once."""
    lease = await redlock.lock(resource, renew=True).acquire()
    first = lease.valid_until
    assert await until_async(lambda: lease.valid_until > first, TTL / 3)
    return lease


def next_due(lease: aio.Lease) -> float:
    """Return when renewal is due without an invalidation: with 70 % of the ttl left."""
    return lease.valid_until - 0.7 * TTL


def at_once(nodes: list[Server], *commands: tuple[Argument, ...]) -> list[Any]:
    """Execute commands on several nodes before renewal asks any of them; return the last replies.

    One node after the other, the first one's invalidation would begin a check, which restores the
    key there before the others have lost it. The commands wait in the sockets of stopped nodes:
    all are executed before any request that comes later.
    """
    with ExitStack() as stack:
        talks = [stack.enter_context(Talk(node.path)) for node in nodes]
        for talk in talks:
            assert talk.ask("PING") == b"PONG"  # accepted: it reads in the order of arrival
        for node in nodes:
            node.stop()
        for talk in talks:
            for command in commands:
                talk.send(*command)
        for node in nodes:
            node.cont()
        return [[talk.read() for _ in commands][-1] for talk in talks]


def flush(nodes: list[Server]) -> None:
    at_once(nodes, ("FLUSHALL",))


def delete(nodes: list[Server]) -> None:
    at_once(nodes, ("DEL", "a"))


def take(nodes: list[Server]) -> None:
    at_once(nodes, ("DEL", "a"), ("SET", "a", "theirs", "PX", 60_000))


def evict(nodes: list[Server]) -> None:
    """Evict keys like a server that is full."""
    full = ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"), ("CONFIG", "SET", "maxmemory", 1)
    assert at_once(nodes, *full, ("GET", "a")) == [None] * len(nodes)
    for node in nodes:
        node.execute("CONFIG", "SET", "maxmemory", 0)


@pytest.mark.parametrize(
    ("happens", "reason"),
    [(flush, "evicted"), (delete, "evicted"), (take, "taken"), (evict, "evicted")],
)
async def test_the_loss_of_a_majority_is_reported_at_once(
    face: Face, telling: Servers, happens: Callable[[list[Server]], None], reason: str
) -> None:
    """The loss is reported before the next renewal would have been due."""
    async with face.redlock(telling.urls, **SETTINGS) as redlock:
        lease = await watched(redlock)
        # A node that is slow to set the key would set it after what happens, and keep the lease.
        assert await until_async(lambda: all(b"a" in node.keys() for node in telling))  # noqa: SIM118
        event, due = lease.lost, next_due(lease)
        happens(telling[MAJORITY])
        assert await face.is_set_within(event, TTL)
        assert quorlock.now() < due
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason == reason


@pytest.mark.parametrize("happens", [flush, delete, evict])
async def test_keys_lost_by_a_minority_are_restored_at_once(
    face: Face, telling: Servers, happens: Callable[[list[Server]], None]
) -> None:
    """Losing a minority is not a loss: the lease is extended, and the key restored."""
    async with face.redlock(telling.urls, **SETTINGS) as redlock:
        lease = await watched(redlock)
        due = next_due(lease)
        token = lease.token.encode()
        happens(telling[MINORITY])
        assert await until_async(lambda: holders(telling, "a") == [token] * 5, TTL)
        assert quorlock.now() < due
        assert lease.held
        assert await lease.release() is True


async def test_our_own_extensions_cause_no_invalidations(face: Face, telling: Servers) -> None:
    """Two leases of one engine, both extended: no node is asked again before the next is due."""
    async with face.redlock(telling.urls, **SETTINGS) as redlock:
        leases = [await watched(redlock, name) for name in "ab"]
        asked = [looks(node) for node in telling]
        assert asked == [2] * 5
        await asyncio.sleep(TTL / 8)  # as often as invalidations may cause a check: six times
        assert [looks(node) for node in telling] == asked
        assert quorlock.now() < next_due(leases[0])


async def test_keys_of_other_clients_cause_no_check(face: Face, telling: Servers) -> None:
    """Keys of released leases do not count either: only the one that is renewed."""
    async with face.redlock(telling.urls, **SETTINGS) as redlock:
        kept, released = await watched(redlock), await watched(redlock, "b")
        await released.release()
        steal(telling, "c")
        assert await redlock.lock("c").try_acquire() is None  # the release reads the key
        asked = [looks(node) for node in telling]
        for _ in range(3):
            steal(telling, "b")
            wipe(telling, "b")
            wipe(telling, "c")
            await asyncio.sleep(TTL / 50)
        assert [looks(node) for node in telling] == asked
        token = kept.token.encode()
        wipe(telling[4:], "a")
        assert await until_async(lambda: holders(telling, "a") == [token] * 5, TTL)
        assert [looks(node) for node in telling[:4]] == [calls + 1 for calls in asked[:4]]


async def test_a_flood_of_invalidations_is_no_hot_loop(face: Face, telling: Servers) -> None:
    """The key changes all the time: the lease is checked at most every fiftieth of its ttl."""
    async with face.redlock(telling.urls, **SETTINGS) as redlock:
        lease = await watched(redlock)
        asked, began = looks(telling[0]), quorlock.now()
        for _ in range(300):
            for node in telling:
                node.execute("PEXPIRE", "a", 60_000)
            await asyncio.sleep(0.002)
        passed = looks(telling[0]) - asked
        spent = quorlock.now() - began
        assert 1 <= passed <= 2 + spent / (TTL / 50)
        assert lease.held
        assert await lease.release() is True


async def test_a_node_that_comes_back_sends_invalidations_again(
    face: Face, telling: Servers
) -> None:
    """The new connection is tracked from the next extension on."""
    async with face.redlock(telling.urls, **SETTINGS) as redlock:
        lease = await watched(redlock)
        for node in telling[MAJORITY]:
            node.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        valid_until = lease.valid_until
        assert await until_async(lambda: lease.valid_until > valid_until, TTL)
        event, due = lease.lost, next_due(lease)
        flush(telling[MAJORITY])
        assert await face.is_set_within(event, TTL)
        assert quorlock.now() < due
