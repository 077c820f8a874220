"""Compare `renew=True` for many leases with a program that extends them itself.

    python -m bench.renewal                    10,000 leases, ttl 10 s, five local servers, 30 s
    python -m bench.renewal --leases 1000 --seconds 10

Each method keeps the same number of leases for the same time on the same servers. The manual
methods extend each lease after a third of its ttl, as renewal does: sequentially in one thread or
task, or in asyncio with one task per lease, whose concurrent extensions the driver batches.

Columns: lost leases (renewal loses none on a healthy system); extensions per second; this process's
share of one core; packets per second to each node (`total_reads_processed`); CPU time of one
extension; and the smallest validity at the end: less than about 60 % of the ttl means that renewal
falls behind.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import quorlock
import quorlock.asyncio
from quorlock.testing.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SETTINGS: dict[str, Any] = {"node_timeout": 0.25, "max_ttl": 60.0}
DUE_LEFT = 2 / 3  # fraction of the ttl that is left when a lease is extended: renewal's mean
ENGINE, ALONE, EACH = "renew=True", "one at a time", "a task for each"
WAYS = {"threads": (ENGINE, ALONE), "asyncio": (ENGINE, ALONE, EACH)}


@dataclass(frozen=True)
class Plan:
    """The number of leases, their ttl and the duration."""

    leases: int
    ttl: float
    seconds: float

    @property
    def names(self) -> list[str]:
        """The names of the resources."""
        return [f"r{number}" for number in range(self.leases)]

    @property
    def warm_up(self) -> float:
        """Seconds before counting starts: each lease has been extended once."""
        return self.ttl / 2


@dataclass(frozen=True)
class Cost:
    """CPU seconds of this process, packets to a node, extensions and elapsed seconds."""

    cpu: float
    packets: float
    extensions: int
    seconds: float


@dataclass(frozen=True)
class Kept:
    """The result of one method in one API; `least` is the smallest validity over the ttl."""

    way: str
    cost: Cost
    lost: int
    least: float

    def __str__(self) -> str:
        cost = self.cost
        each = cost.cpu / cost.extensions * 1e6 if cost.extensions else float("nan")
        return (
            f"{self.way:<16}{self.lost:>7,}{cost.extensions / cost.seconds:>14,.0f}"
            f"{cost.cpu / cost.seconds:>12.1%}{cost.packets / cost.seconds:>13,.0f}"
            f"{each:>12,.1f}{self.least:>12.0%}"
        )


HEAD = (
    f"{'':<16}{'lost':>7}{'extensions/s':>14}{'of a core':>12}{'packets/s':>13}"
    f"{'CPU µs each':>12}{'least left':>12}"
)


class Meter:
    """Counts from its creation on."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._packets, self._extensions = self._counted()
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def cost(self) -> Cost:
        """Return the cost since the creation of this meter."""
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
        packets, extensions = self._counted()
        n = len(self._servers)
        return Cost(
            cpu,
            (packets - self._packets) / n,
            (extensions - self._extensions) // n,
            seconds,
        )

    def _counted(self) -> tuple[int, int]:
        """Return the packets that the servers have received and the scripts that they have run."""
        reads = scripts = 0
        for server in self._servers:
            info = server.execute("INFO", "everything").decode()
            reads += _number(info, r"total_reads_processed:(\d+)")
            for command in ("eval", "evalsha"):
                scripts += _number(info, rf"cmdstat_{command}:calls=(\d+)")
        return reads, scripts


def _number(info: str, pattern: str) -> int:
    found = re.search(pattern, info)
    return int(found[1]) if found else 0


def summed_up(
    way: str, cost: Cost, plan: Plan, held: Iterable[quorlock.Lease | quorlock.asyncio.Lease]
) -> Kept:
    """Return the result of a method whose leases should all be held now."""
    validities = [lease.validity for lease in held]
    lost = sum(validity <= 0 for validity in validities)
    return Kept(way, cost, lost, max(0.0, min(validities) / plan.ttl))


# --- the blocking API ----------------------------------------------------------------------------


class Loop(threading.Thread):
    """A thread that extends leases sequentially, the earliest due first, until it is stopped."""

    def __init__(self, ttl: float) -> None:
        super().__init__(name="one at a time")
        self.leases: deque[quorlock.Lease] = deque()  # in the order in which they are due
        self._ttl = ttl
        self._over = threading.Event()

    def run(self) -> None:
        """Run the thread."""
        while not self._over.is_set():
            left = self.leases[0].validity - self._ttl * DUE_LEFT if self.leases else 0.01
            if left > 0:
                self._over.wait(left)
                continue
            lease = self.leases.popleft()
            with suppress(quorlock.LeaseLost):  # counted at the end
                lease.extend()
                self.leases.append(lease)

    def stop(self) -> None:
        """Stop the thread; idempotent."""
        self._over.set()
        self.join()


