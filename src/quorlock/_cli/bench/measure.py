"""The parts of the measurement, in order, and their shares of the time.

`threads` and `tasks` run the callers; `doctor.probe` asks single nodes.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable
from itertools import cycle
from typing import NamedTuple, TypeVar

from quorlock import NodeStatus, Redlock
from quorlock import asyncio as aio
from quorlock._cli.bench import tasks, threads
from quorlock._cli.bench.facts import (
    BenchNodeFacts,
    BenchRate,
    Contention,
    Measured,
    Times,
    Troubles,
    Verbs,
)
from quorlock._cli.bench.window import Window
from quorlock._cli.config import FileSettings
from quorlock._cli.doctor.probe import DiagnosticConnection, NoAnswer, connected

L = TypeVar("L")

THREADS_MAX = 64
CONTENDERS = 8
_LOCKS = 16  # for each caller, in turn: consecutive rounds use different keys
_TTL_MAX = 2.0  # keys of a bench that was killed expire after it
_TIMEOUT = 1.0  # longer than the stalls of a busy machine: these count as time, not as errors
# How long to wait for a silent node: a share of the whole time, and at least half a second.
_SILENCE_SHARE, _SILENCE_MIN = 0.2, 0.5
# Shares of the time; the last is for connecting and closing.
_TRIPS, _ONE, _RATES, _CONTENTION, _REST = 0.1, 0.2, 0.4, 0.24, 0.06


class BenchPlan(NamedTuple):
    """The options: duration in seconds, and numbers of callers."""

    seconds: float
    callers: tuple[int, ...]


class Stopped(Exception):
    """The measurement was stopped by its caller."""


class Bench:
    """All parts, on the nodes of these settings; `on_part` is called with the name of each."""

    def __init__(
        self,
        settings: FileSettings,
        plan: BenchPlan,
        stop: threading.Event,
        on_part: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._stop = stop
        self._on_part = on_part
        self._name = f"quorlock-bench:{secrets.token_hex(4)}"
        self._weight_left = _TRIPS + _ONE + _RATES + _CONTENTION + _REST
        self._troubles = Troubles()
        self._began = time.perf_counter()
        patience = 10 * settings.seconds("node_timeout")
        self.ttl: float = min(settings.default_ttl(), max(_TTL_MAX, patience))

    @property
    def keys(self) -> str:
        return f"{self._settings.argument('prefix')}{self._name}:"

    def run(self) -> Measured:
        """Measure all parts. Raise Stopped, or the error of nodes that grant no lock at all."""
        self._began = time.perf_counter()
        with self._settings.redlock() as redlock:
            self._on_part("connecting")
            self._try_out(redlock)
            nodes, one = self._one(redlock)
            rates, contention = self._many(redlock)
        seconds = time.perf_counter() - self._began
        quorum = len(nodes) // 2 + 1
        return Measured(seconds, quorum, self.ttl, nodes, one, rates, contention, self._troubles)

    def _one(self, redlock: Redlock) -> tuple[list[BenchNodeFacts], Verbs]:
        trips = self._trips()
        self._on_part("one caller")
        locks, window = self._locks(redlock.lock, 0), self._window(_ONE)
        one = threads.one_caller(len(trips), locks, window, self._troubles)
        shares = [yes / len(one.acquire) if one.acquire else None for yes in one.yes]
        return list(map(_node_facts, redlock.nodes, trips, shares)), one

    def _try_out(self, redlock: Redlock) -> None:
        """Connect, and acquire once: if the nodes grant no lock, there is nothing to measure."""
        name = f"{self._name}:first"
        redlock.inspect(name)
        redlock.lock(name, ttl=self.ttl, timeout=_TIMEOUT).acquire().release()

    def _window(self, weight: float) -> Window:
        """Return the window of a part: its share of the remaining time.

        If one part ran over, all later parts are shortened.
        """
        if self._stop.is_set():
            raise Stopped
        left = self._plan.seconds - (time.perf_counter() - self._began)
        seconds = max(0.0, left * weight / self._weight_left)
        self._weight_left -= weight
        return Window(seconds, self._stop)

    def _trips(self) -> list[Times | str]:
        """Return each node's round-trip times, or the reason why it does not reply."""
        self._on_part("each node")
        most = max(self._plan.seconds * _SILENCE_SHARE, _SILENCE_MIN)
        patience = min(self._settings.seconds("connect_timeout"), most)
        with connected(self._settings.nodes, patience) as connections:
            weight = _TRIPS / len(connections)
            return [
                _trips_to(connection, f"{self.keys}0", self._window(weight))
                for connection in connections
            ]

    def _many(self, redlock: Redlock) -> tuple[list[BenchRate], Contention]:
        callers = self._plan.callers
        in_threads = [count for count in callers if count <= THREADS_MAX]
        weight = _RATES / (len(in_threads) + len(callers))
        rates: list[BenchRate] = []
        for count in in_threads:
            self._on_part("1 thread" if count == 1 else f"{count} threads")
            locks = [self._locks(redlock.lock, number) for number in range(count)]
            rates.append(threads.many_callers(locks, self._window(weight), self._troubles))
        in_tasks, contention = asyncio.run(self._in_a_loop(weight))
        return rates + in_tasks, contention

    async def _in_a_loop(self, weight: float) -> tuple[list[BenchRate], Contention]:
        arguments = self._settings.arguments
        async with aio.Redlock(self._settings.nodes, **arguments) as redlock:
            await redlock.inspect(f"{self._name}:first")
            rates: list[BenchRate] = []
            for count in self._plan.callers:
                self._on_part("1 task" if count == 1 else f"{count} tasks")
                locks = [self._locks(redlock.lock, number) for number in range(count)]
                rates.append(await tasks.many_callers(locks, self._window(weight), self._troubles))
            self._on_part("contention")
            lock = redlock.lock(f"{self._name}:wanted", ttl=self.ttl)
            away = self._settings.argument("retry_delay")
            window = self._window(_CONTENTION)
            return rates, await tasks.contenders(CONTENDERS, lock, away, window, self._troubles)

    def _locks(self, lock: Callable[..., L], caller: int) -> cycle[L]:
        names = [f"{self._name}:{caller}:{number}" for number in range(_LOCKS)]
        return cycle([lock(name, ttl=self.ttl, timeout=_TIMEOUT) for name in names])


def _trips_to(connection: DiagnosticConnection | NoAnswer, key: str, window: Window) -> Times | str:
    """Measure at least one GET, which docs/how-to/acl.md grants to every user of quorlock."""
    if isinstance(connection, NoAnswer):
        return str(connection)
    taken: list[float] = []
    try:
        while not window.over or not taken:
            began = time.perf_counter()
            connection.ask(b"GET", key.encode())
            if window.counts(began):
                taken.append(time.perf_counter() - began)
    except NoAnswer as error:
        return str(error)
    return Times.of(taken)


def _node_facts(status: NodeStatus, trips: Times | str, share: float | None) -> BenchNodeFacts:
    if isinstance(trips, str):
        return BenchNodeFacts(status.address, trips, Times.of([]), share)
    return BenchNodeFacts(status.address, status.why, trips, share)
