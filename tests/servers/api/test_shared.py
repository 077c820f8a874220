"""Shared locks with both APIs: many readers, or one that holds the lock alone."""

from __future__ import annotations

import asyncio
import pickle
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from quorlock import AcquireTimeout, ConfigError, LeaseLost, QuorlockError, Ticket
from quorlock._core.places import QUEUE, RESERVED
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import Proxy
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, emptied, left_over, raises


def waiting(nodes: Servers) -> int:
    """Return how many wait in the queues of a quorum of nodes."""
    return int(sorted([node.execute("ZCARD", QUEUE + b"doc") for node in nodes])[-3])


def readers(nodes: Servers, resource: str = "doc") -> list[list[bytes]]:
    """Return the tokens of the readers on each node; [] where there are none."""
    return [node.execute("ZRANGE", resource, "0", "-1") for node in nodes]


async def test_readers_share_and_exclude_a_writer(face: Face, nodes: Servers) -> None:
    """Many hold it at a time; a writer, also one that tries as plain SET NX does, is refused."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        shared, alone = redlock.lock("doc", shared=True, ttl=9), redlock.lock("doc", ttl=9)
        assert (shared.shared, alone.shared, shared.resource) == (True, False, "doc")
        leases = [await shared.acquire() for _ in range(4)]
        assert all(lease.shared and lease.held and lease.fence is None for lease in leases)
        tokens = {lease.token.encode() for lease in leases}
        assert sum(set(found) == tokens for found in readers(nodes)) >= 3
        assert await alone.try_acquire() is None
        assert await redlock.lock("doc", fencing=True).try_acquire() is None
        assert await redlock.lock("doc", "other").try_acquire() is None
        assert await redlock.semaphore("doc", 1).locked() is False
        assert await redlock.any_of("doc").try_acquire() is None
        assert await shared.locked()
        for lease in leases:
            assert await alone.try_acquire() is None
            assert await lease.release()
            assert not await lease.release()
        async with alone as lease:
            assert not lease.shared
            assert await shared.try_acquire() is None
        assert not await shared.locked()
    assert left_over(nodes) == {}


async def test_each_reader_has_its_own_end(face: Face, nodes: Servers) -> None:
    """The key lives as long as the last of them, and a release brings it down to the next."""
    async with face.redlock(nodes.urls, node_timeout=0.2) as redlock:
        long = await redlock.lock("doc", shared=True, ttl=20).acquire()
        short = await redlock.lock("doc", shared=True, ttl=2).acquire()
        assert min(node.execute("PTTL", "doc") for node in nodes) > 15_000
        await short.extend(1)  # never shortens
        assert short.validity > 1.5
        await long.release()
        assert await until_async(
            lambda: max(node.execute("PTTL", "doc") for node in nodes) <= 2_000
        )
        await short.extend(9)
        assert sum(node.execute("PTTL", "doc") > 8_000 for node in nodes) >= 3
        assert await short.release()
    assert left_over(nodes) == {}


async def test_neither_side_starves(face: Face, nodes: Servers) -> None:
    """A writer that waits goes before later readers, and those before the writer after it."""
    order: list[str] = []

    async def queued(count: int) -> None:
        """Wait until a quorum of nodes has so many in its queue."""
        assert await until_async(lambda: waiting(nodes) >= count)

    async with (
        face.redlock(nodes.urls, node_timeout=1.0) as redlock,
        face.redlock(nodes.urls, node_timeout=1.0) as other,
    ):
        first = await redlock.lock("doc", shared=True).acquire()

        async def work(index: int) -> None:
            if index == 4:  # leaves no sign, and waits for none
                await queued(1)
                assert await redlock.lock("doc", shared=True).try_acquire() is None
                await queued(4)
                assert await first.release()
                return
            await queued((0, 1, 1, 3)[index])
            name = ("writer", "reader", "reader", "next writer")[index]
            client, is_shared = (other if index == 3 else redlock), name == "reader"
            lease = await client.lock("doc", shared=is_shared).acquire(timeout=20)
            order.append(name)
            await asyncio.sleep(0.02)
            await lease.release()

        outcomes = await face.crowd(5, work)
    assert outcomes == [None] * 5
    assert order == ["writer", "reader", "reader", "next writer"]
    assert left_over(nodes) == {}


async def test_readers_of_one_process_hold_it_at_once(face: Face, nodes: Servers) -> None:
    """Also when they had to wait: they do not stand in a line, as callers for a lock alone do."""
    inside: set[int] = set()
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        alone = await redlock.lock("doc").acquire()

        async def work(index: int) -> bool:
            if not index:
                assert await until_async(lambda: waiting(nodes) >= 5)
                return await alone.release()
            lease = await redlock.lock("doc", shared=True).acquire(timeout=20)
            inside.add(index)
            together = await until_async(lambda: len(inside) == 5)
            await lease.release()
            return together

        assert await face.crowd(6, work) == [True] * 6
    assert left_over(nodes) == {}


async def test_the_error_names_readers(face: Face, nodes: Servers) -> None:
    async with (
        face.redlock(nodes.urls, node_timeout=1.0, owner="web-1") as redlock,
        face.redlock(nodes.urls, node_timeout=1.0, owner="web-2") as other,
    ):
        leases = [await each.lock("doc", shared=True).acquire() for each in (redlock, other)]
        for timeout in (0, 0.1):
            error = await raises(AcquireTimeout, redlock.lock("doc").acquire(timeout=timeout))
            assert error.shared_by == 2
            assert error.holder in ("web-1, web-2", "web-2, web-1")
            assert f"is held by 2 who share it ({error.holder})" in str(error)
            assert "the last lease ends in at most" in str(error)
            assert error.holder_ttl is not None
            assert 8 < error.holder_ttl <= 10
            copy = pickle.loads(pickle.dumps(error))
            assert (str(copy), copy.shared_by) == (str(error), 2)
        assert await leases[0].release()
        error = await raises(AcquireTimeout, redlock.lock("doc").acquire(timeout=0))
        assert "is held by a reader (web-2)" in str(error)
        await leases[1].release()


async def test_inspection_shows_every_reader(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, node_timeout=1.0, owner="web-1") as redlock:
        leases = [await redlock.lock("doc", shared=True).acquire() for _ in range(3)]
        found = await redlock.inspect("doc")
        assert (found.verdict, found.shared, found.owner) == ("held", True, None)
        assert [reader.owner for reader in found.readers] == ["web-1"] * 3
        assert all(8 < reader.ttl_left <= 10 for reader in found.readers)
        assert all(view.holder is None and len(view.readers) == 3 for view in found.nodes)
        # One is broken, and the others stay.
        assert await redlock.break_lease("doc", found.readers[0].holder)
        after = await redlock.inspect("doc")
        assert set(after.readers) < set(found.readers) or len(after.readers) == 2
        assert found.readers[0].holder not in [reader.holder for reader in after.readers]
        assert not await redlock.break_lease("doc", found.readers[0].holder)
        assert sorted([await lease.release() for lease in leases]) == [False, True, True]
        assert (await redlock.inspect("doc")).verdict == "free"


async def test_inspection_of_readers_without_a_quorum(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        for index, node in enumerate(nodes):
            node.execute("ZADD", "doc", "9999999999999", f"reader {index}")
        found = await redlock.inspect("doc")
        assert (found.verdict, found.readers, found.shared) == ("split", (), False)
        for node in nodes:
            node.execute("DEL", "doc")
            node.execute("ZADD", "doc", "9999999999999", RESERVED + b"1:1:1:shared")
        assert (await redlock.inspect("doc")).verdict == "passing"
        for node in nodes:
            node.execute("DEL", "doc")


async def test_a_reader_is_handed_over(face: Face, nodes: Servers) -> None:
    async with (
        face.redlock(nodes.urls, node_timeout=1.0) as redlock,
        face.redlock(nodes.urls, node_timeout=1.0) as other,
    ):
        lease = await redlock.lock("doc", shared=True).acquire()
        keeper = await redlock.lock("doc", shared=True).acquire()
        ticket = Ticket.from_json((await lease.hand_over()).to_json())
        assert ticket.shared
        adopted = await other.adopt(ticket, renew=True)
        assert adopted.shared
        assert await other.lock("doc").try_acquire() is None
        assert await redlock.extend("doc", adopted.token)
        assert await redlock.release("doc", adopted.token)
        assert not await redlock.extend("doc", adopted.token)
        assert keeper.held
        assert await keeper.release()
        await adopted.release()
    assert left_over(nodes) == {}


async def test_renewal_keeps_each_reader(face: Face, nodes: Servers) -> None:
    """A node that lost the readers gets each of them back: as a reader, and not as a string."""
    async with face.redlock(nodes.urls, node_timeout=0.15) as redlock:
        leases = [
            await redlock.lock("doc", shared=True, ttl=0.6, renew=True).acquire() for _ in range(3)
        ]
        tokens = {lease.token.encode() for lease in leases}
        nodes[0].execute("DEL", "doc")
        assert await until_async(lambda: all(set(found) == tokens for found in readers(nodes)))
        await asyncio.sleep(1.2)
        assert all(lease.held for lease in leases)
        assert await redlock.lock("doc").try_acquire() is None
        for lease in leases:
            assert await lease.release()
    assert left_over(nodes) == {}


async def test_a_lost_reader_is_reported(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        lease = await redlock.lock("doc", shared=True).acquire()
        other = await redlock.lock("doc", shared=True).acquire()
        for node in nodes:
            node.execute("ZREM", "doc", lease.token)
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason == "evicted"
        for node in nodes:
            node.execute("SET", "doc", "another", "PX", "5000")
        lost = await raises(LeaseLost, other.extend())
        assert lost.reason == "taken"


async def test_a_writer_that_readers_replaced_is_taken(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        lease = await redlock.lock("doc").acquire()
        for node in nodes:
            node.execute("DEL", "doc")
        reader = await redlock.lock("doc", shared=True).acquire()
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason == "taken"
        assert reader.held
        assert not await lease.release()
        assert reader.held
        assert await reader.release()


async def test_a_writer_that_left_while_cut_off_keeps_no_reader_out(
    face: Face, nodes: Servers
) -> None:
    """The process waits for another lock by then, so the place does not look dead."""
    stop, stop_other = threading.Event(), threading.Event()

    def queued(resource: bytes) -> list[int]:
        return [node.execute("ZCARD", QUEUE + resource) for node in nodes]

    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(url)) for url in nodes.urls]
        async with (
            face.redlock([proxy.url for proxy in proxies], node_timeout=0.3) as redlock,
            face.redlock(nodes.urls, node_timeout=1.0) as other,
        ):
            held = await other.lock("doc", shared=True, ttl=20).acquire()
            busy = await other.lock("busy", ttl=20).acquire()

            async def wait() -> None:
                await raises(QuorlockError, redlock.lock("doc").acquire(stop=stop))
                for proxy in proxies:
                    proxy.accept_again()
                await raises(QuorlockError, redlock.lock("busy").acquire(stop=stop_other))

            async def read() -> None:
                assert await until_async(lambda: all(queued(b"doc")))
                for proxy in proxies:
                    proxy.refuse()
                    proxy.cut()
                stop.set()
                try:
                    assert await until_async(lambda: all(queued(b"busy")))
                    assert await until_async(lambda: not any(queued(b"doc")))
                    async with other.lock("doc", shared=True, timeout=5):
                        pass
                finally:
                    stop_other.set()

            assert await face.crowd(2, lambda index: (wait, read)[index]()) == [None] * 2
            assert await held.release()
            assert await busy.release()


async def test_a_dead_waiter_keeps_no_reader_out(face: Face, nodes: Servers) -> None:
    """A place whose process is gone is removed by the next reader, not waited for."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        first = await redlock.lock("doc", shared=True).acquire()
        for node in nodes:
            node.execute("ZADD", QUEUE + b"doc", "1", "00000000000000d1:1:100")
        second = await redlock.lock("doc", shared=True).try_acquire()
        assert second is not None
        assert await first.release()
        assert await second.release()
    assert left_over(nodes) == {}


