"""More calls at once than acquire at once: they queue, within their time, and nobody else does."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

import quorlock
from quorlock._core.outcomes import Cause
from quorlock._drivers import blocking, engine
from quorlock._drivers.pool import Owner, Pool
from tests.api.faces import real

if TYPE_CHECKING:
    from quorlock.testing.servers import Servers
    from tests.api.faces import Face

MANY = {"blocking": 64, "asyncio": 4 * engine.ACQUIRING_MAX}


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
    """With a majority hung every attempt takes its time; a queue of them must not add up.

    Sixteen callers for each place, half a second for each: eight seconds, one after the other.
    No caller waits longer in the queue than connecting may take.
    """
    monkeypatch.setattr(blocking, "BUNDLES_MAX", 4)
    monkeypatch.setattr(engine, "ACQUIRING_MAX", 8)
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
    """Who finds no place while it may wait is told so, and no node is asked in its name."""
    monkeypatch.setattr(blocking, "BUNDLES_MAX", 1)
    monkeypatch.setattr(engine, "ACQUIRING_MAX", 1)
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
    assert {vote.cause for vote in crowded.votes} == {Cause.CROWDED.value}


async def test_a_release_does_not_queue(nodes: Servers) -> None:
    """Who holds a lock gives it back at once, however many want one (asyncio)."""
    async with quorlock.asyncio.Redlock(nodes.urls, node_timeout=0.5) as redlock:
        held = await redlock.lock("held").acquire()
        wanting = [
            asyncio.create_task(redlock.lock(f"wanted:{index}").acquire(timeout=30))
            for index in range(3 * engine.ACQUIRING_MAX)
        ]
        await asyncio.sleep(0)
        (running,) = real(redlock)._session.driver._engines.values()
        assert len(running.queue) == 2 * engine.ACQUIRING_MAX
        assert await held.release()
        assert running.queue, "they were all served before the release was"
        leases = await asyncio.gather(*wanting)
        assert all(lease.held for lease in leases)


async def test_who_queues_can_be_cancelled(nodes: Servers) -> None:
    """A queue forgets those that are gone, and serves the others (asyncio)."""
    async with quorlock.asyncio.Redlock(nodes.urls, node_timeout=0.5) as redlock:
        await (await redlock.lock("warm").acquire()).release()
        wanting = [
            asyncio.create_task(redlock.lock(f"wanted:{index}").acquire(timeout=30))
            for index in range(3 * engine.ACQUIRING_MAX)
        ]
        await asyncio.sleep(0)
        for task in wanting[::2]:
            task.cancel()
        outcomes = await asyncio.gather(*wanting, return_exceptions=True)
        kinds = [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes]
        assert kinds == [index % 2 == 0 for index in range(len(wanting))]
        (running,) = real(redlock)._session.driver._engines.values()
        assert running._acquiring == 0
        assert not running.queue


class Caller(Owner):
    """Somebody who acquires."""

    def __init__(self, *, urgent: bool = False) -> None:
        self.urgent = urgent


class Paths:
    """What a pool is told to make, as far as it looks at it."""

    owes = False
    looked_in = 0

    def close(self) -> None:
        """Nothing is open."""

    def look_in(self) -> None:
        """Somebody reads."""
        self.looked_in += 1


def a_pool(cap: int) -> Pool:
    made: Any = Paths
    return Pool(made, cap, lambda _: None)


def test_threads_are_served_in_the_order_of_their_coming() -> None:
    """Nobody who comes later passes, and an urgent one does not queue."""
    pool = a_pool(1)
    first = pool.take(Caller())
    assert first is not None
    served: list[int] = []

    def work(number: int) -> None:
        path = pool.take(Caller())
        served.append(number)
        assert path is not None
        pool.give(path)

    threads = []
    for number in range(20):
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        threads.append(thread)
        while len(pool._queue) <= number:
            time.sleep(0.0001)
    urgent = pool.take(Caller(urgent=True))
    assert urgent is not None
    assert urgent is not first
    pool.give(urgent)
    assert len(pool._queue) == 20, "the return of an urgent one frees no place"
    pool.give(first)
    for thread in threads:
        thread.join(10)
    assert served == list(range(20))
    assert not pool._owners


def test_nobody_reads_for_who_waits() -> None:
    """What another thread reads does not wake the owner, who slept until node_timeout."""
    pool = a_pool(2)
    in_hand, idle = (cast("Any", pool.take(Caller())) for _ in range(2))
    pool.give(idle)
    in_hand.owes = idle.owes = True
    assert pool.tidy()
    assert (in_hand.looked_in, idle.looked_in) == (0, 1)
    assert pool.take(Caller()) is idle, "given back after that"


def test_who_gives_up_leaves_the_queue() -> None:
    """Its place goes to the next."""
    pool = a_pool(1)
    path = pool.take(Caller())
    assert path is not None
    assert pool.take(Caller(), by=quorlock_now() + 1_000_000) is None
    assert not pool._queue
    pool.give(path)
    assert pool.take(Caller(), by=0) is path


def quorlock_now() -> int:
    """The drivers' clock, in ns."""
    from quorlock._drivers.clock import now

    return now()
