"""Work that is done at most once per interval, in the blocking API."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from quorlock._api.decorators import check_decorated, check_result
from quorlock._api.lease import keep_at_end
from quorlock._api.misuse import BlockingObject
from quorlock._api.once import OnceBase
from quorlock._sync.lease import Lease
from quorlock._sync.lock import Lock

P = ParamSpec("P")
R = TypeVar("R")


class Once(BlockingObject, OnceBase[Lock]):
    """Work that is done at most once per interval, by one client of all.

    A client that does it holds the lock.  At a clean end the lock is kept as done for the interval;
    after an exception it is released, and after a crash it is free when the ttl is over.
    """

    __slots__ = ()

    def try_acquire(self) -> Lease | None:
        """Make one attempt: return a Lease, or None if the work is being done, or is done.

        `with lease:` does the work: its clean end keeps the lease for the interval, and an
        exception releases it.  Without a block, call `lease.keep` or `lease.release`.

        Raises:
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
        """
        lease = self._lock.try_acquire()
        if lease is not None:
            keep_at_end(lease, self._every)
        return lease

    def run(self, work: Callable[[Lease], R]) -> R | None:
        """Call `work` with the lease, unless the work is being done, or is done.

        Args:
            work: a function that does the work.

        Returns:
            What `work` returned; None if it was not called.

        Raises:
            LeaseLost: the lease was lost before the work could be kept as done: it may be done
                again.
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
            ConfigError: `work` is no function.
        """
        check_decorated(work, "function", "work", "give")
        lease = self.try_acquire()
        if lease is None:
            return None
        with lease:
            return check_result(work(lease), work, "work")

    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate a function: a call of it does the work, or returns None."""
        check_decorated(function, "function")

        @functools.wraps(function)
        def done_once(*args: P.args, **kwargs: P.kwargs) -> R | None:
            def work(_: Lease) -> R:
                return function(*args, **kwargs)

            return self.run(work)

        return done_once
