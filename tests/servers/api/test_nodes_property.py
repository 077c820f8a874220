"""`redlock.nodes`: how this process sees each node, without asking it."""

from __future__ import annotations

import pytest

import quorlock
from quorlock import AcquireTimeout, VoteCode
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, raises

SETTINGS = {"node_timeout": 0.3, "connect_timeout": 0.3, "outage_timeout": 0.0}


async def test_before_the_first_word(face: Face, nodes: Servers) -> None:
    """Nothing is known, nothing is asked: every node not up, and why."""
    async with face.redlock(nodes.urls) as redlock:
        assert [status.address for status in redlock.nodes] == [node.path for node in nodes]
        for status in redlock.nodes:
            assert not status.up
            assert status.why
            assert status.code is VoteCode.NOT_CONNECTED
            assert (status.latency, status.version) == (None, "")


async def test_healthy_nodes(face: Face, nodes: Servers) -> None:
    """All nodes are up after some use, with latency and version."""
    async with face.redlock(nodes.urls) as redlock:
        async with redlock.lock("a"):
            await redlock.inspect("a")
        for status in redlock.nodes:
            assert (status.up, status.why, status.code) == (True, "", None)
            assert status.latency is not None
            assert 0 < status.latency < 60
            assert status.version[0].isdigit()


async def test_after_close(face: Face, nodes: Servers) -> None:
    """No node would vote for it any more; that says nothing about the nodes."""
    async with face.redlock(nodes.urls) as redlock, redlock.lock("a"):
        pass
    assert not redlock.ready
    for status in redlock.nodes:
        assert (status.up, status.why) == (False, "this Redlock is closed")
        assert status.code is VoteCode.NOT_CONNECTED


async def test_dead_nodes_are_named_and_come_back(face: Face, mortal_nodes: Servers) -> None:
    """Killed: down, and why. Restarted: up again after some calls, without a new Redlock."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS, restart_guard=None) as redlock:
        await redlock.inspect("a")
        for node in mortal_nodes[:2]:
            node.kill()
        for _ in range(3):
            await redlock.inspect("a")
        assert [status.up for status in redlock.nodes] == [False, False, True, True, True]
        assert all(status.why and status.code for status in redlock.nodes[:2])
        for node in mortal_nodes[:2]:
            node.restart()
        for _ in range(300):
            await redlock.inspect("a")
            if all(status.up for status in redlock.nodes):
                break
            await until_async(lambda: False, 0.01)
        assert all(status.up and not status.why for status in redlock.nodes)


async def test_a_missing_login_has_a_code(face: Face) -> None:
    """A missing login is `access_denied`, in `redlock.nodes` and in `inspect`."""
    with Servers(3, password="secret") as servers:
        urls = [f"unix://{server.path}" for server in servers]
        async with face.redlock(urls, **SETTINGS) as redlock:
            report = await redlock.inspect("a")
            assert report.verdict == "unreachable"
            assert {view.code for view in report.nodes} == {VoteCode.ACCESS_DENIED}
            assert {status.code for status in redlock.nodes} == {VoteCode.ACCESS_DENIED}


async def test_it_asks_no_node(face: Face, mortal_nodes: Servers) -> None:
    """`nodes` returns the last known state at once, with every node stopped."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        await redlock.inspect("a")
        for node in mortal_nodes:
            node.stop()
        assert [status.up for status in redlock.nodes] == [True] * 5
        for node in mortal_nodes:
            node.cont()


async def test_a_password_is_nowhere(face: Face) -> None:
    """Neither in a status nor in a repr, an error or a report, be it right or wrong."""
    with Servers(3, password="hunter2 is:secret") as servers:
        async with face.redlock(servers.urls, **SETTINGS) as redlock:
            async with redlock.lock("a"):
                report = await redlock.inspect("a")
            shown = f"{redlock!r} {redlock.nodes!r} {report!r}"
            assert all(status.up for status in redlock.nodes)
            for wrong in [url.replace("hunter2", "hunter3") for url in servers.urls]:
                assert wrong not in servers.urls
        wrongs = [url.replace("hunter2", "hunter3") for url in servers.urls]
        async with face.redlock(wrongs, **SETTINGS) as redlock:
            error = await raises(quorlock.NodeError, redlock.lock("a").acquire(timeout=0))
            shown += f"{error} {error!r} {error.votes} {redlock!r} {redlock.nodes!r}"
            assert not any(status.up for status in redlock.nodes)
        assert "hunter" not in shown
        assert "secret" not in shown


@pytest.mark.parametrize("missing", ["subscribe", "publish"])
async def test_nodes_that_cannot_call_waiters(face: Face, missing: str) -> None:
    """A waiter that asked in vain shows it; the nodes are up, and the lock is handed over."""
    with Servers(3) as servers:
        for server in servers[:2]:
            rights = ("+@all", f"-{missing}", "~*", "&*")
            server.execute("ACL", "SETUSER", "mute", "reset", "on", ">secret", *rights)
        urls = [
            f"unix://{'mute:secret@' * (server in servers[:2])}{server.path}" for server in servers
        ]
        async with face.redlock(urls, **SETTINGS) as redlock:
            assert all(status.queues for status in redlock.nodes), "not known"
            lease = await redlock.lock("a").acquire()
            await raises(AcquireTimeout, redlock.lock("a").acquire(timeout=0.3))
            assert [status.queues for status in redlock.nodes] == [False, False, True]
            for status in redlock.nodes[:2]:
                assert (status.up, status.why) == (True, "")
                assert "NOPERM" in status.queues_why
                assert missing in status.queues_why
            assert all(server.execute("EXISTS", "quorlock:queue:a") == 0 for server in servers)
            assert redlock.nodes[2].queues_why == ""
            await lease.release()
            async with redlock.lock("a", timeout=5):
                pass


async def test_waiters_that_poll_ask_no_node_to_call(face: Face, nodes: Servers) -> None:
    """No node is subscribed to, and no queue is left."""
    async with face.redlock(nodes.urls, **SETTINGS, waiting="poll") as redlock:
        async with redlock.lock("a"):
            await raises(AcquireTimeout, redlock.lock("a").acquire(timeout=0.3))
        for node in nodes:
            assert node.execute("PUBSUB", "CHANNELS", "quorlock:*") == []
            assert node.execute("EXISTS", "quorlock:queue:a") == 0
