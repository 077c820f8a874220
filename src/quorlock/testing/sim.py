"""Runs simulated worlds by the thousand and says what came of it: `python -m quorlock.testing.sim`.

    make sim                                 2,000 worlds from a random seed
    make sim SEED=7                          that one world, drawn as a sequence diagram
    make sim SEED=7 HTML=out.html            the same as a page for a browser
    make sim SEED=0 RUNS=20000 SCENARIO=network

Exit status 1 when a promise was not kept, or when the worlds were too kind to tell.
"""

from __future__ import annotations

import argparse
import gc
import os
import secrets
import signal
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as await_any
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TextIO

from quorlock.testing.checker import judge
from quorlock.testing.report import Report
from quorlock.testing.scenario import ALL, SCENARIOS, floors_of, plan_of
from quorlock.testing.shrink import shrink
from quorlock.testing.trace import Trace
from quorlock.testing.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from quorlock.testing.checker import Judgement
    from quorlock.testing.plan import Plan
    from quorlock.testing.report import Found

RUNS = 2_000
_CHUNK = 250
_LOOK = 0.2  # seconds between two looks whether somebody wants us to end


def run(plan: Plan, trace: Trace | None = None) -> tuple[World, Judgement]:
    """One world from beginning to end, and the judgement of it."""
    world = World(plan, trace)
    world.run()
    judgement = judge(world)
    if trace is not None:
        trace.finish(judgement)
    return world, judgement


def run_seeds(scenario: str, first: int, count: int) -> Report:
    """Many worlds, one after the other."""
    # Worlds are full of circles; looking for them as often as Python does costs a tenth.
    gc.set_threshold(50_000, 20, 100)
    report = Report()
    for seed in range(first, first + count):
        report.add(*run(plan_of(scenario, seed)))
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    options = _options(arguments)
    if options.runs == 1:
        return _show(plan_of(options.scenario, options.seed), options)
    report = Report()
    began = time.monotonic()
    try:
        for part in _parts(options.scenario, options.seed, options.runs, options.jobs):
            report.merge(part)
            for found in part.found:
                _tell(found, sys.stderr)
            _progress(report, options.runs, began)
    except KeyboardInterrupt:
        print("\ninterrupted: so far", file=sys.stderr)
    return _conclude(report, options, time.monotonic() - began)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim", description="Simulated worlds of quorlock.")
    parser.add_argument("--seed", type=int, help="the first seed; at random without it")
    parser.add_argument("--runs", type=int, help=f"how many worlds; 1 with a seed, else {RUNS:,}")
    parser.add_argument("--scenario", default=ALL, choices=[ALL, *SCENARIOS], metavar="NAME")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--html", type=Path, help="write one world as a page")
    parser.add_argument("--trace", type=Path, help="write one world as JSON lines")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    options = parser.parse_args(arguments)
    if options.list:
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:<10} {scenario.summary}")
        parser.exit()
    if options.runs is None:
        options.runs = RUNS if options.seed is None else 1
    if options.seed is None:
        options.seed = secrets.randbelow(10**9)
    if options.runs < 1 or options.seed < 0 or options.jobs < 1:
        parser.error("--runs and --jobs are at least 1, --seed at least 0")
    if (options.html or options.trace) and options.runs > 1:
        parser.error("--html and --trace show one world: give a --seed, and no --runs")
    return options


# --- many worlds -----------------------------------------------------------------------------


