"""One timer of an event loop reports the losses of all leases, each at its own deadline."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import quorlock
from quorlock._core.time import FOR_EVER
from quorlock.asyncio import Redlock, loss_watcher
from quorlock.asyncio.loss_watcher import LossTimer, LossWatcher

if TYPE_CHECKING:
    import pytest

    from quorlock._core.time import Instant

NODES = [f"memory://loss-timer-{number}" for number in range(3)]
SHORT: dict[str, Any] = {"node_timeout": 0.1}  # so that leases may be short


NOTICE = 0.1  # seconds before its end, at most


async def test_many_blocks_need_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later deadline sets no timer, and an earlier one does."""
    wanted: list[Instant] = []
    real = LossTimer._set

    def noted(self: LossTimer, due: Instant) -> None:
        wanted.append(due)
        real(self, due)

    monkeypatch.setattr(LossTimer, "_set", noted)
    monkeypatch.setattr(loss_watcher, "sleep_seconds", lambda _: 60.0)  # none fires
    async with Redlock(NODES) as redlock:
        for number in range(100):
            async with redlock.lock(f"r{number}"):
                pass
        assert len(wanted) == 1
        async with redlock.lock("short", ttl=1.0):
            assert len(wanted) == 2
        async with redlock.lock("long"):
            assert len(wanted) == 2


async def test_each_lease_is_reported_at_its_own_end() -> None:
    """Leases that end in another order than they began, with others that are released between."""
    ttls = [0.9, 0.3, 0.6, 0.5, 0.8, 0.4, 0.7]
    async with Redlock(NODES, **SHORT) as redlock:

        async def watch(ttl: float) -> None:
            lease = await redlock.lock(f"ends-{ttl}", ttl=ttl).acquire()
            ends = lease.valid_until
            async with redlock.lock(f"released-{ttl}", ttl=ttl) as other:
                assert not other.lost.is_set()
            await lease.lost.wait()
            assert quorlock.now() > ends - NOTICE, "not before its own deadline"
            assert not other.lost.is_set()

        await asyncio.gather(*map(watch, ttls))


async def test_a_lease_that_was_extended_is_reported_at_its_new_end() -> None:
    async with Redlock(NODES, **SHORT) as redlock:
        lease = await redlock.lock("a", ttl=0.4).acquire()
        lost, first = lease.lost, lease.valid_until
        await lease.extend(0.9)
        while quorlock.now() < first:
            await asyncio.sleep(0.01)
            assert not lost.is_set()
        await lost.wait()


async def test_a_release_in_another_thread_is_watched_no_more() -> None:
    async with Redlock(NODES) as redlock:
        lease = await redlock.lock("a").acquire()
        lost = lease.lost
        timer = loss_watcher._TIMERS[asyncio.get_running_loop()]
        assert len(timer._watchers) == 1
        thread = threading.Thread(target=lease._state.end)
        thread.start()
        thread.join()
        assert not timer._watchers
        assert not lost.is_set()


def watchers() -> set[int]:
    """Return the identities of all watchers, also of those that are garbage."""
    return {id(found) for found in gc.get_objects() if isinstance(found, LossWatcher)}


async def test_a_block_leaves_no_garbage() -> None:
    """A released lease and its watcher are freed at once, without the garbage collector."""
    async with Redlock(NODES) as redlock:
        async with redlock.lock("a") as lease:
            pass  # the first watcher of a loop makes garbage of those of closed loops
        del lease
        gc.collect()
        gc.disable()
        try:
            of_other_tests = watchers()
            for _ in range(3):
                async with redlock.lock("a") as lease:
                    assert not lease.lost.is_set()
                del lease
            assert watchers() <= of_other_tests
        finally:
            gc.enable()


async def test_an_interrupted_check_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler raises an exception while a loss is reported, and the loop continues."""
    interrupted: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: interrupted.append(told))
    real = LossWatcher.check

    def interrupt(self: LossWatcher) -> Instant:
        if not interrupted:
            raise TimeoutError
        return real(self)

    async with Redlock(NODES, **SHORT) as redlock:
        leases = [await redlock.lock(f"r{number}", ttl=0.4).acquire() for number in range(2)]
        events = [lease.lost for lease in leases]
        monkeypatch.setattr(LossWatcher, "check", interrupt)
        await asyncio.gather(*[event.wait() for event in events])
    assert len(interrupted) == 1


def test_a_closed_loop_is_not_kept() -> None:
    """Neither the timer that is set nor a lease that was never released keeps it."""

    async def work() -> weakref.ref[asyncio.AbstractEventLoop]:
        redlock = Redlock(NODES)
        lease = await redlock.lock("a").acquire()
        assert not lease.lost.is_set()
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(work())
    for _ in range(3):
        gc.collect()
    assert loop() is None


class _Lost:
    """The state of a lease whose loss was reported in another loop."""

    was_released = False
    deadline = FOR_EVER - 1


def test_a_closed_loop_is_freed_though_a_loss_was_reported_in_another() -> None:
    """The watcher of a closed loop cannot look again. One stayed in its timer and kept the loop."""
    closed: list[weakref.ref[asyncio.AbstractEventLoop]] = []
    for _ in range(3):
        loop = asyncio.new_event_loop()
        lost: Any = _Lost()

        async def watch(lost: Any = lost) -> LossWatcher:
            return LossWatcher(lost, asyncio.get_running_loop(), None)

        watcher = loop.run_until_complete(watch())
        loop.close()
        watcher.ended()
        closed.append(weakref.ref(loop))
        del watcher, loop
    gc.collect()
    assert [loop() is not None for loop in closed[:-1]] == [False, False]
