"""Nodes in memory are nodes: both faces lock on them, and see them stop, hang and forget."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from functools import partial
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import (
    AcquireTimeout,
    ConfigError,
    LeaseLost,
    NodeError,
    QuorumUnreachable,
    VoteCode,
)
from quorlock.testing import memory
from quorlock.testing.memory import Elsewhere, MemoryNode, MemoryNodes
from quorlock.testing.servers import ServerReplyError
from tests.harness.support.resp import Talk, pack
from tests.harness.support.wait import until, until_async
from tests.servers.api.faces import FACES, Face, raises, sees_all

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

THREAD = "quorlock memory nodes"
SETTINGS: dict[str, Any] = {"node_timeout": 0.5, "connect_timeout": 1.0, "outage_timeout": 0.4}
PATIENT: dict[str, Any] = {**SETTINGS, "outage_timeout": 20.0}
SECONDS = float(os.environ.get("QUORLOCK_SECONDS", "1"))


@pytest.fixture
def nodes() -> Iterator[MemoryNodes]:
    """Three fresh nodes."""
    with MemoryNodes(3) as fresh:
        yield fresh


def both(case: Callable[[Face, MemoryNodes], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test for each API, in a separate event loop."""

    @pytest.mark.parametrize("face", FACES, ids=repr)
    def test(face: Face, nodes: MemoryNodes) -> None:
        asyncio.run(case(face, nodes))

    test.__doc__ = case.__doc__
    return test


def left_over(nodes: Iterable[MemoryNode]) -> dict[str, list[bytes]]:
    """Every key on every node: should be empty."""
    return {node.url: keys for node in nodes if (keys := node.keys())}


def serving() -> list[threading.Thread]:
    """The threads that serve memory nodes: at most one."""
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


# --- the life of a lock ----------------------------------------------------------------------


@both
async def test_a_lock_is_acquired_extended_and_released(face: Face, nodes: MemoryNodes) -> None:
    """All nodes have its key with its token and its ttl, no other client gets it, an extension
    prolongs its life there, and nothing is left of it.
    """
    async with (
        face.redlock(nodes.urls, **PATIENT) as redlock,
        face.redlock(nodes.urls, **PATIENT) as other,
    ):
        assert await sees_all(redlock)
        lease = await redlock.lock("invoice:42", ttl=8).acquire()
        # The verdict falls with the second vote; the third node has it a moment later.
        assert await until_async(lambda: len(left_over(nodes)) == 3)
        for node in nodes:
            assert node.execute("GET", "invoice:42") == lease.token.encode()
            assert 3_000 < node.execute("PTTL", "invoice:42") <= 8_000
        assert [vote.vote for vote in lease.votes].count("granted") >= 2
        assert await other.lock("invoice:42").try_acquire() is None
        error = await raises(AcquireTimeout, other.lock("invoice:42").acquire(timeout=0))
        assert re.search("[23] of 3 nodes refused", str(error)), "the second refusal decides"
        assert [vote.node for vote in error.votes] == [node.url for node in nodes]
        await lease.extend(20)
        # By the two that decided it; the third may have been asked in vain (NOSCRIPT, too late).
        assert sum(node.execute("PTTL", "invoice:42") > 9_000 for node in nodes) >= 2
        assert await lease.release() is True
        assert await until_async(lambda: left_over(nodes) == {})
        async with other.lock("invoice:42", timeout=0) as lease:
            assert lease.held
    assert left_over(nodes) == {}


@both
async def test_a_lease_runs_out(face: Face, nodes: MemoryNodes) -> None:
    """No client gets it before the holder's validity is over; then another one does, and the first
    cannot release that client's lease.
    """
    async with face.redlock(nodes.urls, node_timeout=0.1) as redlock:
        lock = redlock.lock("a", ttl=0.5)
        first = await lock.acquire()
        second = await redlock.lock("a").acquire(timeout=20)
        assert not first.held
        assert second.valid_until - 9.0 > first.valid_until
        assert await first.release() is False
        assert second.held
        await raises(LeaseLost, first.extend())
        assert await second.release() is True
    assert left_over(nodes) == {}


@both
async def test_a_key_lives_no_shorter_than_its_lease(face: Face, nodes: MemoryNodes) -> None:
    """Five times: to the last moment of the validity a majority still has the key."""
    async with face.redlock(nodes.urls, node_timeout=0.03) as redlock:
        for _ in range(5):
            lease = await redlock.lock("a", ttl=0.1).acquire(timeout=20)
            while lease.held:
                have = [node for node in nodes if node.execute("GET", "a") == lease.token.encode()]
                if lease.held:
                    assert len(have) >= 2, "the third may not have been asked yet"


