"""The object one asks for a lock: asyncio."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

from quorlock._core import redlock as flows
from quorlock._drivers.asyncio import Driver
from quorlock._face.arguments import OWN_TIMEOUT, Timeout
from quorlock._face.holding import Holding
from quorlock._face.lock import LockBase
from quorlock.asyncio.alarm import Cancellation
from quorlock.asyncio.lease import Lease
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from quorlock._core.outcomes import Granted
    from quorlock._core.policy import Seconds
    from quorlock._face.session import Session
    from quorlock._face.terms import Terms

P = ParamSpec("P")
R = TypeVar("R")
OnLost = Literal["cancel", "flag"]


class Lock(LockBase[Driver, "tuple[Lease, Cancellation | None]"]):
    """A resource and how to acquire it. Immutable: share it between tasks as you like.

    `async with lock as lease:` acquires and releases; `@lock` does so around every call of a
    coroutine function.
    """

    __slots__ = ("_on_lost",)

    def __init__(
        self,
        session: Session[Driver],
        resource: str | bytes,
        ttl: Seconds | None,
        timeout: Seconds | None,
        fencing: bool,  # noqa: FBT001 (see LockBase)
        terms: Terms,
        on_lost: OnLost,
    ) -> None:
        super().__init__(session, resource, ttl, timeout, fencing, terms)
        if on_lost not in ("cancel", "flag"):
            raise ConfigError("on_lost", on_lost, "give 'cancel' (the block) or 'flag' (only tell)")
        self._on_lost = on_lost

    async def acquire(self, timeout: Timeout = OWN_TIMEOUT) -> Lease:  # noqa: ASYNC109
        """Wait for the lock: a new Lease.

        timeout: seconds, None for ever, 0 for one attempt; default is the lock's own.
        Raises AcquireTimeout, QuorumUnreachable, NodeError.
        """
        session = self._session
        flow = flows.acquire(self._request(timeout), session.policy, session.chance)
        return await session.driver.win(flow, self._lease)

    async def try_acquire(self) -> Lease | None:
        """One attempt: a Lease, or None when somebody else holds it.

        Raises QuorumUnreachable, NodeError.
        """
        session = self._session
        flow = flows.try_acquire(self._request(0), session.policy, session.chance)
        return await session.driver.win(flow, self._lease_or_none)

    async def locked(self) -> bool:
        """Does anybody hold it: the same token on a quorum of nodes.

        Raises QuorumUnreachable, NodeError.
        """
        session, request = self._session, self._request(0)
        flow = flows.inspect(self._key, session.policy)
        return session.locked(request, await session.driver.run(flow))

    def _lease(self, granted: Granted) -> Lease:
        session, terms = self._session, self._terms
        holding = Holding(self._resource, *granted, max_hold=terms.max_hold)
        lease = Lease(session, holding)
        if terms.renew:
            from quorlock.asyncio.renewing import renewer  # here: most locks are not renewed

            renewer(session).add(lease, terms.on_warning)
        session.holdings[holding.token] = holding  # last: interrupted before, the flow gives back
        return lease

    def _lease_or_none(self, granted: Granted | None) -> Lease | None:
        return None if granted is None else self._lease(granted)

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        cancellation = Cancellation(lease.alarm()) if self._on_lost == "cancel" else None
        self._entered.push(asyncio.current_task(), (lease, cancellation))
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lease, cancellation = self._entered.pop(asyncio.current_task())
        slipped = cancellation is not None and cancellation.explains(error)
        await lease.leave(error, slipped=slipped)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """Decorate a coroutine function: every call of it runs under the lock."""
        if not inspect.iscoroutinefunction(function):
            fix = "decorate a coroutine function; for a function take quorlock"
            raise ConfigError("function", function, fix)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self:
                return await function(*args, **kwargs)

        return locked
