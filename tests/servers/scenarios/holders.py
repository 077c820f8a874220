"""Holders of renewed leases, and contenders for them, while a test inflicts faults on the nodes.

Each client runs in a separate thread with either API and records what it observes.  The tests
inflict the faults and assert on the observations.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Self

import quorlock
from quorlock import AcquireError, LeaseLost, NodeError
from tests.harness.traffic.faces import FACES, Face, call

CHECK_EVERY = 0.005  # seconds between two checks of a holder
ACQUIRE_TIMEOUT = 0.1  # of each attempt of a contender; also its longest pause
BEGIN_TIMEOUT = 10.0  # seconds until a lock of healthy nodes must have been got


class Client:
    """One Redlock of one API, at work in a separate thread until the block is left.

    trouble: the exception that ended it early.
    """

    def __init__(self, face: Face, urls: Sequence[str], **settings: Any) -> None:
        self.face = face
        self.trouble: Exception | None = None
        self._redlock = partial(face.redlock, urls, **settings)
        self._used: Any = None
        self._over = threading.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._begun.wait(BEGIN_TIMEOUT):
            self.__exit__()
            raise RuntimeError(f"{self} did not begin")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self.face.run(self._work)
        except Exception as error:  # noqa: BLE001 (raised in the test's own thread)
            self.trouble = error
        finally:
            self._begun.set()

    async def _work(self) -> None:
        self._used = redlock = self._redlock()
        try:
            await self._use(redlock)
        finally:
            await call(redlock.close)

    @property
    def all_vote(self) -> bool:
        """Return whether no node is down or in quarantine for its Redlock."""
        return all(node.up for node in self._used.nodes)

    async def _use(self, redlock: Any) -> None:
        raise NotImplementedError


class Holder(Client):
    """Holds one renewed lease, and checks it all the time.

    If `again`, a lease that was lost after this process had been stopped for half of the ttl is
    acquired again: a machine with more work than cores may keep a process from running for a
    second.  No renewal outlives that, and no fault of a node explains it.
    stalled: how often this happened.
    token, fence: the lease's. ends: its `valid_until` as last seen while it was held. least: the
    smallest validity that was seen. extended: how often `valid_until` has moved.
    lost_at: when `lease.lost` was set, or None. reason: the reason of that loss.
    """

    def __init__(
        self,
        face: Face,
        urls: Sequence[str],
        resource: str,
        *,
        again: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(face, urls, **settings)
        self.resource = resource
        self.stalled = 0
        self._again = again
        self._looked_at = 0.0
        self._gaps: deque[tuple[float, float]] = deque(maxlen=1000)
        self.token = ""
        self.ends = 0.0
        self.least = float("inf")
        self.extended = 0
        self.lost_at: float | None = None
        self.reason = ""
        self.has_lost = threading.Event()

    def __repr__(self) -> str:
        state = f"lost ({self.reason})" if self.has_lost.is_set() else "held"
        more = f"{self.extended} extensions, least validity {self.least:.2f} s"
        more += f", stood still {self.stalled} times" if self.stalled else ""
        return f"{self.face.name} {self.resource!r} {state}: {more}"

    @property
    def still_holds(self) -> bool:
        """Return whether it has never been without its lease."""
        return self.trouble is None and not self.has_lost.is_set()

    async def _use(self, redlock: Any) -> None:
        lease = await self._acquire(redlock)
        event = lease.lost
        self._begun.set()
        while not self._over.is_set():
            if await self.face.is_set_within(event, CHECK_EVERY):
                self.lost_at = quorlock.now()
                assert not lease.held
                if self._again and self._stood_still(lease.ttl) >= lease.ttl / 2:
                    self.stalled += 1
                    lease = await self._acquire(redlock)
                    event = lease.lost
                    continue
                try:
                    await call(lease.extend)
                except LeaseLost as lost:
                    self.reason = lost.reason
                self.has_lost.set()
                break
            self._look(lease)
        while not self._over.is_set():
            assert not lease.held, "a lost lease came back"
            await self.face.sleep(CHECK_EVERY)
        await call(lease.release)

    async def _acquire(self, redlock: Any) -> Any:
        lock = redlock.lock(self.resource, renew=True, timeout=BEGIN_TIMEOUT)
        lease = await call(lock.acquire)
        self.token = lease.token
        self._look(lease)
        return lease

    def _stood_still(self, seconds: float) -> float:
        """Return for how long it was stopped in the last seconds."""
        self._measure()
        return sum(gap for at, gap in self._gaps if at > self._looked_at - seconds)

    def _measure(self) -> None:
        at, before = quorlock.now(), self._looked_at
        self._looked_at = at
        if before and at - before > 5 * CHECK_EVERY:
            self._gaps.append((at, at - before))

    def _look(self, lease: Any) -> None:
        self._measure()
        # In this order: `ends` is what it was while it was held.
        ends, validity = lease.valid_until, lease.validity
        if lease.held:
            self.extended += ends > self.ends > 0.0
            self.ends = ends
            self.least = min(self.least, validity)


class Contender(Client):
    """Tries to acquire all of these locks, all the time. seen: the count of each result."""

    def __init__(
        self, face: Face, urls: Sequence[str], resources: Sequence[str], **settings: Any
    ) -> None:
        super().__init__(face, urls, **settings)
        self.seen: Counter[str] = Counter()
        self._resources = resources

    async def _use(self, redlock: Any) -> None:
        self._begun.set()
        await self.face.crowd(
            len(self._resources), lambda number: self._contend(redlock, self._resources[number])
        )

    async def _contend(self, redlock: Any, resource: str) -> None:
        lock = redlock.lock(resource, timeout=ACQUIRE_TIMEOUT)
        while not self._over.is_set():
            try:
                lease = await call(lock.acquire)
            except (AcquireError, NodeError) as error:
                # NodeError: of a node that is well again, not all connections may be back, while
                # the next two are at fault.
                self.seen[type(error).__name__] += 1
            else:
                self.seen["got in"] += 1
                await call(lease.release)
            await self.face.sleep(random.uniform(0.0, ACQUIRE_TIMEOUT))


@contextmanager
def holders(urls: Sequence[str], *, again: bool = False, **settings: Any) -> Iterator[list[Holder]]:
    """Yield a renewed lease of each API, of a separate resource."""
    with ExitStack() as stack:
        pairs = zip(FACES.values(), "ab", strict=True)
        held = [Holder(face, urls, resource, again=again, **settings) for face, resource in pairs]
        yield [stack.enter_context(holder) for holder in held]
    assert not [holder.trouble for holder in held if holder.trouble], held


@contextmanager
def contenders(urls: Sequence[str], **settings: Any) -> Iterator[list[Contender]]:
    """Yield contenders of both APIs for both resources."""
    with ExitStack() as stack:
        others = [Contender(face, urls, "ab", **settings) for face in FACES.values()]
        yield [stack.enter_context(other) for other in others]
    assert not [other.trouble for other in others if other.trouble], others
