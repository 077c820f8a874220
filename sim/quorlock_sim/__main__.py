"""The command line of the simulator: `make sim`, or `python -m quorlock_sim`.

    make sim                                 2,000 worlds from a random seed
    make sim SEED=7                          that one world, drawn as a sequence diagram
    make sim SEED=7 HTML=out.html            the same as a page for a browser
    make sim SEED=0 RUNS=20000 SCENARIO=network

The exit status is 1 if a promise was broken, or if too few worlds had faults to be conclusive.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from quorlock_sim.report import Report
from quorlock_sim.runner import CHUNK, reports, run, smallest
from quorlock_sim.scenarios import ALL, SCENARIOS, floors_of, plan_of
from quorlock_sim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock_sim.oracle import Judgement
    from quorlock_sim.plan import Plan
    from quorlock_sim.report import Found

RUNS = 2_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = _options(arguments)
    if options.runs == 1:
        return _show(plan_of(options.scenario, options.seed), options)
    report = Report()
    began = time.monotonic()
    try:
        for part in reports(options.scenario, options.seed, options.runs, options.jobs):
            report.merge(part)
            for found in part.found:
                _tell(found, sys.stderr)
            _progress(report, options.runs, began)
    except KeyboardInterrupt:
        print("\ninterrupted; the result so far:", file=sys.stderr)
    return _conclude(report, options, time.monotonic() - began)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim", description="Simulated worlds of quorlock.")
    parser.add_argument("--seed", type=int, help="the first seed [default: random]")
    parser.add_argument("--runs", type=int, help=f"worlds [default: 1 with a seed, else {RUNS:,}]")
    parser.add_argument("--scenario", default=ALL, choices=[ALL, *SCENARIOS], metavar="NAME")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes [default: number of CPUs]"
    )
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
        parser.error("--runs and --jobs must be at least 1, --seed at least 0")
    if (options.html or options.trace) and options.runs > 1:
        parser.error("--html and --trace show one world: give a --seed, and no --runs")
    return options


# --- many worlds -----------------------------------------------------------------------------


def _progress(report: Report, runs: int, began: float) -> None:
    rate = report.worlds / max(time.monotonic() - began, 1e-9)
    left = (runs - report.worlds) / rate if rate else 0.0
    line = (
        f"{report.worlds:,} of {runs:,} worlds, {rate:,.0f} a second,"
        f" {report.broken.total():,} violations, {left:,.0f} s left"
    )
    if sys.stderr.isatty():
        print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)
    elif (report.worlds - 1) % (40 * CHUNK) < CHUNK:  # the first chunk, then every fortieth
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
        print(f"INCONCLUSIVE: {miss}")
    for found in report.found:
        _tell(found, sys.stdout)
    if report.found:
        _show_smallest(report.found[0])
    return 1 if report.found or misses else 0


def _tell(found: Found, stream: TextIO) -> None:
    violation = found.violation
    print(f"VIOLATION ({violation.rule}) in {replay(found)}: {violation.text}", file=stream)


def replay(found: Found) -> str:
    """Return the command that replays the world."""
    return f"make sim SCENARIO={found.scenario} SEED={found.seed}"


# --- one world -------------------------------------------------------------------------------


def _show_smallest(found: Found) -> None:
    plan = plan_of(found.scenario, found.seed)
    small = smallest(plan, found.violation.rule)
    print(f"\nthe first, minimised from {plan.size} to {small.size} jobs, faults and extensions:\n")
    _draw(small)
    print(f"\nto replay it: {replay(found)}")


def _draw(plan: Plan) -> Judgement:
    from quorlock_sim.view.diagram import diagram

    trace = Trace()
    _, judgement = run(plan, trace)
    print(diagram(trace.lines))
    return judgement


def _show(plan: Plan, options: argparse.Namespace) -> int:
    """Draw one world, or write it to the files of the options; minimise it if it fails."""
    trace = Trace()
    _, judgement = run(plan, trace)
    if options.trace:
        options.trace.write_text(trace.text())
        print(f"{len(trace.lines):,} lines in {options.trace}")
    if options.html:
        from quorlock_sim.view.page import page

        options.html.write_text(page(trace.lines))
        print(f"{len(trace.lines):,} lines in {options.html}: open it in a browser")
    if not options.trace and not options.html:
        _draw(plan)
    for violation in judgement.violations:
        print(f"VIOLATION ({violation.rule}): {violation.text}")
    if judgement.violations:
        small = smallest(plan, judgement.violations[0].rule)
        print(f"\nminimised from {plan.size} to {small.size} jobs, faults and extensions:\n")
        _draw(small)
    return 1 if judgement.violations else 0


def _main() -> int:
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe: `| head`
        # SIGPIPE's default action would also end this process when a worker's pipe breaks.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


if __name__ == "__main__":
    sys.exit(_main())
