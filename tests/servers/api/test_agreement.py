"""The shared settings on real servers: written only if a quorum agrees, named, stored."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from quorlock import ConfigError, NodeError, QuorlockError
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, raises

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = "quorlock:config"
GOOD: dict[str, Any] = {"ttl": 1.0, "max_ttl": 2.0, "restart_guard": None}
BAD: dict[str, Any] = {**GOOD, "max_ttl": 1.5}


async def use(redlock: Any, resource: str = "x") -> None:
    lease = await redlock.lock(resource).acquire(timeout=5.0)
    assert await lease.release()


def kept(nodes: Servers) -> set[bytes]:
    return {server.execute("GET", CONFIG) for server in nodes[:3]}


async def test_a_misconfigured_client_does_not_take_over(nodes: Servers, face: Face) -> None:
    """Nodes restart one by one, empty, while it tries: the client that was running continues."""
    async with face.redlock(nodes.urls[:3], **GOOD) as redlock:
        await use(redlock)
        assert await until_async(lambda: len(kept(nodes)) == 1)
        before = kept(nodes)
        for server in nodes[:3]:
            server.restart()
            for _ in range(3):
                async with face.redlock(nodes.urls[:3], **BAD) as bad:
                    await raises(QuorlockError, bad.lock("y").acquire(timeout=0))
            assert server.execute("GET", CONFIG) in {None, *before}
            await use(redlock)
            assert await until_async(lambda: all(node.up for node in redlock.nodes))
            assert kept(nodes) == before
        async with face.redlock(nodes.urls[:3], **GOOD) as fresh:
            await use(fresh)


async def test_many_clients_at_once_on_a_fresh_set(nodes: Servers, face: Face) -> None:
    """All write the same, and all are served."""

    async def client(index: int) -> None:
        async with face.redlock(nodes.urls[:5], **GOOD) as redlock:
            await use(redlock, f"x{index}")

    assert await face.crowd(8, client) == [None] * 8
    texts = {server.execute("GET", CONFIG) for server in nodes}
    assert len(texts - {None}) == 1


@pytest.mark.parametrize("n", [1, 2, 3])
async def test_a_fresh_set_serves_at_once(n: int, nodes: Servers, face: Face) -> None:
    """A minority of it may be down: it is asked when it is there."""
    urls = nodes.urls[:n]
    if n == 3:
        nodes[2].kill()
    async with face.redlock(urls, **GOOD) as redlock:
        lease = await redlock.lock("x").try_acquire()
        assert lease is not None
        if n == 3:
            assert nodes[0].execute("GET", CONFIG) == b"n=3 max_ttl_ms=2000 restart_guard=None"
            nodes[2].restart()
    if n == 3:
        async with face.redlock(urls, **GOOD) as redlock:
            await use(redlock)
            assert await until_async(lambda: len(kept(nodes)) == 1)
            assert b" set=" in nodes[0].execute("GET", CONFIG), "named when all are known"


async def test_a_set_of_which_one_node_hangs_from_the_beginning(nodes: Servers, face: Face) -> None:
    """The set has no name yet; the others wait a moment for that node before they vote."""
    nodes[2].stop()
    for _ in range(2):
        async with face.redlock(nodes.urls[:3], **GOOD) as redlock:
            lease = await redlock.lock("x").try_acquire()
            assert lease is not None
            assert await lease.release()
    nodes[2].cont()


async def test_a_node_that_is_full_does_not_vote_before_it_keeps_it(face: Face) -> None:
    """A full node must not vote: it could agree with every client without storing anything."""
    with Servers(3) as servers:
        for server in servers:
            server.execute("CONFIG", "SET", "maxmemory", "1")
        short, of_one = {"ttl": 1.0, "max_ttl": 2.0}, b"n=3 max_ttl_ms=2000 restart_guard=uptime"
        long = {"ttl": 50.0, "max_ttl": 60.0}
        async with (
            face.redlock(servers.urls, **short) as one,
            face.redlock(servers.urls, **long) as other,
        ):
            for redlock in (one, other):
                error = await raises(NodeError, redlock.lock("w").acquire(timeout=0))
                assert "OOM" in str(error)
            for server in servers:
                # In one packet: either client may be the first to store its settings.
                server._ask([("CONFIG", "SET", "maxmemory", "0"), ("SET", CONFIG, of_one)])
            await (await one.lock("a").acquire(timeout=5.0)).release()
            refused = await raises(NodeError, other.lock("b").acquire(timeout=1.0))
            assert "its clients agreed on max_ttl=2" in str(refused)
            lease = await other.lock("b", ttl=2.0).acquire(timeout=5.0)
            assert lease.held, "a client that waits for longer than it must does no harm"
            refused_too = await raises(QuorlockError, lease.extend(10.0))
            assert refused_too is not None


async def test_a_list_with_a_node_of_another_set(nodes: Servers, face: Face) -> None:
    """The list is as long as the right one, and shares two nodes with it."""
    with Servers(3) as others:
        for urls in (nodes.urls[:3], others.urls):
            async with face.redlock(urls, **GOOD) as redlock:
                await use(redlock)
                assert await until_async(lambda: all(node.up for node in redlock.nodes))
        async with face.redlock([*nodes.urls[:2], others.urls[0]], **GOOD) as mixed:
            error = await until_async(lambda: refusal(mixed))  # the other two may be met first
            assert "belongs to another set of nodes" in str(error)
            assert await until_async(lambda: others[0].keys() == [])


async def used_until(condition: Callable[[], bool], redlock: Any) -> bool:
    """Return whether the condition comes true; use the lock, since nodes reconnect only for
    requests.
    """
    for _ in range(200):
        with contextlib.suppress(QuorlockError):  # a quorum may be away for a moment
            await use(redlock)
        if await until_async(condition, 0.02):
            return True
    return False


async def refusal(redlock: Any) -> ConfigError | None:
    """Use the lock; return what is wrong with the configuration, if that is known."""
    try:
        await use(redlock)
    except ConfigError as error:
        return error
    return None


async def test_the_name_that_a_quorum_keeps_decides(nodes: Servers, face: Face) -> None:
    """Two of three nodes change their name under a client: it continues with them, not with the
    third.
    """
    async with face.redlock(nodes.urls[:3], **GOOD) as redlock:
        await use(redlock)
        assert await until_async(lambda: all(node.up for node in redlock.nodes))
        (before,) = kept(nodes)
        after = before.partition(b" set=")[0] + b" set=other"
        for server in nodes[:2]:
            server.execute("SET", CONFIG, after)
            server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert await used_until(lambda: "belongs to another" in redlock.nodes[2].why, redlock)
        assert await used_until(lambda: redlock.nodes[0].up and redlock.nodes[1].up, redlock)
        await use(redlock)
        async with face.redlock(nodes.urls[:3], **GOOD) as late:
            error = await until_async(lambda: refusal(late))  # the other two may be met first
            assert "nodes[2]" in str(error)
        assert nodes[2].execute("GET", CONFIG) == before, "no client writes over a name"
        nodes[2].execute("DEL", CONFIG)
        assert await used_until(lambda: redlock.nodes[2].up, redlock)
        assert kept(nodes) == {after}


@pytest.mark.parametrize("key", [CONFIG, "quorlock:guard", "quorlock:born-empty"])
async def test_a_side_key_of_another_type_is_named(key: str, nodes: Servers, face: Face) -> None:
    """The error is about that key, not about the lock's, and it does not pass."""
    for server in nodes[:3]:
        server.execute("DEL", key)
        server.execute("RPUSH", key, "of another program")
    settings = {**GOOD, "restart_guard": "marker"}
    async with face.redlock(nodes.urls[:3], **settings) as redlock:
        error = await raises(NodeError, redlock.lock("x").acquire(timeout=5.0))
    assert "quorlock:config, quorlock:guard or quorlock:born-empty" in str(error)
    assert "(delete that key)" in str(error)
    assert "this may pass" not in str(error)
