"""Work 3: many waiters compete for one lock, in processes, threads or tasks.

Each acquisition is noted with the times of its request, of its return and of the beginning of its
release. All times are of CLOCK_MONOTONIC, which is one clock for all processes of a Linux machine.
The figures come from these notes:

- hand-over: from the beginning of a release until the acquire of a waiter has returned that waited
  then. If others that asked later get the lock before, their time is part of the hand-over.
- wait: the time of an acquire.
- fairness: Jain's index over the acquisitions of all waiters: 1 is equal shares, 1 ÷ waiters is one
  waiter that gets all.

A wait or a hand-over that the end of the slice cuts off counts with its time so far. So a waiter
that never gets the lock is seen.

The holder adds 1 to a counter in shared memory: it reads, works, and writes. Two simultaneous
holders lose an addition, and the row has the number of lost ones.
"""

from __future__ import annotations

import mmap
import os
import random
import time
from collections import Counter
from functools import partial
from itertools import islice, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.aims import Aim, faster
from bench.crew import Member, with_api
from bench.fleet import FULL
from bench.machine import metered_site
from bench.meter import percentile
from bench.one import notify_parent
from bench.plan import Case, Column
from bench.results import present, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from bench.crew import Api
    from bench.results import Figure, Found, Results

RESOURCE = "bench:contended"
SECONDS, WARM_UP = 2.0, 0.5
COUNTED = 1.0  # seconds in which commands are counted, after the measured part
END = 5.0  # seconds for waiters that are still asleep at the end
UNCONTENDED = 0.2  # seconds for cycles without contention, before
MS = 1e6  # ns
ADDED, OVER = 0, 1  # places in the shared memory

clock = time.monotonic_ns

OURS = ("quorlock", "quorlock.asyncio")
THREADED = (
    "quorlock",
    "pottery.tuned",
    "redlock-py.tuned",
    "redis-py.Lock.tuned",
    "python-redis-lock",
)
TASKED = ("quorlock.asyncio", "pottery.asyncio.tuned")
ALL = (*OURS, "pottery.tuned", "pottery.asyncio.tuned", *THREADED[2:])


def _case(name: str, who: Sequence[str], hung: int = 0, **params: float) -> Case:
    return Case(
        "contended",
        name,
        tuple(who),
        {"seconds": SECONDS, "warm_up": WARM_UP, "work": 0.001, **params},
        site=partial(metered_site, hung=hung),
        deadline=40.0,
        rounds=3,
        quick=("quorlock", "pottery.tuned", "python-redis-lock") if name == TIGHT else (),
    )


THINK = "one lock, 8 processes, 1 ms of work, 0 to 10 ms between"
TIGHT = "one lock, 8 processes, 1 ms of work, no pause"
LONG = "one lock, 8 processes, 20 ms of work, no pause"
THREADS = "one lock, 32 threads of one process, 1 ms of work, no pause"
TASKS = "one lock, 200 tasks of one process, 1 ms of work, no pause"
HUNG = f"{TIGHT}, one node in SIGSTOP"
PLAN = [
    _case(THINK, ALL, processes=8, think=0.010),
    _case(TIGHT, ALL, processes=8),
    _case(LONG, ALL, processes=8, work=0.020),
    _case(THREADS, THREADED, waiters=32),
    _case(TASKS, TASKED, waiters=200),
    _case(HUNG, (*OURS, "pottery.tuned"), 1, processes=8),
]


def columns(found: Found) -> tuple[Column, ...]:
    """Return the columns: rate, hand-over, wait, fairness and costs."""
    del found
    return (
        Column("acquisitions/s", "per_s"),
        Column("hand-over p50 ms", "handover_p50_ms", "{:.2f}"),
        Column("p99 ms", "handover_p99_ms", "{:.1f}"),
        Column("uncontended cycle ms", "cycle_ms", "{:.2f}"),
        Column("wait p50 ms", "wait_p50_ms", "{:.1f}"),
        Column("p99 ms", "wait_p99_ms"),
        Column("max ms", "wait_max_ms"),
        Column("Jain's index", "jain", "{:.2f}"),
        Column("same waiter again", "again", "{:.0%}"),
        Column("commands", "commands", "{:.1f}"),
        Column("client CPU µs", "cpu_us"),
        Column("server CPU µs", "server_cpu_us"),
        Column("additions lost", "lost", worst=True),
        Column("errors", "errors", worst=True),
        Column("foreign cores", "foreign", "{:.2f}"),
    )


# --- aims ------------------------------------------------------------------------------------


def _of(case: str, who: str, key: str) -> Callable[[Results], Figure]:
    return lambda results: results.figure(case, who, key)


