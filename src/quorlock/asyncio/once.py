"""Work that is done at most once per interval, in the asyncio API."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from quorlock._api.decorators import check_decorated
from quorlock._api.lease import keep_at_end
from quorlock._api.misuse import AsyncioObject
from quorlock._api.once import OnceBase
from quorlock.asyncio.lease import Lease
from quorlock.asyncio.lock import Lock

P = ParamSpec("P")
R = TypeVar("R")


class Once(AsyncioObject, OnceBase[Lock]):
    """Work that is done at most once per interval, by one client of all.

    A client that does it holds the lock.  At a clean end the lock is kept as done for the interval;
    after an exception it is released, and after a crash it is free when the ttl is over.
    """

    __slots__ = ()

    async def try_acquire(self) -> Lease | None:
        """Make one attempt: return a Lease, or None if the work is being done, or is done.

        `async with lease:` does the work: its clean end keeps the lease for the interval, and an
        exception releases it.  Without a block, call `lease.keep` or `lease.release`.

        Raises:
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
        """
        lease = await self._lock.try_acquire()
        if lease is not None:
            keep_at_end(lease, self._every)
        return lease

    async def run(self, work: Callable[[Lease], Coroutine[Any, Any, R]]) -> R | None:
        """Call `work` with the lease, unless the work is being done, or is done.

        Args:
            work: a coroutine function that does the work.

        Returns:
            What `work` returned; None if it was not called.

        Raises:
            LeaseLost: the lease was lost before the work could be kept as done: it may be done
                again.
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
            ConfigError: `work` is no coroutine function.
        """
        check_decorated(work, "coroutine function", "work", "give")
        lease = await self.try_acquire()
        if lease is None:
            return None
        async with lease:
            return await work(lease)

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, R | None]]:
        """Decorate a coroutine function: a call of it does the work, or returns None."""
        check_decorated(function, "coroutine function")

        @functools.wraps(function)
        async def done_once(*args: P.args, **kwargs: P.kwargs) -> R | None:
            async def work(_: Lease) -> R:
                return await function(*args, **kwargs)

            return await self.run(work)

        return done_once
