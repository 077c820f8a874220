"""Regression check: compare the client's cost of acquire + release with a baseline.

    python -m bench.guard             exit 1 if the cost has risen
    python -m bench.guard --record    write the current figures of this Python into guard.toml

Two kinds of figures, for the blocking API with one thread and for asyncio with 100 tasks, N = 5,
by `acquire` and `release`, and in a `with` block; and for asyncio with 1,000 tasks, of which most
queue, by `acquire` and `release`:

counts    Python instructions, calls of C functions, and system calls, per cycle. They are the same
          in every run on every machine with the same Python, so the margin is small, and none for
          system calls; but with 1,000 tasks the ticks of the loop vary a little. They do not cover
          the work inside a C function.
CPU       user + system time per cycle minus that of the limit (bare sockets, bench/limit.py) in the
          same run, in *units*: the time of a fixed piece of plain Python, also in the same run.
          Both references are needed because the cost of a system call relative to Python differs
          between machines. What is left of that difference moves the units by up to a fifth: so
          they are too high only if the multiple of the limit's CPU time is too high as well.
          CPU time covers everything, but it is noisy.

CPU time is repeatable for two reasons. Canned nodes (bench/canned.py) make it independent of the
scheduler. The work is timed in interleaved pieces of a fraction of a millisecond, and the fastest
times of each piece count, because other load can only add time: on a busy machine medians of longer
slices rose by half, ours more than the limit's, and the fastest pieces by 3 %. For the same reason
the guard continues to measure while a figure is above its bound: that can end only a false alarm.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import inspect
import platform
import sys
import time
import tomllib
from collections import Counter, deque
from dataclasses import asdict, dataclass
from itertools import filterfalse, pairwise
from pathlib import Path
from socket import socket
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

import quorlock
import quorlock.asyncio as aio
from bench.canned import Canned
from bench.limit import All
from quorlock.testing.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping
    from types import FrameType

BASELINE = Path(__file__).with_name("guard.toml")
COUNT_MARGIN = 0.03
CPU_MARGIN = 0.12
TICKS_MARGIN = 0.01  # system calls a cycle, with 1,000 tasks
# For a Python without a baseline: only CPU time is compared, with the nearest Python that has one.
STRANGE_MARGIN = 0.30

N = 5
TASKS = 100
MANY_TASKS = 1_000
TASKS_A_PIECE = 10  # tasks per timed piece
TTL = 10.0
NODE_TIMEOUT = 2.0  # the tracer slows everything down
QUEUE_TIMEOUT = 60.0  # of 1,000 tasks
WARM_UP = 20
# Traced calls.
TRACED = {"blocking": 16, "blocking_with": 16, "asyncio": 8, "asyncio_with": 8, "asyncio_many": 2}
CYCLES = {  # of a call
    "blocking": 1,
    "blocking_with": 1,
    "asyncio": TASKS,
    "asyncio_with": TASKS,
    "asyncio_many": MANY_TASKS,
}

SWEEPS = 60  # minimum; one takes about 25 ms: a batch of asyncio and SINGLES of the others
SINGLES = 8
UNITS = 10  # repetitions of the yardstick in one piece
SECONDS_MAX = 40.0
RECORD_SECONDS = 30.0
_NTH_FASTEST = 2  # the very fastest might be an error of the clock


@dataclass(frozen=True)
class Cost:
    """The cost of one cycle: acquire and release on five nodes."""

    instructions: float
    c_calls: float
    system_calls: float
    units: float
    limits: float  # CPU time as a multiple of the limit's


class Bench:
    """Both APIs and the limit, connected to canned nodes. A context manager."""

    def __enter__(self) -> Self:
        self._servers = Servers.start(N, tcp=True)
        self._canned = canned = Canned([server.port for server in self._servers])
        self._loop = asyncio.new_event_loop()
        self._marks: list[int] = []
        with canned.in_place():
            settings: dict[str, Any] = {
                "ttl": TTL,
                "node_timeout": NODE_TIMEOUT,
                "connect_timeout": QUEUE_TIMEOUT,
            }
            self._limit = All(canned.urls, TTL)
            self._blocking = quorlock.Redlock(canned.urls, **settings)
            self._asyncio = aio.Redlock(canned.urls, **settings)
            for _ in range(WARM_UP):
                self.limit()
                self.blocking()
                self._loop.run_until_complete(self._cycle(0))
                self._loop.run_until_complete(self._batch(self._cycle))  # releases in groups
        canned.replay = True
        for _ in range(WARM_UP):
            self.limit()
            for api in CYCLES:
                self.work(api)()
        return self

    def __exit__(self, *_: object) -> None:
        self._blocking.close()
        self._loop.run_until_complete(self._asyncio.close())
        self._loop.close()
        self._limit.close()
        self._canned.close()
        self._servers.close()

    # --- the work ----------------------------------------------------------------------------

    def limit(self) -> None:
        """Run one cycle of bare sockets."""
        self._limit.release(self._limit.acquire("guard"))

    def blocking(self) -> None:
        """Run one cycle of the blocking API."""
        self._blocking.lock("guard", timeout=0).acquire().release()

    def blocking_with(self) -> None:
        """Run one cycle of the blocking API in a block."""
        with self._blocking.lock("guard", timeout=0):
            pass

    def asyncio(self) -> None:
        """Run one cycle in each of 100 tasks."""
        self._loop.run_until_complete(self._batch(self._cycle))

    def asyncio_with(self) -> None:
        """Run one cycle in a block in each of 100 tasks."""
        self._loop.run_until_complete(self._batch(self._block))

    def asyncio_many(self) -> None:
        """Run one cycle in each of 1,000 tasks."""
        self._loop.run_until_complete(self._batch(self._cycle, MANY_TASKS))

    def work(self, api: str) -> Callable[[], None]:
        """Return the method of that name."""
        work: Callable[[], None] = getattr(self, api)
        return work

    async def _batch(
        self, task: Callable[[int], Coroutine[None, None, None]], tasks: int = TASKS
    ) -> None:
        await asyncio.gather(*map(task, range(tasks)))

    async def _cycle(self, number: int) -> None:
        marked = number % TASKS_A_PIECE == 0
        if marked:
            self._mark()
        lease = await self._asyncio.lock(f"guard:{number}", timeout=0).acquire()
        if marked:
            self._mark()
        await lease.release()

    async def _block(self, number: int) -> None:
        marked = number % TASKS_A_PIECE == 0
        if marked:
            self._mark()
        async with self._asyncio.lock(f"guard:{number}", timeout=0):
            if marked:
                self._mark()

    def _mark(self) -> None:
        self._marks.append(self._own_ns())

    # --- the cost ----------------------------------------------------------------------------

    def counts(self) -> dict[str, dict[str, float]]:
        """Return the counts of one cycle of each API."""
        return {
            api: _usual([traced(self.work(api)) for _ in range(TRACED[api])], cycles)
            for api, cycles in CYCLES.items()
        }

    def sweep(self, fastest: Fastest) -> None:
        """Time a few pieces of each kind of work."""
        for _ in range(SINGLES):
            fastest.note("unit", [self._cpu_ns(yardstick)])
            fastest.note("limit", [self._cpu_ns(self.limit)])
            for api in filter(_is_single, CYCLES):
                fastest.note(api, [self._cpu_ns(self.work(api))])
        for api in filterfalse(_is_single, CYCLES):
            fastest.note(api, self._pieces_ns(self.work(api)))

    def _cpu_ns(self, work: Callable[[], object]) -> int:
        """Return the CPU time of one call, without that of the far ends."""
        began = self._own_ns()
        work()
        return self._own_ns() - began

    def _own_ns(self) -> int:
        return time.process_time_ns() - self._canned.spent_ns

    def _pieces_ns(self, batch: Callable[[], None]) -> list[int]:
        """Return the CPU time of a batch in pieces: ticks of the loop, and groups of tasks in them.

        A whole batch takes so long that on a busy machine none completes undisturbed.
        """
        next_tick: list[asyncio.Handle] = []

        def tick() -> None:
            self._mark()
            next_tick[:] = [self._loop.call_soon(tick)]

        self._marks.clear()
        self._mark()
        tick()
        batch()
        self._mark()
        next_tick[0].cancel()
        return [after - before for before, after in pairwise(self._marks)]


def _is_single(api: str) -> bool:
    """Return whether a call of this work is one cycle."""
    return CYCLES[api] == 1


class Fastest:
    """The fastest times of each piece of each kind of work."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, int], list[list[int]]] = {}
        self._seen: Counter[tuple[str, int]] = Counter()

    def note(self, kind: str, pieces: list[int]) -> None:
        """Add the pieces of one run."""
        form = kind, len(pieces)  # a batch may take one more tick, and its pieces then differ
        self._seen[form] += 1
        best = self._pieces.setdefault(form, [[] for _ in pieces])
        for times, taken in zip(best, pieces, strict=True):
            times.append(taken)
            times.sort()
            del times[_NTH_FASTEST + 1 :]

    def ns(self, kind: str) -> int:
        """Return the sum of the pieces in their most frequent form."""
        form = max((form for form in self._seen if form[0] == kind), key=self._seen.__getitem__)
        return sum(times[-1] for times in self._pieces[form])

    def cycle_ns(self, api: str) -> float:
        """Return the CPU time of one cycle of this API."""
        return self.ns(api) / CYCLES[api]

    def units(self) -> dict[str, float]:
        """Return the units of one cycle of each API."""
        unit, limit = self.ns("unit") / UNITS, self.ns("limit")
        # With many tasks one packet has many commands: there is almost nothing to subtract.
        return {api: (self.cycle_ns(api) - _is_single(api) * limit) / unit for api in CYCLES}

    def limits(self) -> dict[str, float]:
        """Return the CPU time of one cycle of each API as a multiple of the limit's."""
        limit = self.ns("limit")
        return {api: self.cycle_ns(api) / limit for api in CYCLES}


