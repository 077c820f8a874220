"""A process of the waiting soak: threads or tasks that contend for a few locks.

    python -m tests.servers.scenarios.crowd SETTINGS-AS-JSON

It prints "ready" when it is connected, contends until stdin is closed, and prints its counts.

The witness of exclusion is a file in shared memory with one cell for each worker, which only that
worker writes: for each lock, until when it may trust its lease.  A worker that was granted a lock
writes its cell first, and reads the others then, so that of two holders one sees the other.  A cell
whose validity is over by the clock holds nothing; that of a killed worker counts until then.

A cell has a number for each lock, and not the name of its lock beside one number.  A reader that is
suspended between reading the one and the other would pair the lock of one turn with the validity of
the next turn, at another lock: an overlap that never was.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import quorlock
from quorlock import AcquireError, LeaseLost, NodeError
from quorlock._core import config, tally
from tests.harness.support.wait import until
from tests.harness.traffic.faces import FACES, Face, call

EXPECTED = (AcquireError, NodeError, LeaseLost, TimeoutError)
# The first two are contended, the others are not always in use.  Of every second one leases have
# fences.
RESOURCES, WEIGHTS = range(6), (40, 40, 8, 8, 2, 2)
TTLS = (0.5, 0.8, 1.0)
MAX_TTL = max(TTLS)
TIMEOUTS = (None, None, None, 1.0, 0.05, 0.001, 0.0)
SECTION = 0.002  # seconds at most, in the critical section
PAUSE = 0.004  # and between two turns
_REPORTS_MAX = 10  # of each worker: they are read at the end, and must fit into a pipe
# The numbers of a cell: for each lock the end of the validity, and the latest fence; then counts.
UNTIL, FENCE = 0, len(RESOURCES)
_GRANTS, _LONGEST, _OVERLAPS, _DISORDERS = range(2 * len(RESOURCES), 2 * len(RESOURCES) + 4)
_SIZE = 2 * len(RESOURCES) + 4


@dataclass(frozen=True)
class Crowd:
    """One process: its nodes, the file of the cells, and its workers.

    Attributes:
        first: the number of its first cell.
        waiting: "auto" or "poll".
        control: workers that break what they should keep: "quorum" (of one node), or "validity"
            (a lease is trusted for too long); "" for none.
    """

    urls: list[str]
    cells: str
    first: int
    face: str
    workers: int
    seed: int
    waiting: str = "auto"
    control: str = ""

    def to_json(self) -> str:
        """Return it as text, for an argument."""
        return json.dumps(asdict(self))


class Cell(NamedTuple):
    """The counts of one worker: sums over all that had this cell, one after the other."""

    grants: float
    longest: float  # seconds from a call without a timeout to its grant
    overlaps: float
    disorders: float  # fences that were not above those before


class Cells:
    """All cells. Reading and writing one number is atomic; reading several is not."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")

    @staticmethod
    def create(path: str, count: int) -> None:
        """Make the file."""
        Path(path).write_bytes(bytes(8 * _SIZE * count))

    def counts(self) -> list[Cell]:
        """Return the counts of all workers."""
        numbers = self._numbers.tolist()
        ends = range(_SIZE, len(numbers) + 1, _SIZE)
        return [Cell(*numbers[end - len(Cell._fields) : end]) for end in ends]

    def others(self, number: int, field: int) -> dict[int, float]:
        """Return this number of all cells but one, by the cell; without zeros."""
        found = enumerate(self._numbers[field::_SIZE].tolist())
        return {cell: value for cell, value in found if value and cell != number}

    def get(self, number: int, field: int) -> float:
        """Return one number."""
        return self._numbers[number * _SIZE + field]

    def put(self, number: int, field: int, value: float) -> None:
        """Write one number."""
        self._numbers[number * _SIZE + field] = value


