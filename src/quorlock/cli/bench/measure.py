"""What is measured, one part after the other, and how the time is shared out among them. Leaves to
`threads` and `tasks` what callers do, and to `doctor.asker` the talk with a single node.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from quorlock import asyncio as aio
from quorlock.cli.bench import tasks, threads
from quorlock.cli.bench.facts import Measured, NodeFacts, Times, Troubles
from quorlock.cli.doctor.asker import Silent, connected

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from quorlock import NodeStatus, Redlock
    from quorlock.cli.bench.facts import Contention, Rate, Verbs
    from quorlock.cli.config import Settings
    from quorlock.cli.doctor.asker import Talk

L = TypeVar("L")

THREADS_MAX = 64
CONTENDERS = 8
_LOCKS = 16  # of one caller, in turn: the next round is not for the key of the last one
_TTL_MAX = 2.0  # what a bench that was killed leaves behind is gone after it
_TIMEOUT = 1.0  # beyond the hiccups of a busy machine: they show as time, not as errors
_WARM_UP = 0.3  # of each part: not counted
# So long we wait for a node that does not answer: a share of the whole, and at least half a second.
_SILENCE_SHARE, _SILENCE_MIN = 0.2, 0.5
# How the time is shared out; the last is for connecting and for closing.
_TRIPS, _ONE, _RATES, _CONTENTION, _REST = 0.1, 0.2, 0.4, 0.24, 0.06


class Plan(NamedTuple):
    """What the user asked for: for so many seconds, with so many callers."""

    seconds: float
    callers: tuple[int, ...]


class Stopped(Exception):
    """Somebody wants us to end."""


class Window:
    """The time in which one part is measured; the first of it is for warming up."""

    def __init__(self, seconds: float, stop: threading.Event) -> None:
        self._stop = stop
        began = time.perf_counter()
        self._counted_from = began + seconds * _WARM_UP
        self._until = began + seconds

    @property
    def warm_up_left(self) -> float:
        """Seconds of the warming up, never less than none."""
        return max(0.0, self._counted_from - time.perf_counter())

    @property
    def left(self) -> float:
        """Seconds in all, never less than none."""
        return max(0.0, self._until - time.perf_counter())

    @property
    def over(self) -> bool:
        """Nothing more is to be begun."""
        return time.perf_counter() >= self._until or self.stopped

    @property
    def stopped(self) -> bool:
        """Somebody wants us to end."""
        return self._stop.is_set()

    def warm_up(self) -> None:
        """Sleep through it, unless we are to end."""
        self._stop.wait(self.warm_up_left)

    @property
    def counted(self) -> float:
        """Seconds since the warming up. By the clock and not by whoever slept through it: with many
        threads it may be late to wake up.
        """
        return time.perf_counter() - self._counted_from

    def counts(self, began: float) -> bool:
        """It began after the warming up."""
        return began >= self._counted_from


class Bench:
    """All parts, on the nodes of these settings; `tell` is called with the name of each."""

    def __init__(
        self, settings: Settings, plan: Plan, stop: threading.Event, tell: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._stop = stop
        self._tell = tell
        self._name = f"quorlock-bench:{secrets.token_hex(4)}"
        self._weight_left = _TRIPS + _ONE + _RATES + _CONTENTION + _REST
        self._troubles = Troubles()
        self._began = time.perf_counter()
        patience = 10 * float(settings.argument("node_timeout"))
        self.ttl = min(settings.ttl, max(_TTL_MAX, patience))

    @property
    def keys(self) -> str:
        """What all that we write to begins with."""
        return f"{self._settings.argument('prefix')}{self._name}:"

    def run(self) -> Measured:
        """Measure. Raises Stopped, and what these nodes raise if they give no lock at all."""
        self._began = time.perf_counter()
        with self._settings.redlock() as redlock:
            self._tell("connecting")
            self._try_out(redlock)
            nodes, one = self._one(redlock)
            rates, contention = self._many(redlock)
        seconds = time.perf_counter() - self._began
        quorum = len(nodes) // 2 + 1
        return Measured(seconds, quorum, self.ttl, nodes, one, rates, contention, self._troubles)

    def _one(self, redlock: Redlock) -> tuple[list[NodeFacts], Verbs]:
        trips = self._trips()
        self._tell("one caller")
        locks, window = self._locks(redlock.lock, 0), self._window(_ONE)
        one = threads.one_caller(len(trips), locks, window, self._troubles)
        shares = [yes / len(one.acquire) if one.acquire else None for yes in one.yes]
        return list(map(_node_facts, redlock.nodes, trips, shares)), one

    def _try_out(self, redlock: Redlock) -> None:
        """Connect, and see that these nodes give a lock: else there is nothing to measure."""
        name = f"{self._name}:first"
        redlock.inspect(name)
        redlock.lock(name, ttl=self.ttl, timeout=_TIMEOUT).acquire().release()

    def _window(self, weight: float) -> Window:
        """A part's share of the time that is left: what one takes too long, all others make up."""
        if self._stop.is_set():
            raise Stopped
        left = self._plan.seconds - (time.perf_counter() - self._began)
        seconds = max(0.0, left * weight / self._weight_left)
        self._weight_left -= weight
        return Window(seconds, self._stop)

    def _trips(self) -> list[Times | str]:
        """To one node after the other: what asking it takes, or why it does not answer."""
        self._tell("each node")
        most = max(self._plan.seconds * _SILENCE_SHARE, _SILENCE_MIN)
        patience = min(float(self._settings.argument("connect_timeout")), most)
        with connected(self._settings.nodes, patience) as talks:
            weight = _TRIPS / len(talks)
            return [_trips_to(talk, f"{self.keys}0", self._window(weight)) for talk in talks]

    def _many(self, redlock: Redlock) -> tuple[list[Rate], Contention]:
        callers = self._plan.callers
        in_threads = [count for count in callers if count <= THREADS_MAX]
        weight = _RATES / (len(in_threads) + len(callers))
        rates: list[Rate] = []
        for count in in_threads:
            self._tell("1 thread" if count == 1 else f"{count} threads")
            locks = [self._locks(redlock.lock, number) for number in range(count)]
            rates.append(threads.many_callers(locks, self._window(weight), self._troubles))
        in_tasks, contention = asyncio.run(self._in_a_loop(weight))
        return rates + in_tasks, contention

    async def _in_a_loop(self, weight: float) -> tuple[list[Rate], Contention]:
        arguments = self._settings.arguments
        async with aio.Redlock(self._settings.nodes, **arguments) as redlock:
            await redlock.inspect(f"{self._name}:first")
            rates: list[Rate] = []
            for count in self._plan.callers:
                self._tell("1 task" if count == 1 else f"{count} tasks")
                locks = [self._locks(redlock.lock, number) for number in range(count)]
                rates.append(await tasks.many_callers(locks, self._window(weight), self._troubles))
            self._tell("contention")
            lock = redlock.lock(f"{self._name}:wanted", ttl=self.ttl)
            away = self._settings.argument("retry_delay")
            window = self._window(_CONTENTION)
            return rates, await tasks.contenders(CONTENDERS, lock, away, window, self._troubles)

    def _locks(self, lock: Callable[..., L], caller: int) -> cycle[L]:
        names = [f"{self._name}:{caller}:{number}" for number in range(_LOCKS)]
        return cycle([lock(name, ttl=self.ttl, timeout=_TIMEOUT) for name in names])


def _trips_to(talk: Talk | Silent, key: str, window: Window) -> Times | str:
    """Of a GET, which every user of quorlock may do. One at least, also of a node far away."""
    if isinstance(talk, Silent):
        return str(talk)
    taken: list[float] = []
    try:
        while not window.over or not taken:
            began = time.perf_counter()
            talk.ask(b"GET", key.encode())
            if window.counts(began):
                taken.append(time.perf_counter() - began)
    except Silent as error:
        return str(error)
    return Times.of(taken)


def _node_facts(status: NodeStatus, trips: Times | str, share: float | None) -> NodeFacts:
    if isinstance(trips, str):
        return NodeFacts(status.address, trips, Times.of([]), share)
    return NodeFacts(status.address, status.why, trips, share)