@both
async def test_one_can_ask_who_holds_it(face: Face, nodes: MemoryNodes) -> None:
    async with face.redlock(nodes.urls, **PATIENT) as redlock:
        assert not await redlock.lock("a").locked()
        assert (await redlock.inspect("a")).verdict == "free"
        async with redlock.lock("a"):
            assert await redlock.lock("a").locked()
            report = await redlock.inspect("a")
            assert report.verdict == "held"
            assert [view.node for view in report.nodes] == nodes.urls
            assert not any(view.error for view in report.nodes)
        assert all(status.up and not status.why for status in redlock.nodes)


@both
async def test_a_lease_is_handed_over(face: Face, nodes: MemoryNodes) -> None:
    async with (
        face.redlock(nodes.urls, **PATIENT) as giver,
        face.redlock(nodes.urls, **PATIENT) as taker,
    ):
        lease = await giver.lock("a").acquire()
        adopted = await taker.adopt(await lease.hand_over())
        assert adopted.held
        assert not lease.held
        assert await giver.lock("a").try_acquire() is None
        assert await adopted.release() is True
    assert left_over(nodes) == {}


@both
async def test_a_key_of_another_type_is_no_lock(face: Face, nodes: MemoryNodes) -> None:
    """A list at the key on a majority: NodeError, and the list stays there."""
    for node in nodes[:2]:
        node.execute("RPUSH", "a", "x")
    async with face.redlock(nodes.urls, **PATIENT) as redlock:
        error = await raises(NodeError, redlock.lock("a").acquire(timeout=0))
        assert "another type of data" in str(error)
    assert left_over(nodes) == {node.url: [b"a"] for node in nodes[:2]}


@both
async def test_a_redlock_over_one_node(face: Face, nodes: MemoryNodes) -> None:
    async with face.redlock([nodes[0].url]) as redlock, redlock.lock("a"):
        assert left_over(nodes) == {nodes[0].url: [b"a"]}


# --- what befalls nodes ----------------------------------------------------------------------


@both
async def test_a_stopped_minority(face: Face, nodes: MemoryNodes) -> None:
    """One is unreachable, before and after the handshake: calls succeed, it is named, and it votes
    when it is back.
    """
    nodes[0].stop()
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        async with redlock.lock("a", timeout=0) as lease:
            absent = {vote.node: vote.cause for vote in lease.votes if vote.vote == "unknown"}
            assert absent.keys() <= {nodes[0].url}
            await lease.extend(20)
        assert "connection refused" in redlock.nodes[0].why
        nodes[0].start()
        assert await sees_all(redlock)
        nodes[2].stop()
        async with redlock.lock("a", timeout=0):
            assert set(left_over(nodes)) == {nodes[0].url, nodes[1].url}
    assert left_over(nodes) == {}


@both
async def test_a_stopped_majority(face: Face, nodes: MemoryNodes) -> None:
    """QuorumUnreachable names them, nothing is left on the one that lives; they come back."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        assert await sees_all(redlock)
        for node in nodes[:2]:
            node.stop()
        for timeout in (0, None):
            error = await raises(QuorumUnreachable, redlock.lock("a").acquire(timeout=timeout))
            absent = {vote.node: vote.cause for vote in error.votes if not vote.answered}
            assert absent.keys() == {node.url for node in nodes[:2]}
            assert all("refused" in cause or "lost" in cause for cause in absent.values())
        assert await until_async(lambda: left_over(nodes) == {})
        nodes.start()
        assert await sees_all(redlock)
        assert await (await redlock.lock("a").acquire(timeout=0)).release() is True


def _has(node: MemoryNode, token: bytes) -> bool:
    return bool(node.execute("GET", "a") == token)


@both
async def test_a_hung_minority(face: Face, nodes: MemoryNodes) -> None:
    """Calls do not wait for it; when it resumes it executes what it was sent, and no key
    stays.
    """
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        for hung in (nodes[0], nodes[2]):
            assert await sees_all(redlock)
            hung.hang()
            began = quorlock.now()
            for turn in range(10):  # fewer than the bytes that a node may leave unread
                lease = await redlock.lock(f"cycle:{turn}").acquire(timeout=0)
                assert await lease.release() is True
            took = quorlock.now() - began
            assert took < 10 * SETTINGS["node_timeout"] / 4
            async with redlock.lock("a", timeout=0) as lease:
                await lease.extend(20)
                assert hung.keys() == []
                hung.go_on()
                token = lease.token.encode()
                # In the end: what it was sent may lie in its socket still.
                assert await until_async(partial(_has, hung, token))
                assert await redlock.lock("a").try_acquire() is None
            assert await until_async(lambda: left_over(nodes) == {})


@both
async def test_a_hung_majority(face: Face, nodes: MemoryNodes) -> None:
    """Calls end at their deadlines and name the two; when they resume no key is left."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        assert await sees_all(redlock)
        for node in nodes[:2]:
            node.hang()
        error = await raises(QuorumUnreachable, redlock.lock("a").acquire(timeout=0))
        absent = {vote.node for vote in error.votes if not vote.answered}
        assert absent == {node.url for node in nodes[:2]}
        nodes.start()
        assert await until_async(lambda: left_over(nodes) == {})
        assert await (await redlock.lock("a").acquire(timeout=20)).release() is True
    assert left_over(nodes) == {}


