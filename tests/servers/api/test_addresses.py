"""One server per address: an address that leads to two, or moves to another, casts no vote."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import NodeError, QuorlockError, QuorumUnreachable
from quorlock._core.config import LONGEST
from quorlock._drivers.clock import now
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import Caller, Impostor, Proxy, answers
from tests.harness.support.resp import bulk
from tests.harness.support.wait import until, until_async
from tests.servers.api.faces import Face, raises

SETTINGS: dict[str, Any] = {
    "ttl": 4.0,
    "max_ttl": 30.0,
    "outage_timeout": 0.5,
    "node_timeout": 0.15,
}
GUARDS = ["uptime", "marker", None]


def is_kept_out(redlock: Any) -> bool:
    status = redlock.nodes[0]
    return not status.up and "another living server" in status.why


@pytest.mark.parametrize("guard", GUARDS)
def test_two_connections_of_one_process(guard: Any, nodes: Servers) -> None:
    """A connection of renewal leads to another server than the earlier ones."""
    with Proxy(nodes.urls[0]) as address:
        urls = [address.url, *nodes.urls[1:3]]
        with quorlock.Redlock(urls, **SETTINGS, restart_guard=guard) as redlock:
            redlock.lock("x").acquire(timeout=5.0).release()
            address.lead_to(nodes.urls[3])
            lease = redlock.lock("y", renew=True).acquire(timeout=5.0)
            assert until(lambda: is_kept_out(redlock), 2.5), redlock.nodes
            assert lease.held
            later = redlock.lock("z").acquire(timeout=5.0)
            assert [vote.vote == "granted" for vote in later.votes] == [False, True, True]
            for server in (nodes[0], nodes[3]):
                run_id = server.execute("INFO", "server").partition(b"run_id:")[2][:8].decode()
                assert f"{run_id}…" in redlock.nodes[0].why


@pytest.mark.parametrize("guard", GUARDS)
async def test_two_event_loops_of_one_process(guard: Any, nodes: Servers) -> None:
    """Also the connection that was there before casts no vote any more."""
    with Proxy(nodes.urls[0]) as address:
        urls = [address.url, *nodes.urls[1:3]]
        async with aio.Redlock(urls, **SETTINGS, restart_guard=guard) as redlock:
            await (await redlock.lock("x").acquire(timeout=5.0)).release()
            assert await until_async(lambda: all(node.up for node in redlock.nodes))
            address.lead_to(nodes.urls[3])

            async def elsewhere() -> bool:
                await (await redlock.lock("y").acquire(timeout=5.0)).release()
                return await until_async(lambda: is_kept_out(redlock))

            assert await asyncio.to_thread(asyncio.run, elsewhere()), redlock.nodes
            lease = await redlock.lock("z").acquire(timeout=5.0)
            assert [vote.vote == "granted" for vote in lease.votes] == [False, True, True]


async def test_an_address_that_takes_turns(nodes: Servers, face: Face) -> None:
    """Each broken connection is followed by one to the other server: at the second turn the first
    has outlived its successor.
    """
    with Proxy(nodes.urls[0]) as address:
        settings = SETTINGS | {"retry_delay": (0.01, 0.02)}
        async with face.redlock([address.url], **settings, restart_guard=None) as redlock:
            await (await redlock.lock("x").acquire(timeout=5.0)).release()
            for turn in (1, 0):
                address.lead_to(nodes.urls[turn])
                address.cut()
                with suppress(QuorumUnreachable):  # the uptime of the other server shows it already
                    await (await redlock.lock("x").acquire(timeout=5.0)).release()
            error = await raises(QuorumUnreachable, redlock.lock("x").acquire(timeout=5.0))
            assert "list independent masters, each by its own address" in str(error)


async def test_two_nodes_swap_their_addresses(nodes: Servers, face: Face) -> None:
    """Each is found to be the other one at first, and then neither is where it was."""
    with Proxy(nodes.urls[0]) as one, Proxy(nodes.urls[1]) as two:
        async with face.redlock([one.url, two.url, nodes.urls[2]], **SETTINGS) as redlock:

            def servers() -> list[str]:
                return [state.run_id for state in redlock._session.driver.node_states.all]

            await (await redlock.lock("x").acquire(timeout=5.0)).release()
            assert await until_async(lambda: all(node.up for node in redlock.nodes))
            first, second, third = servers()
            one.lead_to(nodes.urls[1])
            two.lead_to(nodes.urls[0])
            one.cut()
            two.cut()

            async def are_found() -> bool:
                with suppress(QuorlockError):
                    await redlock.lock("y").acquire(timeout=0)
                return servers() == [second, first, third]

            assert await until_async(are_found), redlock.nodes


class Pretended:
    """The part of a server that connecting and acquiring need, with a chosen uptime."""

    def __init__(self, run_id: str, uptime_s: int) -> None:
        self.run_id, self.uptime_s = run_id, uptime_s
        self.notes: dict[bytes, bytes] = {}

    def __call__(self, command: list[bytes]) -> bytes:
        name, *words = command
        if name == b"INFO":
            text = f"run_id:{self.run_id}\r\nuptime_in_seconds:{self.uptime_s}\r\nrole:master\r\n"
            return bulk(text.encode())
        if name == b"SET" and words[0].startswith(b"quorlock:"):
            self.notes.setdefault(words[0], words[1])
        if name == b"GET":
            return bulk(self.notes.get(words[0]))
        return b":-3\r\n" if name.startswith(b"EVAL") else b"+OK\r\n"


async def test_an_address_that_moves_to_an_older_server(face: Face) -> None:
    """The second server was up while the first still replied, so this is no restart; it would vote
    at once, with an uptime of an hour.
    """
    with (
        Impostor(answers(Pretended("first", 7_200))) as first,
        Impostor(answers(Pretended("other", 3_600))) as other,
        Proxy(first.url) as address,
    ):
        async with face.redlock([address.url], **SETTINGS) as redlock:
            await (await redlock.lock("x").acquire(timeout=5.0)).release()
            address.lead_to(other.url)
            address.cut()
            error = await raises(QuorumUnreachable, redlock.lock("x").acquire(timeout=5.0))
            assert "leads to run_id other…, and led to first…" in str(error)
            assert "votes in 3" in str(error)


async def test_each_reply_is_a_contact(nodes: Servers, face: Face) -> None:
    """Also a plain grant, which is counted without being parsed: a server that was up before the
    last reply of another one is no restart of it.
    """
    async with face.redlock(nodes.urls[:1], **SETTINGS) as redlock:
        await (await redlock.lock("warm").acquire(timeout=5.0)).release()
        asked_at = now()
        await redlock.lock("x").acquire(timeout=5.0)
        (connection,) = redlock._session.driver.node_states.all[0]._connections
        assert connection.alive_at >= asked_at


async def test_the_same_server_twice_while_one_connection_is_broken(
    nodes: Servers, face: Face
) -> None:
    """A server is known by its run_id, also while its own address does not answer: one process
    must not cast two votes one after the other.
    """
    with Proxy(nodes.urls[0]) as one, Proxy(nodes.urls[1]) as two:
        async with face.redlock([one.url, two.url, nodes.urls[2]], **SETTINGS) as redlock:
            await (await redlock.lock("x").acquire(timeout=5.0)).release()
            assert await until_async(lambda: all(node.up for node in redlock.nodes))
            one.refuse()
            one.cut()
            two.lead_to(nodes.urls[0])
            two.cut()
            error = await raises(NodeError, redlock.lock("y").acquire(timeout=5.0))
            assert "is the same server as" in str(error)
            assert [vote.vote for vote in error.votes].count("granted") == 1


async def test_the_uptime_counts_from_the_arrival_of_the_reply(face: Face) -> None:
    """A slow reply has an uptime that is younger than the request: the quarantine ends max_ttl
    after the latest possible start.
    """
    reported_at = 0.0

    async def late(caller: Caller) -> None:
        nonlocal reported_at
        server = Pretended("late", 0)

        def reply(command: list[bytes]) -> bytes:
            nonlocal reported_at
            reported_at = quorlock.now()
            return server(command)

        await asyncio.sleep(0.03)
        await answers(reply)(caller)

    settings = SETTINGS | {"max_ttl": 10.0, "outage_timeout": 0.1, "drift_factor": 0.0}
    with Impostor(late) as node:
        async with face.redlock([node.url], **settings) as redlock:
            await raises(QuorumUnreachable, redlock.lock("x").acquire(timeout=0))
            node_states = session_members(redlock)
            kept = node_states.all[0].guard.quarantine
            assert kept is not None
            assert kept.until / 1e9 >= reported_at + 10.002


def session_members(redlock: Any) -> Any:
    """Return the drivers' knowledge of the nodes."""
    from tests.servers.api.faces import real

    return real(redlock)._session.driver.node_states


async def test_a_restart_is_no_other_server(nodes: Servers, face: Face) -> None:
    """A restart ends all connections before the next process begins."""
    async with face.redlock(nodes.urls[:3], **SETTINGS, restart_guard=None) as redlock:
        leases = await face.crowd(3, lambda i: redlock.lock(f"x{i}").acquire(timeout=5.0))
        assert not any(isinstance(lease, BaseException) for lease in leases)
        nodes[0].restart()
        assert await until_async(lambda: redlock.nodes[0].version != "")
        for _ in range(20):
            await (await redlock.lock("y").acquire(timeout=5.0)).release()
        assert "living" not in redlock.nodes[0].why


async def test_leases_of_years(face: Face) -> None:
    """An option of TCP sockets is no longer than 24 days; max_ttl may be."""
    with Servers(1, tcp=True) as (node,):
        settings: dict[str, Any] = {"ttl": LONGEST, "max_ttl": LONGEST, "outage_timeout": 0.5}
        async with face.redlock([node.tcp_url], **settings, restart_guard=None) as redlock:
            lease = await redlock.lock("x").acquire(timeout=5.0)
            assert lease.validity > 0.98 * LONGEST
            assert node.execute("PTTL", "x") > 999 * LONGEST
            assert await lease.release()
