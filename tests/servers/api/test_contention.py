"""Acceptance 4: threads, tasks and processes on one resource, watched from outside.

Each contender notes when its critical section began and ended, by the monotonic clock that all
processes share; the witness looks for two that overlap. QUORLOCK_SECONDS=10 for the long runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from quorlock import AcquireTimeout
from quorlock.testing.servers import Servers
from tests.harness.support.program import Program
from tests.servers.api.contender import CRITICAL_SECTION, RETRY_DELAY
from tests.servers.api.faces import FACES, Face, left_over, raises, steal

SECONDS = float(os.environ.get("QUORLOCK_SECONDS", "2"))
# A contender that had no turn by then never gets one.
PATIENCE = SECONDS + 30.0
CONTENDER = Path(__file__).with_name("contender.py")

BLOCKING, ASYNCIO = FACES

Turn = tuple[float, float]


def overlaps(turns: list[list[Turn]]) -> list[tuple[Turn, Turn]]:
    """Turns that began before another's end."""
    in_order = sorted(turn for own in turns for turn in own)
    return [(one, next_) for one, next_ in pairwise(in_order) if next_[0] < one[1]]


def report(what: str, turns: list[list[Turn]], late: list[float]) -> None:
    """Turns per contender, and how far past its timeout a failure came."""
    counts = sorted(map(len, turns))
    total, n = sum(counts), len(counts)
    span = max(own[-1][1] for own in turns if own) - min(own[0][0] for own in turns if own)
    print(
        f"\n{n} {what}: {total} turns in {span:.1f} s ({total / span:.0f}/s); per contender least"
        f" {counts[0]}, median {counts[n // 2]}, most {counts[-1]}; {len(late)} timeouts"
        + (f", at most {max(late) * 1e3:.0f} ms past their time" if late else "")
    )


class Contest:
    """Contenders within this process: each takes turns until the time is up."""

    def __init__(self, face: Face, nodes: Servers, count: int, *, all_in: bool) -> None:
        self.face, self.nodes, self.count, self.all_in = face, nodes, count, all_in
        self.turns: list[list[Turn]] = [[] for _ in range(count)]
        self.late: list[float] = []
        self.timeout = 0.5

    async def run(self) -> None:
        settings: dict[str, Any] = {"retry_delay": RETRY_DELAY, "node_timeout": 0.25}
        async with self.face.redlock(self.nodes.urls, **settings) as redlock:
            lock = redlock.lock("contended", timeout=self.timeout)
            began = time.monotonic()

            def is_running() -> bool:
                spent = time.monotonic() - began
                waits = self.all_in and not all(self.turns)
                return spent < SECONDS or (waits and spent < PATIENCE)

            async def contend(index: int) -> None:
                while is_running():
                    asked = time.monotonic()
                    try:
                        lease = await lock.acquire()
                    except AcquireTimeout as error:
                        self.check(error, time.monotonic() - asked)
                        continue
                    entered = time.monotonic()
                    await asyncio.sleep(CRITICAL_SECTION)
                    self.turns[index].append((entered, time.monotonic()))
                    await lease.release()

            outcomes = await self.face.crowd(self.count, contend)
        assert outcomes == [None] * self.count, [o for o in outcomes if o is not None]

    def check(self, error: AcquireTimeout, took: float) -> None:
        """A failure says what every node said, and that a quorum answered."""
        assert [vote.node for vote in error.votes] == [node.path for node in self.nodes]
        assert {vote.vote for vote in error.votes} <= {"granted", "refused", "unknown"}
        assert sum(vote.answered for vote in error.votes) >= 3
        assert error.elapsed >= self.timeout
        self.late.append(took - self.timeout)


async def test_50_threads(nodes: Servers) -> None:
    """Blocking: no two are in at once, and every thread has its turn."""
    contest = Contest(BLOCKING, nodes, 50, all_in=True)
    await contest.run()
    assert overlaps(contest.turns) == []
    report("threads", contest.turns, contest.late)
    assert all(contest.turns)
    assert left_over(nodes) == {}


async def test_200_tasks(nodes: Servers) -> None:
    """asyncio: no two are in at once."""
    contest = Contest(ASYNCIO, nodes, 200, all_in=False)
    await contest.run()
    assert overlaps(contest.turns) == []
    report("tasks", contest.turns, contest.late)
    assert sum(map(len, contest.turns)) > 0
    assert left_over(nodes) == {}


def test_8_processes(nodes: Servers) -> None:
    """Blocking, in separate processes: no two hold the lock at once, and each has its turn."""
    with ExitStack() as stack:
        command = (str(CONTENDER), json.dumps(nodes.urls))
        contenders = [stack.enter_context(Program(*command)) for _ in range(8)]
        for contender in contenders:
            contender.begin()
        time.sleep(SECONDS)
        # All at once: who is left alone would have the resource for itself.
        with ThreadPoolExecutor(8) as threads:
            ended = list(threads.map(Program.end, contenders))
    assert [contender.noise for contender in ended] == [""] * 8
    turns = [[(begin, end) for begin, end in json.loads(one.output)] for one in ended]
    assert overlaps(turns) == []
    report("processes", turns, [])
    assert all(turns)
    assert left_over(nodes) == {}


async def test_a_timeout_is_kept_under_contention(face: Face, nodes: Servers) -> None:
    """The lateness of timeouts is printed, not asserted to the millisecond."""
    async with face.redlock(nodes.urls, retry_delay=RETRY_DELAY) as redlock:
        steal(nodes, "contended")
        late = []
        for timeout in (0.05, 0.1, 0.2):
            began = time.monotonic()
            error = await raises(AcquireTimeout, redlock.lock("contended").acquire(timeout=timeout))
            late.append(time.monotonic() - began - timeout)
            assert error.elapsed >= timeout
            assert sum(vote.vote == "refused" for vote in error.votes) >= 3
        print(f"\n{face.name}: {[f'{1e3 * x:.1f} ms' for x in late]} past 50, 100 and 200 ms")
        assert min(late) >= 0


def test_the_check_finds_overlaps() -> None:
    """The check would notice: touching turns pass, overlapping ones do not."""
    assert overlaps([[(1.0, 2.0), (3.0, 4.0)], [(2.0, 3.0)]]) == []
    assert overlaps([[(1.0, 2.0)], [(1.5, 3.0)]]) == [((1.0, 2.0), (1.5, 3.0))]