@both
async def test_hung_before_the_first_word(face: Face, nodes: MemoryNodes) -> None:
    """A node that is hung accepts connections and sends nothing."""
    nodes[1].hang()
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        async with redlock.lock("a", timeout=5):
            assert nodes[1].keys() == []
        nodes[1].go_on()
        assert await sees_all(redlock)
    assert left_over(nodes) == {}


@both
async def test_a_hung_node_outlives_its_clients(face: Face, nodes: MemoryNodes) -> None:
    """Commands of a closed client are executed when the node resumes, as by a server."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        assert await sees_all(redlock)
        nodes[0].hang()
        ticket = await (await redlock.lock("a", ttl=20).acquire()).hand_over()
    assert set(left_over(nodes)) == {nodes[1].url, nodes[2].url}
    assert await until_async(lambda: not serving())
    nodes[0].go_on()
    assert nodes[0].execute("GET", "a") == ticket.token.encode()
    assert nodes[0]._state._connections == {}


@both
async def test_a_pending_release_is_sent(face: Face, nodes: MemoryNodes) -> None:
    """Released while a node with the key is unreachable: the pending release is sent when it is
    back.
    """
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        assert await sees_all(redlock)
        lease = await redlock.lock("a", ttl=25).acquire()
        assert await until_async(lambda: len(left_over(nodes)) == 3)
        nodes[2].stop()
        assert await lease.release() is True
        assert left_over(nodes) == {nodes[2].url: [b"a"]}
        nodes[2].start()
        assert await until_async(lambda: left_over(nodes) == {})


@both
async def test_a_restarted_node(face: Face, nodes: MemoryNodes) -> None:
    """Nothing, everything or what was on its disk is still there, under another run_id."""
    async with face.redlock(nodes.urls, **SETTINGS, restart_guard=None) as redlock:
        for memory_left, count in (("lost", 2), ("kept", 3), ("saved", 3)):
            assert await sees_all(redlock)
            lease = await redlock.lock("a").acquire()
            assert await until_async(lambda: len(left_over(nodes)) == 3)
            if memory_left == "saved":
                nodes[0].save()
                nodes[0].execute("SET", "later", "x")
            before = run_id(nodes[0])
            nodes[0].restart(memory=memory_left)  # type: ignore[arg-type] # one of the three
            assert run_id(nodes[0]) != before
            assert len(left_over(nodes)) == count
            await lease.extend(20)
            assert await lease.release() is True
            assert await until_async(lambda: left_over(nodes) == {}), left_over(nodes)


def run_id(node: MemoryNode) -> str:
    reported: bytes = node.execute("INFO", "server")
    return next(line for line in reported.decode().split() if line.startswith("run_id:"))


@both
async def test_a_restarted_node_keeps_out(face: Face, nodes: MemoryNodes) -> None:
    """A restarted node refuses whatever it remembers, unless it is declared as born empty."""
    mark = "quorlock:born-empty"
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        for node in nodes[:2]:
            node.restart(memory="kept")
            node.flush()
            assert node.execute("GET", mark) is None
        error = await raises(QuorumUnreachable, redlock.lock("a").acquire(timeout=0))
        assert re.search(r": started \d+( to \d+)? s ago\)", str(error))
        assert [vote.code for vote in error.votes].count(VoteCode.QUARANTINED) == 2
    for node in nodes[:2]:
        node.restart()
        node.born_empty()
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire(timeout=0)
        assert await lease.release() is True
        nodes[0].flush()
        assert nodes[0].execute("GET", mark) == run_id(nodes[0]).partition(":")[2].encode()
        assert nodes[0].keys() == []


@both
async def test_a_majority_that_forgets(face: Face, nodes: MemoryNodes) -> None:
    """Restarted empty, or flushed: the holder learns it when it extends."""
    forgets: list[Callable[[MemoryNode], None]] = [MemoryNode.restart, MemoryNode.flush]
    for forget in forgets:
        async with face.redlock(nodes.urls, **SETTINGS, restart_guard=None) as redlock:
            lease = await redlock.lock("a").acquire()
            # A SET that is still under way to the third node would come after the flush.
            assert await until_async(lambda: len(left_over(nodes)) == len(nodes))
            for node in nodes[:2]:
                forget(node)
            error = await raises(LeaseLost, lease.extend())
            assert error.reason == "evicted"
            assert not lease.held
        assert await until_async(lambda: left_over(nodes) == {})


@both
async def test_an_error_names_what_is_wrong(face: Face, nodes: MemoryNodes) -> None:
    """A name that is used twice, whatever its spelling, is refused before anything is sent."""
    url = nodes[0].url
    for twice in ([url, url], [url, f"{url}/"], [url, url.replace("memory", "MEMORY")]):
        with pytest.raises(ConfigError, match="same server"):
            face.redlock(twice)


# --- many at once ----------------------------------------------------------------------------


async def contend(face: Face, nodes: MemoryNodes, count: int) -> tuple[int, list[object]]:
    """Let contenders compete for one resource for a while; return the turns and the errors."""
    turns: list[tuple[float, float]] = []
    settings = {**PATIENT, "node_timeout": 1.0, "retry_delay": (0.005, 0.05)}
    async with face.redlock(nodes.urls, **settings) as redlock:
        end = time.monotonic() + SECONDS

        async def work(_: int) -> None:
            lock = redlock.lock("contended", timeout=0.2)
            while time.monotonic() < end:
                try:
                    lease = await lock.acquire()
                except AcquireTimeout:
                    continue
                entered = time.monotonic()
                await asyncio.sleep(0.0005)
                turns.append((entered, time.monotonic()))
                assert await lease.release() is True

        wrong: list[object] = [error for error in await face.crowd(count, work) if error]
    in_order = sorted(turns)
    wrong += [pair for pair in pairwise(in_order) if pair[1][0] < pair[0][1]]
    print(f"\n{face}, {count} contenders: {len(turns)} turns in {SECONDS} s")
    return len(turns), wrong


def test_50_threads_on_one_resource(nodes: MemoryNodes) -> None:
    turns, wrong = asyncio.run(contend(FACES[0], nodes, 50))
    assert wrong == []
    assert turns > 1
    assert left_over(nodes) == {}


def test_200_tasks_on_one_resource(nodes: MemoryNodes) -> None:
    turns, wrong = asyncio.run(contend(FACES[1], nodes, 200))
    assert wrong == []
    assert turns > 1
    assert left_over(nodes) == {}


def test_both_faces_on_the_same_nodes(nodes: MemoryNodes) -> None:
    """A lock of a thread excludes a task of the same process at the same time."""

    async def main() -> None:
        async with aio.Redlock(nodes.urls) as there:
            assert await there.lock("a").try_acquire() is None

    with quorlock.Redlock(nodes.urls) as here, here.lock("a"):
        asyncio.run(main())


@both
async def test_cycles_per_second(face: Face, nodes: MemoryNodes) -> None:
    """Reported, not asserted: what a test that locks a thousand times waits for."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        lock = redlock.lock("a")
        began = time.perf_counter()
        for _ in range(500):
            assert await (await lock.acquire()).release() is True
        print(f"\n{face}: {500 / (time.perf_counter() - began):.0f} cycles/s, one at a time")


