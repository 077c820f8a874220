"""Many leases kept by one process: by the engine of renewal, and one at a time.

    python -m bench.renewal                    10,000 leases, ttl 10 s, five local servers, 30 s
    python -m bench.renewal --leases 1000 --seconds 10

Each way keeps as many leases for as long, for real, on the same servers.  The others do what a
program does without the engine, at their best: they extend each lease when a third of its ttl is
over, as the engine does; one after the other from one thread or task, or in asyncio with a task for
each lease, whose extensions the driver bundles where they fall together.

Told of each: how many leases were lost (by the engine none, on a healthy system), how many
extensions a second there were, which share of one core this process took, how many packets reached
each node per second (as its servers count them: `total_reads_processed`), what one extension took
of the CPU, and how much validity the lease had that had least at the end: less than about 60 % of
the ttl says that renewal falls behind.
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
DUE_LEFT = 2 / 3  # of the ttl, when a lease is extended: the mean of what renewal takes
ENGINE, ALONE, EACH = "renew=True", "one at a time", "a task for each"
WAYS = {"threads": (ENGINE, ALONE), "asyncio": (ENGINE, ALONE, EACH)}


@dataclass(frozen=True)
class Plan:
    """What is kept, and for how long."""

    leases: int
    ttl: float
    seconds: float

    @property
    def names(self) -> list[str]:
        """Of the resources."""
        return [f"r{number}" for number in range(self.leases)]

    @property
    def warm_up(self) -> float:
        """Seconds before anything is counted: each has been extended once."""
        return self.ttl / 2


@dataclass(frozen=True)
class Cost:
    """What was spent: CPU seconds of this process, packets to a node, extensions, seconds."""

    cpu: float
    packets: float
    extensions: int
    seconds: float


@dataclass(frozen=True)
class Kept:
    """What came of one way in one face. least: of the ttl, what was left of a lease at the end."""

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
    """Counts from its making on."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._packets, self._extensions = self._counted()
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def cost(self) -> Cost:
        """What it has been since."""
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
        """Packets that have reached the servers, and scripts that they have run."""
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
    """Of leases that should all be held at this moment."""
    validities = [lease.validity for lease in held]
    lost = sum(validity <= 0 for validity in validities)
    return Kept(way, cost, lost, max(0.0, min(validities) / plan.ttl))


# --- the blocking face ---------------------------------------------------------------------------


class Loop(threading.Thread):
    """Extends leases, the one that is due first, one after the other, until told to stop."""

    def __init__(self, ttl: float) -> None:
        super().__init__(name="one at a time")
        self.leases: deque[quorlock.Lease] = deque()  # by when they are due
        self._ttl = ttl
        self._over = threading.Event()

    def run(self) -> None:
        """The thread."""
        while not self._over.is_set():
            left = self.leases[0].validity - self._ttl * DUE_LEFT if self.leases else 0.01
            if left > 0:
                self._over.wait(left)
                continue
            lease = self.leases.popleft()
            with suppress(quorlock.LeaseLost):  # it is counted at the end
                lease.extend()
                self.leases.append(lease)

    def stop(self) -> None:
        """Twice does no harm."""
        self._over.set()
        self.join()


def threads(servers: Servers, plan: Plan, way: str) -> Kept:
    """One way in the blocking face."""
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
    """One task for one lease."""
    with suppress(quorlock.LeaseLost):  # it is counted at the end
        while True:
            await extended(lease, ttl)


async def keep_all(leases: deque[quorlock.asyncio.Lease], ttl: float) -> None:
    """One task for all, by when they are due."""
    while True:
        if not leases:
            await asyncio.sleep(0.01)
            continue
        lease = leases.popleft()
        with suppress(quorlock.LeaseLost):  # it is counted at the end
            await extended(lease, ttl)
            leases.append(lease)


async def extended(lease: quorlock.asyncio.Lease, ttl: float) -> None:
    """Extend it when it is due."""
    if (left := lease.validity - ttl * DUE_LEFT) > 0:
        await asyncio.sleep(left)
    await lease.extend()


async def tasks(servers: Servers, plan: Plan, way: str) -> Kept:
    """One way in asyncio."""
    in_turn: deque[quorlock.asyncio.Lease] = deque()
    keepers = [asyncio.create_task(keep_all(in_turn, plan.ttl))] if way == ALONE else []
    async with quorlock.asyncio.Redlock(servers.urls, ttl=plan.ttl, **SETTINGS) as redlock:
        held: list[quorlock.asyncio.Lease] = []
        for name in plan.names:
            held.append(await redlock.lock(name, renew=way == ENGINE).acquire())
            if way == ALONE:
                in_turn.append(held[-1])
            if way == EACH:
                keepers.append(asyncio.create_task(keep(held[-1], plan.ttl)))
        await asyncio.sleep(plan.warm_up)
        meter = Meter(servers)
        await asyncio.sleep(plan.seconds)
        kept = summed_up(way, meter.cost(), plan, held)
        for task in keepers:
            task.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        for lease in held:
            await lease.release()
    return kept


# --- the command line ----------------------------------------------------------------------------


def measure(servers: Servers, plan: Plan) -> list[Kept]:
    """All ways in both faces, printed as they come."""
    found: list[Kept] = []
    for face, ways in WAYS.items():
        print(f"{face}\n{HEAD}")
        rows: list[Kept] = []
        for way in ways:
            if face == "threads":
                rows.append(threads(servers, plan, way))
            else:
                rows.append(asyncio.run(tasks(servers, plan, way)))
            print(rows[-1], flush=True)
        for other in rows[1:]:
            print(compared(rows[0], other), flush=True)
        found += rows
    return found


def compared(engine: Kept, alone: Kept) -> str:
    """By one extension, since the two may have made different numbers of them."""
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
    """The command line; 1 if the engine lost a lease."""
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
