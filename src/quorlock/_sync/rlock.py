"""The re-entrant lock of the blocking API."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, ParamSpec, TypeVar

from quorlock._api.lock import OWN_TIMEOUT, Timeout, check_wait
from quorlock._api.misuse import BlockingObject
from quorlock._api.rlock import Hold, RLockBase
from quorlock._core.request import StopEvent
from quorlock._sync.lease import Lease, drop, enter_block, exit_block
from quorlock._sync.lock import Lock, locked_call

if TYPE_CHECKING:
    from collections.abc import MutableMapping

P = ParamSpec("P")
R = TypeVar("R")


class _HoldsOfThread(dict[bytes, Hold[Lease]]):
    """The holds of one thread; its end releases them, also if other code refers to a lease."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def __del__(self) -> None:
        # Unless the Redlock is garbage, and its leases are not.
        if self and self._thread not in {thread.ident for thread in threading.enumerate()}:
            for hold in self.values():
                drop(hold.lease)


class ThreadHolds(threading.local):
    """The holds of each thread; gone with the thread, also if a later one gets its number."""

    def __init__(self) -> None:
        self.by_key: MutableMapping[bytes, Hold[Lease]] = _HoldsOfThread()


class RLock(BlockingObject, RLockBase[Lock, Lease]):
    """A lock that its thread (asyncio: its task) may acquire again, as `threading.RLock`.

    All re-entrant locks of a Redlock on the same resource are one: a nested acquire, also through
    another RLock, returns the lease that is held.  Release the lock as often as it was acquired, as
    `with` and `@` do: the last release is sent.  A thread or task that ends releases it.
    """

    __slots__ = ()

    _OWNER: ClassVar[str] = "thread"

    def acquire(self, timeout: Timeout = OWN_TIMEOUT, stop: StopEvent | None = None) -> Lease:
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
                return self._begin(self._lock.acquire(timeout, stop))
            return self._nested(hold)
        except BaseException:
            self._restore(self._hold(), count)
            raise

    def try_acquire(self) -> Lease | None:
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
                return self._nested(hold)
            lease = self._lock.try_acquire()
            return None if lease is None else self._begin(lease)
        except BaseException:
            self._restore(self._hold(), count)
            raise

    def _nested(self, hold: Hold[Lease]) -> Lease:
        if self._is_short(hold):
            hold.lease.extend(self.ttl)
        hold.count += 1
        return hold.lease

    def release(self) -> bool:
        """Release the lock once; the last release of several is sent to the nodes.

        Returns:
            Of the last release: True if a quorum still had the lease and deleted it.  Of another
            one: whether the lease is held.

        Raises:
            RuntimeError: it is not held here.
            NodeError: the nodes refuse the release (permission, read-only). It is retried, and the
                keys stay until then, or until they expire.
        """
        try:
            hold = self._own_hold()
            count = hold.count - 1
        except BaseException:
            self._abandon()
            raise
        try:
            if count:
                hold.count = count
                return hold.lease.held
            self._end(hold)
            return hold.lease.release()
        except BaseException:
            self._restore(hold, count)
            raise

    def locked(self) -> bool:
        """Return whether the lock is held: the same token on a quorum of nodes.

        Raises:
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
        """
        return self._lock.locked()

    def _drop(self, lease: Lease) -> None:
        drop(lease)

    def __enter__(self) -> Lease:
        count = self._count()
        try:
            lease = self.acquire()
            enter_block(lease)
            return lease
        except BaseException:
            self._restore(self._hold(), count)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            hold = self._hold()
            count = -1 if hold is None else hold.count - 1
        except BaseException:
            self._abandon()
            raise
        try:
            if hold is None:
                self._left_unheld(error)
            elif count:
                hold.count = count
                self._lost_inside(hold, error)
            else:
                self._end(hold)
                exit_block(hold.lease, error)
        except BaseException:
            self._restore(hold, count)  # interrupted, perhaps before its release began
            raise

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: every call of it runs under the lock."""
        return locked_call(function, lambda *_, **__: self)
