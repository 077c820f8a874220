"""More calls than may acquire at once: acquires queue within their time, and other calls do not."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import quorlock
from quorlock._drivers.aio import admission
from quorlock._drivers.sync import pool as sync_pool
from quorlock._drivers.sync.pool import Borrower, ConnectionPool
from quorlock.errors import VoteCode
from tests.harness.support.wait import until
from tests.servers.api.faces import real

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock.testing.servers import Servers
    from tests.servers.api.faces import Face

pytestmark = pytest.mark.usefixtures("checked_transitions")

MANY = {"blocking": 64, "asyncio": 4 * admission.ACQUIRING_MAX}


async def test_all_of_many_get_their_turn(face: Face, nodes: Servers) -> None:
    """Each of many callers gets its own lock, though few may ask at once."""
    async with face.redlock(nodes.urls, node_timeout=0.5) as redlock:

        async def work(index: int) -> bool:
            lease = await redlock.lock(f"mine:{index}").acquire(timeout=20)
            return await lease.release()

        assert await face.crowd(MANY[face.name], work) == [True] * MANY[face.name]


async def test_the_queue_keeps_the_deadline(
    face: Face, nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every attempt takes its time with a majority hung; the times of a queue must not add up.

    Sixteen callers for each place, half a second for each: eight seconds in sequence. No caller
    waits longer in the queue than connecting may take.
    """
    monkeypatch.setattr(sync_pool, "FOLLOWERS_MAX", 3)
    monkeypatch.setattr(admission, "ACQUIRING_MAX", 8)
    callers = {"blocking": 64, "asyncio": 128}[face.name]
    async with face.redlock(
        nodes.urls, node_timeout=0.25, connect_timeout=0.5, outage_timeout=0
    ) as redlock:
        await (await redlock.lock("warm").acquire()).release()
        for node in nodes[:3]:
            node.stop()

        async def work(index: int) -> tuple[float, str]:
            began = time.monotonic()
            with pytest.raises(quorlock.QuorumUnreachable) as caught:
                await redlock.lock(f"mine:{index}").acquire(timeout=0)
            return time.monotonic() - began, str(caught.value)

        ended = await face.crowd(callers, work)
        for node in nodes[:3]:
            node.cont()
    outcomes = [outcome for outcome in ended if isinstance(outcome, tuple)]
    assert len(outcomes) == len(ended), ended
    assert max(seconds for seconds, _ in outcomes) < 4


