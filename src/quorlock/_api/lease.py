"""The part of a lease that both APIs share: its facts, read without I/O."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, NoReturn, TypeVar

from quorlock._api.lease_state import HandedOver, LeaseState
from quorlock._api.misuse import HintedNames
from quorlock._api.session import Session
from quorlock._api.ticket import Ticket, ticket_of
from quorlock._core.claims import Shared
from quorlock._core.config import Seconds, non_negative, positive
from quorlock._core.effects import Flow
from quorlock._core.keeping import KeepResult, keep
from quorlock._core.owner import mark_of
from quorlock._core.redlock import LeaseFacts
from quorlock._core.resources import PermitName, names_of
from quorlock._core.results import LossReason, ReleaseResult
from quorlock._core.time import NS_PER_MS, to_seconds
from quorlock._core.votes import Answer, node_votes
from quorlock._drivers import fork
from quorlock._drivers.clock import now
from quorlock.errors import ConfigError, HoldLimitReached, LeaseLost, NodeVote, QuorlockError

if TYPE_CHECKING:
    from quorlock._drivers.abc import AnyDriver

D = TypeVar("D", bound="AnyDriver")


class LeaseBase(HintedNames, Generic[D]):
    """The facts of a lease, for both APIs."""

    __slots__ = ("__weakref__", "_in_block", "_session", "_state")

    _HINTS: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("valid", "locked", "owned", "is_held"), "see `held`"),
        **dict.fromkeys(("renew", "reacquire", "refresh"), "use `extend`"),
        **dict.fromkeys(("unlock", "close"), "use `release`"),
    }

    def __init__(self, session: Session[D], lease_state: LeaseState) -> None:
        self._session = session
        self._state = lease_state
        self._in_block = False  # of a `with` statement, which releases the lease

    @property
    def resource(self) -> str:
        """The name of the protected resource; of several, their names joined by " + "."""
        return self._state.resource

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of all protected resources, sorted."""
        return names_of(self._state.resource)

    @property
    def shared(self) -> bool:
        """True if other leases may share the lock (`lock(..., shared=True)`)."""
        return type(self._state.claim) is Shared

    @property
    def permit(self) -> int | None:
        """The number of the permit, from 0, which no other lease has; None if it is no permit."""
        resource = self._state.resource
        return resource.permit if isinstance(resource, PermitName) else None

    @property
    def token(self) -> str:
        """The proof of ownership: a secret, since it authorises extend and release."""
        return self._state.token.decode()

    @property
    def fence(self) -> int | None:
        """The fencing token: larger than that of every earlier lease; None without `fencing=True`.

        Unique for the resource, even if two clients hold it at once because of a pause or a clock.
        So the protected resource can refuse the late one (docs/how-to/fencing.md).
        """
        return self._state.fence or None

    @property
    def ttl(self) -> float:
        """The lease time of the last acquire or extension, in seconds."""
        return self._state.ttl_ms / 1000

    @property
    def valid_until(self) -> float:
        """The instant, in seconds of `quorlock.now()`, up to which it may be trusted.

        No other client is granted the lock before any instant that this has returned, even if the
        lease is lost by then.  That holds unless you release it, hand it over or drop it.  0.0,
        long past, once the lease is over.
        """
        return to_seconds(self._state.valid_until)

    @property
    def validity(self) -> float:
        """Seconds left, negative when over (Redlock page, "The Redlock algorithm", step 4)."""
        return to_seconds(self._state.valid_until - now())

    @property
    def held(self) -> bool:
        """True while the lease may be trusted: a clock comparison, no I/O."""
        return self._state.held

    @property
    def votes(self) -> tuple[NodeVote, ...]:
        """The vote of every node when the lease was won; late replies are not added."""
        return node_votes(self._session.policy.addresses, self._state.answers)

    def ensure(self, margin: Seconds = 0.0) -> None:
        """Raise LeaseLost unless the lease is held now, and for `margin` seconds more.

        No other client is granted the lock within the margin, unless you release the lease.  A loss
        may be reported within the margin: up to 100 ms before `valid_until`.

        Args:
            margin: seconds, or a timedelta; default 0.

        Raises:
            LeaseLost: the lease is over; or less than `margin` of its validity is left (its reason
                is "margin").
            ConfigError: the margin is not a duration of 0 or more.
        """
        if now() + non_negative("margin", margin) >= self._state.valid_until:
            if self._state.held:
                raise LeaseLost(self.resource, "margin", lease=self)
            self._raise_lost()

    def _hand_over(self) -> Ticket:
        """End the lease here without releasing it. Raises LeaseLost."""
        self.ensure()
        session, lease_state = self._session, self._state
        token, node_states = lease_state.token, session.driver.node_states
        hand_over = HandedOver()
        try:
            if not session.end(lease_state, hand_over) or (
                not lease_state.was_handed_over  # `close` in another thread ended it first
            ):
                self._raise_lost()
            lease_state.stop_renewal()
            at = now()
            session.driver.on_lease_over(lease_state.claim)
            return ticket_of(lease_state, node_states.suppress_releases(token, at), at)
        except LeaseLost:
            raise
        except BaseException:  # interrupted: no caller gets the ticket
            if lease_state.take_back(hand_over):
                node_states.allow_releases(token)
            self._release_in_background()  # nothing is sent if another call has handed it over
            raise

    def _keepable(self, seconds: Seconds) -> tuple[LeaseFacts, int]:
        """Return what is kept, and the time in ms. Raises LeaseLost, ConfigError."""
        kept_ms = positive("seconds", seconds) // NS_PER_MS
        if not kept_ms:
            raise ConfigError("seconds", seconds, "give at least 0.001 (1 ms)")
        if len(self._state.claim.keys) > 1:
            fix = "keep a lease on one resource: each of several would need a mark of its own"
            raise ConfigError("resources", self.resource, fix)
        if self.shared:
            fix = "keep a lease that is not shared: others may have the same work under way"
            raise ConfigError("shared", True, fix)
        self.ensure()
        return self._state.facts(), kept_ms

    def _keeping(self, facts: LeaseFacts, kept_ms: int) -> Flow[KeepResult]:
        """Return the flow that keeps the lease, whose renewal has been stopped."""
        # Renewal may have restored keys since: the mark must not overtake them (rule 3).
        facts = facts._replace(target=self._state.target)
        policy, entropy = self._session.policy, self._session.entropy
        return keep(facts, mark_of(facts.token), kept_ms, now(), policy, entropy)

    def _check_kept(self, result: KeepResult) -> None:
        """Raise LeaseLost unless the lease was kept."""
        if result.loss is not None:
            votes = node_votes(self._session.policy.addresses, result.answers)
            raise LeaseLost(self.resource, result.loss.value, votes, self)

    def _check_not_closed(self) -> None:
        """Raise LeaseLost if `close` has released a lease that its block was to keep."""
        keep_for, ended = self._state.options.keep_for, self._state.over_because
        if keep_for is not None and ended == "released" and self._session.driver.closed:
            self._raise_lost()

    def _check_entry(self) -> None:
        """Raise LeaseLost or QuorlockError if no `with` block may begin."""
        self.ensure()
        if self._in_block:
            message = f"the lease on {self.resource!r} is in a `with` block, which releases it"
            raise QuorlockError(f"{message}: leave out the inner `with`")

    def _ttl_ms(self, ttl: Seconds | None) -> int:
        """Return the ttl of an extension, in ms. Raises ConfigError, HoldLimitReached."""
        lease_state, policy = self._state, self._session.policy
        ttl_ms = lease_state.ttl_ms if ttl is None else policy.checked_ttl_ms(ttl)
        if lease_state.held and now() + ttl_ms * NS_PER_MS > lease_state.hold_until:
            raise HoldLimitReached(self.resource, to_seconds(lease_state.options.max_hold))
        return ttl_ms

    def _reason(self, released: ReleaseResult, *, was_held: bool) -> LossReason:
        """Return why the lease was lost, given the outcome of its release."""
        gone = released.gone
        if was_held and gone is LossReason.EXPIRED:
            gone = LossReason.EVICTED  # before its time
        return self._state.loss or gone or self._state.likely_loss

    def _raise_lost(self, answers: tuple[Answer, ...] = ()) -> NoReturn:
        raise self._loss(answers)

    def _loss(self, answers: tuple[Answer, ...] = ()) -> LeaseLost:
        failure = self._state.last_failure
        answers = answers or (failure.answers if failure else ())
        votes = node_votes(self._session.policy.addresses, answers) if answers else ()
        return LeaseLost(self.resource, self._state.over_because, lease=self, votes=votes)

    def __del__(self) -> None:
        # Garbage: no caller can release it any more.
        try:
            if self._session.live.get(self._state.token) is self._state:
                self._drop()
        except BaseException:  # noqa: BLE001 (Python swallows exceptions from here)
            with contextlib.suppress(Exception):
                self._drop()  # interrupted by a Ctrl-C

    def _drop(self) -> None:
        """Release the lease in the background, if it is still in the session.

        For a lease that is garbage, and a block that was not entered, or not left.
        """
        # The lease of a re-entrant lock may be garbage in a new child, and is held in the parent.
        if self._session.live.get(self._state.token) is self._state and not fork.is_new_child():
            self._release_in_background()

    @abstractmethod
    def _release_in_background(self) -> None:
        """End the lease, and release it without waiting: its caller is gone."""

    def __repr__(self) -> str:
        token = self.token[:6]
        state = f"held for {self.validity:.3f} s more" if self.held else "over"
        return f"<Lease on {self.resource!r}, token {token}…, {state}>"

    def __reduce__(self) -> NoReturn:
        message = "a lease cannot be copied or pickled: move it with hand_over() and adopt()"
        raise TypeError(message)


def keep_at_end(lease: LeaseBase[D], seconds: Seconds) -> None:
    """Let the block of the lease keep it at a clean end, for the Once."""
    lease_state = state_of(lease)
    lease_state.options = lease_state.options._replace(keep_for=seconds)


def state_of(lease: LeaseBase[D]) -> LeaseState:
    """Return the state of a lease, for the modules that renew it or keep it in a session."""
    return lease._state  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
