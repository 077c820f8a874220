"""Work 3: many waiters compete for one lock and hold it for a millisecond each.

Each acquisition is noted with the times of the acquire, the start of the release and its end. All
waiters are threads or tasks of one process, so the times are from one clock. The figures come from
these notes: acquisitions/s, the hand-off time (from the end of a release to the next acquire) and
fairness. Two simultaneous holders would be noticed and are counted.

A waiter that has released the lock tries again at once. If the others sleep between attempts, it
usually wins, which makes the hand-off short and unfair. Therefore hand-offs to another waiter are
also reported separately.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench import contestants
from bench.contestants import CONTESTANTS
from bench.meter import Meter
from bench.plan import Case, Column

if TYPE_CHECKING:
    from bench.results import Found

RESOURCE = "bench:contended"
HELD = 0.001
SECONDS = 1.5  # of a slice: enough for some hand-offs of tens of milliseconds
PAUSE = 0.010
END = 5.0  # seconds for waiters that are still asleep at the end

POLLERS = (
    "quorlock",
    "quorlock.asyncio",
    "redlock-py.tuned",
    "pottery.tuned",
    "redis.asyncio+gather.tuned",
    "coredis+gather",
    "redis-py.Lock.tuned",
    "coredis.Lock",
)
PLAN = [
    Case(
        "contended",
        f"one lock, {waiters} waiters, each in its own way",
        (*POLLERS, "python-redis-lock"),
        {"workers": waiters, "seconds": SECONDS},
        deadline=25.0,
        rounds=2,
        quick=("quorlock", "quorlock.asyncio", "redlock-py.tuned") if waiters < 50 else (),  # noqa: PLR2004
    )
    for waiters in (10, 50)
] + [
    Case(
        "contended",
        f"one lock, {waiters} waiters, {PAUSE * 1000:.0f} ms between tries",
        POLLERS,
        {"workers": waiters, "seconds": SECONDS, "pause": PAUSE},
        deadline=25.0,
        rounds=2,
    )
    for waiters in (10, 50)
]


def columns(found: Found) -> tuple[Column, ...]:
    """Return the columns: rate, hand-off and fairness."""
    del found
    return (
        Column("acquisitions/s", "per_s"),
        Column("hand-off p50 ms", "p50_ms", "{:.2f}"),
        Column("hand-off p99 ms", "p99_ms", "{:.1f}"),
        Column("same waiter again", "again", "{:.0%}"),
        Column("to another p50 ms", "to_another_p50_ms", "{:.2f}"),
        Column("most for one waiter", "most"),
        Column("fewest", "fewest"),
        Column("most ÷ mean", "most_to_mean", "{:.2f}"),
        Column("CPU µs", "cpu_us"),
        Column("two at once", "overlaps"),
        Column("errors", "errors"),
    )


class Note(NamedTuple):
    """The times of one acquisition, in ns."""

    got: int
    giving: int
    given: int
    waiter: int


def run(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Let `workers` waiters compete for `seconds`, then wait a bounded time for them to end."""
    who = CONTESTANTS[contestant]
    if who.api == "blocking":
        return _in_threads(contestant, params, urls)
    return who.run(_in_tasks(contestant, params, urls))


def figures(notes: list[Note], meter: Meter, workers: int) -> dict[str, Any]:
    """Return the figures of the measured part."""
    notes.sort()
    meter.samples = [after.got - before.given for before, after in pairwise(notes)]
    served = Counter(dict.fromkeys(range(workers), 0))
    served.update(note.waiter for note in notes)
    counts = served.values()
    found = meter.result()
    to_another = [
        (after.got - before.given) / 1e6
        for before, after in pairwise(notes)
        if after.waiter != before.waiter
    ]
    return found | {
        "cycles": len(notes),
        "per_s": len(notes) / meter.seconds,
        "cpu_us": meter.cpu_ns / 1000 / len(notes) if notes else None,
        "p50_ms": found["p50_us"] / 1000 if meter.samples else None,
        "p99_ms": found["p99_us"] / 1000 if meter.samples else None,
        "again": 1 - len(to_another) / len(meter.samples) if meter.samples else None,
        "to_another_p50_ms": median(to_another) if to_another else None,
        "most": max(counts),
        "fewest": min(counts),
        "most_to_mean": max(counts) / fmean(counts) if notes else None,
        # Acquires that returned before the previous release began: there must be none.
        "overlaps": sum(after.got < before.giving for before, after in pairwise(notes)),
    }


def _in_threads(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    lock = contestants.blocking(contestant, urls, pause=params.get("pause"))
    clock, notes, meter = time.perf_counter_ns, list[Note](), Meter()
    workers: int = params["workers"]
    over = False

    def waiter(number: int) -> None:
        while not over:
            try:
                held = lock.wait(RESOURCE)
                got = clock()
                if not over:
                    time.sleep(HELD)
                giving = clock()
                lock.release(held)
                notes.append(Note(got, giving, clock(), number))
            except Exception as error:  # noqa: BLE001 (counted and shown in the row)
                meter.error(error)

    # Daemons: a thread that sleeps for longer does not prevent the process from ending.
    threads = [
        threading.Thread(target=waiter, args=(number,), daemon=True) for number in range(workers)
    ]
    for thread in threads:
        thread.start()
    time.sleep(params["warm_up"])
    notes.clear()
    meter.start()
    time.sleep(params["seconds"])
    meter.stop()
    measured = notes.copy()
    over = True
    give_up = time.monotonic() + END
    for thread in threads:
        thread.join(max(0.0, give_up - time.monotonic()))
    left = sum(thread.is_alive() for thread in threads)
    if not left:
        lock.close()
    return figures(measured, meter, workers) | {"left_waiting": left}


async def _in_tasks(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    lock = contestants.asyncio(contestant, urls, pause=params.get("pause"))
    await lock.open()
    clock, notes, meter = time.perf_counter_ns, list[Note](), Meter()
    workers: int = params["workers"]
    over = False

    async def waiter(number: int) -> None:
        while not over:
            try:
                held = await lock.wait(RESOURCE)
                got = clock()
                if not over:
                    await asyncio.sleep(HELD)
                giving = clock()
                await lock.release(held)
                notes.append(Note(got, giving, clock(), number))
            except Exception as error:  # noqa: BLE001 (counted and shown in the row)
                meter.error(error)

    tasks = [asyncio.create_task(waiter(number)) for number in range(workers)]
    await asyncio.sleep(params["warm_up"])
    notes.clear()
    meter.start()
    await asyncio.sleep(params["seconds"])
    meter.stop()
    measured = notes.copy()
    over = True
    _, left = await asyncio.wait(tasks, timeout=END)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await lock.close()
    return figures(measured, meter, workers) | {"left_waiting": len(left)}
