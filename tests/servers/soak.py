"""A long run: traffic under all faults, mixed at random from a seed, and a table at the end.

    python -m tests.servers.soak --minutes 10 --seed 7      or: make soak MINUTES=10 SEED=7

Nodes: a minority is faulted at any time, each by a fault of `tests.harness.faults` that has to
prove itself.  A node that may have forgotten keys, or was a replica, counts until clients let it
vote again.  From time to time all nodes are slow instead, or a majority is away by faults that keep
the memory.

Clients: every few seconds one process of the traffic is paused (SIGSTOP) or suspended (its machine
sleeps: only the clock that counts suspended time runs; Linux with a C compiler), both for up to
twice `max_ttl`; or killed; or can start no thread for a moment; or, where its workers are threads,
has calls interrupted by signal handlers that raise, release or close.

The seed, which is printed, brings back every choice, not the timing.  A line is printed every ten
seconds.  Exit 1 on any overlap, defect or key that is left, and the records are kept; else 0, also
after Ctrl-C.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.faults import FAULTS, Fault, Site, clients, shim, sites
from tests.harness.traffic.processes import Process
from tests.harness.traffic.records import instant
from tests.harness.traffic.settings import ASYNCIO, BLOCKING, Settings
from tests.harness.traffic.strikes import NO_THREADS, STRIKE
from tests.harness.validate.judge import broken_words, overlaps
from tests.servers.scenarios.scenario import TCP, UNIX, Course, Scenario, Verdict, started

TELL_EVERY = 10.0
# More threads than a driver lets acquire at once, and both faces both ways.
CROWD = ((BLOCKING, 10, UNIX), (BLOCKING, 4, TCP), (ASYNCIO, 8, UNIX), (ASYNCIO, 4, TCP))
# Enough resources for turns, few enough for contention.
LONG_RUN = Settings((), "", BLOCKING, 0, 0, resources=tuple(f"r{number}" for number in range(12)))
KEEPING = [fault for fault in FAULTS if not fault.loses_memory]
CLIENT_FAULTS = (
    "client paused",
    "client killed",
    *(("client suspended",) if shim.available() else ()),
    "no threads",
    "signal handlers",
)


class Soak:
    """The nemesis of a long run: one thread that goes through many courses of faults at once."""

    def __init__(self, scenario: Scenario, seed: int, minutes: float) -> None:
        self.scenario = scenario
        self.client_acts: Counter[str] = Counter()
        self.storms = 0  # a majority away at once
        self._seed = seed
        self._began = time.monotonic()
        self._until = self._began + 60 * minutes
        self._free = list(scenario.sites)
        self._calm = False  # no new faults: the next one is for many nodes
        self._order = itertools.count()
        self._due: list[tuple[float, int, Course]] = []
        self._told_at = self._began

    def run(self) -> None:
        """Run until the time is up, or `stop`; every fault that was begun is ended."""
        slots = (len(self.scenario.sites) - 1) // 2
        for slot in range(slots):
            self._add(self._node_faults(random.Random(f"{self._seed}/node/{slot}")))
        self._add(self._client_faults(random.Random(f"{self._seed}/client")))
        self._add(self._faults_of_many(random.Random(f"{self._seed}/weather")))
        while self._due:
            at, _, course = heapq.heappop(self._due)
            self._wait(at)
            if (seconds := next(course, None)) is not None:
                self._add(course, time.monotonic() + seconds)

    def stop(self) -> None:
        """Begin nothing more; for a signal handler."""
        self._until = 0.0

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    # --- courses -----------------------------------------------------------------------------

    def _node_faults(self, entropy: random.Random) -> Course:
        """One fault after the other, each on a node that has none."""
        while self._goes_on():
            site = self._free.pop(entropy.randrange(len(self._free)))
            fault = entropy.choice(FAULTS)
            try:
                yield from self.scenario.course(fault, site, entropy.uniform(0.2, 1.5))
            finally:
                self._free.append(site)
            yield from self._rest(entropy.uniform(0.05, 0.8))
            while self._calm:
                yield 0.1

    def _faults_of_many(self, entropy: random.Random) -> Course:
        """Slow all nodes down, or take a majority away, from time to time: then no lock is
        granted.
        """
        for fault in itertools.cycle((self._slow_network, self._majority_away)):
            yield from self._rest(entropy.uniform(5.0, 20.0))
            if not self._goes_on():
                return
            self._calm = True
            while len(self._free) < len(self.scenario.sites):
                yield 0.1
            yield from fault(entropy)
            self._calm = False

    def _slow_network(self, entropy: random.Random) -> Course:
        yield from self.scenario.slow_network(entropy.uniform(1.0, 4.0))

    def _majority_away(self, entropy: random.Random) -> Course:
        """A majority at once, by faults that keep the memory."""
        struck = entropy.sample(self.scenario.sites, len(self.scenario.sites) // 2 + 1)
        under_way = set(struck)
        for site in struck:
            seconds = entropy.uniform(1.0, 2.5)
            self._add(self._inflict(entropy.choice(KEEPING), site, seconds, under_way))
        while under_way:
            yield 0.1
        self.storms += 1

    def _inflict(self, fault: Fault, site: Site, seconds: float, under_way: set[Site]) -> Course:
        try:
            yield from self.scenario.course(fault, site, seconds)
        finally:
            under_way.remove(site)

    def _client_faults(self, entropy: random.Random) -> Course:
        while self._goes_on():
            yield from self._rest(entropy.uniform(1.0, 6.0))
            process = entropy.choice(self.scenario.processes.alive)
            kind = entropy.choice(CLIENT_FAULTS)
            if kind == "client paused":
                clients.pause(process.popen)
                try:
                    yield entropy.uniform(0.2, 2 * self.scenario.max_ttl)
                finally:
                    clients.resume(process.popen)
            elif kind == "client suspended":
                process.suspend(entropy.uniform(0.05, 2 * self.scenario.max_ttl))
            elif kind == "no threads":
                process.popen.send_signal(NO_THREADS)
            elif kind == "signal handlers":
                yield from self._strike(process, entropy)
            else:
                self._kill(process)
            self.client_acts[kind] += 1

    def _strike(self, process: Process, entropy: random.Random) -> Course:
        """Signals at random instants, each of which interrupts a call of the main thread."""
        for _ in range(entropy.randrange(5, 50)):
            process.popen.send_signal(STRIKE)
            yield entropy.uniform(0.001, 0.05)

    def _kill(self, process: Process) -> None:
        process.killed = True
        clients.kill(process.popen)
        self.scenario.processes.replace(process)

    def _rest(self, seconds: float) -> Course:
        """Do nothing for so long, unless it is over before."""
        end = time.monotonic() + seconds
        while self._goes_on() and (left := end - time.monotonic()) > 0:
            yield min(left, 0.2)

    def _goes_on(self) -> bool:
        return time.monotonic() < self._until

    # --- going through them ------------------------------------------------------------------

    def _add(self, course: Course, at: float = 0.0) -> None:
        heapq.heappush(self._due, (at, next(self._order), course))

    def _wait(self, until: float) -> None:
        while (now := time.monotonic()) < until or now > self._told_at + TELL_EVERY:
            if now > self._told_at + TELL_EVERY:
                self._told_at = now
                print(self._progress(), flush=True)
            time.sleep(max(0.0, min(until, self._told_at + TELL_EVERY) - time.monotonic()))

    def _progress(self) -> str:
        looked_at = instant()
        history = self.scenario.history.follow()
        faults = len(self.scenario.acts) + self.client_acts.total()
        settled = history.settled(looked_at)
        met = len(overlaps(settled))
        return (
            f"{self.seconds:6.0f} s: {len(history.stays)} turns, {faults} faults,"
            f" overlaps {met}, promises broken {len(broken_words(settled))},"
            f" defects {len(history.defects)}"
        )


def table(scenario: Scenario, client_acts: Counter[str], verdict: Verdict) -> str:
    """All that a run came to."""
    history = scenario.history
    inflicted = Counter(act.fault for act in scenario.acts)
    proved = Counter(act.fault for act in scenario.acts if act.proof)
    lines = ["", "turns"]
    lines += [f"  {face:10} {count:8}" for face, count in sorted(history.turns().items())]
    lines += [f"faults {' ' * 15} count  proved"]
    lines += [f"  {name:20} {count:5}  {proved[name]:6}" for name, count in inflicted.most_common()]
    lines += [f"  {name:20} {client_acts[name]:5}  {client_acts[name]:6}" for name in client_acts]
    total, sure = inflicted.total() + client_acts.total(), proved.total() + client_acts.total()
    lines += [f"  {'all':20} {total:5}  {sure:6}", "calls"]
    for (verb, outcome), count in sorted(history.outcomes.items()):
        lines.append(f"  {verb:18} {outcome:18} {count:8}")
    if any(history.overdue.values()):
        lines += ["past its deadline, at the most"]
    lines += [f"  {verb:18} {late / 1e9:8.3f} s" for verb, late in history.overdue.items() if late]
    memory = [process.memory_kb // 1024 for process in history.processes.values() if process.left]
    late = [call for call in history.calls.values() if call.late]
    lines += [
        f"late calls         {len(late)}",
        f"keys left          {len(verdict.left)}",
        f"memory of processes {memory} MB",
        f"processes killed   {len(scenario.processes.killed)}",
        f"overlaps           {len(verdict.judgement.overlaps)}",
        f"promises broken    {len(broken_words(history.stays.values()))}",
        f"other wrongs       {len(verdict.judgement.wrongs) + len(verdict.complaints)}",
    ]
    troubles = [str(act) for act in scenario.acts if act.trouble]
    return "\n".join([*lines, *(f"not proved: {text[:300]}" for text in troubles)])


def soak(
    minutes: float, seed: int, count: int, folder: Path, say: Callable[[str], None] = print
) -> int:
    """The run and its table; the exit status."""
    say(f"soak: {minutes:g} minutes, {count} nodes, seed {seed}")
    with (
        sites(count) as nodes,
        started(nodes, folder, seed, LONG_RUN, crowd=CROWD, keep_calls=False) as scenario,
    ):
        # A fault must not wait for work: here it is often the second of its kind.
        scenario.expects_grants = False
        nemesis = Soak(scenario, seed, minutes)
        with stopped_by_ctrl_c(nemesis.stop):
            say("under way")
            nemesis.run()
        seconds, storms = nemesis.seconds, nemesis.storms
        verdict = scenario.finish()
    say(f"after {seconds:.0f} s, seed {seed}, {storms} times with a majority away:")
    return report(scenario, nemesis.client_acts, verdict, say)


@contextmanager
def stopped_by_ctrl_c(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C stops, without an exception: in the middle of a fault, or of reading the
    records, that would leave half of it.  The second is as usual.
    """

    def handle(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("interrupted: ending what was begun", flush=True)
        stop()

    # Not what was set before: a shell that runs us in the background has Ctrl-C ignored.
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def report(
    scenario: Scenario, client_acts: Counter[str], verdict: Verdict, say: Callable[[str], None]
) -> int:
    """Say all that it came to; the exit status."""
    say(table(scenario, client_acts, verdict))
    if verdict.content:
        say("ALL IS WELL")
        return 0
    say(f"\n{verdict}\nWRONG")
    return 1


def main() -> int:
    """Read the arguments, run, and keep the records if anything was wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.servers.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long [default: 1]")
    seed = random.SystemRandom().randrange(1 << 31)
    parser.add_argument("--seed", type=int, default=seed, help="of all choices [default: random]")
    parser.add_argument("--nodes", type=int, default=5, help="how many [default: 5]")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="quorlock-soak-"))
    status = 1
    try:
        status = soak(arguments.minutes, arguments.seed, arguments.nodes, folder)
    finally:
        if status:
            print(f"the records are in {folder}")
        else:
            shutil.rmtree(folder)
    return status


if __name__ == "__main__":
    sys.exit(main())
