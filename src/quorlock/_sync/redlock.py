"""The way in: nodes and settings, and what one can do with a resource: blocking."""

from __future__ import annotations

import atexit
import contextlib
import functools
import weakref
from typing import TYPE_CHECKING

from quorlock._core import redlock as flows
from quorlock._face.redlock import RedlockBase
from quorlock._face.session import Session, token_bytes
from quorlock._sync.lease import Lease
from quorlock._sync.lock import Lock

if TYPE_CHECKING:
    from types import TracebackType

    from quorlock._core.policy import Policy, Seconds
    from quorlock._drivers.blocking import Driver
    from quorlock._face.holding import Holding
    from quorlock._face.inspection import Inspection
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
        weakref.finalize(session, _close, session.driver, session.holdings, session.ending)
        _watch_exit()

    def lock(
        self, resource: str | bytes, *, ttl: Seconds | None = None, timeout: Seconds | None = None
    ) -> Lock:
        """A lock on the resource; nothing is asked of the nodes yet.

        ttl: the lease time, seconds; default is the Redlock's.  timeout: how long to wait for
        it, seconds; None for ever, 0 for one attempt.  Raises ConfigError.
        """
        return Lock(self._session, resource, ttl, timeout)

    def adopt(self, ticket: Ticket) -> Lease:
        """Go on with a lease that another process handed over; held once an extension has won.

        Raises LeaseLost if a quorum no longer has its key, or did not answer while it could.
        """
        session = self._session
        with session.adopting(ticket) as (request, token):
            session.driver.members.resume(token)
            flow = flows.adopt(request, token, session.policy, session.chance)
            return session.driver.win(
                flow,
                lambda outcome: session.account(
                    Lease(session, session.adopted(request, token, outcome))
                ),
            )

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
        session, request = self._session, self._session.by_token(resource)
        receipt = session.end_by_token(request.key, token_bytes(token))
        flow = flows.release_by_token(request, token_bytes(token), session.policy, receipt)
        return session.driver.run(flow)

    def inspect(self, resource: str | bytes) -> Inspection:
        """Who holds the resource, node by node, and what that comes to."""
        session, request = self._session, self._session.by_token(resource)
        flow = flows.inspect(request.key, session.policy)
        return session.inspection(request, session.driver.run(flow))

    def close(self) -> None:
        """Give back all leases that are held, and close all connections.

        Waits a bounded time for nodes that do not answer.  Closing twice does no harm.
        """
        _close(self._session.driver, self._session.holdings, self._session.ending)

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


def _close(driver: Driver, holdings: dict[bytes, Holding], ending: dict[bytes, Holding]) -> None:
    driver.stop()  # first: nobody wins a lock behind our back
    for holding in [*list(ending.values()), *list(holdings.values())]:
        holding.end()
        with contextlib.suppress(Exception):
            driver.run(flows.give_back(holding.key, holding.token, holding.receipt))
        holdings.pop(holding.token, None)
    driver.close()