def threads(servers: Servers, plan: Plan, way: str) -> Kept:
    """Measure one method in the blocking API."""
    with quorlock.Redlock(servers.urls, ttl=plan.ttl, **SETTINGS) as redlock:
        loop = Loop(plan.ttl)
        loop.start()
        held: list[quorlock.Lease] = []
        try:
            for name in plan.names:
                held.append(redlock.lock(name, renew=way == ENGINE).acquire())
                if way == ALONE:
                    loop.leases.append(held[-1])
            if way == ENGINE:
                loop.stop()
            time.sleep(plan.warm_up)
            meter = Meter(servers)
            time.sleep(plan.seconds)
            kept = summed_up(way, meter.cost(), plan, held)
        finally:
            loop.stop()
        for lease in held:
            lease.release()
    return kept


# --- asyncio -------------------------------------------------------------------------------------


async def keep(lease: quorlock.asyncio.Lease, ttl: float) -> None:
    """Extend one lease until it is lost."""
    with suppress(quorlock.LeaseLost):  # counted at the end
        while True:
            await extended(lease, ttl)


async def keep_all(leases: deque[quorlock.asyncio.Lease], ttl: float) -> None:
    """Extend all leases in one task, in the order in which they are due."""
    while True:
        if not leases:
            await asyncio.sleep(0.01)
            continue
        lease = leases.popleft()
        with suppress(quorlock.LeaseLost):  # counted at the end
            await extended(lease, ttl)
            leases.append(lease)


async def extended(lease: quorlock.asyncio.Lease, ttl: float) -> None:
    """Extend a lease when it is due."""
    if (left := lease.validity - ttl * DUE_LEFT) > 0:
        await asyncio.sleep(left)
    await lease.extend()


async def tasks(servers: Servers, plan: Plan, way: str) -> Kept:
    """Measure one method in asyncio."""
    in_turn: deque[quorlock.asyncio.Lease] = deque()
    connectors = [asyncio.create_task(keep_all(in_turn, plan.ttl))] if way == ALONE else []
    async with quorlock.asyncio.Redlock(servers.urls, ttl=plan.ttl, **SETTINGS) as redlock:
        held: list[quorlock.asyncio.Lease] = []
        for name in plan.names:
            held.append(await redlock.lock(name, renew=way == ENGINE).acquire())
            if way == ALONE:
                in_turn.append(held[-1])
            if way == EACH:
                connectors.append(asyncio.create_task(keep(held[-1], plan.ttl)))
        await asyncio.sleep(plan.warm_up)
        meter = Meter(servers)
        await asyncio.sleep(plan.seconds)
        kept = summed_up(way, meter.cost(), plan, held)
        for task in connectors:
            task.cancel()
        await asyncio.gather(*connectors, return_exceptions=True)
        for lease in held:
            await lease.release()
    return kept


# --- the command line ----------------------------------------------------------------------------


def measure(servers: Servers, plan: Plan) -> list[Kept]:
    """Measure all methods in both APIs and print each result."""
    found: list[Kept] = []
    for api, ways in WAYS.items():
        print(f"{api}\n{HEAD}")
        rows: list[Kept] = []
        for way in ways:
            if api == "threads":
                rows.append(threads(servers, plan, way))
            else:
                rows.append(asyncio.run(tasks(servers, plan, way)))
            print(rows[-1], flush=True)
        for other in rows[1:]:
            print(compared(rows[0], other), flush=True)
        found += rows
    return found


def compared(engine: Kept, alone: Kept) -> str:
    """Compare the costs of one extension, since the number of extensions may differ."""
    if not engine.cost.extensions or not alone.cost.extensions or not engine.cost.packets:
        return "nothing to compare"
    each = [
        (kept.cost.cpu / kept.cost.extensions, kept.cost.packets / kept.cost.extensions)
        for kept in (engine, alone)
    ]
    (cpu, packets), (cpu_alone, packets_alone) = each
    return (
        f"{alone.way}: {cpu_alone / cpu:.1f} times the CPU for one extension, "
        f"{packets_alone / packets:.1f} times the packets"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and return the exit status: 1 if renewal lost a lease."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.renewal",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--ttl", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=5)
    given = parser.parse_args(arguments)
    plan = Plan(given.leases, given.ttl, given.seconds)
    gc.freeze()
    print(f"{plan.leases:,} leases, ttl {plan.ttl} s, {given.nodes} nodes, {plan.seconds} s each")
    with Servers(given.nodes) as servers:
        found = measure(servers, plan)
    return 1 if any(kept.lost for kept in found if kept.way == ENGINE) else 0


if __name__ == "__main__":
    sys.exit(main())
