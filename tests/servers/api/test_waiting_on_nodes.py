"""Waiting on nodes that differ: servers or users without RESP3, and nodes behind TLS."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from quorlock.testing.servers import Servers
from tests.harness.support.impostors import TlsFront
from tests.harness.support.stats import scripts_asked
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, all_up, left_over

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorlock.testing.servers import Server

SETTINGS: dict[str, Any] = {"node_timeout": 1.0, "connect_timeout": 5.0}
PATIENCE = 10.0  # the longest wait; less than a second is usual
NO_RESP3 = "it does not speak RESP3"
TURNS = 10  # of each client


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a call ends a wait: neither a look nor a poll comes in time."""
    for name in ("_LOOKS", "_FIRST_LOOK", "_FIRST_LOOK_BEHIND"):
        long = 90_000_000_000
        monkeypatch.setattr(
            f"quorlock._core.waiter.{name}", (long, long) if name == "_LOOKS" else long
        )


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[Servers, Servers]]:
    """Five servers by unix socket and TCP, and three that have no HELLO, as before Redis 6."""
    # No permission forbids HELLO: servers do not ask for one.
    no_hello = ("--rename-command", "HELLO", "")
    with Servers(5, tcp=True) as five, Servers(3, options=no_hello) as old:
        yield five, old


@pytest.fixture
def five(started: tuple[Servers, Servers]) -> Servers:
    return emptied(started[0])


@pytest.fixture
def old(started: tuple[Servers, Servers]) -> Servers:
    return emptied(started[1])


def emptied(servers: Servers) -> Servers:
    for server in servers:
        server.left_alone(5.0)
        server.flush()
    return servers


def queued(nodes: Sequence[Server]) -> list[int]:
    """Return how many wait in the queue of each node."""
    return [node.execute("ZCARD", "quorlock:queue:x") for node in nodes]


async def assert_nothing_is_left(nodes: Sequence[Server]) -> None:
    assert await until_async(lambda: not any(queued(nodes)))
    assert left_over(nodes) == {}


async def take_turns(face: Face, nodes: list[str], **settings: Any) -> float:
    """Let two clients of two workers each compete; return the longest wait.

    No call fails, and no two have the lock at the same time.
    """
    turns: list[tuple[float, float]] = []
    waits: list[float] = []
    async with (
        face.redlock(nodes, **SETTINGS | settings) as one,
        face.redlock(nodes, **SETTINGS | settings) as other,
    ):

        async def work(index: int) -> None:
            lock = (one, other)[index % 2].lock("x", timeout=PATIENCE)
            for _ in range(TURNS):
                asked = time.monotonic()
                async with lock:
                    began = time.monotonic()
                    await asyncio.sleep(0.001)
                    turns.append((began, time.monotonic()))
                waits.append(began - asked)
                await asyncio.sleep(0.001)

        assert await face.crowd(4, work) == [None] * 4
    assert len(turns) == 4 * TURNS
    assert all(first[1] <= then[0] for first, then in pairwise(sorted(turns)))
    return max(waits)


async def test_servers_without_resp3(face: Face, old: Servers) -> None:
    """Waiters poll: each gets the lock, without an error; the status has the reason."""
    longest = await take_turns(face, old.urls, retry_delay=(0.002, 0.01))
    print(f"\n{face.name}: longest wait {longest * 1e3:.0f} ms")
    async with face.redlock(old.urls, **SETTINGS) as redlock:
        assert await all_up(redlock)
        assert {(each.queues, each.queues_why) for each in redlock.nodes} == {(False, NO_RESP3)}
    await assert_nothing_is_left(old)


@pytest.mark.usefixtures("no_looks")
@pytest.mark.parametrize("count", [2, 3])
async def test_a_wait_with_some_nodes_without_resp3(
    face: Face, five: Servers, old: Servers, count: int
) -> None:
    """The waiter is called if a quorum of the others is there; else it polls."""
    nodes = [*old[:count], *five[count:]]
    polls = count == 3
    settings = SETTINGS | {"retry_delay": (0.005, 0.01) if polls else (60.0, 60.0)}
    urls = [node.url for node in nodes]
    async with face.redlock(urls, **settings) as redlock, face.redlock(urls, **settings) as own:
        assert await all_up(own)
        lease = await redlock.lock("x").acquire()

        async def work(index: int) -> None:
            if not index:
                async with own.lock("x", timeout=PATIENCE):
                    return
            asked = scripts_asked(nodes[4])
            if polls:
                assert await until_async(lambda: scripts_asked(nodes[4]) > asked + 20)
                assert queued(nodes) == [0] * 5
            else:
                assert await until_async(lambda: queued(nodes)[count:] == [1] * 3)
                assert (await redlock.inspect("x")).waiters == 1
            await lease.release()

        assert await face.crowd(2, work) == [None] * 2
        status = [(node.up, node.queues, node.queues_why) for node in own.nodes]
        assert status == [(True, False, NO_RESP3)] * count + [(True, True, "")] * (5 - count)
        await assert_nothing_is_left(nodes)


@pytest.mark.parametrize("count", [2, 3])
async def test_turns_with_some_nodes_without_resp3(
    face: Face, five: Servers, old: Servers, count: int
) -> None:
    """Each gets the lock, without an error."""
    nodes = [*old[:count], *five[count:]]
    longest = await take_turns(face, [node.url for node in nodes], retry_delay=(0.002, 0.01))
    print(f"\n{face.name}, {count} of 5: longest wait {longest * 1e3:.0f} ms")
    await assert_nothing_is_left(nodes)


@pytest.mark.usefixtures("no_looks")
async def test_waiting_over_tls(face: Face, five: Servers) -> None:
    """Waiters are called as over TCP, and send as many commands."""
    with ExitStack() as stack:
        fronts = [stack.enter_context(TlsFront(server.tcp_url)) for server in five]
        tls = [f"rediss://127.0.0.1:{each.port}?ssl_ca_certs={each.ca_file}" for each in fronts]
        counts = []
        for urls in (five.tcp_urls, tls):
            before = sum(map(scripts_asked, five))
            await take_turns(face, urls, retry_delay=(60.0, 60.0))
            counts.append((sum(map(scripts_asked, five)) - before) / (5 * 4 * TURNS))
    plain, secret = counts
    print(f"\n{face.name}: scripts for each turn and node {plain:.2f}, over TLS {secret:.2f}")
    assert secret < 1.5 * plain
    await assert_nothing_is_left(five)
