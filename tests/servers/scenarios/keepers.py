"""Leases that are renewed, and those who want them, while a test does bad things to the nodes.

Owns the threads that they live in, one for each, of either face, and what they have seen.  Leaves
the bad things, and what is to be thought of it, to the tests.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Self

import quorlock
from quorlock import AcquireError, LeaseLost
from tests.servers.traffic.faces import FACES, Face, call

LOOK = 0.005  # seconds between two looks of a keeper
WANTED_FOR = 0.1  # a contender asks for so long, and again after a pause of up to so long
BEGIN_TIMEOUT = 10.0  # seconds until a lock of healthy nodes must have been got


class Someone:
    """One Redlock of one face, at work in a thread of its own until the block is left.

    trouble: what it came to, if not to its end.
    """

    def __init__(self, face: Face, urls: Sequence[str], **settings: Any) -> None:
        self.face = face
        self.trouble: Exception | None = None
        self._redlock = partial(face.redlock, urls, **settings)
        self._over = threading.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._live)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._begun.wait(BEGIN_TIMEOUT):
            self.__exit__()
            raise RuntimeError(f"{self} did not begin")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _live(self) -> None:
        try:
            self.face.run(self._work)
        except Exception as error:  # noqa: BLE001 (told to the test, in its own thread)
            self.trouble = error
        finally:
            self._begun.set()

    async def _work(self) -> None:
        redlock = self._redlock()
        try:
            await self._use(redlock)
        finally:
            await call(redlock.close)

    async def _use(self, redlock: Any) -> None:
        raise NotImplementedError


class Keeper(Someone):
    """Holds one renewed lease, and looks at it all the time.

    token, fence: the lease's. ends: its `valid_until` as last seen while it was held. least: the
    smallest validity that was seen. extended: how often `valid_until` has moved.
    told: when `lease.lost` rang; None as long as it has not. reason: why, then.
    """

    def __init__(self, face: Face, urls: Sequence[str], resource: str, **settings: Any) -> None:
        super().__init__(face, urls, **settings)
        self.resource = resource
        self.token = ""
        self.ends = 0.0
        self.least = float("inf")
        self.extended = 0
        self.told: float | None = None
        self.reason = ""
        self.rang = threading.Event()

    def __repr__(self) -> str:
        state = f"lost ({self.reason})" if self.rang.is_set() else "held"
        more = f"{self.extended} extensions, least validity {self.least:.2f} s"
        return f"{self.face.name} {self.resource!r} {state}: {more}"

    @property
    def keeps(self) -> bool:
        """It has never been without its lease."""
        return self.trouble is None and not self.rang.is_set()

    async def _use(self, redlock: Any) -> None:
        lease = await call(redlock.lock(self.resource, renew=True, timeout=BEGIN_TIMEOUT).acquire)
        self.token = lease.token
        event = lease.lost
        self._look(lease)
        self._begun.set()
        while not self._over.is_set():
            if await self.face.rings(event, LOOK):
                self.told = quorlock.now()
                assert not lease.held
                try:
                    await call(lease.extend)
                except LeaseLost as lost:
                    self.reason = lost.reason
                self.rang.set()
                break
            self._look(lease)
        while not self._over.is_set():
            assert not lease.held, "a lost lease came back"
            await self.face.sleep(LOOK)
        await call(lease.release)

    def _look(self, lease: Any) -> None:
        # In this order: `ends` is what it was while it was held.
        ends, validity = lease.valid_until, lease.validity
        if lease.held:
            self.extended += ends > self.ends > 0.0
            self.ends = ends
            self.least = min(self.least, validity)


class Contender(Someone):
    """Wants all of these locks, all the time. seen: how often each answer came."""

    def __init__(
        self, face: Face, urls: Sequence[str], resources: Sequence[str], **settings: Any
    ) -> None:
        super().__init__(face, urls, **settings)
        self.seen: Counter[str] = Counter()
        self._resources = resources

    async def _use(self, redlock: Any) -> None:
        self._begun.set()
        await self.face.crowd(
            len(self._resources), lambda number: self._want(redlock, self._resources[number])
        )

    async def _want(self, redlock: Any, resource: str) -> None:
        lock = redlock.lock(resource, timeout=WANTED_FOR)
        while not self._over.is_set():
            try:
                lease = await call(lock.acquire)
            except AcquireError as error:
                self.seen[type(error).__name__] += 1
            else:
                self.seen["got in"] += 1
                await call(lease.release)
            await self.face.sleep(random.uniform(0.0, WANTED_FOR))


@contextmanager
def keepers(urls: Sequence[str], **settings: Any) -> Iterator[list[Keeper]]:
    """One renewed lease of each face, of a resource of its own."""
    with ExitStack() as stack:
        pairs = zip(FACES.values(), "ab", strict=True)
        held = [Keeper(face, urls, resource, **settings) for face, resource in pairs]
        yield [stack.enter_context(keeper) for keeper in held]
    assert not [keeper.trouble for keeper in held if keeper.trouble], held


@contextmanager
def contenders(urls: Sequence[str], **settings: Any) -> Iterator[list[Contender]]:
    """Others, of both faces, who want both."""
    with ExitStack() as stack:
        others = [Contender(face, urls, "ab", **settings) for face in FACES.values()]
        yield [stack.enter_context(other) for other in others]
    assert not [other.trouble for other in others if other.trouble], others