def _parts(scenario: str, first: int, count: int, jobs: int) -> Iterator[Report]:
    """The reports of chunks of seeds, from several processes."""
    chunks = [
        (scenario, seed, min(_CHUNK, first + count - seed))
        for seed in range(first, first + count, _CHUNK)
    ]
    if jobs == 1 or len(chunks) == 1:
        for chunk in chunks:
            yield run_seeds(*chunk)
        return
    with _ctrl_c() as look, ProcessPoolExecutor(jobs, get_context("spawn"), _end_quietly) as pool:
        waiting: set[Future[Report]] = set()
        try:
            while chunks or waiting:
                while chunks and len(waiting) <= 2 * jobs:
                    waiting.add(_submit(pool, chunks.pop(0)))
                done, waiting = wait(waiting, _LOOK, FIRST_COMPLETED)
                look()
                yield from (part.result() for part in done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _ctrl_c() -> Generator[Callable[[], None]]:
    """Within, a Ctrl-C is noted, and comes out where we look for it.

    Raised inside of concurrent.futures it leaves a lock taken, for which the pool's own thread
    then waits for ever, and we for that thread.
    """
    came: list[int] = []

    def look() -> None:
        if came:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield look
    finally:
        signal.signal(signal.SIGINT, before)


def _submit(pool: ProcessPoolExecutor, chunk: tuple[str, int, int]) -> Future[Report]:
    """A worker that is started by it begins with Ctrl-C held back: see `_end_quietly`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(run_seeds, *chunk)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_quietly() -> None:
    """In a worker: Ctrl-C ends it without a word, what to say is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """A worker whose parent was killed would wait for more to do for ever."""
    parent = parent_process()
    assert parent is not None
    await_any([parent.sentinel])
    os._exit(1)


def _progress(report: Report, runs: int, began: float) -> None:
    rate = report.worlds / max(time.monotonic() - began, 1e-9)
    left = (runs - report.worlds) / rate if rate else 0.0
    line = (
        f"{report.worlds:,} of {runs:,} worlds, {rate:,.0f} a second,"
        f" {report.broken.total():,} violations, {left:,.0f} s left"
    )
    if sys.stderr.isatty():
        print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)
    elif (report.worlds - 1) % (40 * _CHUNK) < _CHUNK:  # the first chunk, then every fortieth
        print(line, file=sys.stderr, flush=True)


def _conclude(report: Report, options: argparse.Namespace, seconds: float) -> int:
    if sys.stderr.isatty():
        print(file=sys.stderr)
    last = options.seed + options.runs - 1
    print(f"scenario {options.scenario}, seeds {options.seed} to {last}, {seconds:,.1f} s")
    for line in (*report.lines(seconds), "", *report.coverage(), "", *report.calls()):
        print(line)
    misses = report.too_kind(floors_of(options.scenario))
    for miss in misses:
        print(f"TOO KIND: {miss}")
    for found in report.found:
        _tell(found, sys.stdout)
    if report.found:
        _show_smallest(report.found[0])
    return 1 if report.found or misses else 0


def _tell(found: Found, stream: TextIO) -> None:
    violation = found.violation
    print(f"VIOLATION ({violation.rule}) in {replay(found)}: {violation.text}", file=stream)


def replay(found: Found) -> str:
    """The command that shows it again."""
    return f"make sim SCENARIO={found.scenario} SEED={found.seed}"


# --- one world -------------------------------------------------------------------------------


def smallest(plan: Plan, rule: str) -> Plan:
    """The plan cut down to what breaks the same promise."""

    def fails(candidate: Plan) -> bool:
        return any(violation.rule == rule for violation in run(candidate)[1].violations)

    return shrink(plan, fails)


def _show_smallest(found: Found) -> None:
    plan = plan_of(found.scenario, found.seed)
    small = smallest(plan, found.violation.rule)
    print(f"\nthe first, cut down from {plan.size} to {small.size} jobs, faults and extensions:\n")
    _draw(small)
    print(f"\nto see it again: {replay(found)}")


def _draw(plan: Plan) -> Judgement:
    from quorlock.testing.diagram import diagram

    trace = Trace()
    _, judgement = run(plan, trace)
    print(diagram(trace.lines))
    return judgement


def _show(plan: Plan, options: argparse.Namespace) -> int:
    """One world: drawn, or written where the options say; cut down first if it fails."""
    trace = Trace()
    _, judgement = run(plan, trace)
    if options.trace:
        options.trace.write_text(trace.text())
        print(f"{len(trace.lines):,} lines in {options.trace}")
    if options.html:
        from quorlock.testing.page import page

        options.html.write_text(page(trace.lines))
        print(f"{len(trace.lines):,} lines in {options.html}: open it in a browser")
    if not options.trace and not options.html:
        _draw(plan)
    for violation in judgement.violations:
        print(f"VIOLATION ({violation.rule}): {violation.text}")
    if judgement.violations:
        small = smallest(plan, judgement.violations[0].rule)
        print(f"\ncut down from {plan.size} to {small.size} jobs, faults and extensions:\n")
        _draw(small)
    return 1 if judgement.violations else 0


def _main() -> int:
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough: `| head`
        # Not by SIGPIPE's default: that would also end us when a worker's pipe breaks.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


if __name__ == "__main__":
    sys.exit(_main())
