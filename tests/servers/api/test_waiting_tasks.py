"""Tasks that wait for a lock: each has it alone and in turn, and none leaves anything behind.

The witness is `Turns`: it notes when each critical section began and ended.  Another process's
turns come from `waiting_tasks.py`, by the monotonic clock that all processes share.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quorlock._drivers.aio.loop_driver import LoopDriver
from quorlock.asyncio import Redlock
from quorlock.errors import AcquireStopped, AcquireTimeout, QuorlockError
from tests.harness.support.program import Program
from tests.harness.support.wait import until, until_async
from tests.servers.api.faces import left_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorlock._core.effects import Send
    from quorlock._core.rounds import SentRound
    from quorlock._drivers.aio.abc import RunningFlow
    from quorlock.testing.servers import Servers

PROCESS = Path(__file__).with_name("waiting_tasks.py")
PATIENT: dict[str, Any] = {"node_timeout": 1.0}  # of tests that count, or must lose no lease


class Turns:
    """The critical sections of all tasks, by resource."""

    def __init__(self) -> None:
        self.taken: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.false_releases = 0

    async def take(self, redlock: Redlock, resource: str, work: float) -> None:
        """Acquire, stay, release."""
        lease = await redlock.lock(resource).acquire()
        began = time.monotonic()
        try:
            await asyncio.sleep(work)
        finally:
            self.taken[resource].append((began, time.monotonic()))
            self.false_releases += not await lease.release()

    def check(self) -> None:
        """Assert that no two of one resource overlap."""
        for turns in self.taken.values():
            for one, following in pairwise(sorted(turns)):
                assert following[0] >= one[1]

    @property
    def count(self) -> int:
        """Return how many there were."""
        return sum(map(len, self.taken.values()))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note to how many nodes each command of a flow is sent."""
    counts: list[int] = []
    original = LoopDriver.send

    def send(self: LoopDriver, effect: Send, task: RunningFlow) -> SentRound:
        sent = original(self, effect, task)
        counts.append(sent.target.nodes.bit_count())
        return sent

    monkeypatch.setattr(LoopDriver, "send", send)
    return counts


def queues_on(nodes: Servers) -> list[bytes]:
    """Return the queues with places in them."""
    return [key for node in nodes for key in node.execute("KEYS", "quorlock:queue:*")]


def assert_nothing_is_left(nodes: Servers) -> None:
    """No lock, no place in a queue; a reservation may stand until its few ms are over."""
    assert until(lambda: not any(left_over(nodes).values()))
    assert not queues_on(nodes)


async def crowd(
    redlock: Redlock, turns: Turns, resources: Iterable[str], times: int, work: float = 0.0
) -> None:
    """Take turns in one task for each resource of the list, all at once."""

    async def one(resource: str) -> None:
        for _ in range(times):
            await turns.take(redlock, resource, work)

    await asyncio.gather(*map(one, resources))


@pytest.mark.parametrize(
    ("tasks", "resources", "times"), [(200, 1, 10), (1000, 1, 10), (1000, 50, 10)]
)
async def test_a_crowd_of_tasks(
    nodes: Servers, commands: list[int], tasks: int, resources: int, times: int
) -> None:
    """Every task has its turns. A hand-over costs one command on each node."""
    turns = Turns()
    async with Redlock(nodes.urls, **PATIENT) as redlock:
        await crowd(redlock, turns, [f"r{n % resources}" for n in range(tasks)], 1)
        began = len(commands)
        await crowd(redlock, turns, [f"r{n % resources}" for n in range(tasks)], times)
        spent = sum(commands[began:])
    turns.check()
    assert turns.count == tasks * (times + 1)
    assert not turns.false_releases
    assert spent <= 1.2 * 5 * tasks * times
    assert_nothing_is_left(nodes)


async def test_tasks_are_served_in_the_order_of_their_calls(nodes: Servers) -> None:
    """First come, first served."""
    served: list[int] = []
    async with Redlock(nodes.urls, **PATIENT) as redlock:
        lock = redlock.lock("x")
        lease = await lock.acquire()

        async def one(number: int) -> None:
            async with lock:
                served.append(number)

        def is_in_line() -> bool:
            lines = redlock._session.driver.loop_driver().lines
            line = lines and lines.get(b"x")
            return bool(line and line._first)

        # Two attempts at once may overtake each other before there is a line.
        tasks = [asyncio.create_task(one(0))]
        assert await until_async(is_in_line)
        for number in range(1, 20):
            tasks.append(asyncio.create_task(one(number)))
            await asyncio.sleep(0)
        await lease.release()
        await asyncio.gather(*tasks)
    assert served == list(range(20))
    assert_nothing_is_left(nodes)


async def test_cancelled_waiters_leave(nodes: Servers, seed: int) -> None:
    """Any of them, at any moment, also while it is given the lock."""
    choice, turns = random.Random(seed), Turns()
    async with Redlock(nodes.urls, **PATIENT) as redlock:
        tasks = [
            asyncio.create_task(crowd(redlock, turns, [f"r{n % 3}"], 5, 0.0005)) for n in range(60)
        ]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(choice.random() * 0.004)
            choice.choice(tasks).cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
        await crowd(redlock, turns, ["r0", "r1", "r2"], 1)
    turns.check()
    assert_nothing_is_left(nodes)


