"""Work 2: five nodes of which some fail during the slice: one slow, one or two hung, two killed.

Each slice has separate servers. A child first measures the healthy state. Then it sends `fault` and
measures again once the fault is in force: the first call, and then the rest, relative to the
healthy part of the same slice. Then it sends `wake`, waits for connections to drain and sends
`count`: nothing is held any more, so each remaining key is an orphan.

A call that takes longer than PATIENCE is aborted and ends the slice: "no lock within 5 s".
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from bench import contestants
from bench.aims import Aim
from bench.contestants import CONTESTANTS
from bench.crew import finished
from bench.fleet import Fleet, Site
from bench.meter import Meter
from bench.one import notify_parent
from bench.plan import Case, Column
from bench.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping
    from types import FrameType

    from bench.results import Figure, Found, Results

PATIENCE = 5.0
DRAIN = 1.0  # less than any ttl: orphans have not expired when they are counted
DELAY = 0.020
NAMES = 100

FAULTS = {
    "none": "nothing happens",
    "delayed": "one delayed by 20 ms",
    "hung": "one in SIGSTOP",
    "two hung": "two in SIGSTOP",
    "killed": "two killed",
}
OURS = ("quorlock", "quorlock.asyncio")
PEERS = (
    "redlock-py",
    "redlock-py.tuned",
    "pottery",
    "pottery.tuned",
    "pottery.asyncio",
    "redis.asyncio+gather",
    "redis.asyncio+gather.careful",
    "coredis+gather",
)


class SickSite(Site):
    """Five servers; with the fault `delayed` one of them is behind a proxy."""

    def __init__(self, fleet: Fleet, urls: list[str], fault: str, proxy: Proxy | None) -> None:
        super().__init__(fleet, urls)
        self._fault = fault
        self._proxy = proxy
        self._orphans: int | None = None

    def on_word(self, word: str) -> None:
        """Handle `fault`, `wake` or `count`."""
        {"fault": self._begin, "wake": self._end, "count": self._count}[word]()

    def after(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the number of orphans, which the child cannot see."""
        del row
        return {} if self._orphans is None else {"orphans": self._orphans}

    def _begin(self) -> None:
        servers = self.fleet.servers
        if self._proxy is not None:
            self._proxy.delay(DELAY)
        elif self._fault == "killed":
            servers[1].kill()
            servers[3].kill()
        elif self._fault in {"hung", "two hung"}:
            servers[2].stop()
            if self._fault == "two hung":
                servers[4].stop()

    def _end(self) -> None:
        if self._proxy is not None:
            self._proxy.delay(0.0)
        for server in self.fleet.servers:
            if server.alive and server.stopped:
                server.cont()

    def _count(self) -> None:
        self._orphans = self.fleet.leftovers()


@contextmanager
def sick_site(fleet: Fleet, nodes: int, *, fault: str) -> Generator[Site]:
    """Yield separate servers, because the fault damages them."""
    del fleet
    with Fleet(nodes) as own:
        urls = own.urls()
        if fault != "delayed":
            yield SickSite(own, urls, fault, None)
            return
        # The proxy is always in front of the node, so that its cost is in both parts.
        with Proxy(urls[2:3]) as proxy:
            yield SickSite(own, [*urls[:2], *proxy.urls, *urls[3:]], fault, proxy)


def _name(fault: str) -> str:
    return f"sick nodes, N = 5: {FAULTS[fault]}"


PLAN = [
    Case(
        "sick",
        _name(fault),
        OURS,
        site=partial(sick_site, fault=fault),
        deadline=30.0,
        quick=OURS if fault in {"hung", "killed"} else (),
    )
    for fault in FAULTS
] + [
    Case(
        "sick",
        f"{_name(fault)}: the others",
        PEERS,
        site=partial(sick_site, fault=fault),
        deadline=30.0,
        rounds=1,
    )
    for fault in FAULTS
    if fault != "none"
]


def columns(found: Found) -> tuple[Column, ...]:
    """Return the columns: figures relative to the healthy part, and leftovers."""
    del found
    return (
        Column("healthy p50 µs", "healthy_p50_us"),
        Column("p50 µs", "p50_us"),
        Column("p50 × healthy", "p50_to_healthy", "{:.2f}"),
        Column("p99 × healthy", "p99_to_healthy", "{:.2f}"),
        Column("first call ms", "first_ms", "{:.2f}"),
        Column("first × healthy p50", "first_to_healthy", "{:.1f}"),
        Column("threads more", "threads_more", "{:+.0f}"),
        Column("orphan keys", "orphans"),
        Column("errors", "errors"),
        Column("no lock within 5 s", "no_lock"),
    )


