"""The lock of the blocking API."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from quorlock._api.decorators import ResourceOfCall, check_decorated, check_result
from quorlock._api.lease_state import LeaseState
from quorlock._api.lock import OWN_TIMEOUT, LockBase, Timeout, checked_stop
from quorlock._api.misuse import BlockingObject
from quorlock._api.open_blocks import block_of_caller, take_lease
from quorlock._core import acquiring
from quorlock._core import redlock as flows
from quorlock._core.request import StopEvent
from quorlock._core.usual import usual_acquire
from quorlock._sync.lease import Lease, drop, enter_block, exit_block

if TYPE_CHECKING:
    from quorlock._drivers.sync.driver import Driver  # noqa: F401 (named below in a string)
    from quorlock._sync.renewal import RenewalThread


P = ParamSpec("P")
R = TypeVar("R")


class Lock(BlockingObject, LockBase["Driver", Lease]):
    """A resource and how to acquire it; immutable, and safe to share between threads.

    `with lock as lease:` acquires and releases; `@lock` does so around every call of a function.
    """

    __slots__ = ()

    def acquire(self, timeout: Timeout = OWN_TIMEOUT, stop: StopEvent | None = None) -> Lease:
        """Wait for the lock and return a new Lease.

        Args:
            timeout: seconds, None without limit, 0 for one attempt; default: the lock's own.
            stop: an event that ends the wait when it is set; default: the lock's own.

        Raises:
            AcquireStopped: `stop` was set before the lock was granted.
            AcquireTimeout: the lock was held until the timeout.
            QuorumUnreachable: too few nodes replied for the Redlock's outage_timeout.
            NodeError: too many nodes reply with errors.
            ConfigError: an argument cannot work, or the nodes do not belong together.
        """
        session = self._session
        stop = self._stop if stop is None else checked_stop(stop)
        driver = session.driver
        request, policy, entropy = self._request(timeout, stop), session.policy, session.entropy
        usual = usual_acquire(request, policy, entropy, driver.lines)
        if usual is not None:
            return driver.run_usual(usual, self._lease)
        flow = acquiring.acquire(request, policy, entropy, driver.lines)
        return driver.run_and_claim(flow, self._lease)

    def try_acquire(self) -> Lease | None:
        """Make one attempt: return a Lease, or None if another client holds the lock.

        Raises:
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
            ConfigError: the nodes do not belong together.
        """
        session = self._session
        flow = acquiring.try_acquire(self._request(0), session.policy, session.entropy)
        return session.driver.run_and_claim(flow, self._lease_or_none)

    def locked(self) -> bool:
        """Return whether the lock is held: the same token on a quorum of nodes.

        Of several resources: whether any of them is.

        Raises:
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
        """
        session, request = self._session, self._request(0)
        flows_of_keys = [flows.inspect(key, session.policy) for key in self._claim.keys]
        return any(session.locked(request, session.driver.run(flow)) for flow in flows_of_keys)

    def _new_lease(self, lease_state: LeaseState) -> Lease:
        return Lease(self._session, lease_state)

    def _renewer(self) -> RenewalThread:
        from quorlock._sync.renewal import renewer  # here: most locks are not renewed

        return renewer(self._session)

    def __enter__(self) -> Lease:
        lease = self.acquire()
        try:
            enter_block(lease)
            self._entered[lease] = block_of_caller(), threading.get_ident()
        except BaseException:
            self._entered.pop(lease, None)  # interrupted: it is neither entered nor left
            drop(lease)
            raise
        return lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lease = take_lease(self._entered, block_of_caller(), threading.get_ident, _is_over)
        try:
            exit_block(lease, error)
        except BaseException:
            drop(lease)  # interrupted, perhaps before its release began
            raise

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: every call of it runs under the lock."""
        return locked_call(function, lambda *_, **__: self)


class LockDecorator(ResourceOfCall[Lock]):
    """A decorator that takes the resource from the arguments of every call.

    `Redlock.lock` returns it for a function in place of a name; it can only decorate.
    """

    __slots__ = ()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: every call runs under the lock that its arguments name."""
        return locked_call(function, self._lock_for)


def locked_call(
    function: Callable[P, R], lock_for: Callable[P, AbstractContextManager[object]]
) -> Callable[P, R]:
    """Return the function such that every call of it runs under the lock for its arguments."""
    check_decorated(function, "function")

    @functools.wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with lock_for(*args, **kwargs):
            return check_result(function(*args, **kwargs), function)

    return locked


def _is_over(lease: Lease) -> bool:
    return not lease.held
