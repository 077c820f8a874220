"""Work 1: acquire and release uncontended locks, with one worker or many."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from bench import contestants
from bench.contestants import CONTESTANTS, NAMES, TTL
from bench.fleet import Fleet, Site, shared_site
from bench.limit import saturate
from bench.meter import Meter
from bench.plan import STANDARD, Case, Column
from bench.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from bench.results import Found

_LIMITS = ("limit.all", "limit.quorum")
_OURS = ("quorlock.asyncio", "quorlock.asyncio+with", "quorlock.asyncio+uvloop")
_GATHERS = (
    *("redis.asyncio+gather", "redis.asyncio+gather.tuned"),
    *("coredis+gather", "valkey-glide+gather"),
)
_POTTERIES = ("pottery.asyncio", "pottery.asyncio.tuned")
_BEST = ("redlock-py.tuned", "pottery")
_FEW = (*_OURS, *_GATHERS, *_POTTERIES, "node-redlock", "node-redlock+autopipelining")


@contextmanager
def slow_site(fleet: Fleet, nodes: int, delay: float) -> Generator[Site, None, None]:
    """Yield the servers of the run behind a proxy that delays every reply by `delay` seconds."""
    with shared_site(fleet, nodes) as site, Proxy(site.urls) as proxy:
        proxy.delay(delay)
        yield Site(fleet, proxy.urls)


def _threads(workers: int, nodes: int, who: tuple[str, ...], quick: tuple[str, ...] = ()) -> Case:
    name = f"blocking, N = {nodes}, {workers} thread{'s' * (workers > 1)}"
    return Case("uncontended", name, who, {"workers": workers}, nodes, quick=quick)


def _tasks(workers: int, nodes: int, who: tuple[str, ...], quick: tuple[str, ...] = ()) -> Case:
    name = f"asyncio, N = {nodes}, {workers:,} task{'s' * (workers > 1)}"
    params: dict[str, Any] = {"workers": workers}
    if workers >= NAMES:
        params["seconds"] = 1.5  # slow contestants need this long for one cycle
    return Case("uncontended", name, who, params, nodes, quick=quick)


PLAN = [
    _threads(
        1,
        5,
        (
            *(*_LIMITS, "quorlock", "quorlock+with"),
            *("redlock-py", "redlock-py.tuned", "pottery", "pottery.tuned"),
        ),
        quick=(*_LIMITS, "quorlock", *_BEST),
    ),
    Case(
        "uncontended",
        "blocking, N = 5, 1 thread, 1 ms added to every reply",
        (*_LIMITS, "quorlock", "redlock-py", *_BEST),
        {"workers": 1},
        site=partial(slow_site, delay=0.001),
        quick=("limit.all", "quorlock", "redlock-py.tuned"),
    ),
    _threads(4, 5, ("quorlock", *_BEST)),
    _threads(16, 5, ("quorlock", "quorlock+with", *_BEST)),
    _threads(64, 5, ("quorlock", "quorlock+with", *_BEST), quick=("quorlock",)),
    Case(
        "uncontended",
        "blocking, N = 5, 64 threads, 64,000 cycles",
        ("quorlock",),
        {"workers": 64, "cycles": 1000, "seconds": 120.0},
        deadline=150.0,
        rounds=1,
    ),
    _threads(1, 3, (*_LIMITS, "quorlock", *_BEST)),
    _threads(
        1,
        1,
        (
            "limit.all",
            "quorlock",
            "redis-py.Lock",
            "redis-py.Lock.tuned",
            "python-redis-lock",
            *_BEST,
        ),
        quick=("limit.all", "quorlock", "redis-py.Lock.tuned"),
    ),
    _tasks(1, 5, _FEW, quick=("quorlock.asyncio", "redis.asyncio+gather.tuned", "node-redlock")),
    _tasks(10, 5, _FEW, quick=("quorlock.asyncio", "redis.asyncio+gather.tuned")),
    _tasks(
        40,
        5,
        ("quorlock.asyncio", "redis.asyncio+gather.tuned", "node-redlock+autopipelining"),
        quick=("quorlock.asyncio",),
    ),
    _tasks(
        100,
        5,
        ("limit.saturated", *_FEW),
        quick=(
            "limit.saturated",
            "quorlock.asyncio",
            "redis.asyncio+gather.tuned",
            "pottery.asyncio.tuned",
            "node-redlock+autopipelining",
        ),
    ),
    _tasks(
        1000,
        5,
        (
            "limit.saturated",
            *_OURS,
            *_GATHERS,
            "pottery.asyncio.tuned",
            "node-redlock+autopipelining",
        ),
        quick=("quorlock.asyncio",),
    ),
    _tasks(100, 3, ("limit.saturated", "quorlock.asyncio", "redis.asyncio+gather.tuned")),
    _tasks(
        100,
        1,
        (
            "limit.saturated",
            "quorlock.asyncio",
            "redis.asyncio+gather.tuned",
            "coredis.Lock",
            "node-redlock+autopipelining",
        ),
    ),
]


def columns(case: Found) -> tuple[Column, ...]:
    """Return the columns: relative times with one worker, relative throughput with many, CPU."""
    key, inverse = ("p50_us", False) if case.params["workers"] == 1 else ("per_s", True)
    against = ("limit.all", "limit.saturated", "quorlock", "quorlock.asyncio")
    ratios = (
        Column(f"time × {who}", key, "{:.2f}", ratio_to=who, inverse=inverse)
        for who in against
        if who in case.rows
    )
    cpu = (
        Column(f"CPU × {who}", "cpu_us", "{:.2f}", ratio_to=who)
        for who in ("quorlock", "quorlock.asyncio")
        if who in case.rows
    )
    return (*STANDARD, *ratios, *cpu)


def run(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Measure `workers` threads or tasks for `seconds`, or `cycles` each, after a warm-up."""
    if contestant == "limit.saturated":
        return at_the_limit(params, urls)
    who = CONTESTANTS[contestant]
    if who.api == "blocking":
        return in_threads(contestant, params, urls)
    return who.run(in_tasks(contestant, params, urls))