# --- names and control -----------------------------------------------------------------------


def test_a_name_is_one_node() -> None:
    assert memory.node("a") is memory.node("a") is memory.node("memory://a")
    assert memory.node("a") is not memory.node("b")
    assert (memory.node("a").name, memory.node("a").url) == ("a", "memory://a")
    assert repr(memory.node("a")) == "<MemoryNode memory://a up>"


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "a/0", "a:1", "ä", "a" * 65, "memory://"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        memory.node(name)
    with pytest.raises(ConfigError):
        quorlock.Redlock([f"memory://{name.removeprefix('memory://')}"])


def test_another_address_is_no_name() -> None:
    with pytest.raises(ConfigError, match="memory://a"):
        memory.node("redis://a")


def test_states(nodes: MemoryNodes) -> None:
    node = nodes[0]
    assert (node.up, node.hung) == (True, False)
    node.hang()
    assert (node.up, node.hung) == (True, True)
    assert repr(node) == f"<MemoryNode {node.url} hung>"
    node.stop()
    assert (node.up, node.hung) == (False, False)
    assert repr(node) == f"<MemoryNode {node.url} stopped>"
    node.hang()
    assert (node.up, node.hung) == (False, False), "who is out of reach cannot hang"
    node.restart()
    assert (node.up, node.hung) == (True, False)
    node.hang()
    node.restart()
    assert (node.up, node.hung) == (True, False)
    node.go_on()
    node.start()
    assert (node.up, node.hung) == (True, False)
    with pytest.raises(ConfigError, match="'lost', 'kept' or 'saved'"):
        node.restart(memory="half")  # type: ignore[arg-type]


