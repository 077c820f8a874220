"""What dead and hung nodes cost: `python bench/faults.py`.

Five real servers on unix sockets. Every round takes fresh servers and measures, one after the
other in the same process: healthy; two of five killed (the first call after the kill apart);
healthy again on fresh servers; one of five hung (SIGSTOP). One cycle is acquire + release. The
rounds of the two faces are interleaved, so that what the machine does besides hits all alike; read
the figures as ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from statistics import median, quantiles

import quorlock
import quorlock.asyncio as aio
from quorlock.testing.servers import Servers

N = 5
WARM_UP = 100
NODE_TIMEOUT = 0.05

Samples = dict[str, list[float]]
Cycle = Callable[[], Awaitable[float]]


def blocking_cycle(redlock: quorlock.Redlock) -> Cycle:
    """One acquire + release; the coroutine never suspends: it is the frame that both share."""
    lock = redlock.lock("bench", timeout=0)

    async def cycle() -> float:
        began = time.perf_counter()
        lease = lock.acquire()
        lease.release()
        return time.perf_counter() - began

    return cycle


def asyncio_cycle(redlock: aio.Redlock) -> Cycle:
    """The same, awaited."""
    lock = redlock.lock("bench", timeout=0)

    async def cycle() -> float:
        began = time.perf_counter()
        lease = await lock.acquire()
        await lease.release()
        return time.perf_counter() - began

    return cycle


async def scene(cycle: Cycle, servers: Servers, fault: str, count: int, samples: Samples) -> None:
    """Healthy cycles, then the fault, then cycles again."""
    for _ in range(WARM_UP):
        await cycle()
    samples[f"healthy before {fault}"] += [await cycle() for _ in range(count)]
    if fault == "2 of 5 killed":
        servers[1].kill()
        servers[3].kill()
    else:
        servers[2].stop()
    after = [await cycle() for _ in range(count)]
    samples[f"first call, {fault}"].append(after[0])
    samples[fault] += after


async def round_of(face: str, fault: str, count: int, samples: Samples) -> list[str]:
    """One scene with servers of its own; what is left on the nodes that live, then."""
    with Servers(N) as servers:
        if face == "blocking":
            with quorlock.Redlock(servers.urls, node_timeout=NODE_TIMEOUT) as redlock:
                await scene(blocking_cycle(redlock), servers, fault, count, samples)
                return await leftovers(servers)
        async with aio.Redlock(servers.urls, node_timeout=NODE_TIMEOUT) as redlock_:
            await scene(asyncio_cycle(redlock_), servers, fault, count, samples)
            return await leftovers(servers)


async def leftovers(servers: Servers) -> list[str]:
    """Wake whoever hangs; keys of ours that stay although the Redlock is still open."""
    live = [server for server in servers if server.alive]
    for server in live:
        if server.stopped:
            server.cont()
    deadline = time.monotonic() + 2.0
    while keys := [str(key) for server in live for key in server.keys()]:  # noqa: SIM118
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.01)
    return keys


def table(face: str, fault: str, samples: Samples) -> None:
    """Medians, the ratio, the tail, and the first calls after the fault."""
    healthy, faulty = samples[f"healthy before {fault}"], samples[fault]
    first = samples[f"first call, {fault}"]
    ratio = median(faulty) / median(healthy)
    print(
        f"| {face} | {fault} | {ms(median(healthy))} | {ms(median(faulty))} | {ratio:.2f} |"
        f" {ms(p99(healthy))} | {ms(p99(faulty))} | {ms(median(first))} | {ms(max(first))} |"
    )


def ms(seconds: float) -> str:
    """Milliseconds, for a column."""
    return f"{seconds * 1e3:.3f}"


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return quantiles(values, n=100)[98]


def main() -> int:
    """Measure, print; 1 if a key of ours was left anywhere."""
    parser = argparse.ArgumentParser(description="What dead and hung nodes cost.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per face and fault")
    parser.add_argument("--cycles", type=int, default=2000, help="cycles before and after a fault")
    options = parser.parse_args()
    faults = ("2 of 5 killed", "1 of 5 hung")
    samples: dict[str, Samples] = {face: defaultdict(list) for face in ("blocking", "asyncio")}
    left: list[str] = []
    for number in range(options.rounds):
        for fault in faults:
            for face, own in samples.items():
                left += asyncio.run(round_of(face, fault, options.cycles, own))
        print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)
    print(
        f"quorlock {quorlock.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs,"
        f" load {os.getloadavg()[0]:.1f}; {N} nodes, node_timeout {NODE_TIMEOUT * 1e3:.0f} ms,"
        f" {options.rounds} rounds of {options.cycles} cycles (acquire + release), times in ms"
    )
    columns = ["face", "fault", "healthy p50", "faulty p50", "ratio", "healthy p99", "faulty p99"]
    columns += ["first call p50", "first call worst"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for face, own in samples.items():
        for fault in faults:
            table(face, fault, own)
    print(f"keys left on live nodes (hung ones continued): {left or 'none'}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
