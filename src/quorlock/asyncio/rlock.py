"""The re-entrant lock of the asyncio API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from quorlock._api.lock import OWN_TIMEOUT, Timeout, check_wait
from quorlock._api.misuse import AsyncioObject
from quorlock._api.rlock import Hold, RLockBase
from quorlock._core.request import StopEvent
from quorlock.asyncio.lease import Lease, drop, enter_block, exit_block, leave_inner_block
from quorlock.asyncio.lock import Lock, locked_call

if TYPE_CHECKING:
    from collections.abc import MutableMapping

P = ParamSpec("P")
R = TypeVar("R")


class TaskHolds:
    """The holds of each task; gone with the task.  A child task has none of its parent's."""

    def __init__(self) -> None:
        self._tasks: WeakKeyDictionary[asyncio.Task[Any], dict[bytes, Hold[Lease]]] = (
            WeakKeyDictionary()
        )

    @property
    def by_key(self) -> MutableMapping[bytes, Hold[Lease]]:
        """The holds of the current task. Raises RuntimeError."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a re-entrant lock belongs to a task: use it in a coroutine of one")
        if task not in self._tasks:
            self._tasks[task] = {}
            task.add_done_callback(self._forget)
        return self._tasks[task]

    def _forget(self, task: asyncio.Task[Any]) -> None:
        for hold in self._tasks.pop(task, {}).values():
            drop(hold.lease)  # the traceback of the task's error may refer to it


class RLock(AsyncioObject, RLockBase[Lock, Lease]):
    """A lock that its thread (asyncio: its task) may acquire again, as `threading.RLock`.

    All re-entrant locks of a Redlock on the same resource are one: a nested acquire, also through
    another RLock, returns the lease that is held.  Release the lock as often as it was acquired, as
    `with` and `@` do: the last release is sent.  A thread or task that ends releases it.
    """

    __slots__ = ()

    _OWNER: ClassVar[str] = "task"

    async def acquire(
        self,
        timeout: Timeout = OWN_TIMEOUT,  # noqa: ASYNC109
        stop: StopEvent | None = None,
    ) -> Lease:
        """Wait for the lock and return its Lease; at once if it is held here.

        A nested acquire sends nothing, unless less than half of this lock's ttl is left: then it
        extends the lease.  `renew`, `max_hold`, `fencing` and `on_warning` are those of the
        outermost acquire.

        Args:
            timeout: seconds, None without limit, 0 for one attempt; default: the lock's own.
            stop: an event that ends the wait when it is set; default: the lock's own.

        Raises:
            LeaseLost: the lease of the outer acquire is over.
            HoldLimitReached: that lease must be extended, and its max_hold is spent.
            ConfigError: that lease has no fence or no renewal, and this lock promises it.
            AcquireStopped: `stop` was set before the lock was granted.
            AcquireTimeout: the lock was held until the timeout.
            QuorumUnreachable: too few nodes replied for the Redlock's outage_timeout.
            NodeError: too many nodes reply with errors.
        """
        count = self._count()
        try:
            check_wait(timeout, stop)
            hold = self._hold()
            if hold is None:
                return self._begin(await self._lock.acquire(timeout, stop))
            return await self._nested(hold)
        except BaseException:
            self._restore(self._hold(), count)
            raise

    async def try_acquire(self) -> Lease | None:
        """Make one attempt: return the Lease, or None if it is held elsewhere.

        Raises:
            LeaseLost: the lease of the outer acquire is over.
            HoldLimitReached: that lease must be extended, and its max_hold is spent.
            ConfigError: that lease has no fence or no renewal, and this lock promises it.
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
        """
        count = self._count()
        try:
            hold = self._hold()
            if hold is not None:
                return await self._nested(hold)
            lease = await self._lock.try_acquire()
            return None if lease is None else self._begin(lease)
        except BaseException:
            self._restore(self._hold(), count)
            raise

    async def _nested(self, hold: Hold[Lease]) -> Lease:
        if self._is_short(hold):
            await hold.lease.extend(self.ttl)
        hold.count += 1
        return hold.lease

    async def release(self) -> bool:
        """Release the lock once; the last release of several is sent to the nodes.

        Returns:
            Of the last release: True if a quorum still had the lease and deleted it.  Of another
            one: whether the lease is held.

        Raises:
            RuntimeError: it is not held here.
            NodeError: the nodes refuse the release (permission, read-only). It is retried, and the
                keys stay until then, or until they expire.
        """
        hold = self._own_hold()
        count = hold.count - 1
        try:
            if count:
                hold.count = count
                return hold.lease.held
            self._end(hold)
            return await hold.lease.release()
        except BaseException:
            self._restore(hold, count)
            raise

    async def locked(self) -> bool:
        """Return whether the lock is held: the same token on a quorum of nodes.

        Raises:
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
        """
        return await self._lock.locked()

    def _drop(self, lease: Lease) -> None:
        drop(lease)

    async def __aenter__(self) -> Lease:
        count = self._count()
        try:
            lease = await self.acquire()
            hold = self._own_hold()
            if not hold.blocks:
                enter_block(lease, asyncio.current_task())
            hold.blocks += 1
            return lease
        except BaseException:
            self._restore(self._hold(), count)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        hold = self._hold()
        if hold is None:
            self._left_unheld(error)
            return
        count = hold.count - 1
        try:
            # Zero if the body has released the lease of its block, and acquired another one.
            hold.blocks = max(hold.blocks - 1, 0)
            if count:
                hold.count = count
                if not hold.blocks:
                    leave_inner_block(hold.lease, error)
                self._lost_inside(hold, error)
            else:
                self._end(hold)
                await exit_block(hold.lease, error)
        except BaseException:
            self._restore(hold, count)  # interrupted, perhaps before its release began
            raise

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorate a coroutine function: every call of it runs under the lock."""
        return locked_call(function, lambda *_, **__: self)
