"""Many leases under renewal by one process, against extending them one at a time.

    python -m bench.renewal                    10,000 leases, ttl 10 s, five local servers, 30 s
    python -m bench.renewal --leases 1000 --seconds 10

Prints for each face: how many leases were lost (none, on a healthy system), the share of one core
that the process took, and how many packets reached each node per second.  "One at a time" is what a
program does that calls `lease.extend()` for one lease after the other: its cost of one extension,
times as many as renewal made.  Packets are counted by the servers (`total_reads_processed`).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import quorlock
import quorlock.asyncio
from quorlock.testing.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTINGS: dict[str, Any] = {"node_timeout": 0.25, "max_ttl": 60.0}
Outcome: TypeAlias = "tuple[Cost, Cost, int]"  # renewed, one at a time, how many were lost
ALONE = 500  # leases that are extended one at a time


@dataclass(frozen=True)
class Cost:
    """What was spent: CPU seconds of this process, packets to a node, extensions, seconds."""

    cpu: float
    packets: float
    extensions: int
    seconds: float

    @property
    def share(self) -> float:
        """Of one core."""
        return self.cpu / self.seconds


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


def threads(servers: Servers, leases: int, ttl: float, seconds: float) -> Outcome:
    """The blocking face."""
    with quorlock.Redlock(servers.urls, ttl=ttl, **SETTINGS) as redlock:
        held = [redlock.lock(f"r{n}", renew=True).acquire() for n in range(leases)]
        time.sleep(ttl / 2)
        meter = Meter(servers)
        time.sleep(seconds)
        renewed = meter.cost()
        lost = sum(not lease.held for lease in held)
        for lease in held:
            lease.release()
        alone = [redlock.lock(f"r{n}").acquire() for n in range(min(leases, ALONE))]
        meter = Meter(servers)
        for lease in alone:
            lease.extend()
        one_by_one = meter.cost()
        for lease in alone:
            lease.release()
    return renewed, one_by_one, lost


async def tasks(
    servers: Servers, leases: int, ttl: float, seconds: float
) -> tuple[Cost, Cost, int]:
    """The same in asyncio."""
    async with quorlock.asyncio.Redlock(servers.urls, ttl=ttl, **SETTINGS) as redlock:
        held = [await redlock.lock(f"r{n}", renew=True).acquire() for n in range(leases)]
        await asyncio.sleep(ttl / 2)
        meter = Meter(servers)
        await asyncio.sleep(seconds)
        renewed = meter.cost()
        lost = sum(not lease.held for lease in held)
        for lease in held:
            await lease.release()
        alone = [await redlock.lock(f"r{n}").acquire() for n in range(min(leases, ALONE))]
        meter = Meter(servers)
        for lease in alone:
            await lease.extend()
        one_by_one = meter.cost()
        for lease in alone:
            await lease.release()
    return renewed, one_by_one, lost


def line(name: str, cost: Cost, extensions: int, seconds: float) -> str:
    """A row of the table, of a cost brought to so many extensions in so many seconds."""
    scale = extensions / cost.extensions if cost.extensions else 0.0
    share, packets = cost.cpu * scale / seconds, cost.packets * scale / seconds
    each = cost.cpu / cost.extensions * 1e6 if cost.extensions else 0.0
    return f"{name:<28} {share:>8.1%} {packets:>12,.0f} {each:>12.1f}"


def table(face: str, renewed: Cost, alone: Cost, lost: int) -> str:
    """What came of one face."""
    rate = renewed.extensions / renewed.seconds
    head = f"{face}: {lost} lost, {rate:,.0f} extensions a second"
    columns = f"{'':<28} {'of a core':>8} {'packets/s':>12} {'µs each':>12}"
    rows = [
        line("renewed by the engine", renewed, renewed.extensions, renewed.seconds),
        line("one at a time would take", alone, renewed.extensions, renewed.seconds),
    ]
    return "\n".join([head, columns, *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if a lease was lost."""
    parser = argparse.ArgumentParser(prog="python -m bench.renewal", description=__doc__)
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--ttl", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=5)
    given = parser.parse_args(arguments)
    gc.freeze()
    all_lost = 0
    with Servers(given.nodes) as servers:
        for face in ("threads", "tasks"):
            if face == "threads":
                renewed, alone, lost = threads(servers, given.leases, given.ttl, given.seconds)
            else:
                work = tasks(servers, given.leases, given.ttl, given.seconds)
                renewed, alone, lost = asyncio.run(work)
            print(table(face, renewed, alone, lost), flush=True)
            all_lost += lost
    return 1 if all_lost else 0


if __name__ == "__main__":
    sys.exit(main())
