"""A long run of waiters: a few contended locks, and faults of nodes and of waiters at random.

    python -m tests.servers.waiting_soak --minutes 30      or: make soak WAITING=1 MINUTES=30

Some processes, of threads and of tasks, contend for six locks (`scenarios.crowd`).  One node at a
time has a fault: it hangs, pauses, restarts empty, loses its connections, its scripts, or its
queues.  Of one half of the processes, one or several at a time are killed or stopped, wherever they
are: waiting, first in a queue, in a release, or holding the lock.

At the end no two workers have held a lock at the same time, no fence was out of order, no call
waited too long, and nothing is left: no key, place, subscription, connection or thread.  Exit 1 if
anything was wrong.  `--control quorum` and `--control validity` run workers that break a rule:
these runs must fail.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import quorlock
from quorlock import Redlock
from tests.harness.faults import Fault, Site, clients, sites
from tests.harness.faults.commands import ClientPause, PausedWrites, ScriptFlush
from tests.harness.faults.processes import Kill, RestartEmpty, Sigstop
from tests.harness.support.program import Program
from tests.harness.support.wait import until
from tests.harness.traffic.settings import ASYNCIO, BLOCKING
from tests.servers.scenarios.crowd import MAX_TTL, RESOURCES, Cell, Cells, Crowd
from tests.servers.scenarios.scenario import RECONNECT, Course

CROWD = "tests.servers.scenarios.crowd"
# The first ones are never killed or stopped: their longest wait counts.
STEADY = ((BLOCKING, 4, "auto"), (ASYNCIO, 12, "auto"))
STRUCK = (
    (BLOCKING, 1, "auto"),
    (BLOCKING, 3, "auto"),
    (ASYNCIO, 1, "auto"),
    (ASYNCIO, 4, "auto"),
    (ASYNCIO, 2, "poll"),
)
# Queues are first come, first served.  A holder that is killed or stopped costs a ttl each time.
LONGEST_WAIT = 30.0
_CELLS_EACH = 16
# Seconds. A lease of half a second ends 7 ms before its keys, by the clock of the nodes.
_CLOCK_STEP = 0.002
_MIN_AGE = 2 * MAX_TTL  # of a process that is killed: what its predecessor held is over
_RESTARTS = ("kill", "restart-empty")


@dataclass
class Result:
    """The result of a run."""

    cells: Sequence[Cell]
    outcomes: Counter[str]
    faults: Counter[str]
    wrongs: list[str]

    def __str__(self) -> str:
        steady = self.cells[: _CELLS_EACH * len(STEADY)]
        waits = [max(cell.longest for cell in cells) for cells in (steady, self.cells)]
        return "\n".join(
            [
                f"grants          {sum(cell.grants for cell in self.cells):.0f}",
                f"faults          {self.faults.total()}: {dict(self.faults.most_common())}",
                f"overlaps        {sum(cell.overlaps for cell in self.cells):.0f}",
                f"fence disorders {sum(cell.disorders for cell in self.cells):.0f}",
                f"longest wait    {waits[0]:.2f} s; of stopped processes {waits[1]:.2f} s",
                f"errors          {dict(self.outcomes.most_common())}",
                *(f"wrong: {wrong}" for wrong in self.wrongs),
            ]
        )


class WaitingSoak:
    """One run."""

    def __init__(self, nodes: Sequence[Site], folder: Path, seed: int, control: str = "") -> None:
        self._nodes = nodes
        self._entropy = random.Random(seed)
        self._programs: list[Program] = []
        self._begun_at: list[float] = []
        self._faults: Counter[str] = Counter()
        self._said_by_killed: list[str] = []
        self._stack = ExitStack()
        path = str(folder / "cells")
        kinds = STEADY + STRUCK
        # Two sets of cells for each process: its successor uses the other one.
        Cells.create(path, 2 * _CELLS_EACH * len(kinds))
        self._cells = Cells(path)
        urls = [site.server.url for site in nodes]
        self._crowds = [
            Crowd(urls, path, _CELLS_EACH * number, face, workers, seed, waiting, control)
            for number, (face, workers, waiting) in enumerate(kinds)
        ]

    def run(self, seconds: float, say: Callable[[str], None] = print, *, faults: int = 0) -> Result:
        """Run for so long, and until there were so many faults; look what is left."""
        with self._stack:
            for crowd in self._crowds:
                self._programs.append(self._start(crowd))
                self._begun_at.append(time.monotonic())
            self._disturb(seconds, say, faults)
            result = Result(self._cells.counts(), Counter(), self._faults, [])
            for program in self._programs:
                self._end(program, result)
        result = replace(result, cells=self._cells.counts())
        result.wrongs += [*self._said_by_killed, *self._broken(result), *left_on(self._nodes)]
        return result

    def _start(self, crowd: Crowd) -> Program:
        return self._stack.enter_context(Program("-m", CROWD, crowd.to_json(), timeout=60.0))

    def _end(self, program: Program, result: Result) -> None:
        ended = program.end()
        if ended.status or ended.noise:
            result.wrongs.append(f"a process ended with {ended.status}: {ended.noise[-3000:]}")
            return
        told = json.loads(ended.output)
        result.outcomes.update(told["outcomes"])
        if told["left"] > 0:
            result.wrongs.append(f"{told['left']} descriptors or threads are left of a process")

    # --- faults ------------------------------------------------------------------------------

    def _disturb(self, seconds: float, say: Callable[[str], None], faults: int) -> None:
        """Have two courses of faults at once: of nodes, and of waiters."""
        began = told_at = time.monotonic()
        courses = [self._node_faults(), self._client_faults()]
        due, offset = [began, began], _clock_offset()
        while (now := time.monotonic()) < began + seconds or self._faults.total() < faults:
            if abs(_clock_offset() - offset) > _CLOCK_STEP:  # keys expire by that clock
                self._faults["clock set"] += 1
                say(f"{now - began:6.0f} s: the clock was set by {_clock_offset() - offset:.3f} s")
                offset = _clock_offset()
            if now >= told_at + 10.0:
                told_at = now
                grants = sum(cell.grants for cell in self._cells.counts())
                overlaps = sum(cell.overlaps for cell in self._cells.counts())
                say(f"{now - began:6.0f} s: {grants:.0f} grants, {overlaps:.0f} overlaps")
            for number, course in enumerate(courses):
                if now >= due[number]:
                    due[number] = now + next(course)
            time.sleep(max(0.0, min(due) - time.monotonic()))
        for course in courses:
            course.close()

    def _node_faults(self) -> Course:
        faults: list[Fault] = [
            *(Sigstop(), Kill(), RestartEmpty(), ClientPause(0.5), PausedWrites(), ScriptFlush())
        ]
        commands: dict[str, list[tuple[str, ...]]] = {
            "connections lost": [("CLIENT", "KILL", "TYPE", kind) for kind in ("normal", "pubsub")],
            "queues lost": [("DEL", f"quorlock:queue:r{number}") for number in RESOURCES],
        }
        while True:
            site = self._entropy.choice(self._nodes)
            number = self._entropy.randrange(len(faults) + len(commands))
            if number >= len(faults):
                name = list(commands)[number - len(faults)]
                for command in commands[name]:
                    site.server.execute(*command)
            else:
                name = faults[number].name
                with _ended(faults[number], site):
                    faults[number].begin(site)
                    yield self._entropy.uniform(0.1, 1.5)
            self._faults[name] += 1
            # A node that has restarted casts no vote before max_ttl is over.
            yield RECONNECT + 1.01 * MAX_TTL if name in _RESTARTS else self._entropy.uniform(0, 1)

    def _client_faults(self) -> Course:
        """Kill one process, or stop one or several for a moment."""
        struck = range(len(STEADY), len(self._crowds))
        while True:
            yield self._entropy.uniform(0.2, 1.5)
            if self._entropy.random() < 0.4:
                number = self._entropy.choice(struck)
                if time.monotonic() > self._begun_at[number] + _MIN_AGE:
                    self._replace(number)
                continue
            numbers = self._entropy.sample(struck, self._entropy.choice((1, 1, 2, 3)))
            processes = [self._programs[number].process for number in numbers]
            try:
                for process in processes:
                    clients.pause(process)
                yield self._entropy.uniform(0.01, 1.5 * MAX_TTL)
            finally:
                for process in processes:
                    clients.resume(process)
            self._faults["process stopped"] += len(processes)

    def _replace(self, number: int) -> None:
        self._faults["process killed"] += 1
        process = self._programs[number].process
        clients.kill(process)
        assert process.stderr is not None
        if noise := process.stderr.read():
            self._said_by_killed.append(f"a process said before it was killed: {noise[-3000:]}")
        crowd = self._crowds[number]
        offset = _CELLS_EACH * len(self._crowds)
        first = crowd.first + offset if crowd.first < offset else crowd.first - offset
        self._crowds[number] = replace(crowd, first=first, seed=crowd.seed + 1000)
        self._programs[number] = self._start(self._crowds[number])
        self._begun_at[number] = time.monotonic()

    # --- the end -----------------------------------------------------------------------------

    def _broken(self, result: Result) -> Iterator[str]:
        steady = result.cells[: _CELLS_EACH * len(STEADY)]
        for what in ("overlaps", "disorders"):
            if count := sum(getattr(cell, what) for cell in result.cells):
                yield f"{count:.0f} {what}"
        if (longest := max(cell.longest for cell in steady)) > LONGEST_WAIT:
            yield f"a call waited {longest:.1f} s"
        for crowd in self._crowds:
            cells = result.cells[crowd.first : crowd.first + crowd.workers]
            if not any(cell.grants for cell in cells):
                yield f"a process got no lock: {crowd}"


def _clock_offset() -> float:
    """Return how far the wall clock, by which nodes let keys expire, is ahead of the other one.

    This process may be suspended between reading the two: the fastest of several readings counts.
    """
    readings: list[tuple[float, float]] = []
    for _ in range(10):
        before, wall, after = quorlock.now(), time.time(), quorlock.now()
        readings.append((after - before, wall - before))
    return min(readings)[1]


@contextmanager
def _ended(fault: Fault, site: Site) -> Generator[None]:
    try:
        yield
    finally:
        fault.end(site)


def left_on(nodes: Sequence[Site]) -> list[str]:
    """Return what is left on the nodes after one more turn at every lock.

    The places of processes that were killed are removed when their turn comes.
    """
    with Redlock([site.server.url for site in nodes], ttl=MAX_TTL, max_ttl=MAX_TTL) as redlock:
        for number in RESOURCES:
            redlock.lock(f"r{number}", timeout=20.0).acquire().release()
    until(lambda: not any(itertools.chain(*map(_left, nodes))), 2 * MAX_TTL)
    return [found for site in nodes for found in _left(site)]


def _left(site: Site) -> Iterator[str]:
    server = site.server
    for key in server.keys() + server.execute("KEYS", "quorlock:queue:*"):
        yield f"key {key!r} on {server!r}: {server.execute('PTTL', key)} ms"
    for channel in server.execute("PUBSUB", "CHANNELS", "*"):
        yield f"subscription {channel!r} on {server!r}"
    if not server.left_alone():
        yield f"connections to {server!r}: {server.execute('CLIENT', 'LIST')!r}"


def main() -> int:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.servers.waiting_soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long [default: 1]")
    seed = random.SystemRandom().randrange(1 << 31)
    parser.add_argument("--seed", type=int, default=seed, help="of all choices [default: random]")
    parser.add_argument("--control", choices=("quorum", "validity"), default="", help="must fail")
    arguments = parser.parse_args()
    print(f"waiting soak: {arguments.minutes:g} minutes, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, sites(5) as nodes:
        soak = WaitingSoak(nodes, Path(folder), arguments.seed, arguments.control)
        result = soak.run(60 * arguments.minutes, lambda line: print(line, flush=True))
    print(result, "WRONG" if result.wrongs else "ALL IS WELL", sep="\n")
    return 1 if result.wrongs else 0


if __name__ == "__main__":
    sys.exit(main())