# --- the yardstick ---------------------------------------------------------------------------


class _Reply:
    __slots__ = ("node", "vote")

    def __init__(self, node: int, vote: bytes) -> None:
        self.node = node
        self.vote = vote


def _flow(votes: dict[int, bytes]) -> Generator[int, _Reply]:
    granted = 0
    while granted < N:
        reply = yield granted
        if votes.setdefault(reply.node, reply.vote) is reply.vote:
            granted += 1


def yardstick() -> None:
    """Do the typical work of a client: frames, generators, small objects, dicts, bytes.

    Do not change this: it is the unit of the baseline.
    """
    for _ in range(UNITS):
        votes: dict[int, bytes] = {}
        mail: deque[_Reply] = deque()
        for node in range(N):
            mail.append(_Reply(node, b"*2\r\n$3\r\nSET\r\n$%d\r\n%b\r\n" % (5, b"guard")))
        flow = _flow(votes)
        next(flow)
        try:
            while mail:
                flow.send(mail.popleft())
        except StopIteration:
            tuple(sorted(votes))


# --- counting --------------------------------------------------------------------------------

_HARNESS = frozenset({__file__, str(Path(__file__).with_name("canned.py"))})
_SYSTEM_CALLS = frozenset({"send", "sendall", "sendmsg", "recv", "recv_into", "recvmsg", "poll"})


