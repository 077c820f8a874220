"""Many callers, and contenders for one resource, as tasks of an event loop. Leaves to `measure` for
how long, and which locks.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from quorlock import AcquireTimeout, QuorlockError
from quorlock.cli.bench.facts import Contention, Rate, Times, Troubles
from quorlock.cli.bench.threads import PAUSE, Meter

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from itertools import cycle

    from quorlock.asyncio import Lease, Lock
    from quorlock.cli.bench.measure import Window

HOLD = 0.02  # seconds that a contender stays inside
_BEAT = 0.05  # seconds between two looks whether we are to stop


async def many_callers(locks: Sequence[cycle[Lock]], window: Window, troubles: Troubles) -> Rate:
    """Acquire and release, each its own locks."""
    counts = [0] * len(locks)

    async def call(number: int) -> None:
        mine = locks[number]
        while not window.over:
            began = time.perf_counter()
            try:
                released = await (await next(mine).acquire()).release()
            except QuorlockError as error:
                troubles.failed(error)
                await asyncio.sleep(PAUSE)
                continue
            if not released:
                troubles.slipped()
            counts[number] += window.counts(began)

    cpu = await together([call(number) for number in range(len(locks))], window)
    return Rate("tasks", len(locks), sum(counts) / window.counted, cpu)


async def contenders(
    count: int, lock: Lock, away: tuple[float, float], window: Window, troubles: Troubles
) -> Contention:
    """All want the same, and are rarely without want: it is nearly always somebody's.

    After a turn one stays away for as long as the others sleep between two tries. If it asked again
    at once it would find them all asleep, and have it nearly always.
    """
    room = Room(troubles)
    waits: list[float] = []

    async def contend(number: int) -> None:
        while not window.over:
            asked = time.perf_counter()
            try:
                lease = await lock.acquire(window.left)
            except AcquireTimeout:  # the end came first
                waits.append(time.perf_counter() - asked)
                return
            except QuorlockError as error:
                troubles.failed(error)
                await asyncio.sleep(PAUSE)
                continue
            entered = time.perf_counter()
            room.enter(lease)
            await asyncio.sleep(HOLD)
            room.leave(lease)
            if window.counts(entered):
                waits.append(entered - asked)
                room.turns[number].append(time.perf_counter() - entered)
            if not await lease.release():
                troubles.slipped()
            await asyncio.sleep(min(random.uniform(*away), window.left))

    await together([contend(number) for number in range(count)], window)
    inside = [room.turns[number] for number in range(count)]
    each = list(map(len, inside))
    seconds = window.counted
    busy = sum(map(sum, inside)) / seconds
    return Contention(count, sum(each) / seconds, busy, Times.of(waits), min(each), max(each))


class Room:
    """Where only one may be: sees who meets another there."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._inside: Lease | None = None
        self.turns: defaultdict[int, list[float]] = defaultdict(list)  # seconds, by contender

    def enter(self, lease: Lease) -> None:
        """Whoever is still inside with a lease that is over is no overlap: it was told so."""
        if self._inside is not None and self._inside.held:
            self._troubles.met()
        self._inside = lease

    def leave(self, lease: Lease) -> None:
        """Before it is given back."""
        if self._inside is lease:
            self._inside = None


async def together(calls: Sequence[Coroutine[None, None, None]], window: Window) -> float:
    """Each as a task, until all have ended; the share of the time that we were on a CPU.

    When we are told to stop, whoever waits for a lock is cancelled: it may wait for long.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    while not window.stopped and (left := window.warm_up_left):
        await asyncio.wait(tasks, timeout=min(left, _BEAT))
    meter = Meter()
    while not window.stopped and not all(task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=_BEAT)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
    return meter.cpu
