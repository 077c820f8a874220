"""The object one asks for a lock: blocking."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from quorlock._core import redlock as flows
from quorlock._face.arguments import OWN_TIMEOUT, Timeout
from quorlock._face.holding import Holding
from quorlock._face.lock import LockBase
from quorlock._sync.lease import Lease
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from quorlock._core.outcomes import Granted
    from quorlock._drivers.blocking import Driver  # noqa: F401 (named below in a string)

P = ParamSpec("P")
R = TypeVar("R")


class Lock(LockBase["Driver", Lease]):
    """A resource and how to acquire it. Immutable: share it between threads as you like.

    `with lock as lease:` acquires and releases; `@lock` does so around every call of a function.
    """

    __slots__ = ()

    def acquire(self, timeout: Timeout = OWN_TIMEOUT) -> Lease:
        """Wait for the lock: a new Lease.

        timeout: seconds, None for ever, 0 for one attempt; default is the lock's own.
        Raises AcquireTimeout, QuorumUnreachable, NodeError.
        """
        session = self._session
        flow = flows.acquire(self._request(timeout), session.policy, session.chance)
        return session.driver.win(flow, self._lease)

    def try_acquire(self) -> Lease | None:
        """One attempt: a Lease, or None when somebody else holds it.

        Raises QuorumUnreachable, NodeError.
        """
        session = self._session
        flow = flows.try_acquire(self._request(0), session.policy, session.chance)
        return session.driver.win(flow, self._lease_or_none)

    def locked(self) -> bool:
        """Does anybody hold it: the same token on a quorum of nodes.

        Raises QuorumUnreachable, NodeError.
        """
        session, request = self._session, self._request(0)
        return session.locked(request, session.driver.run(flows.inspect(self._key, session.policy)))

    def _lease(self, granted: Granted) -> Lease:
        session, terms = self._session, self._terms
        holding = Holding(self._resource, *granted, max_hold=terms.max_hold)
        lease = Lease(session, holding)
        if terms.renew:
            from quorlock._sync.renewing import renewer  # here: most locks are not renewed

            renewer(session).add(lease, terms.on_warning)
        session.holdings[holding.token] = holding  # last: interrupted before, the flow gives back
        return lease

    def _lease_or_none(self, granted: Granted | None) -> Lease | None:
        return None if granted is None else self._lease(granted)

    def __enter__(self) -> Lease:
        lease = self.acquire()
        try:
            self._entered.push(threading.get_ident(), lease)
        except BaseException:
            self._entered.forget(lease)  # interrupted: the block will not be left, nobody has it
            raise
        return lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered.pop(threading.get_ident()).leave(error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: every call of it runs under the lock."""
        works: object = callable(function)  # whatever the annotation says
        if not works or not _is_done_on_return(function):
            fix = "decorate a plain function; for a coroutine function take quorlock.asyncio"
            raise ConfigError("function", function, fix)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return locked


def _is_done_on_return(function: object) -> bool:
    """Calling it runs its body. Of the others nothing yet: the lock would be gone when it does."""
    # Here: it takes a third of the time that all of quorlock does, and few decorate.
    from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction

    kinds = (isasyncgenfunction, iscoroutinefunction, isgeneratorfunction)
    return not any(is_kind(function) for is_kind in kinds)
