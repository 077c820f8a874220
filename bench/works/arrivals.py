"""Work 7: an open loop. Cycles begin at a fixed rate, however many are still in progress.

In the other works a worker asks again when its last cycle has ended, so a slow library gets less to
do, and the time that others would have waited is in no figure ("coordinated omission"). Here the
time of a cycle counts from when it was due, and what is not served by the end counts until then.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from bench import contestants
from bench.contestants import CONTESTANTS
from bench.meter import Meter
from bench.plan import STANDARD, Case, Column

RATES = (500, 2_000, 8_000)  # cycles due in a second
# No name is due again while an earlier cycle has it: the longest backlog is shorter.
_NAMES = 40_000

_OURS = ("quorlock.asyncio", "quorlock.asyncio+with")
_PEERS = ("redis.asyncio+gather.tuned", "pottery.asyncio.tuned", "coredis+gather")
PLAN = [
    Case(
        "arrivals",
        f"asyncio, N = 5, {rate:,} cycles due in a second",
        (*_OURS, *_PEERS),
        {"rate": rate, "seconds": 1.5},
        quick=("quorlock.asyncio+with",) if rate == RATES[1] else (),
    )
    for rate in RATES
]
_UNSERVED = Column("not served by the end", "unserved")


def columns(case: object) -> tuple[Column, ...]:
    """Return the usual columns, and the cycles that were still in progress at the end."""
    del case
    return (*STANDARD, _UNSERVED)


def run(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Begin a cycle whenever one is due."""
    return CONTESTANTS[contestant].run(_in_a_loop(contestant, params, urls))


async def _acquire_and_release(lock: contestants.Asyncio, resource: str) -> None:
    block = contestants.block_of(lock)
    if block is None:
        await lock.release(await lock.acquire(resource))
    else:
        async with block(resource):
            pass


async def _in_a_loop(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    lock = contestants.asyncio(contestant, urls)
    await lock.open()
    meter, clock = Meter(), time.perf_counter_ns
    resources = itertools.cycle([f"bench:due:{number}" for number in range(_NAMES)])
    in_progress: dict[asyncio.Task[None], int] = {}  # with the instant at which each was due

    async def cycle(resource: str, due: int) -> None:
        try:
            await _acquire_and_release(lock, resource)
        except Exception as error:  # noqa: BLE001 (counted and shown in the row)
            meter.error(error)
        else:
            meter.samples.append(clock() - due)

    async def arrive(seconds: float) -> None:
        """Begin what has come due, then sleep until the next is."""
        step, began = 1e9 / params["rate"], clock()
        for number in range(int(seconds * params["rate"])):
            due = began + int(number * step)
            if (ahead := due - clock()) > 0:
                await asyncio.sleep(ahead / 1e9)
            elif number % 100 == 0:
                await asyncio.sleep(0)  # the rate is more than this process can begin
            task = asyncio.create_task(cycle(next(resources), due))
            in_progress[task] = due
            task.add_done_callback(in_progress.pop)

    async def drain() -> None:
        while in_progress:
            await asyncio.wait(list(in_progress))

    await arrive(params["warm_up"])
    await drain()
    meter.start()
    await arrive(params["seconds"])
    meter.stop()
    # A cycle that has just ended is in both, until its task's callbacks run.
    at, unserved = clock(), [due for task, due in in_progress.items() if not task.done()]
    result = meter.result(unserved=len(unserved))
    meter.samples.extend(at - due for due in unserved)
    times = meter.result()
    await drain()
    await lock.close()
    return result | {name: times[name] for name in ("p50_us", "p99_us", "worst_us")}
