# ruff: noqa: PT012 (how errors leave a block is what is tested)
"""The re-entrant lock in both APIs: who holds it, what is sent, and what a loss does."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import threading
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import AcquireTimeout, ConfigError, HoldLimitReached, LeaseLost
from quorlock.testing.memory import MemoryNodes
from quorlock.testing.servers import Servers
from tests.harness.support.stats import scripts_asked
from tests.harness.support.wait import until_async
from tests.servers.api.faces import (
    Face,
    emptied,
    holders,
    keys_on,
    left_over,
    raises,
    real,
    until_over,
    wipe,
)

TTL = 0.9
SETTINGS: dict[str, Any] = {"node_timeout": 0.1, "retry_delay": (0.01, 0.03), "ttl": TTL}


def asked(nodes: Servers) -> int:
    """Return how many commands the nodes have executed for locks: scripts and SET."""
    sets = 0
    for node in nodes:
        for line in node.execute("INFO", "commandstats").decode().splitlines():
            if line.startswith("cmdstat_set:"):
                sets += int(line.split("calls=")[1].split(",")[0])
    return sets + sum(map(scripts_asked, nodes))


async def test_a_nested_acquire_is_the_same_lease_and_sends_nothing(
    face: Face, nodes: Servers
) -> None:
    """Also through another RLock of the same Redlock; only the last release is sent."""
    async with face.redlock(nodes.urls) as redlock:
        outer, inner = redlock.rlock("a"), redlock.rlock("a")
        lease = await outer.acquire()
        everywhere = [lease.token.encode()] * 5
        assert await until_async(lambda: holders(nodes, "a") == everywhere)
        before = asked(nodes)
        assert real(await inner.acquire()) is real(lease)
        assert real(await outer.try_acquire()) is real(lease)
        assert await outer.release() is True
        assert await outer.release() is True
        assert asked(nodes) == before
        assert lease.held
        assert await inner.release() is True
        assert lease.valid_until == 0.0
        assert asked(nodes) > before
    assert left_over(nodes) == {}


async def test_a_release_too_many_is_refused(face: Face, nodes: Servers) -> None:
    """RuntimeError, as by threading.RLock; nothing else is released."""
    async with face.redlock(nodes.urls) as redlock:
        lock = redlock.rlock("a")
        assert "'a' is not held by this" in str(await raises(RuntimeError, lock.release()))
        await lock.acquire()
        assert await lock.release() is True
        await raises(RuntimeError, lock.release())


async def test_blocks_nest(face: Face, nodes: Servers) -> None:
    """The lock is free after the outermost one; an error of the body comes out unchanged."""
    async with face.redlock(nodes.urls) as redlock:
        async with redlock.rlock("a") as outer:
            async with redlock.rlock("a") as inner:
                assert real(inner) is real(outer)
            assert outer.held
        assert keys_on(nodes) == {}
        with pytest.raises(ZeroDivisionError) as raised:
            async with redlock.rlock("a"), redlock.rlock("a"):
                raise ZeroDivisionError
        assert not hasattr(raised.value, "__notes__")
        assert keys_on(nodes) == {}


async def test_every_redlock_is_another_client(face: Face, nodes: Servers) -> None:
    """The count is kept per Redlock: what another one holds excludes, in the same thread too."""
    async with face.redlock(nodes.urls) as one, face.redlock(nodes.urls) as two:
        async with one.rlock("a"):
            assert await two.rlock("a").try_acquire() is None
            await raises(AcquireTimeout, two.rlock("a").acquire(timeout=0))
            assert await one.lock("a").try_acquire() is None
            assert await two.rlock("a").locked()
            async with two.rlock("b"), one.rlock("c"):
                pass
        assert not await two.rlock("a").locked()


async def test_another_thread_or_task_waits(face: Face, nodes: Servers) -> None:
    """Many contenders with nested blocks: at most one is inside, and none holds another's."""
    async with face.redlock(nodes.urls, max_ttl=10.0) as redlock:
        lock = redlock.rlock("a", ttl=8.0, timeout=30.0)
        inside: list[int] = []

        async def work(number: int) -> None:
            for _ in range(5):
                async with lock, redlock.rlock("a", timeout=0.0):
                    inside.append(number)
                    await asyncio.sleep(0)
                    assert inside == [number]
                    inside.clear()

        assert await face.crowd(8, work) == [None] * 8
    assert left_over(nodes) == {}


