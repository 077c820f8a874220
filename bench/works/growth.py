"""Work 5: growth of memory and time with held leases, nodes and name lengths; import times.

Memory is per held lease and measured in two separate processes: as allocated by Python
(`tracemalloc`, exact but slow) and as growth of the RSS, which includes the allocator's waste. It
includes the key that the library makes of the user's string. It does not include that string, the
list of the leases and the memory of the nodes.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from array import array
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NoReturn

from bench import contestants
from bench.aims import Aim
from bench.contestants import CONTESTANTS
from bench.fleet import FULL, Fleet, Site, shared_site
from bench.meter import Meter
from bench.plan import STANDARD, Case, Column

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from bench.results import Found

TTL = 30.0  # the maximum of the default settings, so that leases do not expire
AT_ONCE = 20  # tasks that acquire concurrently
SETTLED = 0.3  # seconds after which pending requests and deadlines are over
AFTERWARDS = 300  # cycles that are timed while all leases are held
OURS = ("quorlock", "quorlock.asyncio")
HELD = (10, 1_000, 100_000)
NODES = tuple(range(1, 10))
LENGTHS = (10, 100, 512)  # 512 is quorlock's limit

# The statement that imports each library, compared with `pass`.
IMPORTS = {
    "quorlock": "from quorlock import Redlock",  # `import quorlock` alone loads no name
    "quorlock.asyncio": "import quorlock.asyncio",
    "redlock-py": "import redlock",
    "pottery": "import pottery",
    "redis-py.Lock": "import redis.lock",
    "redis.asyncio+gather": "import redis.asyncio",
    "python-redis-lock": "import redis_lock",
    "coredis.Lock": "import coredis",
}
IMPORT_RUNS = 9  # per round, each next to one of `pass`


@contextmanager
def own_site(fleet: Fleet, nodes: int) -> Generator[Site]:
    """Yield separate servers, for cases with many keys or more than five nodes."""
    del fleet
    with Fleet(nodes) as own:
        yield Site(own, own.urls())


def _held(count: int) -> Case:
    return Case(
        "growth",
        f"{count:,} leases held, N = 5",
        OURS,
        {"what": "held", "held": count},
        site=own_site,
        deadline=120.0,
        rounds=None if count < max(HELD) else 1,
        quick=OURS if count == sorted(HELD)[1] else (),
    )


PLAN = [
    *(_held(count) for count in HELD),
    *(
        Case(
            "growth",
            f"N = {nodes}",
            ("limit.all", *OURS),
            {"what": "cycles"},
            nodes,
            rounds=2,
            site=shared_site if nodes <= FULL else own_site,
        )
        for nodes in NODES
    ),
    *(
        Case("growth", f"names of {length:,} bytes", OURS, {"what": "cycles", "length": length})
        for length in LENGTHS
    ),
    Case(
        "growth",
        "import time",
        tuple(IMPORTS),
        {"what": "import"},
        deadline=90.0,
        quick=OURS,
    ),
]


def columns(found: Found) -> tuple[Column, ...]:
    """Return the columns, depending on what is measured."""
    if found.params["what"] == "import":
        return (
            Column("ms more than pass", "more_ms", "{:.1f}"),
            Column("CPU ms more", "more_cpu_ms", "{:.1f}"),
            Column("pass ms", "pass_ms", "{:.1f}"),
            Column("modules more", "modules"),
        )
    if found.params["what"] == "held":
        return (
            Column("bytes a lease", "bytes_per_lease"),
            Column("RSS bytes a lease", "rss_per_lease"),
            Column("acquire p50 µs", "p50_us"),
            Column("acquire p99 µs", "p99_us"),
            Column("cycle p50 µs then", "cycle_p50_us"),
            Column("seconds in all", "seconds", "{:.1f}"),
            Column("errors", "errors"),
        )
    return (*STANDARD, Column("time × limit.all", "p50_us", "{:.2f}", ratio_to="limit.all"))


def _memory(who: str, case: Case) -> Aim:
    return Aim(
        f"{who}, {case.name}: memory a lease",
        "≤ 512 B",
        512,
        lambda results: results.figure(case.name, who, "bytes_per_lease"),
    )


AIMS = [
    # With ten leases most of the memory would be buffers of the connections.
    *(_memory(who, _held(count)) for count in HELD[1:] for who in OURS),
    Aim(
        "import quorlock",
        "≤ 30 ms more than pass",
        30,
        lambda results: results.figure("import time", "quorlock", "bare_more_ms"),
    ),
    Aim(
        "from quorlock import Redlock",
        "≤ 30 ms more than pass",
        30,
        lambda results: results.figure("import time", "quorlock", "more_ms"),
    ),
]


# --- the child -------------------------------------------------------------------------------


def run(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Run the measurement that `params["what"]` names."""
    if params["what"] == "import":
        found = import_time(IMPORTS[contestant])
        if contestant == "quorlock":
            found["bare_more_ms"] = import_time("import quorlock")["more_ms"]
        if contestant not in OURS:
            del found["imported"]  # hundreds of names
        return found
    who = CONTESTANTS[contestant]
    if params["what"] == "held":
        return held(contestant, params, urls)
    if who.api == "blocking":
        return _cycles(contestant, params, urls)
    return who.run(_cycles_in_a_task(contestant, params, urls))


