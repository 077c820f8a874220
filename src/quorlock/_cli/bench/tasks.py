"""Many callers, and contenders for one resource, as tasks of an event loop.

`measure` chooses the duration and the locks.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from itertools import cycle

from quorlock import AcquireTimeout, QuorlockError
from quorlock._cli.bench.facts import BenchRate, Contention, Times, Troubles
from quorlock._cli.bench.threads import PAUSE, Meter
from quorlock._cli.bench.window import Window
from quorlock.asyncio import Lease, Lock

HOLD = 0.02  # seconds that a contender holds the lock
_BEAT = 0.05  # seconds between two checks of the stop event


async def many_callers(
    locks: Sequence[cycle[Lock]], window: Window, troubles: Troubles
) -> BenchRate:
    """Acquire and release repeatedly, each caller its own locks."""
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
    return BenchRate("tasks", len(locks), sum(counts) / window.counted, cpu)


async def contenders(
    count: int, lock: Lock, away: tuple[float, float], window: Window, troubles: Troubles
) -> Contention:
    """Let all callers acquire the same lock, so that it is nearly always held.

    After a turn a contender pauses for as long as clients that poll sleep between two attempts. If
    it retried at once, the others would still sleep, and it would win nearly always.
    """
    section = CriticalSection(troubles)
    waits: list[float] = []

    async def contend(number: int) -> None:
        while not window.over:
            asked = time.perf_counter()
            try:
                lease = await lock.acquire(window.left)
            except AcquireTimeout:  # the window ended first
                waits.append(time.perf_counter() - asked)
                return
            except QuorlockError as error:
                troubles.failed(error)
                await asyncio.sleep(PAUSE)
                continue
            entered = time.perf_counter()
            section.enter(lease)
            await asyncio.sleep(HOLD)
            section.leave(lease)
            if window.counts(entered):
                waits.append(entered - asked)
                section.turns[number].append(time.perf_counter() - entered)
            if not await lease.release():
                troubles.slipped()
            await asyncio.sleep(min(random.uniform(*away), window.left))

    await together([contend(number) for number in range(count)], window)
    inside = [section.turns[number] for number in range(count)]
    each = list(map(len, inside))
    seconds = window.counted
    busy = sum(map(sum, inside)) / seconds
    return Contention(count, sum(each) / seconds, busy, Times.of(waits), min(each), max(each))


class CriticalSection:
    """The critical section, which detects overlaps."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._inside: Lease | None = None
        self.turns: defaultdict[int, list[float]] = defaultdict(list)  # seconds, by contender

    def enter(self, lease: Lease) -> None:
        """Enter, and count an overlap if the previous lease is still held."""
        if self._inside is not None and self._inside.held:
            self._troubles.met()
        self._inside = lease

    def leave(self, lease: Lease) -> None:
        if self._inside is lease:
            self._inside = None


async def together(calls: Sequence[Coroutine[None, None, None]], window: Window) -> float:
    """Run the calls as tasks until all have ended; return the share of the time on a CPU.

    When the measurement is stopped, waiting tasks are cancelled: they might wait for long.
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