def test_a_node_can_be_asked_past_the_network(nodes: MemoryNodes) -> None:
    """The words are those of a real server of `quorlock.testing.servers`; this also works while it
    is stopped.
    """
    node = nodes[0]
    assert node.execute("SET", "a", "x", "PX", 60_000) == b"OK"
    assert node.execute(b"GET", "a") == b"x"
    assert node.execute("DEL", "nothing") == 0
    node.stop()
    assert node.keys() == [b"a"]
    with pytest.raises(ServerReplyError, match="unknown command 'NONSENSE'"):
        node.execute("NONSENSE")
    node.flush()
    assert node.keys() == []
    node.execute("SET", "b", "x", "PX", 1)
    assert until(lambda: node.keys() == [])


def test_fresh_nodes_are_not_shared() -> None:
    with MemoryNodes(2) as first, MemoryNodes(5) as second:
        assert (len(first), len(second), len(MemoryNodes())) == (2, 5, 3)
        assert len({*first.urls, *second.urls}) == 7
        assert first[1] is list(first)[1] is first[0:2][1] is memory.node(first.urls[1])
        assert repr(first) == f"<MemoryNodes {first.urls[0]}, {first.urls[1]}>"
        with quorlock.Redlock(first.urls) as redlock, redlock.lock("a"):
            assert left_over(second) == {}
    with pytest.raises(ValueError, match="at least 1"):
        MemoryNodes(0)


@both
async def test_closed_nodes_are_gone(face: Face, nodes: MemoryNodes) -> None:
    """A client that still has their names is refused, for instance a Redlock of a finished test."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        async with redlock.lock("a"):
            nodes.close()
            nodes.close()
        await raises(QuorumUnreachable, redlock.lock("a").acquire(timeout=0))
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        error = await raises(QuorumUnreachable, redlock.lock("a").acquire(timeout=0))
        assert "connection refused" in str(error)


def test_reset_makes_all_nodes_as_new(nodes: MemoryNodes) -> None:
    """References to a node stay valid. Connections are closed, the thread ends."""
    named = memory.node("named")  # no other test has it: nodes keep the settings of their clients
    with quorlock.Redlock([*nodes.urls, named.url], **PATIENT) as redlock:
        lease = redlock.lock("a").acquire()
        assert len(serving()) == 1
        memory.reset()
        assert serving() == []
        assert lease.release() is False
        nodes[0].hang()
        nodes[1].stop()
        memory.reset()
        assert left_over([*nodes, named]) == {}
        assert all(node.up and not node.hung for node in nodes)
        assert memory.node("named") is named
        with redlock.lock("a", timeout=20):
            pass
        named.hang()
        named.execute("SET", "a", "x")
        named.reset()
        assert (named.keys(), named.hung) == ([], False)


def test_their_clock_does_not_follow_the_machines(
    nodes: MemoryNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's clock is set an hour ahead: no key expires, TIME continues."""
    node = nodes[0]
    node.execute("SET", "a", "x", "PX", 60_000)
    before = int(node.execute("TIME")[0])
    assert abs(before - time.time()) < 600, "it began as the machine's"
    ahead = time.time_ns() + 3_600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: ahead)
    monkeypatch.setattr(time, "time", lambda: ahead / 1e9)
    assert 0 < node.execute("PTTL", "a") <= 60_000
    assert 0 <= int(node.execute("TIME")[0]) - before < 600


