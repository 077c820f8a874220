"""Acceptance 3: a hung node causes no wait, and no key stays on it when it resumes."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import quorlock
import quorlock.asyncio
from quorlock import AcquireError, AcquireTimeout, QuorumUnreachable
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import Proxy
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, emptied, holders, left_over, raises, sees_all
from tests.servers.api.test_dead_nodes import cycles, report

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS: dict[str, Any] = {"node_timeout": 0.25, "connect_timeout": 0.5}
CYCLES = 50


async def test_one_of_five_hung(face: Face, mortal_nodes: Servers) -> None:
    """No call waits for it: each cycle takes far less than a node_timeout; after SIGCONT no node
    has a key.
    """
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        healthy = await cycles(redlock, CYCLES)
        for hung in (mortal_nodes[0], mortal_nodes[4]):
            hung.stop()
            faulty = await cycles(redlock, CYCLES)
            report(face, healthy, faulty, "1 of 5 hung")
            assert sum(faulty) < CYCLES * SETTINGS["node_timeout"] / 4
            async with redlock.lock("a") as lease:
                await lease.extend(20)
                assert not await redlock.lock("a").try_acquire()
            hung.cont()
            assert await emptied(mortal_nodes)
            await cycles(redlock, 5)
    assert left_over(mortal_nodes) == {}


async def test_what_is_said_of_a_hung_quorum(face: Face, mortal_nodes: Servers) -> None:
    """docs/reference/errors.md has the words: of few attempts, of many, and of `redlock.nodes`."""
    page = Path(__file__).parents[3] / "docs" / "reference" / "errors.md"
    (row,) = re.findall(r"^\| hangs after a good start .*$", page.read_text(), re.MULTILINE)
    async with face.redlock(mortal_nodes.urls, node_timeout=0.02) as redlock:
        assert await sees_all(redlock)
        for node in mortal_nodes[:3]:
            node.stop()
        said = set[str]()
        while len(said) < 2:  # each attempt adds to the requests that they have not read
            error = await raises(QuorumUnreachable, redlock.lock("a").acquire(timeout=0))
            said |= {vote.cause for vote in error.votes[:3]}
        assert said == {"no answer in time", "too many replies are pending"}
        assert all(f"`{cause}`" in row for cause in said)
        assert "`no answer for " in row
        assert all(status.why.startswith("no answer for ") for status in redlock.nodes[:3])


async def test_a_hung_node_gets_more_requests_than_its_backlog_allows(
    face: Face, mortal_nodes: Servers
) -> None:
    """Far more rounds than a hung node's backlog allows: all succeed, and all locks are
    released.
    """
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        await cycles(redlock, 3)
        mortal_nodes[2].stop()
        for _ in range(4):
            await cycles(redlock, 400)
        mortal_nodes[2].cont()
        assert await emptied(mortal_nodes)
        await cycles(redlock, 20)
    assert left_over(mortal_nodes) == {}


async def test_a_node_that_stays_hung_gets_no_more_extensions(face: Face, nodes: Servers) -> None:
    """Once the node has been silent for longer than their ttl. Renewal would fill the memory.

    Releases go there as before, and extensions again once it replies.
    """

    def is_sent(lease: quorlock.asyncio.Lease) -> Callable[[], bool]:
        token = lease.token.encode()
        return lambda: any(token in c for c in proxy.requests if c[0].startswith(b"EVAL"))

    def extensions() -> int:
        token = lease.token.encode()
        return sum(c[0].startswith(b"EVAL") and token in c for c in proxy.requests)

    ttl = 0.4
    with Proxy(nodes.urls[4]) as proxy:
        urls = [*nodes.urls[:4], proxy.url]
        async with face.redlock(urls, node_timeout=0.1) as redlock:
            await sees_all(redlock)
            lease, *others = [await redlock.lock(f"r{n}", ttl=20).acquire() for n in range(3)]
            proxy.hold(requests=False)
            for _ in range(60):  # more than fits into what a hung node may be sent
                await lease.extend(ttl)
            silent_until = quorlock.now() + ttl
            assert await until_async(lambda: quorlock.now() > silent_until)
            assert await others[0].release()
            assert await until_async(is_sent(others[0]))
            before = extensions()
            for _ in range(5):
                await lease.extend(ttl)
            assert await others[1].release()
            assert await until_async(is_sent(others[1]))
            assert before > 0
            assert extensions() == before
            proxy.resume()
            await sees_all(redlock)
            await lease.extend(ttl)
            assert await until_async(lambda: extensions() > before)
            assert await lease.release()


async def test_waiters_that_give_up_send_a_hung_node_nothing(face: Face, nodes: Servers) -> None:
    """A node that was not sent their places to queue is not sent the removals.

    Each needs memory until the node resumes: it grew without an end.
    """
    with Proxy(nodes[0].url) as proxy:
        async with face.redlock([proxy.url, *nodes.urls[1:3]], **SETTINGS) as redlock:
            lease = await redlock.lock("a", ttl=30).acquire()

            async def give_up() -> None:
                for _ in range(40):
                    await raises(AcquireTimeout, redlock.lock("a", timeout=0.01).acquire())

            proxy.hold(requests=False)  # so that the proxy reads on, and records
            await give_up()
            asked = len(proxy.requests)
            await give_up()
            assert len(proxy.requests) == asked
            proxy.resume()
            await lease.release()


async def test_twenty_end_while_a_node_hangs(face: Face, mortal_nodes: Servers) -> None:
    """The node gets no more than it reads at once when it resumes: each acquire has its release."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        await cycles(redlock, 3)
        assert await emptied(mortal_nodes)
        mortal_nodes[4].stop()

        async def work(index: int) -> None:
            for _ in range(20):
                lease = await redlock.lock(f"r{index}").acquire(timeout=5)
                assert await lease.release()

        turns = await face.crowd(20, work)
        assert turns == [None] * 20
    mortal_nodes[4].cont()
    assert await emptied(mortal_nodes), left_over(mortal_nodes)


