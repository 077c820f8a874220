"""Work 8: several processes at the same nodes, each with its own connections and names."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.crew import Api, Member, with_api
from bench.meter import Meter
from bench.plan import STANDARD, Case, Column

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from bench.results import Found

_NAMES = 100  # of a worker
_BLOCKING = ("quorlock", "redlock-py.tuned", "pottery")
_ASYNCIO = ("quorlock.asyncio", "redis.asyncio+gather.tuned", "pottery.asyncio.tuned")


def _case(api: str, who: tuple[str, ...], processes: int, workers: int) -> Case:
    kind = "thread" if api == "blocking" else "task"
    own = f"{workers} {kind}{'s' * (workers > 1)}"
    several = f"{processes} processes, {own} each" if processes > 1 else f"1 process, {own}"
    params = {"processes": processes, "workers": workers, "deadline": 20.0}
    quick = who[:1] if processes > 1 else ()
    return Case("processes", f"{api}, N = 5, {several}", who, params, quick=quick)


PLAN = [
    *[_case("blocking", _BLOCKING, processes, 1) for processes in (1, 2, 8)],
    *[_case("asyncio", _ASYNCIO, processes, 25) for processes in (1, 2, 8)],
]


class Told(NamedTuple):
    """The measured part of one process."""

    samples: list[int]  # ns
    errors: Counter[str]
    cpu_ns: int


def columns(case: Found) -> tuple[Column, ...]:
    """Return the usual columns, and the throughput relative to ours."""
    ours = next(who for who in case.rows if who in ("quorlock", "quorlock.asyncio"))
    return (*STANDARD, Column(f"time × {ours}", "per_s", "{:.2f}", ratio_to=ours, inverse=True))


def run(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Have all processes run cycles for `seconds` at the same time."""
    crew = [
        Member(params["deadline"], _take_part, contestant, urls, params)
        for _ in range(params["processes"])
    ]
    for member in crew:
        member.answer()
    meter = Meter()
    meter.start()
    for member in crew:
        member.ask("begin")
    told: list[Told] = [member.answer() for member in crew]
    for member in crew:
        member.kill()
    meter.samples = [sample for one in told for sample in one.samples]
    meter.errors = sum((one.errors for one in told), Counter[str]())
    meter.seconds = params["seconds"]
    meter.cpu_ns = sum(one.cpu_ns for one in told)
    return meter.result()


def _take_part(pipe: Connection, contestant: str, urls: list[str], params: dict[str, Any]) -> None:
    with_api(contestant, urls, partial(_work, pipe, params))


async def _work(pipe: Connection, params: dict[str, Any], api: Api) -> None:
    """Warm up, then run cycles when the child says so."""
    told = Told([], Counter(), 0)
    await _cycles(api, params, params["warm_up"], Told([], Counter(), 0))
    pipe.send("ready")
    pipe.recv()
    began = time.process_time_ns()
    await _cycles(api, params, params["seconds"], told)
    pipe.send(told._replace(cpu_ns=time.process_time_ns() - began))


async def _cycles(api: Api, params: dict[str, Any], seconds: float, told: Told) -> None:
    end = time.perf_counter_ns() + int(seconds * 1e9)
    workers = [
        partial(_cycle, api, _names(number), end, told) for number in range(params["workers"])
    ]
    await api.together(workers, seconds + params["deadline"])


def _names(worker: int) -> Iterator[str]:
    return itertools.cycle([f"bench:{os.getpid()}:{worker}:{n}" for n in range(_NAMES)])


async def _cycle(api: Api, names: Iterator[str], end: int, told: Told) -> None:
    clock = time.perf_counter_ns
    while (began := clock()) < end:
        try:
            await api.lock.release(await api.lock.wait(next(names)))
        except Exception as error:  # noqa: BLE001 (counted and shown in the row)
            told.errors[f"{type(error).__name__}: {error}"[:120]] += 1
        else:
            told.samples.append(clock() - began)
