"""The way in: nodes and settings, and what one can do with a resource: blocking."""

from __future__ import annotations

import atexit
import contextlib
import functools
import weakref
from functools import partial
from typing import TYPE_CHECKING

from quorlock._core import redlock as flows
from quorlock._face.inspection import token_of
from quorlock._face.redlock import RedlockBase
from quorlock._face.session import Session, token_bytes
from quorlock._face.terms import MAX_HOLD, terms_of
from quorlock._sync.lease import Lease
from quorlock._sync.lock import Lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from quorlock._core.outcomes import Extended, Lost
    from quorlock._core.policy import Policy, Seconds
    from quorlock._core.redlock import Request
    from quorlock._drivers.blocking import Driver
    from quorlock._face.holding import Holding
    from quorlock._face.inspection import Inspection
    from quorlock._face.renewing import Renewer
    from quorlock._face.terms import Terms
    from quorlock._face.ticket import Ticket
    from quorlock._wire.nodes import Node


class Redlock(RedlockBase["Driver"]):
    __doc__ = RedlockBase.__doc__

    def _driver(self, nodes: tuple[Node, ...], policy: Policy) -> Driver:
        # Here: asyncio's programs have no use for it, nor has who only names a type or an error. It
        # is a third of what we import, with sockets, threads and hiredis.
        from quorlock._drivers.blocking import Driver

        return Driver(nodes, policy)

    def _begin(self, session: Session[Driver]) -> None:
        # When the last lock and lease are garbage, or the interpreter ends, at the latest.
        weakref.finalize(
            session, _close, session.driver, session.holdings, session.ending, session.renewers
        )
        _watch_exit()

    def lock(
        self,
        resource: str | bytes,
        *,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        renew: bool = False,
        max_hold: Seconds = MAX_HOLD,
        fencing: bool = False,
        on_warning: Callable[[Lease], object] | None = None,
    ) -> Lock:
        """A lock on the resource; nothing is asked of the nodes yet.

        ttl: the lease time, seconds; default is the Redlock's.  timeout: how long to wait for
        it, seconds; None for ever, 0 for one attempt.  renew: extend the lease by itself, until
        it is given back.  max_hold: how long it may be held in all, seconds, by extensions of
        either kind; math.inf for no end.  fencing: give every lease a `fence`, a number that only
        rises.  on_warning: a plain function that is called with the lease when renewal fails and
        less than half of the ttl is left; all renewal waits until it returns.  Raises ConfigError.
        """
        terms = terms_of(renew, max_hold, on_warning)
        return Lock(self._session, resource, ttl, timeout, fencing, terms)

    def adopt(
        self,
        ticket: Ticket,
        *,
        renew: bool = False,
        max_hold: Seconds = MAX_HOLD,
        on_warning: Callable[[Lease], object] | None = None,
    ) -> Lease:
        """Go on with a lease that another process handed over; held once an extension has won.

        renew, max_hold, on_warning: as for `lock`; max_hold counts from now.  Raises LeaseLost
        if a quorum no longer has its key, or did not answer while it could; ConfigError.
        """
        session = self._session
        terms = terms_of(renew, max_hold, on_warning)
        with session.adopting(ticket) as (request, token):
            session.driver.members.resume(token)
            flow = flows.adopt(request, token, session.policy, session.chance)
            terms.checked(request.ttl_ms)
            return session.driver.win(flow, partial(_adopted, session, request, ticket, terms))

    def extend(self, resource: str | bytes, token: str, *, ttl: Seconds | None = None) -> bool:
        """Extend by bare token, in one round. True: a quorum did; False: gone or another's.

        It makes no lease: whoever holds it must know of it.  True excludes everybody else from
        now on; it does not tell that nobody held in between, if the lease had run out before.
        Raises QuorumUnreachable, NodeError.
        """
        session, request = self._session, self._session.by_token(resource, ttl)
        flow = flows.extend_by_token(request, token_bytes(token), session.policy)
        return session.driver.run(flow)

    def release(self, resource: str | bytes, token: str) -> bool:
        """Release by bare token. True: a quorum deleted it; False: gone or another's.

        Raises QuorumUnreachable, NodeError.
        """
        return self._release(self._session.by_token(resource), token_bytes(token))

    def _release(self, request: Request, token: bytes) -> bool:
        session = self._session
        receipt = session.end_by_token(request.key, token)
        flow = flows.release_by_token(request, token, session.policy, receipt)
        return session.driver.run(flow)

    def break_lease(self, resource: str | bytes, holder: str) -> bool:
        """Release by force what `holder` has, a digest that `inspect` showed; nobody else's.

        True: a quorum deleted it; False: gone or another's.  Whoever holds it goes on until it
        asks the nodes again (renewal does soon), so end that first.
        Raises QuorumUnreachable, NodeError.
        """
        session, request = self._session, self._session.by_token(resource)
        answers = session.driver.run(flows.inspect(request.key, session.policy))
        token = token_of(holder, answers)
        return token is not None and self._release(request, token)

    def inspect(self, resource: str | bytes) -> Inspection:
        """Who holds the resource, node by node, and what that comes to."""
        session, request = self._session, self._session.by_token(resource)
        flow = flows.inspect(request.key, session.policy)
        return session.inspection(request, session.driver.run(flow))

    def close(self) -> None:
        """Give back all leases that are held, and close all connections.

        Waits a bounded time for nodes that do not answer.  Closing twice does no harm.
        """
        session = self._session
        _close(session.driver, session.holdings, session.ending, session.renewers)

    def __enter__(self) -> Redlock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@functools.cache
def _watch_exit() -> None:
    from quorlock._drivers.blocking import interpreter_ends

    # After the first finalizer, so that it runs before all of them: last in, first out.
    atexit.register(interpreter_ends)


def _close(
    driver: Driver,
    holdings: dict[bytes, Holding],
    ending: dict[bytes, Holding],
    renewers: list[Renewer[Driver]],
) -> None:
    driver.stop()  # first: nobody wins a lock behind our back
    held = [*list(ending.values()), *list(holdings.values())]
    for holding in held:
        holding.end()
    for renewer in renewers:
        renewer.close()
    for holding in held:
        with contextlib.suppress(Exception):
            driver.run(flows.give_back(holding.key, holding.token, holding.receipt))
        holdings.pop(holding.token, None)
    driver.close()


def _adopted(
    session: Session[Driver],
    request: Request,
    ticket: Ticket,
    terms: Terms,
    outcome: Extended | Lost,
) -> Lease:
    token, fence = token_bytes(ticket.token), ticket.fence
    lease = Lease(session, session.adopted(request, token, outcome, fence, terms.max_hold))
    if terms.renew:
        from quorlock._sync.renewing import renewer  # here: most locks are not renewed

        renewer(session).add(lease, terms.on_warning)
    return session.account(lease)
