"""A node that comes back with less than it had keeps out until what it forgot is over."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

import quorlock
from quorlock import ConfigError, LeaseLost, Node, NodeError, QuorumUnreachable, VoteCode
from quorlock.testing.memory import MemoryNodes
from quorlock.testing.servers import Server, ServerReplyError, Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, raises

# A restarted node keeps out for max_ttl and 1 % and 2 ms more.
SHORT: dict[str, Any] = {"ttl": 0.8, "max_ttl": 0.8}
LONG: dict[str, Any] = {"ttl": 10.0, "max_ttl": 30.0, "outage_timeout": 0.9}
CONFIG = "quorlock:config"


async def reports(redlock: Any, node: Any, words: str) -> Any:
    """Use the lock until the status of the node contains these words; that status."""

    def status() -> Any:
        return next(s for s in redlock.nodes if s.address == Node.from_url(node.url).address)

    # Connecting again may wait for a back-off of up to a second, several times on a busy machine.
    async def is_so() -> bool:
        if words not in status().why:
            await (await redlock.lock("notice").acquire(timeout=5.0)).release()
        return words in status().why

    assert await until_async(is_so, 20), redlock.nodes
    return status()


async def wait_until_noticed(redlock: Any, node: Any) -> Any:
    """Use the lock until the status of the node reports a restart."""
    return await reports(redlock, node, ", votes in ")


async def test_it_says_since_when_and_for_how_long(nodes: Servers, face: Face) -> None:
    async with face.redlock(nodes.urls[:3], **LONG) as redlock:
        await redlock.lock("x").try_acquire()
        nodes[0].restart()
        status = await wait_until_noticed(redlock, nodes[0])
        assert not status.up
        assert status.version
        found = re.fullmatch(r"restarted (\d+) s ago, votes in (\d+) s", status.why)
        assert found is not None, status.why
        assert 25 <= int(found[2]) <= 31


async def test_without_a_quorum_that_votes_it_is_unreachable(nodes: Servers, face: Face) -> None:
    """And says so once in the error, after the timeout, since a quarantine is not an outage;
    nothing is left on the one that votes.
    """
    for server in nodes[:2]:
        server.restart()
    async with face.redlock(nodes.urls[:3], **LONG) as redlock:
        error = await raises(QuorumUnreachable, redlock.lock("x").acquire(timeout=1.2))
        assert error.attempts > 1
        assert error.elapsed >= 1.2 > LONG["outage_timeout"]
        out = ", ".join(Node.from_url(url).address for url in nodes.urls[:2])
        pattern = (
            rf"'x': 2 of 3 nodes \({out}\) cast no vote for \d+( to \d+)? s more and may have"
            r" forgotten locks \(restart guard: started \d( to \d)? s ago\), after \d+ attempts in"
            r" 1\.\d s; wait, or mark nodes that are new: quorlock nodes fresh"
        )
        assert re.fullmatch(pattern, str(error)), error
        assert [vote.vote for vote in error.votes].count("unknown") == 2
        for vote in error.votes:
            assert vote.answered is (vote.vote == "granted")
    assert nodes[0].keys() == nodes[1].keys() == nodes[2].keys() == []


async def test_it_votes_again_when_everything_is_over(nodes: Servers, face: Face) -> None:
    """Over the connections that were made while it kept out, and within `outage_timeout` here."""
    for server in nodes[:2]:
        server.restart()
    async with face.redlock(nodes.urls[:3], **SHORT) as redlock:
        await raises(QuorumUnreachable, redlock.lock("x").acquire(timeout=0))
        lease = await redlock.lock("x").acquire(timeout=None)
        assert lease.held
        assert await until_async(lambda: all(status.up for status in redlock.nodes))
        await lease.extend()
        assert await lease.release() is True


async def test_a_node_that_keeps_out_does_not_count_for_extensions(face: Face) -> None:
    """Though it has the very key: what else it had may be gone."""
    with MemoryNodes(3) as nodes:
        async with face.redlock(nodes.urls, **SHORT) as redlock:
            lease = await redlock.lock("x").acquire()
            nodes[0].restart(memory="kept")
            await wait_until_noticed(redlock, nodes[0])
            await lease.extend()  # by the other two
            nodes[1].restart(memory="kept")
            error = await raises(LeaseLost, lease.extend())
            assert error.reason == "unreachable"
            assert "restarted" in str(error)


async def test_what_it_still_has_is_released(face: Face) -> None:
    """Release and inspect continue to work."""
    with MemoryNodes(3) as nodes:
        async with face.redlock(nodes.urls, **LONG) as redlock:
            lease = await redlock.lock("x").acquire()
            assert await until_async(lambda: nodes[0].keys() == [b"x"])
            nodes[0].restart(memory="kept")
            await wait_until_noticed(redlock, nodes[0])

            async def is_held() -> str | None:  # over connections that may have to be made first
                return (await redlock.inspect("x")).nodes[0].holder

            assert await until_async(is_held)
            assert await lease.release() is True
            assert await until_async(lambda: nodes[0].keys() == [])


async def test_a_durable_node_votes_at_once(nodes: Servers, face: Face) -> None:
    """The configuration decides this, for that node alone."""
    for server in nodes[:3]:
        server.restart()
    urls = [f"{url}&durable=yes" for url in nodes.urls[:3]]
    async with face.redlock(urls[:2] + nodes.urls[2:3], **LONG) as redlock:
        lease = await redlock.lock("x").acquire(timeout=1.0)
        await lease.release()
        status = await wait_until_noticed(redlock, nodes[2])
        assert [node.up for node in redlock.nodes] == [True, True, False]
        assert "started" in status.why


async def test_a_node_born_empty_votes_at_once_but_not_after_a_restart(face: Face) -> None:
    """The node is its own: a client of an earlier test may come back to one that restarts."""
    with Servers(1) as started:
        node = started[0]
        node.restart()
        node.born_empty()
        async with face.redlock(started.urls, **LONG) as redlock:
            lease = await redlock.lock("x").acquire(timeout=1.0)
            assert await lease.release() is True
            node.restart()
            await raises(QuorumUnreachable, redlock.lock("x").acquire(timeout=0.5))


async def test_it_is_remembered_that_a_process_voted(nodes: Servers, face: Face) -> None:
    """A flush takes the mark away: for a process that we know, nothing follows from that."""
    async with face.redlock(nodes.urls[:1], **LONG) as redlock:
        lease = await redlock.lock("x").acquire(timeout=1.0)
        await lease.release()
        nodes[0].execute("FLUSHALL")
        nodes[0].execute("CLIENT", "KILL", "TYPE", "normal")
        lease = await redlock.lock("x").acquire(timeout=1.0)
        assert lease.held


# --- what each guard catches -------------------------------------------------------------------

# One node, so that its vote is all that counts.
ALONE: dict[str, Any] = {"ttl": 20.0, "max_ttl": 20.0, "outage_timeout": 0.6}


async def votes(face: Face, url: str, guard: str, **settings: Any) -> bool:
    """Return the votes for a new client."""
    async with face.redlock([url], **ALONE | settings, restart_guard=guard) as redlock:
        try:
            lease = await redlock.lock("x").acquire(timeout=0)
        except QuorumUnreachable as error:
            if error.votes[0].code is VoteCode.QUARANTINED:
                return False
            raise
        return bool(await lease.release())


@pytest.mark.parametrize(
    "options",
    [("--save", ""), ("--appendonly", "yes"), ("--appendonly", "yes", "--appendfsync", "always")],
    ids=["no persistence or a dump", "AOF everysec", "AOF always"],
)
@pytest.mark.parametrize("guard", ["uptime", "marker"])
async def test_a_process_that_was_killed(guard: str, options: tuple[str, ...], face: Face) -> None:
    """Empty, with the keys of an old dump, or with all of them: the guard does not know which."""
    with Servers(1, options=options) as (server,):
        assert await votes(face, server.url, guard)
        if options[0] == "--save":
            server.restart()
            assert not await votes(face, server.url, guard)
            server.execute("SAVE")  # with the marker of the process of before
        # Writes wait in memory while an fsync is under way: it would come back without them.
        await until_async(
            lambda: "aof_buffer_length:0" in persistence(server) or options[0] == "--save"
        )
        server.restart()
        assert server.execute("EXISTS", CONFIG) == 1, "it came back with its keys"
        assert not await votes(face, server.url, guard)


async def test_durable_is_worth_the_old_marker(face: Face) -> None:
    """A node that says it forgot nothing, and was marked by the process of before."""
    with Servers(1, options=("--appendonly", "yes", "--appendfsync", "always")) as (server,):
        assert await votes(face, server.url, "marker")
        server.restart()
        assert await votes(face, f"{server.url}&durable=1", "marker")
        server.execute("FLUSHALL")
        assert not await votes(face, f"{server.url}&durable=1", "marker")


@pytest.mark.parametrize("command", [("FLUSHALL",), ("SWAPDB", "0", "1")], ids=lambda it: it[0])
@pytest.mark.parametrize("guard", ["uptime", "marker"])
async def test_all_keys_are_gone(
    guard: str, command: tuple[str, ...], nodes: Servers, face: Face
) -> None:
    """The uptime shows nothing, but the marker is gone (and so is the mark of an empty birth)."""
    server = nodes[0]
    settings = {"ttl": 0.8, "max_ttl": 0.8} if guard == "uptime" else {}
    server.execute("DEL", "quorlock:born-empty")
    if guard == "uptime":
        await until_async(lambda: uptime(server) >= 2)
    server.execute(*command)
    assert await votes(face, server.url, guard, **settings) is (guard == "uptime")


def persistence(server: Server) -> str:
    return str(server.execute("INFO", "persistence"))


def uptime(server: Server) -> int:
    info: bytes = server.execute("INFO", "server")
    return int(info.partition(b"uptime_in_seconds:")[2].split()[0])


@pytest.mark.parametrize("guard", ["uptime", "marker"])
async def test_a_replica_takes_over(guard: str, face: Face) -> None:
    """The replica has the keys that it received, and has been up for long: the marker is its
    master's.
    """
    brief = {"ttl": 0.8, "max_ttl": 0.8}
    at_once = ("--repl-diskless-sync-delay", "0")
    with Servers(2, tcp=True, options=at_once) as (master, replica):
        replica.execute("REPLICAOF", "127.0.0.1", master.port)
        assert await votes(face, master.url, guard, **brief)
        assert await until_async(lambda: replica.execute("EXISTS", CONFIG) == 1)
        replica.execute("REPLICAOF", "NO", "ONE")
        assert guard == "marker" or await until_async(lambda: uptime(replica) >= 2)
        assert await votes(face, replica.url, guard, **brief) is (guard == "uptime")


# --- what all must agree on --------------------------------------------------------------------


def connections(server: Server) -> set[bytes]:
    """Return the ids of the connections of clients of this library."""
    clients = server.execute("CLIENT", "LIST").splitlines()
    return {line.split()[0] for line in clients if b"name=quorlock" in line}


async def test_what_clients_agree_on_is_written_down(nodes: Servers, face: Face) -> None:
    """The first client writes them permanently, and again if they are gone."""
    async with face.redlock(nodes.urls[:3], **LONG) as redlock:
        await redlock.lock("x").try_acquire()
        assert await until_async(lambda: all(server.execute("GET", CONFIG) for server in nodes[:3]))
        said = [server.execute("GET", CONFIG) for server in nodes[:3]]
        assert len(set(said)) == 1
        run_ids = sorted(
            server.execute("INFO", "server").partition(b"run_id:")[2][:8] for server in nodes[:3]
        )
        assert said[0] == b"n=3 max_ttl_ms=30000 restart_guard=uptime set=" + b"-".join(run_ids)
        assert [server.execute("PTTL", CONFIG) for server in nodes[:3]] == [-1] * 3
        before = connections(nodes[0])
        for server in nodes[:3]:
            server.execute("FLUSHALL")
        await redlock.lock("y").try_acquire()
        # Written when a node is met: on a busy machine it may have been met again.
        assert nodes[0].execute("GET", CONFIG) is None or connections(nodes[0]) != before
        deadline = quorlock.now() + 10
        while [server.execute("GET", CONFIG) for server in nodes[:3]] != said:
            # A node whose settings came long before the others' gets the name when it is next met.
            assert quorlock.now() < deadline
            for server in nodes[:3]:
                server.execute("CLIENT", "KILL", "TYPE", "normal")
            async with redlock.lock("z", timeout=2.0):
                pass


@pytest.mark.parametrize(
    ("change", "theirs"),
    [
        ({"max_ttl": 40.0}, "n=3 max_ttl_ms=40000 restart_guard=uptime"),
        ({"restart_guard": None}, "n=3 max_ttl_ms=30000 restart_guard=None"),
        ({}, "n=2 max_ttl_ms=30000 restart_guard=uptime"),
    ],
    ids=str,
)
async def test_who_does_not_agree_is_refused(
    change: dict[str, Any], theirs: str, nodes: Servers, face: Face
) -> None:
    """Both are shown, and what to do; nothing was sent about a lock."""
    urls = nodes.urls[:3] if change else nodes.urls[:2]
    async with face.redlock(urls, **LONG | change) as first:
        await first.lock("x").try_acquire()
        async with face.redlock(nodes.urls[:3], **LONG) as redlock:
            for _ in range(2):
                error = await raises(ConfigError, redlock.lock("y").acquire())
                assert theirs in str(error)
                assert "n=3 max_ttl_ms=30000 restart_guard=uptime" in str(error)
                assert "DEL quorlock:config" in str(error)
                assert error.argument in {"nodes[0]", "nodes[1]", "nodes[2]"}
            assert not any(set(server.keys()) & {b"y"} for server in nodes)


async def test_a_node_whose_clients_changed_meanwhile_does_not_vote(
    nodes: Servers, face: Face
) -> None:
    """A node that has voted before may refuse later: the client continues with the others."""
    async with face.redlock(nodes.urls[:3], **LONG) as redlock:
        await (await redlock.lock("x").acquire()).release()
        assert await until_async(lambda: all(status.up for status in redlock.nodes))
        nodes[0].execute("SET", CONFIG, "n=1 of others")
        nodes[0].execute("CLIENT", "KILL", "TYPE", "normal")
        await reports(redlock, nodes[0], "n=1 of others")


# --- failover and fail-back ----------------------------------------------------------------------


async def why_not(redlock: Any) -> str:
    """Return why the lock cannot be acquired once the node is a master again for this client."""
    while True:
        try:
            await redlock.lock("x").acquire(timeout=0)
        except QuorumUnreachable as error:
            return str(error)
        except NodeError:
            pass  # it was a replica when it was asked last
        else:
            return "it votes"
        await asyncio.sleep(0.01)


TURNS: dict[str, Any] = {"ttl": 8.0, "max_ttl": 8.0, "outage_timeout": 0.3}


@pytest.fixture(params=["not noticed", "noticed"])
def is_noticed(request: pytest.FixtureRequest) -> bool:
    """Return whether the client asks the node while it is a replica."""
    return bool(request.param == "noticed")


async def test_failover_and_fail_back_on_a_live_connection(face: Face, is_noticed: bool) -> None:
    """The replica is promoted, the node follows it and is promoted again: it has other keys and the
    earlier marker, but the process, its uptime and our connection are the same.
    """
    at_once = ("--repl-diskless-sync-delay", "0")
    with Servers(2, tcp=True, options=at_once) as (node, replica):
        replica.execute("REPLICAOF", "127.0.0.1", node.port)
        assert await until_async(lambda: b"master_link_status:up" in replica.execute("INFO"))
        async with face.redlock([node.tcp_url], **TURNS, restart_guard="marker") as redlock:
            await (await redlock.lock("warm").acquire(timeout=5.0)).release()
            assert await until_async(lambda: replica.execute("EXISTS", "quorlock:guard") == 1)
            replica.execute("REPLICAOF", "NO", "ONE")
            lease = await redlock.lock("x").acquire(timeout=5.0)
            node.execute("REPLICAOF", "127.0.0.1", replica.port)
            assert await until_async(lambda: node.keys() == [])
            if is_noticed:
                await raises(Exception, redlock.lock("y").acquire(timeout=0))
            node.execute("REPLICAOF", "NO", "ONE")
            assert lease.held
            assert "cast no vote for" in await why_not(redlock)


@pytest.mark.parametrize("guard", ["uptime", "marker", None])
async def test_a_process_that_was_seen_as_a_replica_keeps_out(guard: Any, face: Face) -> None:
    """A client that got READONLY knows that all keys of the node were replaced."""
    with Servers(2, tcp=True) as (node, other):
        async with face.redlock([node.tcp_url], **TURNS, restart_guard=guard) as redlock:
            await (await redlock.lock("x").acquire(timeout=5.0)).release()
            node.execute("REPLICAOF", "127.0.0.1", other.port)
            await raises(NodeError, redlock.lock("x").acquire(timeout=0))
            node.execute("REPLICAOF", "NO", "ONE")
            assert "cast no vote for" in await why_not(redlock)


@pytest.mark.parametrize("guard", ["uptime", "marker", None])
async def test_a_process_that_was_a_replica_as_we_connected_keeps_out(
    guard: Any, face: Face
) -> None:
    """INFO says so in the handshake; no request was refused."""
    with Servers(2, tcp=True) as (node, other):
        node.execute("REPLICAOF", "127.0.0.1", other.port)
        async with face.redlock([node.tcp_url], **TURNS, restart_guard=guard) as redlock:
            await raises(NodeError, redlock.lock("x").acquire(timeout=0))
            node.execute("REPLICAOF", "NO", "ONE")
            assert "was a replica" in await why_not(redlock)


async def soon(node: Server, *words: str | int, error: str = "") -> None:
    """Send it this command until it succeeds, or fails with this error."""

    def is_so() -> bool:
        try:
            node.execute(*words)
        except ServerReplyError as refusal:
            return refusal.code == error
        return not error

    assert await until_async(is_so)


async def test_a_process_that_loads_the_keys_of_another_keeps_out(face: Face) -> None:
    """The node replies LOADING to a script, where it replies READONLY to a SET."""
    settings = (
        "--repl-diskless-sync-delay",
        "0",
        "--loading-process-events-interval-bytes",
        "1024",
    )
    with Servers(2, tcp=True, options=settings) as (node, other):
        other.execute("EVAL", "for i = 1, 5000 do redis.call('SET', 'y' .. i, i) end", 0)
        node.execute("CONFIG", "SET", "key-load-delay", 1_000)  # us
        async with face.redlock([node.tcp_url], **TURNS) as redlock:
            lease = await redlock.lock("x").acquire(timeout=5.0)
            node.execute("REPLICAOF", "127.0.0.1", other.port)
            await soon(node, "GET", "x", error="LOADING")
            error = await raises(NodeError, redlock.extend("z", "0" * 32))
            assert "LOADING" in str(error)
            node.execute("CONFIG", "SET", "key-load-delay", 0)
            await soon(node, "REPLICAOF", "NO", "ONE")
            assert lease.held
            assert "was a replica" in await why_not(redlock)