async def test_a_child_task_is_not_its_parent(nodes: Servers) -> None:
    """asyncio: two children that were let in with their parent would be inside at once."""
    async with aio.Redlock(nodes.urls) as redlock:
        lock = redlock.rlock("a")

        async def child() -> None:
            assert await lock.try_acquire() is None
            await raises(RuntimeError, lock.release())

        async with lock:
            await asyncio.create_task(child())
            await asyncio.gather(child(), child())


def test_another_thread_is_a_stranger(nodes: Servers) -> None:
    """Blocking: it can neither nest nor release, whatever numbers threads get."""
    with quorlock.Redlock(nodes.urls) as redlock:
        lock = redlock.rlock("a")
        found: list[object] = []

        def other() -> None:
            found.append(lock.try_acquire())
            with pytest.raises(RuntimeError, match="'a' is not held by this thread"):
                lock.release()

        with lock:
            for _ in range(3):
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()
        assert found == [None] * 3


async def test_an_end_without_a_release_releases(face: Face, nodes: Servers) -> None:
    """A thread (task) that ends holds nothing: its lease is garbage, renewed or not."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lock = redlock.rlock("a", renew=True)

        async def work(_: int) -> None:
            await lock.acquire()
            await lock.acquire()

        assert await face.crowd(1, work) == [None]
        gc.collect()
        assert await emptied(nodes)
        async with lock:
            pass


async def test_an_end_releases_a_lease_that_is_referred_to(face: Face, nodes: Servers) -> None:
    """The traceback of the error of a thread or task may do so; a later lease is not affected."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        leases: list[Any] = []

        async def work(_: int) -> None:
            leases.append(await redlock.rlock("a", renew=True).acquire())

        assert await face.crowd(1, work) == [None]
        assert await emptied(nodes)
        assert not leases[0].held
        lease = await redlock.rlock("a").acquire()
        assert not await leases[0].release()
        assert lease.held
        assert await redlock.rlock("a").release()


async def test_a_lease_outlives_its_redlock(face: Face, nodes: Servers) -> None:
    """The thread or task has not ended, and has the lease."""
    lease = await face.redlock(nodes.urls, **SETTINGS).rlock("a").acquire()
    gc.collect()
    assert lease.held
    assert await lease.release()


async def test_a_lost_lease_does_not_nest(face: Face, nodes: Servers) -> None:
    """LeaseLost instead of a lie; the count is as before, and later the lock works again."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lock = redlock.rlock("a")
        lease = await lock.acquire()
        await lock.acquire()
        await until_over(lease)
        for again in (lock.acquire, lock.try_acquire):
            assert (await raises(LeaseLost, again())).reason == "expired"
        assert await lock.release() is False
        await lock.release()
        await raises(RuntimeError, lock.release())
        async with lock as fresh:
            assert real(fresh) is not real(lease)


async def test_keys_that_are_gone_are_seen_by_the_extension(face: Face, nodes: Servers) -> None:
    """A nested acquire that extends finds out; one that sends nothing trusts the clock."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lock = redlock.rlock("a")
        lease = await lock.acquire()
        await until_async(lambda: lease.validity < TTL / 2)
        wipe(nodes, "a")
        assert (await raises(LeaseLost, lock.acquire())).reason == "evicted"
        assert await lock.release() is False
        await raises(RuntimeError, lock.release())


async def test_what_is_inside_gets_its_own_ttl(face: Face, nodes: Servers) -> None:
    """A nested acquire extends if less than half of its lock's ttl is left, and only then."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.rlock("a").acquire()
        first = lease.valid_until
        await redlock.rlock("a").acquire()
        assert lease.valid_until == first
        await redlock.rlock("a", ttl=5.0).acquire()
        assert 4.5 < lease.validity <= 5.0
        await redlock.rlock("a", ttl=0.5).acquire()
        assert lease.validity > 4.0
        for _ in range(4):
            assert await redlock.rlock("a").release()


async def test_the_hold_limit_is_one_for_all(face: Face, nodes: Servers) -> None:
    """A nested acquire that would pass the outer max_hold is refused, and counts for nothing."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        async with redlock.rlock("a", max_hold=1.0) as lease:
            inner = redlock.rlock("a", ttl=5.0)
            assert (await raises(HoldLimitReached, inner.acquire())).max_hold == 1.0
            assert lease.held
        assert keys_on(nodes) == {}
        await raises(RuntimeError, inner.release())


