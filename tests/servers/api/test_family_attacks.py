"""Attacks on semaphores, several locks at once, elections and once: what their own tests omit."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from quorlock import LeaseLost, QuorlockError
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import Proxy
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, all_up, emptied, keys_on, raises, real

SETTINGS: dict[str, Any] = {"node_timeout": 0.25, "retry_delay": (0.002, 0.01)}


async def test_nodes_that_reply_late_leave_no_permit(face: Face, nodes: Servers) -> None:
    """Two of five are slow: their grants arrive after the verdict, some for another permit."""
    with Proxy(nodes[3].url) as first, Proxy(nodes[4].url) as second:
        urls = [*nodes.urls[:3], first.url, second.url]
        async with face.redlock(urls, **SETTINGS) as redlock:
            assert await all_up(redlock)
            semaphore = redlock.semaphore("pool", 4)
            for _ in range(4):
                for proxy in (first, second):
                    proxy.hold(requests=False)
                held = [await semaphore.acquire() for _ in range(4)]
                for proxy in (first, second):
                    proxy.resume()
                assert {lease.permit for lease in held} == {0, 1, 2, 3}
                assert await semaphore.try_acquire() is None
                for lease in held:
                    assert await lease.release()
        assert await emptied(nodes)


async def test_the_last_of_many_permits_with_a_node_down(face: Face, mortal_nodes: Servers) -> None:
    """The only free one is in the second window, and a node of five is dead."""
    nodes = mortal_nodes
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        assert await all_up(redlock)
        nodes[2].kill()
        semaphore = redlock.semaphore("pool", 33, timeout=5.0)
        held = [await semaphore.acquire() for _ in range(33)]
        assert {lease.permit for lease in held} == set(range(33))
        assert await semaphore.try_acquire() is None
        free = held[20].permit
        await held[20].release()
        again = await semaphore.acquire()
        assert again.permit == free
        for lease in (*held[:20], *held[21:], again):
            assert await lease.release()
        assert await until_async(lambda: not keys_on(node for node in nodes if node.alive))


async def test_64_resources_with_a_hung_node(face: Face, mortal_nodes: Servers) -> None:
    """All or none, at the speed of the others; the hung node is clean once it resumes."""
    nodes = mortal_nodes
    names = [f"r{number}" for number in range(64)]
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        assert await all_up(redlock)
        nodes[0].stop()
        for _ in range(5):
            async with redlock.lock(*names, timeout=2.0) as lease:
                assert lease.resources == tuple(sorted(names))
                assert await redlock.lock("r63").try_acquire() is None
        async with redlock.lock("r5"):
            assert await redlock.lock(*names).try_acquire() is None
        nodes[0].cont()
        assert await emptied(nodes)


async def test_a_name_twice_is_one_lock(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lock = redlock.lock("a", b"a", "a")
        async with lock as lease:
            assert (lease.resource, lease.resources) == ("a", ("a",))
            assert await redlock.lock("a").try_acquire() is None
            await lease.extend()
        assert keys_on(nodes) == {}


async def test_a_dropped_lease_frees_its_permit(face: Face, nodes: Servers) -> None:
    """And that of the others stays."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        semaphore = redlock.semaphore("pool", 2)
        kept, dropped = await semaphore.acquire(), await semaphore.acquire()
        permit = dropped.permit
        del dropped
        gc.collect()
        again = await semaphore.acquire(timeout=5.0)
        assert again.permit == permit
        assert await kept.release()
        assert await again.release()


async def test_closing_ends_the_wait_for_a_permit(face: Face, nodes: Servers) -> None:
    """The waiting call fails, and leaves nothing; a thread and a task alike."""
    redlock = face.redlock(nodes.urls, **SETTINGS)
    async with face.redlock(nodes.urls) as other:
        first = await other.semaphore("pool", 1).acquire()
        waits = redlock.semaphore("pool", 1)

        async def acquire() -> Any:
            return await waits.acquire()

        if face.name == "asyncio":
            waiting: asyncio.Future[Any] = asyncio.ensure_future(acquire())
        else:
            waiting = asyncio.ensure_future(asyncio.to_thread(real(waits).acquire))
        await asyncio.sleep(0.1)
        await redlock.close()
        await raises(QuorlockError, waiting)
        assert await first.release()
        assert await emptied(nodes)


async def test_a_failing_body_beside_a_restart(face: Face, mortal_nodes: Servers) -> None:
    """A node forgets while the work fails: it may be done again, by one client."""
    nodes = mortal_nodes
    async with face.redlock(nodes.urls, max_ttl=3.0, ttl=2.0, **SETTINGS) as redlock:
        assert await all_up(redlock)
        lease = await redlock.once("mail", every=60.0).try_acquire()
        assert lease is not None

        async def fail() -> None:
            async with lease:
                nodes[1].kill()
                nodes[1].restart()
                raise ZeroDivisionError

        await raises(ZeroDivisionError, fail())
        again = await redlock.once("mail", every=60.0).try_acquire()
        assert again is not None
        async with again:
            assert await redlock.once("mail", every=60.0).try_acquire() is None
        assert await redlock.once("mail", every=60.0).try_acquire() is None


async def test_a_term_that_is_handed_over(face: Face, nodes: Servers) -> None:
    """No other is elected in between; the fence stays, and the deposed has no say."""
    async with face.redlock(nodes.urls, **SETTINGS) as one, face.redlock(nodes.urls) as two:
        term = await one.election("chief").campaign(timeout=2.0).acquire()
        fence = term.fence
        ticket = await term.hand_over()
        assert not term.held
        await raises(LeaseLost, term.extend())
        assert await two.lock("chief").try_acquire() is None
        adopted = await two.adopt(ticket)
        assert adopted.fence == fence
        leader = await one.election("chief").leader()
        assert leader is not None
        assert await adopted.release()
        assert await until_async(lambda: "chief" not in keys_on(nodes))