def _usual(calls: list[Counter[str]], cycles: int) -> dict[str, float]:
    """Return the mean of one cycle, without the most expensive calls.

    This excludes occasional work, such as checking connections that were idle for a second.
    """
    dearest = len(calls) // 8
    return {
        name: fmean(sorted(call[name] for call in calls)[: len(calls) - dearest]) / cycles
        for name in ("instructions", "c_calls", "system_calls")
    }


def traced(work: Callable[[], object]) -> Counter[str]:
    """Count Python's instructions and calls in one call of `work`, without the harness."""
    counted: Counter[str] = Counter()
    instructions = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal instructions
        del arg
        if event == "opcode":
            instructions += 1
        elif event == "call":
            if _left_out(frame):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return trace

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event != "c_call":
            return
        # The client's system calls are made in frames of the harness, which replies to them.
        self = getattr(arg, "__self__", None)
        far = type(self) is socket
        if arg.__name__ in _SYSTEM_CALLS and not far and _is_kernel(self):
            counted["system_calls"] += 1
        if not _left_out(frame):
            counted["c_calls"] += 1

    gc.collect()
    gc.disable()  # the time and the work of a collection vary
    frame = inspect.currentframe()
    assert frame is not None
    frame.f_trace_opcodes = True  # Python 3.12 requires a frame with this before settrace
    before = sys.gettrace(), sys.getprofile()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
        gc.enable()
    # After tracing without setprofile, Python 3.12.1 counts no instructions in this process.
    assert instructions, "this Python no longer traces instructions"
    counted["instructions"] = instructions
    return counted


def _left_out(frame: FrameType) -> bool:
    """Return whether a frame is part of the harness or run by a timer.

    Timers are handled by the event loop, which removes cancelled ones, and by the driver, which
    checks deadlines. In which batch they run varies, by a hundredth of the instructions. CPU time
    includes them.
    """
    return frame.f_code.co_filename in _HARNESS or frame.f_code.co_name in _TIMED


_TIMED = frozenset({"_run_once", "_ring"})


def _is_kernel(thing: object) -> bool:
    return isinstance(thing, socket) or type(thing).__module__ == "select"


# --- the verdict -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """The upper bound of one figure."""

    api: str
    figure: str
    baseline: float
    at_most: float
    limits_at_most: float = 0.0  # units are too high only if `limits` is above this as well

    def complaint(self, cost: Cost) -> str:
        """Return a message if the figure is above its bound, or ""."""
        value: float = asdict(cost)[self.figure]
        if value <= self.at_most or cost.limits <= self.limits_at_most:
            return ""
        return (
            f"{self.api}: {value:.2f} {self.figure.replace('_', ' ')} per cycle, "
            f"{value / self.baseline - 1:+.1%} against the baseline's {self.baseline:.2f}; "
            f"at most {self.at_most:.2f} is allowed"
        )


