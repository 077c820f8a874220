"""`break_lease` releases by force the given holder and no other."""

from __future__ import annotations

from typing import Any

from quorlock import ConfigError, LeaseLost, NodeError, QuorumUnreachable
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, holders, raises, steal

SETTINGS = {"node_timeout": 0.3, "connect_timeout": 0.3}


async def holder_of(redlock: Any) -> str:
    """Return the holder that `inspect` shows on the first node that has one; not all need to have
    it yet.
    """
    views = (await redlock.inspect("a")).nodes
    return next(str(view.holder) for view in views if view.holder is not None)


async def test_the_one_who_was_seen_is_out(face: Face, nodes: Servers) -> None:
    """All keys are gone, another gets in at once; the first one learns it from the nodes."""
    async with face.redlock(nodes.urls, **SETTINGS) as theirs, face.redlock(nodes.urls) as ours:
        lease = await theirs.lock("a").acquire()
        seen = await holder_of(ours)
        assert await ours.break_lease("a", seen) is True
        assert lease.held, "it does not know yet"
        async with ours.lock("a", timeout=0):
            await raises(LeaseLost, lease.extend())
        assert not lease.held


async def test_who_came_after_stays(face: Face, nodes: Servers) -> None:
    """Between the look and the blow the lock changed hands: nothing happens."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        first = await redlock.lock("a").acquire()
        seen = await holder_of(redlock)
        await first.release()
        async with redlock.lock("a", timeout=1) as second:
            assert await redlock.break_lease("a", seen) is False
            await second.extend()
        assert await redlock.break_lease("a", seen) is False, "and where there is nobody"


async def test_a_node_without_a_holder_names_none(face: Face, nodes: Servers) -> None:
    """None, as `inspect` shows it for that node, is the holder of no lease."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire()
        holder: Any = None
        assert await redlock.break_lease("a", holder) is False
        await lease.extend()


async def test_a_lease_of_our_own_ends_at_once(face: Face, nodes: Servers) -> None:
    """The lease ends locally before any byte is sent, as with `release`."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire()
        assert await redlock.break_lease("a", await holder_of(redlock)) is True
        assert not lease.held


async def test_leftovers_go_one_by_one(face: Face, nodes: Servers) -> None:
    """Only the named one of two competing holders is released, with any kind of token. Without a
    quorum the result is False.
    """
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        for node in nodes[:2]:
            node.execute("SET", "a", b"\xff\x00not ascii", "PX", 60_000)
        steal(nodes[2:4], "a", "two")
        assert await redlock.break_lease("a", await holder_of(redlock)) is False
        assert await until_async(lambda: holders(nodes, "a") == [None, None, b"two", b"two", None])


async def test_without_a_quorum_it_is_not_known(face: Face, mortal_nodes: Servers) -> None:
    """Three of five are dead: two obey, and the caller learns that this is no quorum."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        steal(mortal_nodes[:], "a")
        seen = await holder_of(redlock)
        for node in mortal_nodes[:3]:
            node.kill()
        await raises(QuorumUnreachable, redlock.break_lease("a", seen))
        assert holders(mortal_nodes[3:], "a") == [None, None]


async def test_what_no_node_can_show_is_not_called_gone(face: Face, mortal_nodes: Servers) -> None:
    """Three of five hang, or may not say: the two others may be those that lack the key."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        steal(mortal_nodes[2:], "a")
        seen = await holder_of(redlock)
        for node in mortal_nodes[2:]:
            node.execute("ACL", "SETUSER", "default", "-evalsha")
        await raises(NodeError, redlock.break_lease("a", seen))
        for node in mortal_nodes[2:]:
            node.execute("ACL", "SETUSER", "default", "+evalsha")
            node.stop()
        error = await raises(QuorumUnreachable, redlock.break_lease("a", seen))
        assert str(error).startswith("'a': 2 of 5 nodes answered, 3 are needed (")
        mortal_nodes[2].cont()
        assert await redlock.break_lease("a", "0" * 12) is False, "a quorum has no such holder"


async def test_wrong_names_are_refused(face: Face, nodes: Servers) -> None:
    """Wrong names are refused as by `inspect`; an invalid digest matches no holder."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        await raises(ConfigError, redlock.break_lease("", "0" * 12))
        steal(nodes[:], "a")
        assert await redlock.break_lease("a", "theirs") is False
