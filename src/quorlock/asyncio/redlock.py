"""The way in: nodes and settings, and what one can do with a resource: asyncio."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING

from quorlock._core import redlock as flows
from quorlock._drivers.asyncio import Driver
from quorlock._face.inspection import token_of
from quorlock._face.redlock import RedlockBase
from quorlock._face.session import Session, token_bytes
from quorlock._face.terms import MAX_HOLD, terms_of
from quorlock.asyncio.lease import Lease
from quorlock.asyncio.lock import Lock, OnLost

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from quorlock._core.outcomes import Extended, Lost
    from quorlock._core.policy import Policy, Seconds
    from quorlock._core.redlock import Request
    from quorlock._drivers.engine import Engine
    from quorlock._face.inspection import Inspection
    from quorlock._face.terms import Terms
    from quorlock._face.ticket import Ticket
    from quorlock._wire.nodes import Node


class Redlock(RedlockBase[Driver]):  # noqa: D101 (its docstring is the base's)
    __doc__ = RedlockBase.__doc__

    def _driver(self, nodes: tuple[Node, ...], policy: Policy) -> Driver:
        return Driver(nodes, policy)

    def _begin(self, session: Session[Driver]) -> None:
        driver, holdings = session.driver, session.holdings

        def give_back(engine: Engine) -> None:
            """Before a loop's connections close: whatever was acquired over them."""
            for holding in list(holdings.values()):
                paths = holding.receipt.paths if holding.receipt is not None else (engine,)
                if engine in paths and holdings.pop(holding.token, None) is not None:
                    holding.end()
                    flow = flows.give_back(holding.key, holding.token, holding.receipt)
                    driver.send_only(flow, engine)

        driver.on_loop_end = give_back
        # When the last lock and lease are garbage, at the latest.
        weakref.finalize(session, driver.end_soon)

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
        on_lost: OnLost = "cancel",
    ) -> Lock:
        """A lock on the resource; nothing is asked of the nodes yet.

        ttl: the lease time, seconds; default is the Redlock's.  timeout: how long to wait for
        it, seconds; None for ever, 0 for one attempt.  renew: extend the lease by itself, until
        it is given back.  max_hold: how long it may be held in all, seconds, by extensions of
        either kind; math.inf for no end.  fencing: give every lease a `fence`, a number that only
        rises.  on_warning: a plain function that is called with the lease when renewal fails and
        less than half of the ttl is left; all renewal waits until it returns.  on_lost: "cancel"
        the body of `async with` when the lease is lost (LeaseLost comes out of the block), or only
        "flag" it (`lease.lost`).  Raises ConfigError.
        """
        terms = terms_of(renew, max_hold, on_warning)
        return Lock(self._session, resource, ttl, timeout, fencing, terms, on_lost)

    async def adopt(
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
            return await session.driver.win(
                flow, partial(_adopted, session, request, ticket, terms)
            )

    async def extend(
        self, resource: str | bytes, token: str, *, ttl: Seconds | None = None
    ) -> bool:
        """Extend by bare token, in one round. True: a quorum did; False: gone or another's.

        It makes no lease: whoever holds it must know of it.  True excludes everybody else from
        now on; it does not tell that nobody held in between, if the lease had run out before.
        Raises QuorumUnreachable, NodeError.
        """
        session, request = self._session, self._session.by_token(resource, ttl)
        flow = flows.extend_by_token(request, token_bytes(token), session.policy)
        return await session.driver.run(flow)

    async def release(self, resource: str | bytes, token: str) -> bool:
        """Release by bare token. True: a quorum deleted it; False: gone or another's.

        Raises QuorumUnreachable, NodeError.
        """
        return await self._release(self._session.by_token(resource), token_bytes(token))

    async def _release(self, request: Request, token: bytes) -> bool:
        session = self._session
        receipt = session.end_by_token(request.key, token)
        flow = flows.release_by_token(request, token, session.policy, receipt)
        return await session.driver.run(flow)

    async def break_lease(self, resource: str | bytes, holder: str) -> bool:
        """Release by force what `holder` has, a digest that `inspect` showed; nobody else's.

        True: a quorum deleted it; False: gone or another's.  Whoever holds it goes on until it
        asks the nodes again (renewal does soon), so end that first.
        Raises QuorumUnreachable, NodeError.
        """
        session, request = self._session, self._session.by_token(resource)
        answers = await session.driver.run(flows.inspect(request.key, session.policy))
        token = token_of(holder, answers)
        return token is not None and await self._release(request, token)

    async def inspect(self, resource: str | bytes) -> Inspection:
        """Who holds the resource, node by node, and what that comes to."""
        session, request = self._session, self._session.by_token(resource)
        flow = flows.inspect(request.key, session.policy)
        return session.inspection(request, await session.driver.run(flow))

    async def close(self) -> None:
        """Give back all leases that are held, and close all connections.

        Waits a bounded time for nodes that do not answer.  Closing twice does no harm.
        """
        session = self._session
        for renewer in session.renewers:
            await renewer.close()
        await session.driver.close()

    async def __aenter__(self) -> Redlock:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


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
        from quorlock.asyncio.renewing import renewer  # here: most locks are not renewed

        renewer(session).add(lease, terms.on_warning)
    return session.account(lease)