class Worker:
    """One thread or task."""

    def __init__(self, crowd: Crowd, number: int, redlock: Any, cells: Cells) -> None:
        self.outcomes: Counter[str] = Counter()
        self._crowd = crowd
        self._number = crowd.first + number
        self._face: Face = FACES[crowd.face]
        self._redlock = redlock
        self._cells = cells
        self._entropy = random.Random(f"{crowd.seed}/{number}")
        self._extra = 0.5 if crowd.control == "validity" else 0.0

    async def work(self, over: Callable[[], bool]) -> None:
        """Turn after turn, until it is over."""
        while not over():
            resource = self._entropy.choices(RESOURCES, WEIGHTS)[0]
            try:
                await self._turn(resource)
            except EXPECTED as error:
                self.outcomes[type(error).__name__] += 1
            finally:
                self._trust_no_more(resource)
            await self._face.sleep(self._entropy.uniform(0, PAUSE))

    async def _turn(self, resource: int) -> None:
        timeout, ttl = self._entropy.choice(TIMEOUTS), self._entropy.choice(TTLS)
        lock = self._redlock.lock(
            f"r{resource}", ttl=ttl, timeout=timeout, fencing=resource % 2 == 1
        )
        began = quorlock.now()
        lease = await self._granted(lock)
        if timeout is None:
            waited = max(quorlock.now() - began, self._cells.get(self._number, _LONGEST))
            self._cells.put(self._number, _LONGEST, waited)
        self._add(_GRANTS)
        self._cells.put(self._number, FENCE + resource, lease.fence or 0.0)
        self._trust(resource, lease)
        await self._face.sleep(self._entropy.uniform(0, SECTION))
        await self._end(resource, lease)

    async def _granted(self, lock: Any) -> Any:
        if not self._face.cancels or self._entropy.random() > 0.1:
            return await call(lock.acquire)
        async with asyncio.timeout(self._entropy.choice((0.0, 0.001, 0.01, 0.1))):
            return await lock.acquire()

    async def _end(self, resource: int, lease: Any) -> None:
        """Release it; or forget it, extend it first, or let it expire."""
        how = self._entropy.random()
        if how < (0.05 if self._extra else 0.002):
            await self._face.sleep(max(0.0, lease.validity) + self._extra)
        elif how < 0.1:
            self._trust_no_more(resource)  # an extension that is refused ends the lease
            await call(lease.extend)
            self._trust(resource, lease)
            await self._face.sleep(self._entropy.uniform(0, SECTION))
        self._trust_no_more(resource)
        if not 0.1 < how < 0.11:  # else it is released when it is garbage
            await call(lease.release)

    def _trust(self, resource: int, lease: Any) -> None:
        """Say until when it may trust its lease, and look for others that trust theirs."""
        valid_until = lease.valid_until
        self._cells.put(self._number, UNTIL + resource, valid_until + self._extra)
        others = self._cells.others(self._number, UNTIL + resource)
        fences = self._cells.others(self._number, FENCE + resource)
        at = quorlock.now()
        overlap = {cell: until for cell, until in others.items() if until > at}
        disorder = {cell: fence for cell, fence in fences.items() if fence >= lease.fence}
        if (overlap or disorder) and lease.held:  # it was not stopped in between
            if self._cells.get(self._number, _OVERLAPS) < _REPORTS_MAX:
                mine = f"{self._number} until {valid_until}, fence {lease.fence}"
                print(f"lock {resource} at {at}: {mine}; {overlap}, {disorder}", file=sys.stderr)
            self._add(_OVERLAPS, bool(overlap))
            self._add(_DISORDERS, bool(disorder))

    def _trust_no_more(self, resource: int) -> None:
        self._cells.put(self._number, UNTIL + resource, 0.0)

    def _add(self, field: int, count: int = 1) -> None:
        self._cells.put(self._number, field, self._cells.get(self._number, field) + count)


async def contend(crowd: Crowd, over: threading.Event) -> Counter[str]:
    """Run the workers; return how often which error came."""
    redlock = FACES[crowd.face].redlock(
        crowd.urls, ttl=MAX_TTL, max_ttl=MAX_TTL, node_timeout=0.1, waiting=crowd.waiting
    )
    await call(redlock.inspect, "r0")  # connected before the start
    cells = Cells(crowd.cells)
    workers = [Worker(crowd, number, redlock, cells) for number in range(crowd.workers)]
    print("ready", flush=True)
    try:
        await FACES[crowd.face].crowd(
            crowd.workers, lambda number: workers[number].work(over.is_set)
        )
    finally:
        await call(redlock.close)
    return sum((worker.outcomes for worker in workers), Counter[str]())


def main(text: str) -> None:
    """Run the process."""
    crowd = Crowd(**json.loads(text))
    if crowd.control == "quorum":
        for module in (config, tally):
            vars(module)["quorum"] = _one
    over, outcomes = threading.Event(), [Counter[str]()]
    threading.Thread(target=_wait_for_the_end, args=(over,), daemon=True).start()
    before = _possessions()

    async def run() -> None:
        outcomes.append(await contend(crowd, over))

    FACES[crowd.face].run(run)
    until(lambda: _possessions() <= before, 2.0)
    left = _possessions() - before
    print(json.dumps({"outcomes": outcomes[-1], "left": left}), flush=True)


def _one(_: int) -> int:
    return 1


def _wait_for_the_end(over: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    over.set()


def _possessions() -> int:
    """Return how many threads and descriptors there are."""
    with suppress(FileNotFoundError):
        return threading.active_count() + len(list(Path("/proc/self/fd").iterdir()))
    return threading.active_count()


if __name__ == "__main__":
    main(sys.argv[1])
