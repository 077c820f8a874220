"""Compare the other primitives with a plain lock: several keys, permits, re-entrant locks.

    python -m bench.claims                          five local servers, 9 rounds, half a minute
    python -m bench.claims --rounds 3 --cycles 100

Each round runs all rows one after another, in the reverse order every second time. So a machine
whose speed drifts affects all alike.  A cycle is an uncontended `with lock: pass`.

Columns: the median time of a cycle and the CPU time that this process spends on one, each as the
median over the rounds; and both relative to the plain lock of the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import quorlock
import quorlock.asyncio
from quorlock.testing.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SETTINGS: dict[str, Any] = {
    "node_timeout": 0.25,
    "max_ttl": 600.0,
    "ttl": 600.0,
    "restart_guard": None,  # no server has forgotten anything
}


class Row(NamedTuple):
    """One kind of lock.

    make: returns it, of a Redlock of either API.
    beside: the number of other leases of it that are held; of a re-entrant lock, outer ones.
    """

    name: str
    make: Callable[[Any], Any]
    beside: int = 0


ROWS = (
    Row("plain lock", lambda redlock: redlock.lock("plain")),
    Row("re-entrant, outermost", lambda redlock: redlock.rlock("outermost")),
    Row("re-entrant, nested", lambda redlock: redlock.rlock("nested"), beside=1),
    Row("2 keys at once", lambda redlock: redlock.lock(*_keys(2))),
    Row("8 keys at once", lambda redlock: redlock.lock(*_keys(8))),
    Row("1 of 3 permits", lambda redlock: redlock.semaphore("few", 3)),
    Row("1 of 16 permits", lambda redlock: redlock.semaphore("some", 16)),
    Row("1 of 16 permits, 15 held", lambda redlock: redlock.semaphore("busy", 16), beside=15),
    Row("1 of 100 permits", lambda redlock: redlock.semaphore("many", 100)),
)


def _keys(count: int) -> list[str]:
    return [f"{count}:{number}" for number in range(count)]


class Cycle(NamedTuple):
    """The median time of a cycle, and its CPU time in this process, in us."""

    p50: float
    cpu: float


def in_thread(urls: Sequence[str], row: Row, cycles: int) -> Cycle:
    """Measure the blocking API."""
    with quorlock.Redlock(urls, **SETTINGS) as redlock:
        lock, meter = row.make(redlock), Meter()
        held = [lock.acquire() for _ in range(row.beside)]
        for number in range(2 * cycles):
            if number == cycles:
                meter.start()  # the first half warms up
            began = time.perf_counter_ns()
            with lock:
                pass
            meter.add(time.perf_counter_ns() - began)
        result = meter.result()
        for lease in held:
            lease.release()
    return result


async def in_task(urls: Sequence[str], row: Row, cycles: int) -> Cycle:
    """Measure the asyncio API with one task."""
    async with quorlock.asyncio.Redlock(urls, **SETTINGS) as redlock:
        lock, meter = row.make(redlock), Meter()
        held = [await lock.acquire() for _ in range(row.beside)]
        for number in range(2 * cycles):
            if number == cycles:
                meter.start()
            began = time.perf_counter_ns()
            async with lock:
                pass
            meter.add(time.perf_counter_ns() - began)
        result = meter.result()
        for lease in held:
            await lease.release()
    return result


class Meter:
    """The times of the cycles since `start`."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._cpu = 0

    def start(self) -> None:
        """Forget what was measured before."""
        self._times = []
        self._cpu = time.process_time_ns()

    def add(self, taken: int) -> None:
        """Record one cycle, in ns."""
        self._times.append(taken)

    def result(self) -> Cycle:
        """Return the median, and the CPU time of one."""
        cpu = time.process_time_ns() - self._cpu
        return Cycle(median(self._times) / 1000, cpu / len(self._times) / 1000)


HEAD = f"{'':<26}{'p50 us':>8}{'x plain':>9}{'CPU us':>9}{'x plain':>9}"


def shown(row: Row, rounds: Sequence[Cycle], plain: Sequence[Cycle]) -> str:
    """Return a line of the table: medians over the rounds, ratios within a round."""
    pairs = list(zip(rounds, plain, strict=True))
    return (
        f"{row.name:<26}"
        f"{median(cycle.p50 for cycle in rounds):>8,.0f}"
        f"{median(cycle.p50 / against.p50 for cycle, against in pairs):>9.2f}"
        f"{median(cycle.cpu for cycle in rounds):>9,.0f}"
        f"{median(cycle.cpu / against.cpu for cycle, against in pairs):>9.2f}"
    )


def measure(servers: Servers, rounds: int, cycles: int) -> None:
    """Measure all rows in both APIs, and print the tables."""
    found: dict[tuple[str, Row], list[Cycle]] = {}
    for number in range(rounds):
        for row in ROWS[:: -1 if number % 2 else 1]:
            for api in ("blocking", "asyncio"):
                if api == "blocking":
                    cycle = in_thread(servers.tcp_urls, row, cycles)
                else:
                    cycle = asyncio.run(in_task(servers.tcp_urls, row, cycles))
                found.setdefault((api, row), []).append(cycle)
    for api in ("blocking", "asyncio"):
        print(f"{api}\n{HEAD}")
        for row in ROWS:
            print(shown(row, found[api, row], found[api, ROWS[0]]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.claims",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cycles", type=int, default=300, help="measured, after as many others")
    parser.add_argument("--nodes", type=int, default=5)
    given = parser.parse_args(arguments)
    gc.freeze()
    print(f"{given.nodes} nodes, {given.rounds} rounds of {given.cycles} cycles")
    with Servers(given.nodes, tcp=True) as servers:
        measure(servers, given.rounds, given.cycles)
    return 0


if __name__ == "__main__":
    sys.exit(main())