def _aims() -> list[Aim]:
    def worst(fault: str, who: str, key: str) -> Callable[[Results], Figure]:
        """Return the worst round: one occurrence is a failure."""

        def figure(results: Results) -> Figure:
            found = results.figure(_name(fault), who, key)
            return [max(found)] if found else []

        return figure

    def middle(fault: str, who: str, key: str) -> Callable[[Results], Figure]:
        return lambda results: results.figure(_name(fault), who, key)

    aims: list[Aim] = []
    for fault, who in itertools.product(tuple(FAULTS)[1:], OURS):
        what = f"{who}, {FAULTS[fault]}"
        ill = 2 if fault in {"two hung", "killed"} else 1
        aims += [
            Aim(f"{what}: p50", "≤ 1.4 × healthy", 1.4, middle(fault, who, "p50_to_healthy")),
            Aim(f"{what}: p99", "≤ 3 × healthy", 3, middle(fault, who, "p99_to_healthy")),
            Aim(
                f"{what}: first call",
                "≤ 10 × healthy p50",
                10,
                middle(fault, who, "first_to_healthy"),
            ),
            Aim(
                f"{what}: threads more",
                "≤ 1 a sick node",
                ill,
                worst(fault, who, "threads_more"),
            ),
            Aim(f"{what}: orphan keys", "none", 0, worst(fault, who, "orphans")),
        ]
    return aims


AIMS = _aims()


# --- the child -------------------------------------------------------------------------------


class NoLock(BaseException):
    """The call took longer than PATIENCE. Not an Exception, because libraries catch those."""


@dataclass
class Means:
    """The operations of an API: one cycle, awaiting with a timeout, and sleeping."""

    cycle: Callable[[], Awaitable[object]]
    within: Callable[[float, Awaitable[None]], Awaitable[None]]
    sleep: Callable[[float], Awaitable[None]]


def run(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Measure one thread or task: `seconds` in health, `seconds` with the fault."""
    who = CONTESTANTS[contestant]
    if who.api == "blocking":
        return _in_a_thread(contestant, params, urls)
    return who.run(_in_a_task(contestant, params, urls))


async def _measure(means: Means, params: dict[str, Any]) -> dict[str, Any]:
    seconds, patience = params["seconds"], params.get("patience", PATIENCE)
    healthy, first, sick = Meter(), Meter(), Meter()
    await _run_cycles(means, healthy, params["warm_up"])
    await _run_cycles(means, healthy, seconds)
    threads_before = threads()
    notify_parent("fault")
    no_lock = False
    try:
        await means.within(patience, _once(means, first))
        await means.within(patience + seconds, _run_cycles(means, sick, seconds))
    except NoLock:
        no_lock = True
    threads_more = threads() - threads_before
    notify_parent("wake")
    await means.sleep(DRAIN)
    notify_parent("count")
    was, once, now = healthy.result(), first.result(), sick.result()
    p50, p99, first_us = was["p50_us"], was["p99_us"], once["p50_us"]
    return now | {
        "errors": now["errors"] + once["errors"],
        "error_kinds": once["error_kinds"] | now["error_kinds"],
        "healthy_p50_us": p50,
        "healthy_p99_us": p99,
        "p50_to_healthy": _over(now["p50_us"], p50),
        "p99_to_healthy": _over(now["p99_us"], p99),
        "first_ms": _over(first_us, 1000.0),
        "first_to_healthy": _over(first_us, p50),
        "threads_more": threads_more,
        "no_lock": int(no_lock),
    }


async def _once(means: Means, meter: Meter) -> None:
    """Measure one cycle."""
    began = time.perf_counter_ns()
    try:
        await means.cycle()
    except Exception as error:  # noqa: BLE001 (counted and shown in the row)
        meter.error(error)
    else:
        meter.samples.append(time.perf_counter_ns() - began)


async def _run_cycles(means: Means, meter: Meter, seconds: float) -> None:
    """Measure cycles for `seconds`."""
    meter.start()
    end = time.perf_counter() + seconds
    try:
        while time.perf_counter() < end:
            await _once(means, meter)
    finally:
        meter.stop()


def _over(value: float | None, other: float | None) -> float | None:
    return None if value is None or not other else value / other


def _in_a_thread(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    lock = contestants.blocking(contestant, urls)
    names = itertools.cycle([f"bench:{number}" for number in range(NAMES)])

    async def cycle() -> None:
        lock.release(lock.acquire(next(names)))

    async def within(seconds: float, work: Awaitable[None]) -> None:
        with _alarm(seconds):
            await work

    async def sleep(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (there is no loop)

    found = finished(_measure(Means(cycle, within, sleep), params))
    lock.close()
    return found


@contextmanager
def _alarm(seconds: float) -> Generator[None]:
    """Raise NoLock in the `with` block after `seconds`; then restore the child's alarm."""

    def on_alarm(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        raise NoLock

    handler = signal.signal(signal.SIGALRM, on_alarm)
    last, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, last)
        signal.signal(signal.SIGALRM, handler)


async def _in_a_task(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    lock = contestants.asyncio(contestant, urls)
    await lock.open()
    names = itertools.cycle([f"bench:{number}" for number in range(NAMES)])

    async def cycle() -> None:
        await lock.release(await lock.acquire(next(names)))

    async def within(seconds: float, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(seconds):
                await work
        except TimeoutError:
            raise NoLock from None

    found = await _measure(Means(cycle, within, asyncio.sleep), params)
    await lock.close()
    return found


def threads() -> int:
    """Return the number of threads of this process, including those not started by Python."""
    with suppress(OSError):
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208 (names are enough)
    return threading.active_count()
