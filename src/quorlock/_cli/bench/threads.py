"""One caller, and many, in threads. `measure` chooses the duration and the locks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

from quorlock import LeaseLost, Lock, QuorlockError
from quorlock._cli.bench.facts import BenchRate, Troubles, Verbs
from quorlock._cli.bench.window import Window

PAUSE = 0.05  # seconds after an error, so that nodes that are down are not flooded


def one_caller(nodes: int, locks: cycle[Lock], window: Window, troubles: Troubles) -> Verbs:
    """Acquire, extend and release repeatedly."""
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


def many_callers(locks: Sequence[cycle[Lock]], window: Window, troubles: Troubles) -> BenchRate:
    """Acquire and release repeatedly, each caller its own locks."""
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
    return BenchRate("threads", len(locks), sum(counts) / window.counted, cpu)


def together(calls: Sequence[Callable[[], None]], window: Window) -> float:
    """Run each call in a thread until all have ended; return the share of the time on a CPU."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        window.warm_up()
        meter = Meter()
        for future in futures:
            future.result()
    return meter.cpu


class Meter:
    """A meter of this process's CPU time."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._cpu = time.process_time()

    @property
    def cpu(self) -> float:
        """Return the share of the time since its creation that this process was on a CPU."""
        return (time.process_time() - self._cpu) / (time.perf_counter() - self._began)
