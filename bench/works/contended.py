"""Work 3: one lock that many want at once, each for a millisecond.

Every acquisition is noted with the times at which it was got, begun to be given back and given
back, on one clock, since all waiters are threads or tasks of one process. From these notes come the
figures: acquisitions/s, the hand-off (one release has returned, the next acquire returns), and how
evenly the waiters were served. Two holders at once would show too: they are counted.

Who has given the lock back asks for it again at once. Where waiters sleep between tries it mostly
gets it, and that hand-off is short and fair to nobody; so those to another waiter are told apart.
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
SECONDS = 1.5  # a slice: at tens of milliseconds a hand-off there must be room for some
PAUSE = 0.010
END = 5.0  # for waiters who are still asleep when the time is over

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
    """Rate, hand-off, fairness."""
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
    """One acquisition, in ns."""

    got: int
    giving: int
    given: int
    waiter: int


def run(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """So many `workers` for so many `seconds`; who waits then waits no longer than it must."""
    who = CONTESTANTS[contestant]
    if who.face == "blocking":
        return _in_threads(contestant, params, urls)
    return who.run(_in_tasks(contestant, params, urls))


def figures(notes: list[Note], meter: Meter, workers: int) -> dict[str, Any]:
    """What the notes of the measured part come to."""
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
        # None got it before the one before had begun to give it back.
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
            except Exception as error:  # noqa: BLE001 (counted, and told in the row)
                meter.error(error)

    # Daemons: who sleeps longer than we wait for it is no reason not to end.
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
            except Exception as error:  # noqa: BLE001 (counted, and told in the row)
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