async def test_what_the_outer_lease_lacks_is_refused(face: Face, nodes: Servers) -> None:
    """A lock that promises a fence or renewal is not entered without; others take what is there."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        async with redlock.rlock("a") as lease:
            for wanted in ("fencing", "renew"):
                options: Any = {wanted: True}
                inner = redlock.rlock("a", **options)
                error = await raises(ConfigError, inner.acquire())
                assert str(error).startswith(f"{wanted}=True: this ")
                assert str(error).endswith("holds 'a' without it: give it to the outer lock too")
                await raises(ConfigError, inner.try_acquire())
            assert lease.held
        async with redlock.rlock("a", fencing=True, renew=True) as lease:
            async with redlock.rlock("a", fencing=True, renew=True) as inner_lease:
                assert inner_lease.fence == lease.fence != None  # noqa: E711
            async with redlock.rlock("a"):
                pass


async def test_a_renewed_lock_outlives_its_ttl(face: Face, nodes: Servers) -> None:
    """Renewal continues while any level is held, and ends with the last."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lock = redlock.rlock("a", renew=True)
        async with lock as lease:
            first = lease.valid_until
            async with lock:
                pass
            assert await until_async(lambda: quorlock.now() > first)
            assert lease.held
        assert left_over(nodes) == {}


async def test_a_loss_is_reported_at_the_end_of_each_block(face: Face, nodes: Servers) -> None:
    """The inner block raises LeaseLost, the outer one passes it on; other errors get a note."""
    flag: Any = {"on_lost": "flag"} if face.name == "asyncio" else {}
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lock = redlock.rlock("a", ttl=0.5, **flag)
        inner_raised = False
        with pytest.raises(LeaseLost, match="its time ran out"):
            async with lock as lease:
                try:
                    async with lock:
                        await until_over(lease)
                except LeaseLost:
                    inner_raised = True
                    raise
        assert inner_raised
        with pytest.raises(ZeroDivisionError) as raised:
            async with lock as lease, lock:
                await until_over(lease)
                raise ZeroDivisionError
        assert "its time ran out" in raised.value.__notes__[0]
        async with lock:
            pass
        assert left_over(nodes) == {}


async def test_a_lost_lease_cancels_the_body(nodes: Servers) -> None:
    """asyncio: from the outermost block, also if a plain acquire is around it."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        lock = redlock.rlock("a", ttl=0.5)
        with pytest.raises(LeaseLost):
            async with lock, lock:
                await asyncio.wait_for(asyncio.Event().wait(), 5)
        await lock.acquire()
        with pytest.raises(LeaseLost):
            async with lock, lock:
                await asyncio.wait_for(asyncio.Event().wait(), 5)
        assert await lock.release() is False
        lease = await lock.acquire()
        async with lock:
            pass
        await lease.lost.wait()
        await asyncio.sleep(0.01)  # no block is open: nothing is cancelled
        assert await lock.release() is False
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_a_block_whose_lease_was_replaced_counts_for_no_other(nodes: Servers) -> None:
    """asyncio: the body releases its lease and acquires again. Later blocks are cancelled."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        lock = redlock.rlock("a", ttl=0.5)
        async with lock:
            await lock.release()
            await lock.acquire()
            await lock.acquire()
        with pytest.raises(LeaseLost):
            async with lock:
                await asyncio.wait_for(asyncio.Event().wait(), 5)
        assert await lock.release() is False


async def test_a_cancellation_from_outside_stays_one(nodes: Servers) -> None:
    """asyncio: and every level is left."""
    async with aio.Redlock(nodes.urls) as redlock:
        lock, entered = redlock.rlock("a"), asyncio.Event()

        async def work() -> None:
            async with lock, lock:
                entered.set()
                await asyncio.sleep(30)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert keys_on(nodes) == {}


async def test_a_wait_that_fails_counts_for_nothing(face: Face, nodes: Servers) -> None:
    """A timeout or a stop leaves the caller without the lock, and without a level."""
    stop = threading.Event()
    stop.set()
    async with face.redlock(nodes.urls) as redlock, face.redlock(nodes.urls) as other:
        lock = redlock.rlock("a", stop=stop)
        async with other.lock("a"):
            await raises(AcquireTimeout, redlock.rlock("a").acquire(timeout=0.01))
            await raises(quorlock.AcquireStopped, lock.acquire(timeout=5))
        await raises(RuntimeError, lock.release())
        async with redlock.rlock("a"):
            pass


async def test_a_lease_that_is_handed_over_is_over_for_all_levels(
    face: Face, nodes: Servers
) -> None:
    """The levels are left without a command; the adopted lease is another client's."""
    async with face.redlock(nodes.urls) as here, face.redlock(nodes.urls) as there:
        async with here.rlock("a") as lease, here.rlock("a"):
            ticket = await lease.hand_over()
            assert (await raises(LeaseLost, here.rlock("a").acquire())).reason == "handed_over"
        async with await there.adopt(ticket) as adopted:
            assert await here.rlock("a").try_acquire() is None
            assert adopted.held