async def test_a_bare_majority_of_which_one_was_cut_off(face: Face, mortal_nodes: Servers) -> None:
    """Two hung, and the way to a third is only just being remade: the release waits for it."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        await cycles(redlock, 3)
        for hung in mortal_nodes[3:]:
            hung.stop()
        for _ in range(5):
            lease = await redlock.lock("a").acquire()
            mortal_nodes[0].execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            while redlock.nodes[0].up:  # noqa: ASYNC110 (a longer look away would miss it)
                await asyncio.sleep(0)
            assert await lease.release() is True
            assert left_over(mortal_nodes[:3]) == {}
        for hung in mortal_nodes[3:]:
            hung.cont()
        assert await emptied(mortal_nodes)


async def test_limit_a_paused_server_drops_what_a_client_that_closes_has_sent(
    mortal_nodes: Servers,
) -> None:
    """DOCUMENTED LIMIT of CLIENT PAUSE: the release is read, and dropped as its client has gone.

    The blocking API tries once more before it gives up, which makes the end hard to see.
    """
    paused = mortal_nodes[0]
    async with quorlock.asyncio.Redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire()
        assert await until_async(lambda: None not in holders(mortal_nodes, "a"))
        paused.execute("CLIENT", "PAUSE", 60_000, "WRITE")
        assert lease.held
    assert paused.left_alone(5.0)
    paused.execute("CLIENT", "UNPAUSE")
    assert left_over(mortal_nodes) == {paused.path: [b"a"]}


async def test_hung_from_the_start(face: Face, mortal_nodes: Servers) -> None:
    """A node that accepts and never answers to connecting does not keep anybody from locking."""
    mortal_nodes[1].stop()
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        await cycles(redlock, 3)
        mortal_nodes[1].cont()
        assert await emptied(mortal_nodes)
    assert left_over(mortal_nodes) == {}


async def test_three_of_five_hung(face: Face, mortal_nodes: Servers) -> None:
    """Calls end at their deadlines with QuorumUnreachable, naming the three; once they resume, no
    key is left.
    """
    settings = {"node_timeout": 0.05, "connect_timeout": 0.2, "outage_timeout": 0.5}
    async with face.redlock(mortal_nodes.urls, **settings) as redlock:
        await cycles(redlock, 3)
        for node in mortal_nodes[:3]:
            node.stop()
        for timeout, least in ((0, 0.0), (0.2, 0.2), (None, 0.35)):
            began = quorlock.now()
            error = await raises(QuorumUnreachable, redlock.lock("a").acquire(timeout=timeout))
            took = quorlock.now() - began
            print(f"\n{face.name}: timeout={timeout}: {took:.3f} s, {error.attempts} attempts")
            assert least <= took < 0.5 + 5, "a generous slack for a busy machine"
            absent = {vote.node for vote in error.votes if not vote.answered}
            assert absent >= {node.path for node in mortal_nodes[:3]}
            # Locks on the two live nodes are released without waiting for the others.
            assert await emptied(mortal_nodes[3:])
        for node in mortal_nodes[:3]:
            node.cont()
        assert await emptied(mortal_nodes)
        lease = await redlock.lock("a").acquire(timeout=30)
        assert await lease.release() is True
    assert left_over(mortal_nodes) == {}


@pytest.mark.usefixtures("owned_connections")
@pytest.mark.parametrize("contenders", [6, 40])
async def test_nothing_stays_behind_where_a_node_hangs_and_wakes(
    face: Face, mortal_nodes: Servers, contenders: int
) -> None:
    """Contenders with random resources, while one node after another is stopped and continued: in
    the end, with the Redlock open, no node has a key.
    """
    seed = random.randrange(1 << 32)
    print(f"\nseed {seed}")
    entropy = random.Random(seed)
    settings = {"node_timeout": 0.02, "retry_delay": (0.001, 0.005)}
    async with face.redlock(mortal_nodes.urls, **settings) as redlock:
        over = threading.Event()
        inside: set[str] = set()

        async def contend(index: int) -> int:
            own = random.Random(seed + index)
            turns = 0
            while not over.is_set():
                resource = f"r{own.randrange(contenders * 3 // 2)}"
                try:
                    lease = await redlock.lock(resource, ttl=10).acquire(timeout=0.05)
                except AcquireError:
                    await asyncio.sleep(0)
                    continue
                assert resource not in inside
                inside.add(resource)
                turns += 1
                if own.random() < 0.3:
                    await lease.extend(10)
                inside.remove(resource)
                await lease.release()
            return turns

        def torment() -> None:
            end = quorlock.now() + 2.0
            while quorlock.now() < end:
                node = mortal_nodes[entropy.randrange(5)]
                node.stop()
                over.wait(entropy.uniform(0.005, 0.15))
                node.cont()
                over.wait(entropy.uniform(0.0, 0.05))
            over.set()

        tormentor = threading.Thread(target=torment)
        tormentor.start()
        try:
            turns = await face.crowd(contenders, contend)
        finally:
            tormentor.join()
        assert not [error for error in turns if isinstance(error, BaseException)], turns
        print(f"{face.name}: turns {turns}")
        assert await emptied(mortal_nodes), left_over(mortal_nodes)
    assert left_over(mortal_nodes) == {}
