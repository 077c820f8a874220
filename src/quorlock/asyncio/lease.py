"""The lease of the asyncio API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from quorlock._api.lease import LeaseBase
from quorlock._api.lease_state import LeaseState, Released
from quorlock._api.misuse import AsyncioObject
from quorlock._api.session import Session
from quorlock._api.ticket import Ticket
from quorlock._core import handing_on
from quorlock._core import redlock as flows
from quorlock._core.config import Seconds
from quorlock._core.results import ExtendFailed, LossReason, ReleaseResult, is_unreachable
from quorlock._core.usual import usual_release
from quorlock._drivers.aio.direct_task import DirectTask
from quorlock._drivers.aio.driver import Driver
from quorlock._drivers.aio.flow_task import FlowTask
from quorlock._drivers.clock import now
from quorlock.asyncio.loss_watcher import LossWatcher, watcher_of
from quorlock.errors import LeaseLost


class Lease(AsyncioObject, LeaseBase[Driver]):
    """A lock that is held until `valid_until`, unless it is released, extended or lost.

    `async with lease:` releases it at the end, as the block of the lock does.  Elsewhere a loss
    raises no exception in your code: check `held`, call `ensure`, or wait for `lost`.
    """

    __slots__ = ()

    @property
    def lost(self) -> asyncio.Event:
        """An event that is set when the lease expires or is seen to be gone; not by a release."""
        return watcher_of(self._state).event

    async def extend(self, ttl: Seconds | None = None) -> None:
        """Extend the lease to at least `ttl` seconds from now; never shorten it.

        Tries again while validity remains.

        Args:
            ttl: seconds; default: the lease's own ttl.

        Raises:
            LeaseLost: the lease is over, or a quorum no longer has its key; it has ended for good
                and is released on all nodes.
            HoldLimitReached: it would be held for longer than its lock's max_hold in all; it stays
                valid until it ends.
            NodeError: the nodes refuse for good; the lease stays valid until it ends.
        """
        session, lease_state = self._session, self._state
        if not lease_state.held:
            await self._handle_loss(LossReason.EXPIRED)
            self._raise_lost()
        ttl_ms = self._ttl_ms(ttl)
        while True:
            flow = flows.extend(lease_state.facts(), ttl_ms, now(), session.policy, session.entropy)
            outcome = await session.driver.run(flow)
            # Renewal (or another caller) may have extended it in between: then it is not over.
            if not is_unreachable(outcome) or not lease_state.held:
                break
        if isinstance(outcome, ExtendFailed):
            await self._handle_loss(outcome.reason)
        elif not lease_state.extend_validity(outcome.valid_until, ttl_ms):
            await self._handle_loss(LossReason.EXPIRED)
        if not lease_state.held:
            self._raise_lost(outcome.answers)

    async def release(self) -> bool:
        """Release the lease on all nodes.

        The lease is over here before any byte is sent.  A lost lease raises no error.

        Returns:
            True if a quorum still had it and deleted it.  False if it was over or gone, or if too
            few nodes replied to know; then the release is retried until max_ttl has passed.

        Raises:
            NodeError: the nodes refuse the release (permission, read-only). It is retried, and the
                keys stay until then, or until they expire.
        """
        is_ours = self._state.loss is None  # a lost lease's keys only wait for `reported_until`
        return (await self._release()).deleted and is_ours

    async def keep(self, seconds: Seconds) -> None:
        """End the lease and mark its work as done: no client gets the lock for so long.

        The token on the nodes becomes a mark, whose ttl may exceed max_ttl.  Later releases and
        extensions change nothing.  `inspect` shows who did the work.

        Args:
            seconds: how long; counts from now.

        Raises:
            LeaseLost: the lease was over, or no quorum took the mark while it was valid: another
                client may do the work again.
            NodeError: the nodes refuse for good.
            ConfigError: an argument cannot work.
        """
        session, lease_state = self._session, self._state
        facts, kept_ms = self._keepable(seconds)
        ended_here = True
        try:
            if not session.end(lease_state, Released.KEPT):
                ended_here = False  # another call keeps it, or releases it
                self._raise_lost()
            lease_state.stop_renewal()
            result = await session.driver.run(self._keeping(facts, kept_ms))
        except BaseException:
            if ended_here:
                self._release_in_background()  # interrupted, perhaps before anything was sent
            raise
        finally:
            session.driver.on_lease_over(lease_state.claim)
        self._check_kept(result)

    async def hand_over(self) -> Ticket:
        """End the lease here without releasing it, to continue it in another process.

        Raises:
            LeaseLost: the lease is not held.
        """
        return self._hand_over()

    async def __aenter__(self) -> Lease:
        self._check_entry()
        self._enter(asyncio.current_task())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._exit(error)
        except BaseException:
            self._drop()  # interrupted, perhaps before its release began
            raise

    def _enter(self, task: asyncio.Task[Any] | None) -> None:
        self._in_block = True
        if self._state.options.on_lost == "flag":
            return
        assert task is not None, "async with runs in a task"
        watcher = watcher_of(self._state, task.get_loop())
        try:
            watcher.enter(task)
        except BaseException:
            watcher.leave()
            raise

    def _leave_inner(self, error: BaseException | None) -> None:
        """Leave an `async with` block without releasing: stop cancelling, report a loss."""
        if self._loss_explains(error):
            raise self._loss() from error

    def _loss_explains(self, error: BaseException | None) -> bool:
        """Stop cancelling; return whether the loss alone caused the block to be left."""
        watcher = self._state.loss_listener
        while isinstance(watcher, LossWatcher):
            if watcher.explains(error):
                return True
            watcher = watcher.next
        return False

    async def _exit(self, error: BaseException | None) -> None:
        """Leave an `async with` block: release, report a loss, mask no error of the body."""
        # The body was cancelled because the lease was lost: LeaseLost replaces the cancellation.
        slipped = self._loss_explains(error)
        was_held = self._state.held
        given_up = not was_held and self._state.was_released
        keep_for = self._state.options.keep_for
        if keep_for is not None and was_held and error is None:
            await self.keep(keep_for)
            return
        try:
            released = await self._release()
        except Exception as trouble:
            if error is None and (was_held or given_up):
                raise
            told = self._loss() if error is None or slipped else error
            told.add_note(f"quorlock: releasing {self.resource!r} failed: {trouble}")
            if told is not error:
                raise told from error
            return
        if not slipped and (given_up or (was_held and released.gone is None)):
            if given_up and error is None:
                self._check_not_closed()
            return
        self._state.loss = self._reason(released, was_held=was_held)
        lost = self._loss(released.answers if released.gone is not None else ())
        if error is None or slipped:
            raise lost from error
        if not isinstance(error, LeaseLost):
            error.add_note(f"quorlock: {lost}")

    async def _release(self) -> ReleaseResult:
        session, lease_state = self._session, self._state
        try:
            if not session.end(lease_state):
                return ReleaseResult(deleted=False, gone=None, answers=(), ended=0)
            if lease_state.renewal is not None:
                lease_state.stop_renewal()
            asked_at, here, policy = now(), session.driver.loop_driver(), session.policy
            claim, token, target = lease_state.claim, lease_state.token, lease_state.target
            usual = usual_release(claim, token, target, policy, here.lines)
            task: FlowTask[ReleaseResult]
            if usual is not None:
                task = DirectTask(here, usual)
            else:
                entropy, lines = session.entropy, here.lines
                flow = handing_on.release(claim, token, target, policy, entropy, lines, asked_at)
                task = FlowTask(here, flow)
            # As `Driver.run_task`, whose call would take another coroutine.
            try:
                task.begin()
                released = await task.future
                task.end()
            except BaseException:
                task.cancel()
                raise
            finally:
                if target is not None and target.path is not here:
                    # The line of the loop that acquired it does not know of its end.
                    session.driver.on_lease_over(claim)
        except asyncio.CancelledError:
            raise  # the cancelled flow has sent its release
        except BaseException:
            self._release_in_background()  # interrupted, perhaps before anything was sent
            raise
        return session.check_release(lease_state, released, asked_at)

    async def _handle_loss(self, loss: LossReason) -> None:
        """End a lease that was seen to be lost; release it once its reported validity is over."""
        session, lease_state = self._session, self._state
        session.driver.on_lease_over(lease_state.claim)
        if session.lose(lease_state, loss):
            if lease_state.renewal is None:
                from quorlock.asyncio.renewal import renewer

                # Renewal sends nothing for a lost lease, except its release.
                renewer(session).add(self, None)
            return
        if not session.end(lease_state, loss):
            return
        lease_state.stop_renewal()
        await session.driver.run(lease_state.release_flow())

    def _release_in_background(self) -> None:
        release_in_background(self._session, self._state)


def release_in_background(session: Session[Driver], lease_state: LeaseState) -> None:
    """End a lease, and release it without waiting: its caller is gone."""
    # In its loop, which may run in another thread.  Kept in the session until the release is sent,
    # since `close` looks there.
    lease_state.end(lease_state.loss)
    path = lease_state.target.path if lease_state.target is not None else None
    session.driver.send_later(session.release_and_remove(lease_state), path)


# For the locks, whose blocks are blocks of a lease.
# ruff: noqa: SLF001
# pyright: reportPrivateUsage=false
enter_block: Callable[[Lease, asyncio.Task[Any] | None], None] = Lease._enter
exit_block: Callable[[Lease, BaseException | None], Coroutine[Any, Any, None]] = Lease._exit
leave_inner_block: Callable[[Lease, BaseException | None], None] = Lease._leave_inner
drop: Callable[[Lease], None] = Lease._drop
