"""What one holds after acquiring, and what one can do with it: asyncio."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from quorlock._core import redlock as flows
from quorlock._core.outcomes import Loss, Lost, Released, is_unreachable
from quorlock._drivers.asyncio import Driver
from quorlock._drivers.clock import now
from quorlock._face.lease import LeaseBase
from quorlock._face.ticket import Ticket
from quorlock.asyncio.alarm import Alarm
from quorlock.errors import LeaseLost

if TYPE_CHECKING:
    import asyncio

    from quorlock._core.effects import Flow
    from quorlock._core.policy import Seconds
    from quorlock._face.holding import Holding
    from quorlock._face.session import Session


class Lease(LeaseBase[Driver]):
    """A lock that is held until `valid_until`, unless it is released, extended or lost.

    Raises nothing by itself: look at `held`, call `ensure`, or wait for `lost`.
    """

    __slots__ = ()

    @property
    def lost(self) -> asyncio.Event:
        """Set when it slipped away: expired, or seen to be gone. Not set by a release."""
        return self.alarm().event

    async def extend(self, ttl: Seconds | None = None) -> None:
        """Let it live at least `ttl` seconds from now (default: its own ttl), never less.

        Tries again while validity remains.  Raises LeaseLost when the lease is over or a
        quorum no longer has its key; it is over for good then, and given back on all nodes.
        HoldLimitReached when it would be held for longer than its lock's max_hold in all,
        NodeError when the nodes refuse for good; the lease goes on until it ends then.
        """
        session, holding = self._session, self._holding
        if not holding.held:
            await self._slip(Loss.EXPIRED)
            self._raise_lost()
        ttl_ms = self._ttl_ms(ttl)
        while True:
            flow = flows.extend(holding.facts(), ttl_ms, now(), session.policy, session.chance)
            outcome = await session.driver.run(flow)
            # Renewal (or another caller) may have extended it meanwhile: then it is not over.
            if not is_unreachable(outcome) or not holding.held:
                break
        if isinstance(outcome, Lost):
            await self._slip(outcome.loss)
        elif not holding.prolong(outcome.valid_until, ttl_ms):
            await self._slip(Loss.EXPIRED)
        if not holding.held:
            self._raise_lost(outcome.answers)

    async def release(self) -> bool:
        """Give it back on all nodes. True: a quorum still had it, and deleted it.

        False: it was over or gone, or too few nodes answered to know; they are asked again until
        max_ttl has passed.  It is over here before any byte is sent.  Never raises because it was
        lost; NodeError if the nodes refuse to carry it out (permission, read-only): the keys
        live on then.
        """
        return (await self._release()).deleted

    async def hand_over(self) -> Ticket:
        """End the lease here without giving it back, to go on in another process.

        Raises LeaseLost if it is not held.
        """
        self.ensure()
        holding = self._holding
        if not self._session.end(holding):
            self._raise_lost()
        holding.stop_renewal()
        self._session.driver.members.forgive(holding.token, now())
        return Ticket(holding.resource, holding.token.decode(), holding.ttl_ms / 1000, self.fence)

    async def leave(self, error: BaseException | None, *, slipped: bool) -> None:
        """Leave an `async with` block: release, tell of a loss, mask no error of the body.

        slipped: the body was cancelled because the lease was lost; that is told in its place.
        """
        was_held, given_up = self.held, self._holding.given_up
        try:
            released = await self._release()
        except Exception as trouble:
            if error is None:
                raise
            error.add_note(f"quorlock: releasing {self.resource!r} failed: {trouble}")
            return
        if not slipped and (given_up or (was_held and released.gone is None)):
            return
        self._holding.loss = self._reason(released, was_held=was_held)
        lost = self._loss(released.answers if released.gone is not None else ())
        if error is None or slipped:
            raise lost from error
        if not isinstance(error, LeaseLost):
            error.add_note(f"quorlock: {lost}")

    def alarm(self) -> Alarm:
        """What tells of its loss, in this event loop; made when somebody asks."""
        if not isinstance(self._holding.bell, Alarm):
            self._holding.bell = Alarm(self._holding)
        return self._holding.bell

    async def _release(self) -> Released:
        session, holding = self._session, self._holding
        if not session.end(holding):
            return Released(deleted=False, gone=None, answers=(), ended=0)
        holding.stop_renewal()
        asked_at = now()
        flow = flows.release(holding.key, holding.token, holding.receipt, session.policy)
        return session.settled(holding, await session.driver.run(flow), asked_at)

    async def _slip(self, loss: Loss) -> None:
        """Observed to be lost: over for good, told, given back on all nodes."""
        session, holding = self._session, self._holding
        if not session.end(holding, loss):
            return
        holding.stop_renewal()
        flow = flows.give_back(holding.key, holding.token, holding.receipt)
        await session.driver.run(flow)

    def __del__(self) -> None:
        # Nobody can release it any more. In its loop, which may run in another thread; left in
        # the account until it is sent, since closing looks there.
        session, holding = self._session, self._holding
        with contextlib.suppress(Exception):
            if session.holdings.get(holding.token) is holding:
                holding.end(holding.loss)
                path = holding.receipt.path if holding.receipt is not None else None
                session.driver.send_later(_give_back_and_forget(session, holding), path)


def _give_back_and_forget(session: Session[Driver], holding: Holding) -> Flow[None]:
    holding.stop_renewal()
    yield from flows.give_back(holding.key, holding.token, holding.receipt)
    session.end(holding, holding.loss)
