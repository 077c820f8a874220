"""The lock of the asyncio API."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from quorlock._api.decorators import ResourceOfCall, check_decorated
from quorlock._api.lease_state import LeaseState
from quorlock._api.lock import OWN_TIMEOUT, LockBase, Timeout, checked_stop
from quorlock._api.misuse import AsyncioObject
from quorlock._api.open_blocks import block_of_caller, take_lease
from quorlock._core import acquiring
from quorlock._core import redlock as flows
from quorlock._core.request import StopEvent
from quorlock._core.usual import usual_acquire
from quorlock._drivers.aio.direct_task import DirectTask
from quorlock._drivers.aio.driver import Driver
from quorlock._drivers.aio.flow_task import FlowTask
from quorlock.asyncio.lease import Lease, drop, enter_block, exit_block

if TYPE_CHECKING:
    from quorlock.asyncio.renewal import RenewalTasks


P = ParamSpec("P")
R = TypeVar("R")


class Lock(AsyncioObject, LockBase[Driver, Lease]):
    """A resource and how to acquire it; immutable, and safe to share between tasks.

    `async with lock as lease:` acquires and releases; `@lock` does so around every call of a
    coroutine function.
    """

    __slots__ = ()

    async def acquire(
        self,
        timeout: Timeout = OWN_TIMEOUT,  # noqa: ASYNC109
        stop: StopEvent | None = None,
    ) -> Lease:
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
        here = session.driver.loop_driver()
        request, policy, entropy = self._request(timeout, stop), session.policy, session.entropy
        usual = usual_acquire(request, policy, entropy, here.lines)
        task = (
            DirectTask(here, usual)
            if usual
            else FlowTask(here, acquiring.acquire(request, policy, entropy, here.lines))
        )
        # As `Driver.run_task`, whose call would take another coroutine.
        try:
            task.begin()
            lease = self._lease(await task.future)
            task.end()
            return lease
        except BaseException:
            task.cancel()
            raise

    async def try_acquire(self) -> Lease | None:
        """Make one attempt: return a Lease, or None if another client holds the lock.

        Raises:
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
            ConfigError: the nodes do not belong together.
        """
        session = self._session
        flow = acquiring.try_acquire(self._request(0), session.policy, session.entropy)
        return await session.driver.run_and_claim(flow, self._lease_or_none)

    async def locked(self) -> bool:
        """Return whether the lock is held: the same token on a quorum of nodes.

        Of several resources: whether any of them is.

        Raises:
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
        """
        session, request = self._session, self._request(0)
        for key in self._claim.keys:
            flow = flows.inspect(key, session.policy)
            if session.locked(request, await session.driver.run(flow)):
                return True
        return False

    def _new_lease(self, lease_state: LeaseState) -> Lease:
        return Lease(self._session, lease_state)

    def _renewer(self) -> RenewalTasks:
        from quorlock.asyncio.renewal import renewer  # here: most locks are not renewed

        return renewer(self._session)

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        try:
            task = asyncio.current_task()
            enter_block(lease, task)
            self._entered[lease] = block_of_caller(), task
            return lease
        except BaseException:
            self._entered.pop(lease, None)  # interrupted: it is neither entered nor left
            drop(lease)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lease = take_lease(self._entered, block_of_caller(), asyncio.current_task, _is_over)
        try:
            await exit_block(lease, error)
        except BaseException:
            drop(lease)  # interrupted, perhaps before its release began
            raise

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorate a coroutine function: every call of it runs under the lock."""
        return locked_call(function, lambda *_, **__: self)


def _is_over(lease: Lease) -> bool:
    return not lease.held


class LockDecorator(ResourceOfCall[Lock]):
    """A decorator that takes the resource from the arguments of every call.

    `Redlock.lock` returns it for a function in place of a name; it can only decorate.
    """

    __slots__ = ()

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorate a coroutine function: every call runs under the lock that its arguments name."""
        return locked_call(function, self._lock_for)


def locked_call(
    function: Callable[P, Coroutine[Any, Any, R]],
    lock_for: Callable[P, AbstractAsyncContextManager[object]],
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return the function such that every call of it runs under the lock for its arguments."""
    check_decorated(function, "coroutine function")

    @functools.wraps(function)
    async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        async with lock_for(*args, **kwargs):
            return await function(*args, **kwargs)

    return locked