async def test_no_place_in_time(
    face: Face, nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that gets no place in its time gets an error that says so; no node is asked."""
    monkeypatch.setattr(sync_pool, "FOLLOWERS_MAX", 0)
    monkeypatch.setattr(admission, "ACQUIRING_MAX", 1)
    async with face.redlock(
        nodes.urls, node_timeout=1, connect_timeout=0.2, outage_timeout=0
    ) as redlock:
        await (await redlock.lock("warm").acquire()).release()
        for node in nodes[:3]:
            node.stop()

        async def work(index: int) -> quorlock.QuorumUnreachable:
            await asyncio.sleep(0.3 * index)  # the first has the only place by then
            with pytest.raises(quorlock.QuorumUnreachable) as caught:
                await redlock.lock("wanted").acquire(timeout=0)
            return caught.value

        asked, crowded = await face.crowd(2, work)
        for node in nodes[:3]:
            node.cont()
    assert isinstance(asked, quorlock.QuorumUnreachable)
    assert isinstance(crowded, quorlock.QuorumUnreachable)
    assert {vote.cause for vote in asked.votes} > {"no answer in time"}
    assert {vote.code for vote in crowded.votes} == {VoteCode.LOCAL_QUEUE_TIMEOUT}


async def test_a_release_does_not_queue(nodes: Servers) -> None:
    """A holder releases at once, regardless of the number of waiters (asyncio)."""
    async with quorlock.asyncio.Redlock(nodes.urls, node_timeout=0.5) as redlock:
        held = await redlock.lock("held").acquire()
        wanting = [
            asyncio.create_task(redlock.lock(f"wanted:{index}").acquire(timeout=30))
            for index in range(3 * admission.ACQUIRING_MAX)
        ]
        await asyncio.sleep(0)
        (running,) = real(redlock)._session.driver._loop_drivers.values()
        assert len(running.admission.queue) == 2 * admission.ACQUIRING_MAX
        assert await held.release()
        assert running.admission.queue, "they were all served before the release was"
        leases = await asyncio.gather(*wanting)
        assert all(lease.held for lease in leases)


async def test_who_queues_can_be_cancelled(nodes: Servers) -> None:
    """A queue forgets those that are gone, and serves the others (asyncio)."""
    async with quorlock.asyncio.Redlock(nodes.urls, node_timeout=0.5) as redlock:
        await (await redlock.lock("warm").acquire()).release()
        wanting = [
            asyncio.create_task(redlock.lock(f"wanted:{index}").acquire(timeout=30))
            for index in range(3 * admission.ACQUIRING_MAX)
        ]
        await asyncio.sleep(0)
        for task in wanting[::2]:
            task.cancel()
        outcomes = await asyncio.gather(*wanting, return_exceptions=True)
        kinds = [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes]
        assert kinds == [index % 2 == 0 for index in range(len(wanting))]
        (running,) = real(redlock)._session.driver._loop_drivers.values()
        assert running.admission.acquiring == 0
        assert not running.admission.queue


async def test_a_queue_needs_few_timers(nodes: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer for each of a thousand tasks doubled the CPU time of their cycles (asyncio)."""
    async with quorlock.asyncio.Redlock(nodes.urls, node_timeout=5.0) as redlock:
        await (await redlock.lock("warm").acquire()).release()
        loop, timers = asyncio.get_running_loop(), 0
        call_at = loop.call_at

        def counting(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            nonlocal timers
            timers += 1
            return call_at(*args, **kwargs)

        async def cycle(index: int) -> None:
            async with redlock.lock(f"cycle:{index}", timeout=30):
                pass

        monkeypatch.setattr(loop, "call_at", counting)
        await asyncio.gather(*map(cycle, range(1_000)))
    assert timers < 50


class Slots:
    """An admission with all slots taken, the callbacks that it registers, and flows that queue."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.admitted: list[int] = []
        loop: Any = SimpleNamespace(call_soon=self.calls.append)
        self.admission = admission.Admission(loop, partial)
        self.admission.acquiring = admission.ACQUIRING_MAX

    def queue(self, *numbers: int, gone: int | None = None) -> None:
        def flow(number: int) -> Any:
            def take_slot() -> bool:
                self.admitted.append(number)
                return number != gone

            return SimpleNamespace(admitted=take_slot)

        self.admission.queue.extend(map(flow, numbers))


def test_slots_that_become_free_in_one_tick_are_given_out_together() -> None:
    """One callback for all of them, and another for later ones."""
    slots = Slots()
    slots.queue(*range(5), gone=1)
    for _ in range(3):
        slots.admission.leave()
    assert len(slots.calls) == 1
    slots.calls.pop()()
    assert slots.admitted == [0, 1, 2, 3], "the second one wants it no longer"
    slots.admission.leave()
    slots.calls.pop()()
    assert slots.admitted == [0, 1, 2, 3, 4]
    slots.admission.leave()
    assert not slots.calls, "nobody queues"


async def test_the_time_in_the_queue_is_up_while_others_wait_in_line(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queued acquire fails without asking a node; it does not join the line (asyncio)."""
    monkeypatch.setattr(admission, "ACQUIRING_MAX", 1)
    settings: dict[str, Any] = {"node_timeout": 2.0, "connect_timeout": 0.3, "outage_timeout": 0}
    async with quorlock.asyncio.Redlock(nodes.urls, **settings) as redlock:
        held = await redlock.lock("wanted").acquire()
        for node in nodes[:3]:
            node.stop()
        slow = asyncio.create_task(redlock.lock("slow").acquire(timeout=0.3))
        await asyncio.sleep(0)
        queued = asyncio.create_task(redlock.lock("wanted").acquire(timeout=0.1))
        await asyncio.sleep(0)
        (running,) = real(redlock)._session.driver._loop_drivers.values()
        assert len(running.admission.queue) == 1
        line = running.lines.line(b"wanted", quorlock._drivers.clock.now())
        line._is_held = True  # as after a hand-over in this process
        with pytest.raises(quorlock.QuorumUnreachable) as caught:
            await queued
        assert {vote.code for vote in caught.value.votes} == {VoteCode.LOCAL_QUEUE_TIMEOUT}
        for node in nodes[:3]:
            node.cont()
        assert await (await slow).release()
        assert await held.release()


class Caller(Borrower):
    """A thread that acquires."""

    shares = True

    def __init__(self, *, urgent: bool = False) -> None:
        self.is_urgent = urgent


class Paths:
    """The part of a connection set that a pool uses. Its borrower takes no rounds of others."""

    has_pending = has_submissions = is_busy = closed = takes_rounds = False
    visit: Any = None
    drained = 0

    def __init__(self) -> None:
        self.followers: dict[Borrower, None] = {}

    def close(self, until: int) -> None:
        """Nothing is open."""

    def remove_follower(self, follower: Borrower) -> None:
        self.followers.pop(follower, None)

    def drain(self) -> None:
        """Count one more."""
        self.drained += 1


def a_pool() -> ConnectionPool:
    made: Any = Paths
    return ConnectionPool(made, 1, lambda _: None)


def test_threads_are_served_in_the_order_of_their_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later callers do not pass, and an urgent one does not queue: it gets a new set."""
    # After that time each of them looks, whatever its place: others may be gone.
    monkeypatch.setattr(sync_pool, "LOOK_AGAIN", 60_000_000_000)
    pool = a_pool()
    first = pool.borrow(Caller())
    urgent = pool.borrow(Caller(urgent=True))
    assert first is not None
    assert urgent is not None
    assert urgent is not first
    served: list[int] = []

    def work(number: int) -> None:
        path = pool.borrow(Caller())
        served.append(number)
        assert path is not None
        pool.give_back(path)

    threads = []
    for number in range(20):
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        threads.append(thread)
        assert until(lambda: len(pool._queue) > number)  # noqa: B023
    pool.give_back(first)
    for thread in threads:
        thread.join(10)
    pool.give_back(urgent)
    assert served == list(range(20))
    assert not pool._owners


def test_no_thread_reads_for_a_waiting_one() -> None:
    """A read by another thread must wake the owner, which otherwise slept until node_timeout."""
    pool = a_pool()
    in_hand, idle = (cast("Any", pool.borrow(Caller(urgent=True))) for _ in range(2))
    pool.give_back(idle)
    in_hand.has_pending = idle.has_pending = True
    assert pool.drain_idle()
    assert (in_hand.drained, idle.drained) == (0, 1)
    assert pool.borrow(Caller()) is idle, "given back after that"


def test_who_gives_up_leaves_the_queue() -> None:
    """The next in the queue gets the place of a caller that gives up."""
    pool = a_pool()
    path = pool.borrow(Caller())
    assert path is not None
    assert pool.borrow(Caller(), by=quorlock_now() + 1_000_000) is None
    assert not pool._queue
    pool.give_back(path)
    assert pool.borrow(Caller(), by=0) is path


def quorlock_now() -> int:
    """The drivers' clock, in ns."""
    from quorlock._drivers.clock import now

    return now()
