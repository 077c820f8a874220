"""`inspect`: who holds a resource, node by node, without giving tokens away."""

from __future__ import annotations

import asyncio
import hashlib
import time

import pytest

from quorlock import ConfigError, Inspection, NodeView, VoteCode
from quorlock.asyncio import Redlock
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import Proxy
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, holders, raises, steal

SETTINGS = {"node_timeout": 0.3, "connect_timeout": 0.3}


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:12]


async def test_free(face: Face, nodes: Servers) -> None:
    """No holder, no time left, no error, for every node in order."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        report = await redlock.inspect("a")
    views = tuple(NodeView(node.path, None, None, "") for node in nodes)
    assert report == Inspection("a", "free", None, views)


async def test_held(face: Face, nodes: Servers) -> None:
    """One digest on all nodes, the time left on each, and until a quorum is free."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        async with redlock.lock("a", ttl=8) as lease:
            assert await until_async(lambda: None not in holders(nodes, "a"))
            report = await redlock.inspect("a")
            assert report.verdict == "held"
            assert report.ttl_left is not None
            assert 7 < report.ttl_left <= 8
            for view in report.nodes:
                assert (view.holder, view.error, view.code) == (digest(lease.token), "", None)
                assert view.ttl_left is not None
                assert 7 < view.ttl_left <= 8
            assert lease.token[:7] not in repr(report)
        assert (await redlock.inspect("a")).verdict == "free"


async def test_held_by_any_client(face: Face, nodes: Servers) -> None:
    """Another library's key counts as well; equal tokens have equal digests, others others."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        steal(nodes[:3], "a", "theirs")
        steal(nodes[3:], "a", "others")
        report = await redlock.inspect("a")
        assert report.verdict == "held"
        expected = [digest("theirs")] * 3 + [digest("others")] * 2
        assert [view.holder for view in report.nodes] == expected
        assert "theirs" not in repr(report)


async def test_split(face: Face, nodes: Servers) -> None:
    """Neither one holder nor free on a quorum: leftovers or contenders, reported as such."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        steal(nodes[:2], "a", "one")
        steal(nodes[2:4], "a", "two")
        report = await redlock.inspect("a")
        assert report.verdict == "split"
        assert report.nodes[4].holder is None
        assert report.ttl_left is not None
        assert 50 < report.ttl_left <= 60
        assert await redlock.lock("a").locked() is False


async def test_a_minority_of_leftovers_is_free(face: Face, nodes: Servers) -> None:
    """Two keys of five exclude no client: free, with the leftovers shown."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        steal(nodes[:2], "a")
        report = await redlock.inspect("a")
        assert (report.verdict, report.ttl_left) == ("free", None)
        assert [view.holder for view in report.nodes] == [digest("theirs")] * 2 + [None] * 3


async def test_a_key_without_a_ttl(face: Face, nodes: Servers) -> None:
    """The lock is held without a limit: no remaining time is shown."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        for node in nodes:
            node.execute("SET", "a", "for ever")
        report = await redlock.inspect("a")
        assert (report.verdict, report.ttl_left) == ("held", None)
        assert all(view.ttl_left is None for view in report.nodes)


@pytest.mark.parametrize("fault", ["kill", "stop"])
@pytest.mark.parametrize("down", [2, 3])
async def test_some_nodes_cannot_say(
    face: Face, mortal_nodes: Servers, fault: str, down: int
) -> None:
    """Two of five down: still a verdict. Three: unreachable. Each with its error, none hidden."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=20).acquire()
        assert await until_async(lambda: None not in holders(mortal_nodes, "a"))
        for node in mortal_nodes[:down]:
            getattr(node, fault)()
        for _ in range(2):
            report = await redlock.inspect("a")
            assert report.verdict == ("held" if down == 2 else "unreachable")
            assert [bool(view.error) for view in report.nodes] == [True] * down + [False] * (
                5 - down
            )
            assert all((view.code is None) is (view.error == "") for view in report.nodes)
            assert all(view.holder is None for view in report.nodes[:down])
            assert all(view.holder == digest(lease.token) for view in report.nodes[down:])
        for node in mortal_nodes[:down]:
            node.restart() if fault == "kill" else node.cont()
        assert lease.held


async def test_a_key_of_another_type(face: Face, nodes: Servers) -> None:
    """The node cannot say, and why; the key stays."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        nodes[0].execute("RPUSH", "a", "x")
        report = await redlock.inspect("a")
        assert report.verdict == "free"
        assert "type" in report.nodes[0].error.lower()
        assert report.nodes[0].code is VoteCode.WRONG_TYPE
        assert nodes[0].execute("LLEN", "a") == 1