def at_the_limit(params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Measure the capacity of the nodes, with as many cycles pipelined as there are tasks."""
    in_flight = params["workers"]
    saturate(urls, params["warm_up"], in_flight, TTL)
    found = saturate(urls, params["seconds"], in_flight, TTL)
    meter = Meter(seconds=found["seconds"], cpu_ns=found["cpu_ns"])
    return meter.result() | {
        "cycles": found["cycles"],
        "per_s": found["cycles"] / found["seconds"],
        "cpu_us": found["cpu_ns"] / 1000 / found["cycles"],
    }


def names(worker: int, workers: int) -> Iterator[str]:
    """Yield the resources of one worker in turn, without end."""
    count = max(10, NAMES // workers)
    return itertools.cycle([f"bench:{worker}:{number}" for number in range(count)])


def until(seconds: float) -> int:
    """Return the instant `seconds` from now, on the clock of the cycles."""
    return time.perf_counter_ns() + int(seconds * 1e9)


def in_threads(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Measure threads that share one instance, as in a program."""
    lock = contestants.blocking(contestant, urls)
    acquire, release, block = lock.acquire, lock.release, contestants.block_of(lock)
    workers: int = params["workers"]
    meter = Meter()
    warm = threading.Barrier(workers, meter.start)

    def cycles(resources: Iterator[str], end: int, count: int | None) -> list[int]:
        clock = time.perf_counter_ns
        taken: list[int] = []
        for resource in itertools.islice(resources, count):
            began = clock()
            if began > end:
                break
            try:
                if block is None:
                    release(acquire(resource))
                else:
                    with block(resource):
                        pass
            except Exception as error:  # noqa: BLE001 (counted and shown in the row)
                meter.error(error)
            else:
                taken.append(clock() - began)
        return taken

    def worker(number: int) -> None:
        resources = names(number, workers)
        cycles(resources, until(params["warm_up"]), None)
        warm.wait()
        taken = cycles(resources, until(params["seconds"]), params.get("cycles"))
        meter.samples.extend(taken)

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    meter.stop()
    result = meter.result(threads=threading.active_count())
    lock.close()
    return result


async def in_tasks(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Measure tasks that share one instance."""
    lock = contestants.asyncio(contestant, urls)
    await lock.open()
    acquire, release, block = lock.acquire, lock.release, contestants.block_of(lock)
    workers: int = params["workers"]
    meter = Meter()

    async def cycles(resources: Iterator[str], end: int, count: int | None) -> None:
        clock, samples = time.perf_counter_ns, meter.samples
        for resource in itertools.islice(resources, count):
            began = clock()
            if began > end:
                break
            try:
                if block is None:
                    await release(await acquire(resource))
                else:
                    async with block(resource):
                        pass
            except Exception as error:  # noqa: BLE001 (counted and shown in the row)
                meter.error(error)
            else:
                samples.append(clock() - began)

    async def all_for(seconds: float, count: int | None) -> None:
        end = until(seconds)
        await asyncio.gather(*(cycles(own, end, count) for own in resources))

    resources = [names(number, workers) for number in range(workers)]
    await all_for(params["warm_up"], None)
    meter.start()
    await all_for(params["seconds"], params.get("cycles"))
    meter.stop()
    result = meter.result(tasks=workers)
    await lock.close()
    return result
