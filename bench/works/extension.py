"""Work 6: one lease that is extended repeatedly."""

from __future__ import annotations

import time
from typing import Any

from bench import contestants
from bench.contestants import CONTESTANTS
from bench.meter import Meter
from bench.plan import Case

RESOURCE = "bench:extended"

_PEERS = (
    "pottery",
    "pottery.asyncio.tuned",
    "redis.asyncio+gather.tuned",
    "coredis+gather",
    "node-redlock",
    "redis-py.Lock.tuned",
    "python-redis-lock",
)
PLAN = [
    Case(
        "extension",
        "one lease extended again and again, N = 5 (peers for one node: N = 1)",
        ("quorlock", "quorlock.asyncio", *_PEERS),
        quick=("quorlock", "quorlock.asyncio"),
    )
]


def run(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Measure extensions: each is one cycle."""
    who = CONTESTANTS[contestant]
    if who.api == "blocking":
        return blocking(contestant, params, urls)
    return who.run(in_a_loop(contestant, params, urls))


def blocking(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Extend a lease in one thread."""
    lock = contestants.blocking(contestant, urls)
    held, meter, clock = lock.acquire(RESOURCE), Meter(), time.perf_counter_ns
    for seconds in (params["warm_up"], params["seconds"]):
        meter.start()
        end = clock() + int(seconds * 1e9)
        while (began := clock()) < end:
            lock.extend(held)
            meter.samples.append(clock() - began)
        meter.stop()
    lock.release(held)
    lock.close()
    return meter.result()


async def in_a_loop(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Extend a lease in one task."""
    lock = contestants.asyncio(contestant, urls)
    await lock.open()
    held, meter, clock = await lock.acquire(RESOURCE), Meter(), time.perf_counter_ns
    for seconds in (params["warm_up"], params["seconds"]):
        meter.start()
        end = clock() + int(seconds * 1e9)
        while (began := clock()) < end:
            await lock.extend(held)
            meter.samples.append(clock() - began)
        meter.stop()
    await lock.release(held)
    await lock.close()
    return meter.result()