async def test_wrong_names_are_refused(face: Face, nodes: Servers) -> None:
    """Wrong names are refused as by `lock`."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        for wrong in ("", None, 3, "a\0b", "quorlock:x"):
            await raises(ConfigError, redlock.inspect(wrong))  # type: ignore[arg-type]


async def test_a_hung_node_is_not_asked_for_ever(face: Face, nodes: Servers) -> None:
    """A client that inspects many resources repeatedly sends a bounded number of requests to it."""
    with Proxy(nodes[0].url) as proxy:
        async with face.redlock([proxy.url, *nodes.urls[1:3]], node_timeout=0.01) as redlock:
            assert (await redlock.inspect("a")).verdict == "free"
            proxy.hold(requests=False)  # so that the proxy reads on, and records
            for _ in range(150):
                await redlock.inspect("a")
            asked = len(proxy.requests)
            for _ in range(150):
                await redlock.inspect("a")
            report = await redlock.inspect("a")
            assert report.verdict == "free"
            assert report.nodes[0].error == "too many replies are pending"
            assert report.nodes[0].code is VoteCode.BACKLOG
            assert len(proxy.requests) == asked
            proxy.resume()
            assert await until_async(lambda: redlock.nodes[0].up)
            end = time.monotonic() + 10  # any one reply may take longer than node_timeout
            while (await redlock.inspect("a")).nodes[0].error:
                assert time.monotonic() < end


async def test_many_tasks_inspect_at_once(nodes: Servers) -> None:
    """Beyond 128 they queue: with thousands, healthy nodes would seem to be away."""
    with Proxy(nodes[0].url) as proxy:
        async with Redlock([proxy.url], node_timeout=10.0) as redlock:
            assert (await redlock.inspect("a")).verdict == "free"
            before = len(proxy.requests)
            proxy.hold(requests=False)
            tasks = [asyncio.create_task(redlock.inspect("a")) for _ in range(300)]
            assert await until_async(lambda: len(proxy.requests) >= before + 128)
            assert len(proxy.requests) == before + 128
            proxy.resume()
            reports = await asyncio.gather(*tasks)
    assert {report.verdict for report in reports} == {"free"}


RESERVED = "quorlock:next:00f1e2d3c4b5a697:12:100"


async def test_passing(face: Face, nodes: Servers) -> None:
    """A quorum keeps the lock for a waiter: it has no holder, and is not free."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        steal(nodes[:3], "a", RESERVED)
        report = await redlock.inspect("a")
        assert (report.verdict, report.owner) == ("passing", None)
        assert [view.reserved for view in report.nodes] == [True] * 3 + [False] * 2
        assert all(view.holder is None and view.error == "" for view in report.nodes)
        assert await redlock.lock("a").locked() is False
        assert await redlock.break_lease("a", digest(RESERVED)) is False
        assert holders(nodes, "a")[:3] == [RESERVED.encode()] * 3


async def test_how_many_wait(face: Face, nodes: Servers) -> None:
    """A quorum of nodes has as many in its queues, whether the lock is held or not."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        for node, places in zip(nodes, (4, 3, 2, 1, 0), strict=True):
            for number in range(places):
                place = f"00f1e2d3c4b5a697:{number}:100"
                node.execute("ZADD", "quorlock:queue:a", number, place)
        assert (await redlock.inspect("a")).waiters == 2
        steal(nodes, "a")
        assert (await redlock.inspect("a")).waiters == 2
        assert (await redlock.inspect("b")).waiters == 0
        nodes[4].execute("SET", "quorlock:queue:b", "of another type")
        assert (await redlock.inspect("b")).verdict == "free"
