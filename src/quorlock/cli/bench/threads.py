"""One caller, and many, in threads. Leaves to `measure` for how long, and which locks."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from quorlock import LeaseLost, QuorlockError
from quorlock.cli.bench.facts import Rate, Troubles, Verbs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from itertools import cycle

    from quorlock import Lock
    from quorlock.cli.bench.measure import Window

PAUSE = 0.05  # seconds after an error: nodes that are down are not asked as fast as we can


def one_caller(nodes: int, locks: cycle[Lock], window: Window, troubles: Troubles) -> Verbs:
    """Acquire, extend, release, again and again."""
    yes = [0] * nodes
    taken: list[tuple[float, float, float]] = []

    def call() -> None:
        while not window.over:
            began = time.perf_counter()
            try:
                lease = next(locks).acquire()
                acquired = time.perf_counter()
                lease.extend()
                extended = time.perf_counter()
                released = lease.release()
            except LeaseLost:
                troubles.slipped()
                continue
            except QuorlockError as error:
                troubles.failed(error)
                time.sleep(PAUSE)
                continue
            done = time.perf_counter()
            if not released:
                troubles.slipped()
            if window.counts(began):
                taken.append((acquired - began, extended - acquired, done - extended))
                for node, vote in enumerate(lease.votes):
                    yes[node] += vote.vote == "granted"

    cpu = together([call], window)
    acquire, extend, release = ([each[verb] for each in taken] for verb in range(3))
    return Verbs(acquire, extend, release, yes, cpu)


def many_callers(locks: Sequence[cycle[Lock]], window: Window, troubles: Troubles) -> Rate:
    """Acquire and release, each its own locks."""
    counts = [0] * len(locks)

    def call(number: int) -> None:
        mine, count = locks[number], 0
        while not window.over:
            began = time.perf_counter()
            try:
                released = next(mine).acquire().release()
            except QuorlockError as error:
                troubles.failed(error)
                time.sleep(PAUSE)
                continue
            if not released:
                troubles.slipped()
            count += window.counts(began)
        counts[number] = count

    calls = [lambda number=number: call(number) for number in range(len(locks))]
    cpu = together(calls, window)
    return Rate("threads", len(locks), sum(counts) / window.counted, cpu)


def together(calls: Sequence[Callable[[], None]], window: Window) -> float:
    """Each in a thread, until all have ended; the share of the time that we were on a CPU."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        window.warm_up()
        meter = Meter()
        for future in futures:
            future.result()
    return meter.cpu


class Meter:
    """A stop-watch for our CPU time."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._cpu = time.process_time()

    @property
    def cpu(self) -> float:
        """The share of the time since it was made that this process was on a CPU."""
        return (time.process_time() - self._cpu) / (time.perf_counter() - self._began)
