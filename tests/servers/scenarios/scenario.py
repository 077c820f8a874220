"""A run: nodes behind proxies, traffic, a nemesis that inflicts faults, and the verdict.

Redlock assumes that a node never forgets a key before its time.  Where a restart breaks this, the
clients' restart guard keeps the node out, and nothing is done here but to wait for the end of it
before the next faults: a minority at a time.  What the guard cannot see (FLUSHALL, eviction, a
clock that jumps: `loses_memory`) is inflicted on a node that clients cannot reach, and it stays so
until every key that it may have forgotten has run out anyway.  Without that, two may hold one lock:
test_limits.py shows it.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.faults import Fault, Site
from tests.harness.support.wait import until
from tests.harness.traffic.processes import Process, Processes
from tests.harness.traffic.records import instant
from tests.harness.traffic.settings import ASYNCIO, BLOCKING, Settings
from tests.harness.validate import nodes
from tests.harness.validate.history import Call, History
from tests.harness.validate.judge import Judgement, around, judge

# A driver reconnects to a node after at most a second, and then sends its pending releases.
RECONNECT = 1.2
# What a node's clock and ours may differ by while a key runs out, and a busy machine.
MARGIN = 0.1
# The maximum time that a fault waits for locks to be granted during it.
PATIENCE = 10.0
# One way and the most that comes on top: there and back it is less than a node_timeout.
SLOW = (0.01, 0.02)
# After these another process is there, which the clients keep out by its uptime.
RESTARTS = frozenset({"kill", "restart-empty", "restart-aof-everysec", "restart-aof-always"})
# And after these the same process, which was a replica: its keys may be another master's.
KEPT_OUT = RESTARTS | {"demoted"}
# These end by themselves after a second.
BRIEF = {"client-pause": 0.9, "debug-sleep": 0.9}
# A call that is under way may take its whole timeout, and so may closing.
STOP_TIMEOUT = 20.0
DELIVERY_TIMEOUT = 10.0

UNIX, TCP = "unix", "tcp"
CROWD = ((BLOCKING, 4, UNIX), (BLOCKING, 4, TCP), (ASYNCIO, 8, UNIX))

Course = Generator[float]  # yields how many seconds to wait before its next step


def plans(
    sites: Sequence[Site],
    folder: Path,
    seed: int,
    shared: Settings | None = None,
    crowd: Sequence[tuple[str, int, str]] = CROWD,
) -> list[Settings]:
    """The processes of a run, all at the same resources; each has the nodes in another order."""
    given = vars(shared) if shared is not None else {}
    own = ("urls", "folder", "face", "workers", "seed")
    common = {key: value for key, value in given.items() if key not in own}
    entropy = random.Random(seed)
    settings = []
    for face, workers, way in crowd:
        urls = [site.proxy.tcp_url if way == TCP else site.proxy.url for site in sites]
        entropy.shuffle(urls)
        number = entropy.randrange(1 << 31)
        settings.append(Settings(tuple(urls), str(folder), face, workers, number, **common))
    return settings


@dataclass
class Act:
    """One fault that was inflicted: when it was surely in force, and how that was seen."""

    fault: str
    node: str
    since: int = 0
    until: int = 0
    proof: str = ""
    trouble: str = ""  # why it was not inflicted, or not proved

    def __str__(self) -> str:
        state = self.proof or self.trouble or "not over yet"
        return f"{self.fault} at {self.node} for {(self.until - self.since) / 1e9:.2f} s: {state}"


@dataclass
class Verdict:
    """The result of a run."""

    judgement: Judgement
    complaints: list[str]  # of the processes
    left: list[str]  # keys that should not be on any node
    story: list[str] = field(default_factory=list)  # what happened around the overlaps

    @property
    def content(self) -> bool:
        """Nothing is wrong."""
        return self.judgement.content and not self.complaints and not self.left

    def __str__(self) -> str:
        return "\n".join([str(self.judgement), *self.complaints, *self.left, *self.story])


class Scenario:
    """One run. Use `started`."""

    def __init__(
        self, sites: Sequence[Site], processes: Processes, history: History, max_ttl: float
    ) -> None:
        self.sites = list(sites)
        self.processes = processes
        self.history = history
        self.acts: list[Act] = []
        self.max_ttl = max_ttl
        self.expects_grants = True  # locks can be had during faults: a minority is faulted

    # --- the nemesis -------------------------------------------------------------------------

    def inflict(
        self, *pairs: tuple[Fault, Site], seconds: float = 0.6, last: bool = False
    ) -> list[Act]:
        """Inflict these faults at the same time; all is well again when this returns.

        last: no fault comes after these, so nodes may still be kept out by clients.
        """
        first = len(self.acts)
        play([self.course(fault, site, seconds, last=last) for fault, site in pairs])
        return self._proved(first)

    @contextmanager
    def inflicted(self, *pairs: tuple[Fault, Site]) -> Iterator[None]:
        """Faults that are in force while the block runs; proved at its end."""
        first = len(self.acts)
        courses = [self.course(fault, site, 0.0) for fault, site in pairs]
        try:
            for course in courses:
                next(course)
            yield
            play(courses)
            self._proved(first)
        finally:
            for course in courses:
                course.close()

    def course(self, fault: Fault, site: Site, seconds: float, *, last: bool = False) -> Course:
        """The steps of one fault, from health to health; what went wrong with it is in its act."""
        act = Act(fault.name, site.server.path)
        self.acts.append(act)
        hides = fault.loses_memory and fault.name not in RESTARTS
        if hides:
            site.proxy.refuse()
        try:
            fault.begin(site)
            act.since = instant()
            if fault.name in BRIEF:
                act.proof = fault.proof(site)
            yield seconds
            while not self._has_granted(act.since) and _may_last(fault, act.since):
                yield 0.05
            # Of the others at the end: with traffic under way all the time they still are in force.
            act.proof = act.proof or fault.proof(site)
        except Exception as error:  # noqa: BLE001 (a fault that failed must be ended all the more)
            act.trouble = f"{type(error).__name__}: {error}"
        finally:
            act.until = instant()
            if hides:
                site.proxy.refuse()
            fault.end(site)
        if hides:
            yield self.max_ttl + MARGIN
        elif fault.name in KEPT_OUT and not last:
            yield RECONNECT + self.max_ttl * 1.01 + MARGIN
        site.proxy.accept()

    def _proved(self, first: int) -> list[Act]:
        acts = self.acts[first:]
        assert not [act for act in acts if act.trouble], "\n".join(map(str, acts))
        return acts

    def slow_network(self, seconds: float) -> Course:
        """All nodes answer late, in time: no fault, but what is reckoned from a reply is wrong."""
        act = Act("slow network", "all nodes")
        self.acts.append(act)
        proxies = [site.proxy for site in self.sites]
        before = [proxy.counts["delayed"] for proxy in proxies]
        try:
            for proxy in proxies:
                proxy.delay(*SLOW)
            act.since = instant()
            yield seconds
            pairs = zip(proxies, before, strict=True)
            late = [proxy.counts["delayed"] - old for proxy, old in pairs]
            act.proof = f"pieces that were delayed: {late}" if all(late) else ""
            act.trouble = "" if act.proof else f"some node was not asked: {late}"
        finally:
            act.until = instant()
            for proxy in proxies:
                proxy.transparent()

    def _has_granted(self, since: int) -> bool:
        """Wait until both APIs have got locks during a fault; it may last longer for that on a busy
        machine.
        """
        grants = self.history.follow().grants(since, instant())
        return set(grants) == {BLOCKING, ASYNCIO} or not self.expects_grants

    # --- looking -----------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Let the traffic run for a while."""
        time.sleep(seconds)

    def until(self, reached: Callable[[History], bool], seconds: float = 10.0) -> bool:
        """Follow the records until something is in them."""
        return until(lambda: reached(self.history.follow()), seconds)

    def under_way(self, act: Act) -> list[Call]:
        """Calls that were made, or went on, while a fault was in force."""
        calls = self.history.follow().calls.values()
        return [c for c in calls if c.asked < act.until and (c.returned or act.until) > act.since]

    # --- the end -----------------------------------------------------------------------------

    def finish(self) -> Verdict:
        """Wait for pending releases on healthy nodes, end the traffic, and judge."""
        self.pause(RECONNECT)
        complaints = self.processes.stop(STOP_TIMEOUT)
        # Bytes that a proxy delays arrive after that delay.
        complaints += self._soon(self._undelivered, DELIVERY_TIMEOUT)
        judgement = judge(self.history.follow(), self.processes.killed)
        story = [line for pair in judgement.overlaps[:3] for line in around(self.history, pair)]
        return Verdict(judgement, complaints, self._left(), story)

    def _left(self) -> list[str]:
        """Keys that are not excused, and any that outlives the longest ttl."""
        if wrong := self._soon(self._not_excused, 1.0):
            return wrong
        excused = self._soon(self._keys, self.max_ttl + 1.0)
        return [f"still there after {self.max_ttl} s: {key}" for key in excused]

    def _not_excused(self) -> list[str]:
        max_ttl_ms = round(self.max_ttl * 1000)
        return nodes.not_excused(self._found(), self.history, self.processes.killed, max_ttl_ms)

    def _keys(self) -> list[str]:
        return [str(key) for key in self._found()]

    def _found(self) -> list[nodes.Key]:
        found = nodes.keys(site.server.path for site in self.sites)
        return [key for key in found if not key.name.startswith(b"faults:")]

    def _undelivered(self) -> list[str]:
        proxies = [site.proxy for site in self.sites]
        return [f"still on its way: {proxy}" for proxy in proxies if proxy.open_links]

    @staticmethod
    def _soon(look: Callable[[], list[str]], seconds: float) -> list[str]:
        """Return what `look` still sees after a while; return at once when it sees nothing."""
        return [] if until(lambda: not look(), seconds) else look()