async def test_waiters_whose_time_is_up_leave(nodes: Servers) -> None:
    """Waiters get AcquireTimeout in time, or AcquireStopped; the others continue."""
    stop = asyncio.Event()
    outcomes: list[type[QuorlockError] | None] = []
    async with Redlock(nodes.urls, **PATIENT) as redlock:
        lease = await redlock.lock("x").acquire()

        async def one(patience: float | None) -> None:
            try:
                async with redlock.lock("x", timeout=patience, stop=stop):
                    outcomes.append(None)
            except QuorlockError as error:
                outcomes.append(type(error))

        tasks = [asyncio.create_task(one(patience)) for patience in [0.05] * 10 + [None] * 10]
        began = time.monotonic()
        assert await until_async(lambda: len(outcomes) == 10)
        assert time.monotonic() - began < 4.0
        stop.set()
        await asyncio.gather(*tasks)
        assert outcomes == [AcquireTimeout] * 10 + [AcquireStopped] * 10
        assert not await until_async(lambda: queues_on(nodes), 0.01)
        assert await lease.release()
    assert_nothing_is_left(nodes)


async def test_close_ends_the_waits(nodes: Servers) -> None:
    """Waiters get an error, in line or in the queues of the nodes; another process continues."""
    async with Redlock(nodes.urls, **PATIENT) as other, Redlock(nodes.urls, **PATIENT) as redlock:
        lease = await other.lock("x").acquire()
        tasks = [asyncio.create_task(redlock.lock("x").acquire()) for _ in range(20)]
        assert await until_async(lambda: len(queues_on(nodes)) == 5)
        await redlock.close()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, QuorlockError) for outcome in outcomes)
        assert not queues_on(nodes)
        assert await lease.release()
    assert_nothing_is_left(nodes)


def test_the_end_of_the_loop_ends_the_waits(nodes: Servers) -> None:
    """The end of `asyncio.run` cancels all tasks: none leaves a key or a place."""

    async def main() -> None:
        redlock = Redlock(nodes.urls, **PATIENT)
        lease = await redlock.lock("x").acquire()
        waiting = [asyncio.create_task(redlock.lock("x").acquire()) for _ in range(5)]
        assert await until_async(lambda: len(queues_on(nodes)) == 5)
        assert lease.held
        assert not any(task.done() for task in waiting)

    asyncio.run(main())
    assert_nothing_is_left(nodes)


async def test_a_lease_that_ends_without_a_release(nodes: Servers) -> None:
    """The holder hands its lease over, or forgets it: the waiters still get the lock."""
    async with Redlock(nodes.urls, **PATIENT) as redlock, Redlock(nodes.urls, **PATIENT) as other:
        turns = Turns()
        lease = await redlock.lock("x").acquire()
        waiting = asyncio.create_task(crowd(redlock, turns, ["x"] * 3, 1))
        assert await until_async(lambda: len(queues_on(nodes)) == 5)
        adopted = await other.adopt(await lease.hand_over())
        assert await adopted.release()
        await waiting
        await redlock.lock("x").acquire()
        await crowd(redlock, turns, ["x"] * 3, 1)
    assert turns.count == 6
    assert_nothing_is_left(nodes)


def among_processes(nodes: Servers, disturb: Callable[[], None], seconds: float) -> int:
    """Let processes with some tasks each compete; return the number of their turns."""
    turns = Turns()
    with ExitStack() as stack:
        # All are started before the first is ready.
        programs = [
            Program(str(PROCESS), json.dumps(nodes.urls), str(tasks)) for tasks in (1, 1, 2, 5)
        ]
        for program in programs:
            stack.enter_context(program)
        for program in programs:
            program.begin()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            disturb()
            time.sleep(0.05)
        for program in programs:
            ended = program.end()
            assert ended.status == 0, ended.noise
            for resource, taken in json.loads(ended.output).items():
                assert taken, "a process without a turn"
                turns.taken[resource] += map(tuple, taken)
    turns.check()
    return turns.count


def test_processes_take_turns(nodes: Servers) -> None:
    """Each process has its turns, and the lock is seldom idle."""
    assert among_processes(nodes, lambda: None, 1.0) > 50
    assert_nothing_is_left(nodes)


def test_processes_with_a_stopped_node(mortal_nodes: Servers) -> None:
    """A minority that hangs is not felt."""
    mortal_nodes[0].stop()
    assert among_processes(mortal_nodes, lambda: None, 1.0) > 50
    mortal_nodes[0].cont()
    assert_nothing_is_left(mortal_nodes)


def test_processes_that_lose_connections(nodes: Servers, seed: int) -> None:
    """Nodes close the connections over which they call, again and again."""
    choice = random.Random(seed)

    def disturb() -> None:
        choice.choice(nodes).execute("CLIENT", "KILL", "TYPE", "pubsub")

    assert among_processes(nodes, disturb, 1.5) > 50

    async def main() -> None:
        async with Redlock(nodes.urls, **PATIENT) as redlock, redlock.lock("contended"):
            pass

    # A place whose removal was lost stays until the next release: no connection gets its call.
    asyncio.run(main())
    assert_nothing_is_left(nodes)