def bounds(baseline: Mapping[str, Any], python: str) -> tuple[str, list[Bound]]:
    """Return the Python whose baseline applies, and the bounds."""
    if python in baseline:
        margins = dict.fromkeys(("instructions", "c_calls"), COUNT_MARGIN)
        margins |= {"system_calls": 0.0, "units": CPU_MARGIN}
        known = python
    else:
        margins = {"units": STRANGE_MARGIN}
        known = min(baseline, key=lambda name: abs(_minor(name) - _minor(python)))
    return known, [
        Bound(
            api,
            figure,
            value,
            value * (1 + margins[figure])
            + (TICKS_MARGIN if (api, figure) == ("asyncio_many", "system_calls") else 1e-9),
            figures.get("limits", 0.0) * (1 + margins[figure]) if figure == "units" else 0.0,
        )
        for api, figures in baseline[known].items()
        for figure, value in figures.items()
        if figure in margins
    ]


def _minor(python: str) -> int:
    return int(python.partition(".")[2].rstrip("t"))


def this_python() -> str:
    """Return the version of the running Python, as a key of the baseline."""
    return f"{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}"


def measure(limits: list[Bound], seconds: float) -> dict[str, Cost]:
    """Measure until all figures are within their bounds, or for `seconds`."""
    with Bench() as bench:
        fastest = Fastest()
        counts = bench.counts()
        give_up = time.monotonic() + seconds
        sweeps = 0
        gc.collect()
        while True:
            bench.sweep(fastest)
            sweeps += 1
            if sweeps % SWEEPS == 0:
                units, ratios = fastest.units(), fastest.limits()
                costs = {
                    api: Cost(**count, units=units[api], limits=ratios[api])
                    for api, count in counts.items()
                }
                calm = limits and not complaints(limits, costs)
                if calm or time.monotonic() > give_up:
                    return costs


def complaints(limits: list[Bound], costs: dict[str, Cost]) -> list[str]:
    """Return a message for each broken bound."""
    return [text for limit in limits if (text := limit.complaint(costs[limit.api]))]


def record(costs: dict[str, Cost], python: str) -> None:
    """Write the baseline of this Python and keep the others."""
    baseline = tomllib.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    baseline[python] = {api: asdict(cost) for api, cost in costs.items()}
    lines = ["# Written by `make bench-guard ARGS=--record`; bench/guard.py explains the figures."]
    for name in sorted(baseline, key=_minor):
        for api, figures in baseline[name].items():
            lines += ["", f'["{name}".{api}]']
            lines += [f"{figure} = {round(value, 2)}" for figure, value in figures.items()]
    BASELINE.write_text("\n".join(lines) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Measure, then compare or record; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.guard",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--record", action="store_true", help="make this the baseline")
    options = parser.parse_args(arguments)
    if platform.python_implementation() != "CPython":
        print("bench-guard: skipped: the baseline is for CPython")
        return 0
    python = this_python()
    if options.record:
        costs = measure([], RECORD_SECONDS)
        record(costs, python)
        known, limits = bounds(tomllib.loads(BASELINE.read_text()), python)
    else:
        known, limits = bounds(tomllib.loads(BASELINE.read_text()), python)
        costs = measure(limits, SECONDS_MAX)
    show(costs, limits, known)
    faults = complaints(limits, costs)
    for text in faults:
        print(f"bench-guard: {text}", file=sys.stderr)
    if faults:
        print(
            "bench-guard: reduce the cost, or record the new baseline and justify it in the"
            " commit: make bench-guard ARGS=--record",
            file=sys.stderr,
        )
    return 1 if faults else 0


def show(costs: dict[str, Cost], limits: list[Bound], known: str) -> None:
    """Print the figures and their bounds."""
    strange = "" if known == this_python() else f" (Python {this_python()} has none: CPU only)"
    print(f"bench-guard: one cycle on {N} nodes, against the baseline of Python {known}{strange}")
    for api, cost in costs.items():
        *counts, _ = asdict(cost).items()
        parts = [f"{value:.1f} {name.replace('_', ' ')}" for name, value in counts]
        print(f"  {api:13} {', '.join(parts)} ({cost.limits:.2f} x the limit's CPU)")
    for limit in limits:
        change = asdict(costs[limit.api])[limit.figure] / limit.baseline - 1
        allowed = limit.at_most / limit.baseline - 1
        print(
            f"  {limit.api:13} {limit.figure:13} {change:+6.1%}, up to {allowed:+.0%} allowed",
            end="",
        )
        at_most = limit.limits_at_most
        print(f" above {at_most:.2f} x the limit's CPU" if at_most else "")
    gained = [b for b in limits if asdict(costs[b.api])[b.figure] < 2 * b.baseline - b.at_most]
    if gained:
        print("bench-guard: the cost has fallen; record it, so that a rise will be noticed")


if __name__ == "__main__":
    sys.exit(main())