def names(length: int) -> Iterator[str]:
    """Yield a hundred names of this length in turn, without end."""
    return itertools.cycle([f"{number:03}".rjust(length, "n") for number in range(100)])


def _cycles(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    lock, meter = contestants.blocking(contestant, urls), Meter()
    resources, clock = names(params.get("length", 10)), time.perf_counter_ns
    for seconds in (params["warm_up"], params["seconds"]):
        meter.start()
        end = clock() + int(seconds * 1e9)
        while (began := clock()) < end:
            lock.release(lock.acquire(next(resources)))
            meter.samples.append(clock() - began)
        meter.stop()
    lock.close()
    return meter.result()


async def _cycles_in_a_task(
    contestant: str, params: dict[str, Any], urls: list[str]
) -> dict[str, Any]:
    lock, meter = contestants.asyncio(contestant, urls), Meter()
    await lock.open()
    resources, clock = names(params.get("length", 10)), time.perf_counter_ns
    for seconds in (params["warm_up"], params["seconds"]):
        meter.start()
        end = clock() + int(seconds * 1e9)
        while (began := clock()) < end:
            await lock.release(await lock.acquire(next(resources)))
            meter.samples.append(clock() - began)
        meter.stop()
    await lock.close()
    return meter.result()


# --- many leases -----------------------------------------------------------------------------


def held(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Measure in two processes: one for allocated bytes, one for RSS and times."""
    found: dict[str, Any] = {}
    for trace in (True, False):
        sent = json.dumps({**params, "trace": trace})
        command = [sys.executable, "-m", __name__, contestant, sent, ",".join(urls)]
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        found |= json.loads(ended.stdout)
    return found


def main() -> NoReturn:
    """Run one of the two measurements, then exit without releasing the leases.

    Releasing would take longer than everything else, and the servers end as well.
    """
    contestant, sent, urls = sys.argv[1:]
    params = json.loads(sent)
    signal.alarm(int(params["deadline"]))
    who = CONTESTANTS[contestant]
    if who.api == "blocking":
        _hold_in_a_thread(contestant, params, urls.split(","))
    else:
        who.run(_hold_in_tasks(contestant, params, urls.split(",")))
    raise AssertionError("the measurement must not return")


def _end(result: dict[str, Any]) -> NoReturn:
    print(json.dumps(result), flush=True)
    os._exit(0)


def _resources(params: dict[str, Any]) -> list[str]:
    """Return names that differ between the two processes: leases of the first are still held."""
    which = "counted" if params["trace"] else "timed.."
    return [f"bench:{which}:{number:06}" for number in range(params["held"])]


class Memory:
    """Memory that was allocated since this object was made."""

    def __init__(self, *, trace: bool) -> None:
        gc.collect()
        self._trace = trace
        if trace:
            tracemalloc.start()
        self._before = self._now()

    def _now(self) -> int:
        if self._trace:
            return tracemalloc.get_traced_memory()[0]
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def per(self, count: int) -> dict[str, float]:
        """Return the memory for each of `count` leases."""
        gc.collect()
        key = "bytes_per_lease" if self._trace else "rss_per_lease"
        found = {key: (self._now() - self._before) / count}
        if self._trace:
            tracemalloc.stop()
        return found


def _hold_in_a_thread(contestant: str, params: dict[str, Any], urls: list[str]) -> NoReturn:
    count, meter, clock = params["held"], Meter(), time.perf_counter_ns
    lock = contestants.blocking(contestant, urls, TTL)
    resources = _resources(params)
    leases: list[Any] = [None] * count
    samples = array("q", bytes(8 * count))  # an int object for each would count as memory
    # The first calls open connections and start the threads that do so.
    for _ in range(20):
        lock.release(lock.wait("bench:warm"))
    time.sleep(SETTLED)
    memory = Memory(trace=params["trace"])
    meter.start()
    for number, name in enumerate(resources):
        while leases[number] is None:
            began = clock()
            try:
                leases[number] = lock.acquire(name)
            except Exception as error:  # noqa: BLE001 (counted: on a busy machine a node may be late)
                meter.error(error)
            samples[number] = clock() - began
    meter.stop()
    time.sleep(SETTLED)
    found = memory.per(count)
    cycles = Meter()
    cycles.start()
    for _ in range(AFTERWARDS):
        began = clock()
        try:
            lock.release(lock.acquire("bench:then"))
        except Exception as error:  # noqa: BLE001 (as above)
            cycles.error(error)
        else:
            cycles.samples.append(clock() - began)
    meter.samples = list(samples)
    _end(meter.result(cycle_p50_us=cycles.result()["p50_us"], **found))


async def _hold_in_tasks(contestant: str, params: dict[str, Any], urls: list[str]) -> NoReturn:
    count, meter, clock = params["held"], Meter(), time.perf_counter_ns
    lock = contestants.asyncio(contestant, urls, TTL)
    await lock.open()
    resources = _resources(params)
    leases: list[Any] = [None] * count
    samples = array("q", bytes(8 * count))  # an int object for each would count as memory

    async def acquire(number: int) -> None:
        while leases[number] is None:
            began = clock()
            try:
                leases[number] = await lock.acquire(resources[number])
            except Exception as error:  # noqa: BLE001 (counted: on a busy machine a node may be late)
                meter.error(error)
            samples[number] = clock() - began

    for _ in range(20):
        await lock.release(await lock.wait("bench:warm"))
    await asyncio.sleep(SETTLED)
    memory = Memory(trace=params["trace"])
    meter.start()
    for start in range(0, count, AT_ONCE):
        await asyncio.gather(*map(acquire, range(start, min(start + AT_ONCE, count))))
    meter.stop()
    await asyncio.sleep(SETTLED)
    found = memory.per(count)
    cycles = Meter()
    cycles.start()
    for _ in range(AFTERWARDS):
        began = clock()
        try:
            await lock.release(await lock.acquire("bench:then"))
        except Exception as error:  # noqa: BLE001 (as above)
            cycles.error(error)
        else:
            cycles.samples.append(clock() - began)
    meter.samples = list(samples)
    _end(meter.result(cycle_p50_us=cycles.result()["p50_us"], **found))


# --- import ----------------------------------------------------------------------------------


def import_time(statement: str, runs: int = IMPORT_RUNS) -> dict[str, Any]:
    """Compare fresh interpreters that run the statement or `pass`, in turn.

    The results are medians of the differences. Bytecode is cached, as for an installed library.
    """
    for _ in range(2):
        _python(statement)
    with_it: list[tuple[float, float]] = []
    without: list[tuple[float, float]] = []
    for _ in range(runs):
        without.append(_python("pass"))
        with_it.append(_python(statement))
    more = [(a - c, b - d) for (a, b), (c, d) in zip(with_it, without, strict=True)]
    by_cost = imported(statement)
    return {
        "pass_ms": median(wall for wall, _ in without),
        "more_ms": median(wall for wall, _ in more),
        "more_cpu_ms": median(cpu for _, cpu in more),
        "more_ms_least": min(wall for wall, _ in more),
        "modules": len(by_cost),
        "dearest": dict(sorted(by_cost.items(), key=lambda item: -item[1])[:12]),
        "imported": sorted(by_cost),
    }


def _python(statement: str) -> tuple[float, float]:
    """Return the milliseconds and CPU milliseconds of one interpreter."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took * 1000, cpu * 1000


def imported(statement: str) -> dict[str, float]:
    """Return the modules that `pass` does not import, with the milliseconds of each."""
    with_it, without = _importtime(statement), _importtime("pass")
    return {name: taken for name, taken in with_it.items() if name not in without}


def _importtime(statement: str) -> dict[str, float]:
    command = [sys.executable, "-X", "importtime", "-c", statement]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    rows = re.findall(r"^import time: +(\d+) \| +\d+ \| +(\S+)$", listing, re.MULTILINE)
    return {name: int(own) / 1000 for own, name in rows}


if __name__ == "__main__":
    main()