async def test_reentrant_readers(face: Face, nodes: Servers) -> None:
    """Nested acquires are counted here: no waiting writer comes between. No upgrade."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        shared, alone = redlock.rlock("doc", shared=True), redlock.rlock("doc")
        assert shared.shared
        async with shared as outer, shared as inner:
            assert inner.token == outer.token
            assert outer.shared
            error = await raises(ConfigError, alone.acquire())
            assert "shares 'doc': release it before it is held alone" in str(error)
        async with alone as outer, shared as inner:
            assert inner.token == outer.token
            assert not inner.shared
    assert left_over(nodes) == {}


async def test_bad_input(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as redlock:
        cases: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
            ({"shared": 1}, ("doc",), "shared=1: give True or False"),
            ({"shared": None}, ("doc",), "shared=None: give True or False"),
            ({"shared": True, "fencing": True}, ("doc",), "leases that are shared have no fence"),
            ({"shared": True}, ("a", "b"), "a lock on several resources cannot be shared"),
        ]
        for arguments, names, text in cases:
            with pytest.raises(ConfigError, match=text):
                redlock.lock(*names, **arguments)
        with pytest.raises(ConfigError, match="no fence"):
            redlock.rlock("doc", shared=True, fencing=True)
        lease = await redlock.lock("doc", shared=True).acquire()
        keep: Any = lease.keep
        error = await raises(ConfigError, keep(5)) if face.name == "asyncio" else None
        assert error is None or "not shared" in str(error)
        await lease.release()
    assert await emptied(nodes)


def test_threads_of_a_thread_pool_share(nodes: Servers) -> None:
    """Sixteen threads hold it together, and a decorator has it too."""
    import quorlock

    barrier = threading.Barrier(16, timeout=20)
    with quorlock.Redlock(nodes.urls, node_timeout=1.0) as redlock:

        @redlock.lock("doc", shared=True)
        def read() -> None:
            barrier.wait()

        threads = [threading.Thread(target=read) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not barrier.broken
    assert left_over(nodes) == {}
