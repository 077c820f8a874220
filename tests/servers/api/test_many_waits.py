"""Ten thousand waits leave nothing: no key, no place, no object, no descriptor, no thread.

Two clients, each with some threads or tasks, contend for one lock without a pause. Waiters of one
client hand it on among themselves, and wait in the queues of the nodes for the other client.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from quorlock._core.commands import ScriptedAcquire
from quorlock._core.member import Member
from quorlock._protocol.requests import PendingRequest
from quorlock.asyncio import Redlock
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock.testing.servers import Server, Servers

SETTINGS: dict[str, Any] = {"node_timeout": 1.0}  # no lease is lost
CLIENTS = 2
WORKERS = {"blocking": 4, "asyncio": 25}  # of each client
WARM_UP, WAITS = 2_000, 10_000
PROC = Path("/proc/self")
# What there may be more by chance, such as a connection set that was not needed before. A leak has
# one for each wait.
TOLERANCE = {"objects": 100, "blocks": 2_000, "memory": 4 << 20, "descriptors": 24, "threads": 0}


class Possessions(NamedTuple):
    """The possessions of this process.

    Attributes:
        objects: those of the library, as far as the garbage collector sees them, without those
            from before the test (`nothing_from_before`).
        blocks: all memory blocks of the interpreter.
        memory: bytes.
    """

    objects: int
    blocks: int
    memory: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Possessions:
        """Count them; where there is no /proc, without memory and descriptors."""
        gc.collect()
        return cls(
            sum(str(type(one).__module__).startswith("quorlock") for one in gc.get_objects()),
            sys.getallocatedblocks(),
            resident(),
            len(list(PROC.glob("fd/*"))),
            threading.active_count(),
        )

    def growth(self, before: Possessions) -> dict[str, int]:
        """Return what there is more than by chance."""
        more = {name: getattr(self, name) - getattr(before, name) for name in self._fields}
        return {name: count for name, count in more.items() if count > TOLERANCE[name]}


def resident() -> int:
    if not PROC.is_dir():
        return 0
    return int((PROC / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def nothing_from_before() -> None:
    """Hide what earlier tests left from the garbage collector: its end would conceal a growth.

    It stays hidden: `gc.unfreeze` would also return what `tests/conftest.py` froze, and all later
    collections in this process would take a quarter of a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls that wait in line, under the name `waits`."""
    counts: Counter[str] = Counter()
    on_members(monkeypatch, lambda _: counts.update(["waits"]))
    return counts


def on_members(monkeypatch: pytest.MonkeyPatch, listen: Callable[[Member], object]) -> None:
    """Have each new waiter passed to a function."""
    made = sys.modules["quorlock._core.waiting"].Member

    def member(*args: Any) -> Member:
        waiter: Member = made(*args)
        listen(waiter)
        return waiter

    monkeypatch.setattr("quorlock._core.waiting.Member", member)


class Contention:
    """Two clients that contend for one lock, part after part."""

    def __init__(self, face: Face, nodes: Servers, waits: Counter[str]) -> None:
        self._face = face
        self._nodes = nodes
        self._waits = waits

    async def growth(self, warm_up: int, end: int, settles: float = 5.0) -> dict[str, int]:
        """Return what there is more at the end than after so many waits.

        The process has some seconds to settle: the last replies are still to come, and idle threads
        are still to end.
        """
        async with (
            self._face.redlock(self._nodes.urls, **SETTINGS) as one,
            self._face.redlock(self._nodes.urls, **SETTINGS) as other,
        ):
            await self._until(warm_up, (one, other))
            before = Possessions.now()
            await self._until(end, (one, other))
            await until_async(lambda: not Possessions.now().growth(before), settles)
            after = Possessions.now()
            print(f"\n{self._waits['waits']} waits\n{before}\n{after}")
            # While the clients are there: closing them releases what they have.
            assert await until_async(lambda: not any(map(self._left_on, self._nodes)))
        return after.growth(before)

    async def _until(self, count: int, clients: tuple[Any, ...]) -> None:
        workers = CLIENTS * WORKERS[self._face.name]

        async def work(index: int) -> None:
            lock = clients[index % CLIENTS].lock("contended")
            while self._waits["waits"] < count:
                async with lock:
                    pass

        assert await self._face.crowd(workers, work) == [None] * workers

    @staticmethod
    def _left_on(node: Server) -> list[bytes]:
        keys: list[bytes] = node.execute("KEYS", "*contended*")  # the lock and its queue
        return keys


async def test_ten_thousand_waits(face: Face, nodes: Servers, waits: Counter[str]) -> None:
    """No key and no place is left, and the process has what it had after the first of them."""
    assert await Contention(face, nodes, waits).growth(WARM_UP, WAITS) == {}


async def test_waits_of_one_process(nodes: Servers) -> None:
    """Requests are forgotten with their replies, though none of these is a plain one."""
    async with Redlock(nodes.urls, **SETTINGS) as redlock:
        lock = redlock.lock("contended")

        async def work(index: int) -> None:
            for number in range(30):
                async with lock:
                    if number == index:  # the others wait in line: they ask nothing
                        assert await until_async(lambda: not requests_of_acquires())

        await asyncio.gather(*map(work, range(30)))


def requests_of_acquires() -> int:
    """Return how many requests of acquires are in memory."""
    requests = [one for one in gc.get_objects() if isinstance(one, PendingRequest)]
    return sum(isinstance(one.command, ScriptedAcquire) for one in requests)


async def test_the_check_finds_waiters_that_stay(
    face: Face, nodes: Servers, waits: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference to each waiter is a growth."""
    kept: list[Member] = []
    on_members(monkeypatch, kept.append)
    assert "objects" in await Contention(face, nodes, waits).growth(100, 400, settles=0.2)