def _rate(case: str, who: str, times: float, kin: str) -> Aim:
    """Return the aim for our rate; a peer that acquired nothing counts as one acquisition."""

    def figure(results: Results) -> Figure:
        theirs = results.figure(*results.best(case, kin, "per_s"), "per_s")
        return ratio(results.figure(case, who, "per_s"), [max(one, 1 / SECONDS) for one in theirs])

    what = f"{who}: {case}: acquisitions/s"
    return Aim(what, f"≥ {times:g} × {kin}", times, figure, at_most=False)


def _lost(who: str) -> Aim:
    def figure(results: Results) -> Figure:
        found = [results.figure(case.name, who, "lost") for case in PLAN]
        lost = [one for rounds in found for one in present(rounds)]
        return [max(lost)] if lost else []

    return Aim(f"{who}: additions lost under contention", "none", 0, figure)


def _pottery_of(who: str) -> str:
    return "pottery" if who == "quorlock" else "pottery.asyncio"


def _fair(case: str, who: str) -> list[Aim]:
    pottery, what = _pottery_of(who), f"{who}: {case}"
    wait = faster(f"{what}: wait p99", 15, pottery, (case, who), (case, pottery), "wait_p99_ms")
    jain = Aim(f"{what}: Jain's index", "≥ 0.99", 0.99, _of(case, who, "jain"), at_most=False)
    return [wait, jain]


def _fast(who: str) -> list[Aim]:
    """Return the aims with pauses; without, a holder that polls takes its own lock again."""

    def hand_over(results: Results) -> Figure:
        of = partial(results.figure, THINK, who)
        return ratio(of("handover_p50_ms"), of("cycle_ms"))

    return [
        *[_rate(THINK, who, 3, kin) for kin in dict.fromkeys(("pottery", _pottery_of(who)))],
        _rate(THINK, who, 0.65, "python-redis-lock"),
        Aim(f"{who}: {THINK}: hand-over p50", "≤ 3 × an uncontended cycle", 3, hand_over),
    ]


def _tight(who: str) -> list[Aim]:
    def hung(results: Results) -> Figure:
        return results.ratio((HUNG, who), (TIGHT, who), "per_s")

    what, commands = f"{who}: {TIGHT}", _of(TIGHT, who, "commands")
    return [
        Aim(f"{what}: commands", "≤ 3.3 N", 3.3 * FULL, commands),
        Aim(f"{who}: {HUNG}: acquisitions/s", "≥ 0.9 × healthy", 0.9, hung, at_most=False),
    ]


AIMS = [
    *(aim for who in OURS for aim in _fast(who)),
    *(aim for case in (THINK, TIGHT) for who in OURS for aim in _fair(case, who)),
    *(aim for who in OURS for aim in (*_tight(who), _lost(who))),
    _rate(THREADS, "quorlock", 5, "pottery"),
    Aim(
        f"quorlock: {THREADS}: commands",
        "≤ 1.2 N",
        1.2 * FULL,
        _of(THREADS, "quorlock", "commands"),
    ),
    _rate(TASKS, "quorlock.asyncio", 10, "pottery.asyncio"),
]

# --- the child -------------------------------------------------------------------------------


class Note(NamedTuple):
    """The times of one acquisition, in ns."""

    got: int
    asked: int
    giving: int
    waiter: tuple[int, int]  # the process, and the thread or task in it


class Told(NamedTuple):
    """The notes of one process."""

    notes: list[Note]
    waiting: list[int]  # since when each waiter waits, or 0
    errors: Counter[str]
    left: int  # waiters that have not ended