# --- the thread ------------------------------------------------------------------------------


def test_one_thread_serves_all_and_ends_with_the_last_connection(nodes: MemoryNodes) -> None:
    assert serving() == []
    with quorlock.Redlock(nodes.urls) as one, quorlock.Redlock(nodes.urls) as other:
        with one.lock("a"), other.lock("b"):
            assert len(serving()) == 1
            assert serving()[0].daemon
        one.close()
        with other.lock("a"):
            assert len(serving()) == 1
    assert until(lambda: serving() == [])


@both
async def test_a_redlock_that_was_not_closed(face: Face, nodes: MemoryNodes) -> None:
    """The Redlock is garbage in a cycle with a lease: the lease is released and the connections are
    closed.
    """
    kind = quorlock.Redlock if face is FACES[0] else aio.Redlock
    redlock: Any = kind(nodes.urls, node_timeout=0.15)
    acquired: Any = redlock.lock("a").acquire()
    lease = await acquired if face is FACES[1] else acquired
    cycle: list[object] = [redlock, lease]
    cycle.append(cycle)
    del redlock, lease, acquired, cycle
    gc.collect()
    assert await until_async(lambda: left_over(nodes) == {})
    assert await until_async(lambda: serving() == [])


def test_a_fault_of_the_thread_hangs_no_client(
    nodes: MemoryNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were there a mistake in it, connections would be closed, and the next one served again."""
    reported: list[object] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    with connected(nodes[0]) as client, monkeypatch.context() as patch:
        patch.setattr(memory, "_encoded", None)
        with pytest.raises(ConnectionError):
            client.ask(b"PING")
        assert until(lambda: serving() == [])
    assert len(reported) == 1
    with quorlock.Redlock(nodes.urls) as redlock, redlock.lock("a"):
        pass


# --- bytes -----------------------------------------------------------------------------------


def connected(node: MemoryNode) -> Talk:
    return Talk(memory.connect(node.name, forked=False), timeout=10)


def test_bytes_in_any_portions(nodes: MemoryNodes) -> None:
    """Byte by byte, and a thousand commands in one piece: one answer each, in order."""
    with connected(nodes[0]) as client:
        for byte in pack(b"SET", b"a", b"1"):
            client.socket.sendall(bytes([byte]))
        assert client.read() == b"OK"
        client.socket.sendall(pack(b"RPUSH", b"list", b"x") * 1000)
        assert [client.read() for _ in range(1000)] == list(range(1, 1001))
        client.socket.sendall(b"*0\r\n" + pack(b"GET", b"a"))
        assert client.read() == b"1"


def test_a_client_that_does_not_read(nodes: MemoryNodes) -> None:
    """Far more replies than a socket holds wait for it, and other clients are served."""
    text, count = b"x" * 10_000, 500
    with connected(nodes[0]) as client, connected(nodes[0]) as other:
        assert client.ask(b"SET", b"a", text) == b"OK"
        client.socket.sendall(pack(b"GET", b"a") * count)
        assert other.ask(b"PING") == b"PONG"
        assert all(client.read() == text for _ in range(count))
        assert client.ask(b"PING") == b"PONG"


def test_the_protocol_is_resp3(nodes: MemoryNodes) -> None:
    """Every kind of reply has its own form, even before HELLO."""
    with connected(nodes[0]) as client:

        def raw(*words: bytes) -> bytes:
            client.socket.sendall(pack(*words))
            return client.socket.recv(4096)

        assert raw(b"GET", b"a") == b"_\r\n"
        assert raw(b"HELLO", b"2") == b"-NOPROTO unsupported protocol version\r\n"
        assert raw(b"HELLO", b"3").startswith(b"%7\r\n$6\r\nserver\r\n")
        assert raw(b"INFO", b"replication").startswith(b"=")
        assert raw(b"EXISTS", b"a") == b":0\r\n"
        assert raw(b"KEYS", b"a*") == b"*0\r\n"
        assert raw(b"PING") == b"+PONG\r\n"
        assert raw(b"\xff").startswith(b"-ERR unknown command '\xff'")


@pytest.mark.parametrize(
    "nonsense", [b"PING\r\n", b"*1\r\n:5\r\n", b"$4\r\nPING\r\n", b"\0\0", b"%1\r\n*0\r\n:1\r\n"]
)
def test_nonsense_ends_the_connection(nodes: MemoryNodes, nonsense: bytes) -> None:
    with connected(nodes[0]) as client:
        client.socket.sendall(nonsense)
        assert str(client.read()).startswith("ERR Protocol error")
        assert client.socket.recv(100) == b""


def test_what_a_hung_node_was_sent_waits(nodes: MemoryNodes) -> None:
    """Commands are not executed while it hangs, executed in order when it resumes, dropped when it
    is stopped.
    """
    with connected(nodes[0]) as client:
        nodes[0].hang()
        client.socket.sendall(pack(b"SET", b"a", b"1") + pack(b"GET", b"a"))
        client.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        nodes[0].go_on()
        client.socket.settimeout(10)
        assert [client.read(), client.read()] == [b"OK", b"1"]
        nodes[0].hang()
        client.socket.sendall(pack(b"SET", b"b", b"1"))
        nodes[0].stop()
        with pytest.raises(ConnectionError):
            client.read()
    nodes[0].start()
    assert nodes[0].keys() == [b"a"]


def test_what_no_thread_has_read_yet_was_sent(nodes: MemoryNodes) -> None:
    """Done when go_on() returns, though the thread has had no chance to see it."""
    with connected(nodes[0]) as client, memory._server.lock:
        nodes[0].hang()
        client.socket.sendall(pack(b"SET", b"a", b"1"))
        nodes[0].go_on()
        assert nodes[0].keys() == [b"a"]


def test_connections_end_with_what_they_led_to(nodes: MemoryNodes) -> None:
    """Connections end when a node is stopped, restarted or reset; it forgets those that clients
    have closed.
    """
    for end in (MemoryNode.stop, MemoryNode.restart, MemoryNode.reset):
        with connected(nodes[0]) as client:
            assert client.ask(b"PING") == b"PONG"
            end(nodes[0])
            assert client.socket.recv(1) == b""
        nodes[0].start()
    for _ in range(50):
        with connected(nodes[0]) as client:
            assert client.ask(b"PING") == b"PONG"
    assert until(lambda: serving() == [])
    assert nodes[0]._state._connections == {}


def test_a_stopped_node_refuses(nodes: MemoryNodes) -> None:
    nodes[1].stop()
    with pytest.raises(ConnectionRefusedError, match="refused"):
        memory.connect(nodes[1].name, forked=False)


# --- other processes -------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> None:
    """Fork; what the child raises comes back as text."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(30)
            try:
                work()
            except BaseException:  # noqa: BLE001
                os.write(write_end, traceback.format_exc().encode()[-8000:])
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as end:
        text = end.read().decode()
    _, status = os.waitpid(pid, 0)
    assert (text, status) == ("", 0)


def test_a_forked_child_is_refused(nodes: MemoryNodes) -> None:
    """Both the parent's Redlock and a new one raise a NodeError that says why, in either API, and
    so does controlling a node. The parent is not affected.
    """
    url = "memory://never-used-before"

    def work() -> None:
        with pytest.raises(NodeError, match="live in the process that made them"):
            inherited.lock("b").acquire(timeout=0)
        for urls in (nodes.urls, [url]):
            redlock = quorlock.Redlock(urls, **SETTINGS)
            with pytest.raises(NodeError, match="live in the process that made them"):
                redlock.lock("b").acquire(timeout=0)
            redlock.close()
            with pytest.raises(NodeError, match="live in the process that made them"):
                asyncio.run(from_asyncio(urls))
        for control in (nodes[0].keys, nodes[0].stop, nodes[0].go_on, lambda: memory.node("a")):
            with pytest.raises(Elsewhere, match=r"reset\(\)"):
                control()
        nodes.close()

    with quorlock.Redlock(nodes.urls, **SETTINGS) as inherited, inherited.lock("a") as lease:
        in_child(work)
        lease.extend(20)
        assert len(left_over(nodes)) >= 2
        with inherited.lock("b", timeout=0):
            pass


linux = pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc")


def sockets() -> set[str]:
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this very listing
            found.add(str(path.readlink()))
    return {name for name in found if name.startswith(("socket", "pipe"))}


@linux
@both
async def test_a_forked_child_has_no_end_of_a_connection(face: Face, nodes: MemoryNodes) -> None:
    """Neither the client's nor the node's, nor the thread's bell."""
    before = sockets()

    def work() -> None:
        left = sockets() - before
        assert len(left) == 1, "the pipe of this test is the only new one"

    async with face.redlock(nodes.urls, **PATIENT) as redlock, redlock.lock("a"):
        assert len(sockets() - before) >= 4, "two connections at least"
        in_child(work)


async def from_asyncio(urls: list[str]) -> None:
    async with aio.Redlock(urls, **SETTINGS) as redlock:
        await redlock.lock("b").acquire(timeout=0)


def test_a_child_of_one_that_never_had_a_node_is_refused() -> None:
    """Otherwise a pool of workers would begin with one node each, and a lock would not exclude."""
    source = """
        import os, quorlock
        inherited = quorlock.Redlock(["memory://a"])
        if os.fork() == 0:
            for redlock in (inherited, quorlock.Redlock(["memory://b"])):
                try:
                    redlock.lock("a").acquire(timeout=0)
                except quorlock.NodeError as error:
                    print(error, flush=True)
            os._exit(0)
        os.wait()
        with inherited.lock("a"):
            print("locked")
        """
    run = run_program(dedent(source))
    *refusals, last = run.stdout.splitlines()
    assert last == "locked"
    assert len(refusals) == 2
    assert all("live in the process that made them" in refusal for refusal in refusals)


def test_a_forked_child_may_begin_with_its_own(nodes: MemoryNodes) -> None:
    """Nodes of the same names share nothing with the parent's after reset()."""

    def work() -> None:
        memory.reset()
        with quorlock.Redlock(nodes.urls) as redlock, redlock.lock("a", timeout=0):
            assert memory.node(nodes[0].name).keys() == [b"a"]
        asyncio.run(from_asyncio(nodes.urls))

    with quorlock.Redlock(nodes.urls) as redlock, redlock.lock("a") as lease:
        in_child(work)
        assert lease.release() is True
    assert left_over(nodes) == {}


@both
async def test_a_living_child_keeps_no_connection_open(face: Face, nodes: MemoryNodes) -> None:
    """The parent's thread ends when the parent has closed, though a child of it lives on."""
    release, hold = os.pipe()
    async with face.redlock(nodes.urls, **PATIENT) as redlock:
        async with redlock.lock("a"):
            pass
        pid = os.fork()
        if pid == 0:
            try:
                os.close(hold)
                os.read(release, 1)
            finally:
                os._exit(0)
    ended = await until_async(lambda: serving() == [], 2.0)
    os.close(hold)
    os.close(release)
    os.waitpid(pid, 0)  # noqa: ASYNC222 (it ends now)
    assert ended


def run_program(source: str) -> subprocess.CompletedProcess[str]:
    """Run it in a separate process, in which Python warns of everything that was left."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", source]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


PROGRAMS = {
    "blocking, lease held": """
        redlock = quorlock.Redlock(urls)
        lease = redlock.lock("a").acquire()
        """,
    "blocking, in a thread": """
        redlock = quorlock.Redlock(urls)
        def work():
            while True:
                with redlock.lock("a"):
                    pass
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.05)
        """,
    "blocking, a node hung and owed": """
        redlock = quorlock.Redlock(urls)
        lease = redlock.lock("a").acquire()
        node("a").hang()
        node("b").stop()
        """,
    "asyncio, lease held": """
        async def main():
            global redlock, lease
            redlock = quorlock.asyncio.Redlock(urls)
            lease = await redlock.lock("a").acquire()
        asyncio.run(main())
        """,
    "nothing but a node": "node('a').execute('SET', 'a', 'x')",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_ends_without_a_word(program: str) -> None:
    head = """
        import asyncio, logging, threading, time
        import quorlock, quorlock.asyncio
        from quorlock.testing.memory import node
        # That a callback took 100 ms is no noise of ours: on a busy machine any may.
        quick = lambda said: not said.msg.startswith("Executing %s took")
        logging.getLogger("asyncio").addFilter(quick)
        urls = ["memory://a", "memory://b", "memory://c"]
        """
    run = run_program(dedent(head) + dedent(PROGRAMS[program]))
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_socket_that_cannot_be_had(nodes: MemoryNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of descriptors: the node is down, in the system's words, and nothing else happens."""

    def refuse() -> None:
        raise OSError(24, "Too many open files")

    with quorlock.Redlock(nodes.urls, **PATIENT) as redlock:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socketpair", refuse)
            with pytest.raises(QuorumUnreachable, match="too many open files"):
                redlock.lock("a").acquire(timeout=0)
        with redlock.lock("a", timeout=20):
            pass