async def test_a_release_of_the_lease_ends_all_levels(face: Face, nodes: Servers) -> None:
    """The levels are still to be left; then the lock is as new."""
    async with face.redlock(nodes.urls) as redlock:
        lock = redlock.rlock("a")
        async with lock, lock as lease:
            assert await lease.release()
            assert (await raises(LeaseLost, lock.acquire())).reason == "released"
        async with lock:
            pass


async def test_a_block_that_is_left_unheld(face: Face, nodes: Servers) -> None:
    """RuntimeError as by threading.RLock, but never in place of the body's error."""
    async with face.redlock(nodes.urls) as redlock:
        with pytest.raises(RuntimeError, match="'a' is not held by this"):
            async with redlock.rlock("a"):
                await redlock.rlock("a").release()
        with pytest.raises(ZeroDivisionError) as raised:
            async with redlock.rlock("a"):
                await redlock.rlock("a").release()
                raise ZeroDivisionError
        assert "was not held at the end of its block" in raised.value.__notes__[0]


async def test_as_a_decorator_it_may_call_itself(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as redlock:
        lock: Any = real(redlock.rlock("a"))
        tokens: set[bytes | None] = set()

        def note() -> None:
            tokens.add(holders(nodes, "a")[0])

        if face.name == "asyncio":

            @lock  # type: ignore[untyped-decorator]
            async def countdown(number: int) -> int:
                note()
                return await countdown(number - 1) + 1 if number else 0

            assert await countdown(3) == 3
        else:

            @lock  # type: ignore[untyped-decorator]
            def count(number: int) -> int:
                note()
                return count(number - 1) + 1 if number else 0

            assert count(3) == 3
        assert len(tokens) == 1
        assert keys_on(nodes) == {}
        with pytest.raises(ConfigError, match="decorate a"):
            lock(5)


def test_a_forked_child_holds_nothing(nodes: Servers) -> None:
    """Blocking: it waits as any other process, and the parent's levels stay the parent's."""
    with quorlock.Redlock(nodes.urls, node_timeout=2.0, ttl=20.0) as redlock:
        lock = redlock.rlock("a")
        with lock as lease, lock:
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    assert lock.try_acquire() is None
                    with pytest.raises(RuntimeError, match="not held by this thread"):
                        lock.release()
                    with pytest.raises(AcquireTimeout):
                        lock.acquire(timeout=0.01)
                    with redlock.rlock("b") as own, redlock.rlock("b"):
                        assert own.held
                    status = 0
                finally:
                    os._exit(status)
            _, status = os.waitpid(pid, 0)
            assert status == 0
            assert lease.held
        assert keys_on(nodes) == {}


async def test_on_memory_nodes(face: Face) -> None:
    """Fake nodes are enough, also if a minority hangs."""
    with MemoryNodes(3) as memory:
        async with face.redlock(memory.urls, node_timeout=0.25) as redlock:
            memory[0].hang()
            async with redlock.rlock("a") as outer, redlock.rlock("a") as inner:
                assert real(inner) is real(outer)
                assert await redlock.rlock("a").locked()
            assert not await redlock.rlock("a").locked()
            memory.start()


async def test_it_says_what_it_is(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as redlock:
        lock: Any = real(redlock.rlock("a", ttl=5, timeout=3, fencing=True))
        assert repr(lock) == "<RLock on 'a', ttl 5 s>"
        assert (lock.resource, lock.ttl, lock.timeout, lock.fencing) == ("a", 5.0, 3, True)
        for copied in (copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                copied(lock)
        with pytest.raises(AttributeError, match="use `extend` of the lease"):
            _ = lock.extend
        with pytest.raises(TypeError, match="API: use"):
            if face.name == "asyncio":
                with lock:
                    pass
            else:
                async with lock:
                    pass


async def test_a_lock_of_asyncio_belongs_to_a_task(nodes: Servers) -> None:
    """asyncio: outside of a task there is no owner; the error says so."""
    async with aio.Redlock(nodes.urls) as redlock:
        lock, said = redlock.rlock("a"), asyncio.get_running_loop().create_future()

        def callback() -> None:
            call = lock.acquire()
            try:
                call.send(None)
            except RuntimeError as error:
                said.set_result(str(error))

        asyncio.get_running_loop().call_soon(callback)
        assert "belongs to a task" in await said
