"""The lease of the blocking API."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from quorlock._api.lease import LeaseBase
from quorlock._api.lease_state import LeaseState, Released
from quorlock._api.misuse import BlockingObject
from quorlock._api.session import Session
from quorlock._api.ticket import Ticket
from quorlock._core import handing_on
from quorlock._core import redlock as flows
from quorlock._core.config import Seconds
from quorlock._core.results import ExtendFailed, LossReason, ReleaseResult, is_unreachable
from quorlock._core.usual import itself, usual_release
from quorlock._drivers.clock import now
from quorlock.errors import LeaseLost, QuorlockError

if TYPE_CHECKING:
    from quorlock._drivers.sync.driver import Driver


class Lease(BlockingObject, LeaseBase["Driver"]):
    """A lock that is held until `valid_until`, unless it is released, extended or lost.

    `with lease:` releases it at the end, as the block of the lock does.  Elsewhere a loss raises no
    exception in your code: check `held`, call `ensure`, or wait for `lost`.
    """

    __slots__ = ()

    @property
    def lost(self) -> threading.Event:
        """An event that is set when the lease expires or is seen to be gone; not by a release."""
        from quorlock._sync.loss_event import lost_event  # here: most programs check `held`

        return lost_event(self._state)

    def extend(self, ttl: Seconds | None = None) -> None:
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
            self._handle_loss(LossReason.EXPIRED)
            self._raise_lost()
        ttl_ms = self._ttl_ms(ttl)
        while True:
            flow = flows.extend(lease_state.facts(), ttl_ms, now(), session.policy, session.entropy)
            outcome = session.driver.run(flow)
            # Renewal (or another caller) may have extended it in between: then it is not over.
            if not is_unreachable(outcome) or not lease_state.held:
                break
        if isinstance(outcome, ExtendFailed):
            self._handle_loss(outcome.reason)
        elif not lease_state.extend_validity(outcome.valid_until, ttl_ms):
            self._handle_loss(LossReason.EXPIRED)
        if not lease_state.held:
            self._raise_lost(outcome.answers)

    def release(self) -> bool:
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
        return self._release().deleted and is_ours

    def keep(self, seconds: Seconds) -> None:
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
        call = object()
        try:
            session.releasing[call] = lease_state
            if not session.end(lease_state, Released.KEPT):
                ended_here = False  # another call keeps it, or releases it
                self._raise_lost()
            lease_state.stop_renewal()
            result = session.driver.run(self._keeping(facts, kept_ms))
        except BaseException:
            if ended_here:
                self._release_in_background()  # interrupted, perhaps before anything was sent
            raise
        finally:
            session.releasing.pop(call, None)
            session.driver.on_lease_over(lease_state.claim)
        self._check_kept(result)

    def hand_over(self) -> Ticket:
        """End the lease here without releasing it, to continue it in another process.

        Raises:
            LeaseLost: the lease is not held.
        """
        return self._hand_over()

    def __enter__(self) -> Lease:
        self._check_entry()
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._exit(error)
        except BaseException:
            self._drop()  # interrupted, perhaps before its release began
            raise

    def _enter(self) -> None:
        self._in_block = True

    def _exit(self, error: BaseException | None) -> None:
        """Leave a `with` block: release, and report a loss without masking the body's error."""
        was_held, given_up = self.held, self._state.was_released
        keep_for = self._state.options.keep_for
        if was_held and error is None and keep_for is not None:
            self.keep(keep_for)
            return
        try:
            released = self._release()
        except Exception as trouble:
            if error is None and (was_held or given_up):
                raise
            told = self._loss() if error is None else error
            told.add_note(f"quorlock: releasing {self.resource!r} failed: {trouble}")
            if error is None:
                raise told from None
            return
        if given_up or (was_held and released.gone is None):
            if given_up and error is None:
                self._check_not_closed()
            return
        self._state.loss = self._reason(released, was_held=was_held)
        lost = self._loss(released.answers if released.gone is not None else ())
        if error is None:
            raise lost
        if not isinstance(error, LeaseLost):
            error.add_note(f"quorlock: {lost}")

    def _release(self) -> ReleaseResult:
        session, lease_state = self._session, self._state
        call = object()
        try:
            session.releasing[call] = lease_state
            if not session.end(lease_state):
                return ReleaseResult(deleted=False, gone=None, answers=(), ended=0)
            if lease_state.renewal is not None:
                lease_state.stop_renewal()
            asked_at, driver = now(), session.driver
            claim, token, target = lease_state.claim, lease_state.token, lease_state.target
            policy, lines = session.policy, driver.lines
            usual = usual_release(claim, token, target, policy, lines)
            if usual is not None:
                released = driver.run_usual(usual, itself)
            else:
                entropy = session.entropy
                flow = handing_on.release(claim, token, target, policy, entropy, lines, asked_at)
                released = driver.run(flow)
            if driver.closed:
                released = released._replace(gone=None)  # `close` may have released it first
        except BaseException:
            self._release_in_background()  # interrupted, perhaps before anything was sent
            raise
        finally:
            session.releasing.pop(call, None)
        return session.check_release(lease_state, released, asked_at)

    def _handle_loss(self, loss: LossReason) -> None:
        """End a lease that was seen to be lost; release it once its reported validity is over."""
        session, lease_state = self._session, self._state
        session.driver.on_lease_over(lease_state.claim)
        if session.lose(lease_state, loss):
            if lease_state.renewal is None:
                self._release_later()
            return
        call = object()
        try:
            session.releasing[call] = lease_state
            if session.end(lease_state, loss):
                lease_state.stop_renewal()
                session.driver.run(lease_state.release_flow())
        except BaseException:
            self._release_in_background()
            raise
        finally:
            session.releasing.pop(call, None)

    def _release_later(self) -> None:
        """Let the renewal thread release it; it sends nothing else for a lost lease."""
        from quorlock._sync.renewal import renewer

        with contextlib.suppress(QuorlockError):  # no thread can be started: the keys expire
            renewer(self._session).add(self, None)

    def _release_in_background(self) -> None:
        release_in_background(self._session, self._state)


def release_in_background(session: Session[Driver], lease_state: LeaseState) -> None:
    """End a lease, and release it without waiting: its caller is gone."""
    lease_state.end(lease_state.loss)  # kept in the session until it is sent: see Redlock.close
    session.driver.run_in_background(session.release_and_remove(lease_state))


# For the locks, whose blocks are blocks of a lease.
# ruff: noqa: SLF001
# pyright: reportPrivateUsage=false
enter_block = Lease._enter
exit_block = Lease._exit
drop = Lease._drop