def run(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Let the waiters of all processes compete for `seconds`."""
    shared = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
    crew = [
        Member(params["deadline"], _take_part, contestant, urls, (params, shared, process))
        for process in range(params.get("processes", 1))
    ]
    for member in crew:
        member.answer()
    crew[0].ask("cycles")
    cycle_ms = crew[0].answer()
    notify_parent("start")
    for member in crew:
        member.ask("compete")
    time.sleep(params["warm_up"])
    begin = clock()
    notify_parent("begin")
    time.sleep(params["seconds"])
    end = clock()
    notify_parent("end")
    counted = clock()
    notify_parent("count")
    time.sleep(min(COUNTED, params["seconds"]))
    counted_end = clock()
    notify_parent("counted")
    shared[OVER] = 1
    told = [member.answer() for member in crew]
    for member in crew:
        member.kill()
    return figures(told, begin, end) | {
        "cycle_ms": cycle_ms,
        "counted_cycles": sum(
            counted <= note.got < counted_end for one in told for note in one.notes
        ),
        "lost": max(0, sum(len(one.notes) for one in told) - shared[ADDED]),
    }


def figures(told: Sequence[Told], begin: int, end: int) -> dict[str, Any]:
    """Return the figures of the time from `begin` to `end` (ns)."""
    notes = sorted(note for one in told for note in one.notes)
    measured = [note for note in notes if begin <= note.got < end]
    waits = [note.got - note.asked for note in measured]
    waits += [end - note.asked for note in notes if note.asked < end <= note.got]
    waiting = [since for one in told for since in one.waiting if 0 < since < end]
    waits += [end - since for since in waiting]
    hand_overs = list(_hand_overs(notes, waiting, begin, end))
    pairs = list(pairwise(measured))
    errors = sum((one.errors for one in told), Counter[str]())
    served = Counter(note.waiter for note in measured)
    seconds = (end - begin) / 1e9
    return {
        "cycles": len(measured),
        "seconds": seconds,
        "per_s": len(measured) / seconds,
        "handover_p50_ms": _ms(hand_overs, 0.5),
        "handover_p99_ms": _ms(hand_overs, 0.99),
        "wait_p50_ms": _ms(waits, 0.5),
        "wait_p99_ms": _ms(waits, 0.99),
        "wait_max_ms": _ms(waits, 1.0),
        "jain": jain(list(served.values()), sum(len(one.waiting) for one in told)),
        "again": sum(a.waiter == b.waiter for a, b in pairs) / len(pairs) if pairs else None,
        "errors": errors.total(),
        "error_kinds": dict(errors.most_common(3)),
        "left_waiting": sum(one.left for one in told),
    }


def _hand_overs(
    notes: Sequence[Note], waiting: Sequence[int], begin: int, end: int
) -> Iterator[int]:
    """Yield the time of each hand-over whose release began in the measured part."""
    for place, note in enumerate(notes):
        giving = note.giving
        if begin <= giving < end:
            later = (other.got for other in islice(notes, place + 1, None) if other.asked <= giving)
            got = next(later, end if any(since <= giving for since in waiting) else None)
            if got is not None:
                yield min(got, end) - giving


def jain(counts: Sequence[int], waiters: int) -> float | None:
    """Return Jain's index of fairness; `counts` may leave out waiters with 0."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (waiters * squares) if squares else None


def _ms(times: Sequence[int], share: float) -> float | None:
    return percentile(sorted(times), share) / MS if times else None


def _take_part(pipe: Connection, contestant: str, urls: list[str], part: tuple[Any, ...]) -> None:
    with_api(contestant, urls, partial(_compete, pipe, *part))


async def _compete(
    pipe: Connection, params: dict[str, Any], shared: memoryview[int], process: int, api: Api
) -> None:
    """Connect, answer the words of the child, and let the waiters of this process compete."""
    await _cycle(api)
    pipe.send("ready")
    while pipe.recv() == ("cycles",):
        pipe.send(await _uncontended(api))
    told = Told([], [0] * params.get("waiters", 1), Counter(), 0)
    waiters = [
        partial(_wait_and_work, api, params, shared, told, (process, number))
        for number in range(len(told.waiting))
    ]
    left = await api.together(waiters, params["warm_up"] + params["seconds"] + COUNTED + END)
    pipe.send(told._replace(left=left))


async def _cycle(api: Api) -> None:
    await api.lock.release(await api.lock.wait(f"{RESOURCE}:{os.getpid()}"))


async def _uncontended(api: Api) -> float:
    """Return the median of some cycles without contention, in ms."""
    times: list[int] = []
    until = clock() + int(UNCONTENDED * 1e9)
    while (began := clock()) < until:
        await _cycle(api)
        times.append(clock() - began)
    return median(times) / MS


async def _wait_and_work(
    api: Api, params: dict[str, Any], shared: memoryview[int], told: Told, waiter: tuple[int, int]
) -> None:
    """Acquire, add 1, release, think; until the slice is over."""
    while not shared[OVER]:
        told.waiting[waiter[1]] = asked = clock()
        try:
            held = await api.lock.wait(RESOURCE)
            got = clock()
            told.waiting[waiter[1]] = 0
            additions = shared[ADDED]
            await api.sleep(params["work"])
            shared[ADDED] = additions + 1
            giving = clock()
            told.notes.append(Note(got, asked, giving, waiter))
            await api.lock.release(held)
        except Exception as error:  # noqa: BLE001 (counted and shown in the row)
            told.errors[f"{type(error).__name__}: {error}"[:120]] += 1
        if "think" in params:
            await api.sleep(random.uniform(0, params["think"]))