def _may_last(fault: Fault, since: int) -> bool:
    return instant() < since + round(BRIEF.get(fault.name, PATIENCE) * 1e9)


def play(courses: Sequence[Course]) -> None:
    """Go through all courses at once, in one thread; every one is brought to its end."""
    order = itertools.count()
    due = [(time.monotonic(), next(order), course) for course in courses]
    try:
        while due:
            at, _, course = heapq.heappop(due)
            time.sleep(max(0.0, at - time.monotonic()))
            if (seconds := next(course, None)) is not None:
                heapq.heappush(due, (time.monotonic() + seconds, next(order), course))
    finally:
        for course in courses:
            course.close()


@contextmanager
def started(
    sites: Sequence[Site],
    folder: Path,
    seed: int,
    shared: Settings | None = None,
    *,
    crowd: Sequence[tuple[str, int, str]] = CROWD,
    keep_calls: bool = True,
) -> Iterator[Scenario]:
    """Traffic over these nodes, under way; ended when the block is left."""
    settings = plans(sites, folder, seed, shared, crowd)
    with Processes(settings) as processes:
        history = History(folder, keep_calls=keep_calls)
        scenario = Scenario(sites, processes, history, settings[0].max_ttl)
        if not scenario.until(has_begun):
            raise RuntimeError(f"no worker got a lock: {scenario.history.outcomes}")
        yield scenario


def has_begun(history: History) -> bool:
    """Both faces hold locks."""
    return set(history.turns()) == {BLOCKING, ASYNCIO}


def is_holding(history: History, process: Process) -> bool:
    """The process holds a lock, as far as its records go."""
    return any(s.pid == process.pid and s.ended is None for s in history.stays.values())
