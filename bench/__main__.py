"""The parent process: measure all cases, each slice in a fresh process, and write the results.

    python -m bench [--quick] [--only WORK,...] [--rounds R] [--contestants NAME,...]

Each round measures all cases, and within a case one contestant after another: A B C, and in the
next round C B A. So a machine whose speed drifts affects all of them alike.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.aims import judged
from bench.child import ROOT, run_child
from bench.contestants import CONTESTANTS
from bench.fleet import Fleet
from bench.plan import WORKS, Case, works
from bench.report import aims_table, write_report
from bench.results import Found, Results

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = Path(__file__).with_name("results")
ROUNDS, QUICK_ROUNDS = 5, 1
FULL_SLICE = {"seconds": 0.8, "warm_up": 0.3}
QUICK_SLICE = {"seconds": 0.4, "warm_up": 0.15}
PEERS = ("hiredis", "redis", "redlock-py", "pottery", "python-redis-lock", "coredis", "uvloop")


@dataclass(frozen=True)
class Options:
    """The command line."""

    quick: bool
    only: tuple[str, ...]
    rounds: int
    contestants: tuple[str, ...]
    results: Path
    command: str  # that repeats the run

    @classmethod
    def read(cls, arguments: list[str] | None = None) -> Options:
        """Parse the command line; an unknown name is an error."""
        parser = argparse.ArgumentParser("python -m bench", description="Measure side by side.")
        parser.add_argument("--quick", action="store_true", help="one short round, about a minute")
        parser.add_argument("--only", default=",".join(WORKS), help=f"works: {','.join(WORKS)}")
        parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}, quick {QUICK_ROUNDS}")
        parser.add_argument("--contestants", default="", help="only these, comma-separated")
        parser.add_argument("--results", type=Path, help="folder to write to (bench/results)")
        given = parser.parse_args(arguments)
        only, contestants = _names(given.only), _names(given.contestants)
        for name in (*(set(only) - set(WORKS)), *(set(contestants) - set(CONTESTANTS))):
            parser.error(f"unknown name {name!r}; contestants: {', '.join(CONTESTANTS)}")
        rounds = given.rounds or (QUICK_ROUNDS if given.quick else ROUNDS)
        # A quick run does not replace the committed results.
        folder = given.results or (RESULTS / "quick" if given.quick else RESULTS)
        words = sys.argv[1:] if arguments is None else arguments
        command = shlex.join(["bench/.venv/bin/python", "-m", "bench", *words])
        return cls(given.quick, only, rounds, contestants, folder, command)

    def cases(self) -> list[Case]:
        """Return the cases to measure, including those with missing contestants."""
        return [case for module in works(self.only).values() for case in module.PLAN]

    def contestants_of(self, case: Case) -> list[str]:
        """Return the contestants of a case that take part in this run."""
        wanted = case.quick if self.quick else case.contestants
        return [
            name
            for name in wanted
            if not CONTESTANTS[name].missing and (not self.contestants or name in self.contestants)
        ]

    def slices(self) -> Iterator[tuple[int, Case, str]]:
        """Yield (round, case, contestant) in the order of measuring."""
        cases = self.cases()
        for number in range(self.rounds):
            for case in cases:
                if case.rounds is None or number < case.rounds:
                    # A B C, then C B A: a drift affects all alike.
                    for name in self.contestants_of(case)[:: -1 if number % 2 else 1]:
                        yield number, case, name


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def run(options: Options, console: Console) -> Results:
    """Measure everything; failures are noted in the rows."""
    results = Results()
    began, load = time.monotonic(), os.getloadavg()[0]
    slices = list(options.slices())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Fleet() as fleet, Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=len(slices))
        for number, case, name in slices:
            progress.update(task, description=f"round {number + 1}: {case.name}: {name}")
            row = measure(options, fleet, case, name)
            for told in complaints(row):
                progress.console.print(f"{case.name}: {name}: {told}", highlight=False)
            found = Found(case.work, case.name, case.nodes, dict(case.params))
            results.cases.setdefault(case.name, found).rows.setdefault(name, []).append(row)
            progress.advance(task)
        about = about_this_run(options, fleet)
    about |= {"load before": round(load, 2), "minutes": round((time.monotonic() - began) / 60, 1)}
    results.about = {case.work: about for case in results.cases.values()}
    return results


def complaints(row: dict[str, Any]) -> Iterator[str]:
    """Yield what must be said about a row at once."""
    if "failed" in row:
        yield row["failed"]
    if lost := row.get("lost"):
        yield f"mutual exclusion was violated: {lost} additions lost"


def measure(options: Options, fleet: Fleet, case: Case, name: str) -> dict[str, Any]:
    """Measure one slice: prepare its servers, run a fresh child, count the leftover keys."""
    slice_ = QUICK_SLICE if options.quick else FULL_SLICE
    params = {**slice_, **case.params, "quick": options.quick}
    if options.quick and "cycles" not in params:
        params |= QUICK_SLICE
    began = time.monotonic()
    with case.site(fleet, case.nodes) as site:
        row = run_child(
            name, case.work, params, site.urls, deadline=case.deadline, on_word=site.on_word
        )
        row |= site.after(row)
    return row | {"slice_s": time.monotonic() - began}


def about_this_run(options: Options, fleet: Fleet) -> dict[str, Any]:
    """Return the versions and the machine that the figures depend on."""
    server = fleet.servers[0].execute("INFO", "server").decode()
    words = dict(line.split(":", 1) for line in server.split() if ":" in line)
    return {
        "quorlock": f"{version('quorlock')} ({_commit()})",
        "command": options.command,
        "rounds": options.rounds,
        "quick": options.quick,
        "date": time.strftime("%Y-%m-%d"),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "server": f"{words.get('server_name', 'redis')} "
        f"{words.get('valkey_version') or words.get('redis_version')}",
        "machine": f"{_processor()}, {os.cpu_count()} CPUs, {platform.system()}",
        "peers": {name: found for name in PEERS if (found := _version(name))},
        "missing": {c.name: c.missing for c in CONTESTANTS.values() if c.missing},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


def _processor() -> str:
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def main() -> int:
    """Measure, write the report and print the aims; return the exit status."""
    options, console = Options.read(), Console(stderr=True)
    for contestant in CONTESTANTS.values():
        if contestant.missing:
            console.print(f"{contestant.name} is not measured: {contestant.missing} missing")
    try:
        results = run(options, console)
    except KeyboardInterrupt:
        console.print("stopped; nothing was written")
        return 130
    results.save(options.results)
    # The report also covers the works that earlier runs have measured.
    everything = Results.load(options.results, WORKS)
    written = write_report(everything, options.results)
    judgements = judged(everything)
    measured = [judgement for judgement in judgements if judgement.reached is not None]
    print(aims_table(measured))
    print(f"\nnot measured: {len(judgements) - len(measured)} of {len(judgements)} aims")
    print("written:", *(os.path.relpath(path) for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
