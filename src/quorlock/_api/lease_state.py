"""The state of one lease, shared by its `Lease` and by the session of its Redlock."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from quorlock._core.redlock import LeaseFacts as Facts
from quorlock._core.redlock import release_without_waiting
from quorlock._core.results import LossReason
from quorlock._core.rounds import SentRound, Target, joined
from quorlock._core.time import PAST, interned, notice
from quorlock._drivers import fork
from quorlock._drivers.clock import now

if TYPE_CHECKING:
    from quorlock._api.lease_options import LeaseOptions
    from quorlock._core.claims import Claim
    from quorlock._core.effects import Flow
    from quorlock._core.releases_in_doubt import InDoubt
    from quorlock._core.request import AcquireRequest
    from quorlock._core.results import Extended, ExtendFailed
    from quorlock._core.time import Duration, Instant
    from quorlock._core.votes import Answer
    from quorlock.errors import LossWord


class LossListener(Protocol):
    """The object that reports a lost lease, of a class of each API."""

    def ended(self) -> None:
        """Handle the end of the lease, lost or released; called from any thread."""
        ...


class Stops(Protocol):
    """The renewal of one lease, as the lease uses it."""

    def stop(self) -> None:
        """Send nothing more for the lease, which has ended here, and wait for sends in flight."""
        ...


class Released(Enum):
    """The end of a lease that was not lost."""

    RELEASED = "released"
    KEPT = "kept"


class HandedOver:
    """The end of a lease by one call of `hand_over`, which alone may undo it: see `take_back`."""

    value: LossWord = "handed_over"


Ending: TypeAlias = LossReason | Released | HandedOver


class LeaseState:
    """The state of a lease: valid until an instant, or over for good (rules 4 and 6)."""

    # Where a release of an earlier process may still arrive: see `AdoptedLeaseState`.
    in_doubt: InDoubt | None = None
    adopted_over: object = None  # the event loop's connections

    __slots__ = (
        "_ending",
        "_generation",
        "_started_at",
        "_valid_for",
        "answers",
        "claim",
        "fence",
        "last_failure",
        "loss_listener",
        "options",
        "renewal",
        "resource",
        "target",
        "token",
        "ttl_ms",
    )

    def __init__(
        self,
        resource: str,
        claim: Claim,
        token: bytes,
        ttl_ms: int,
        valid_until: Instant,
        answers: tuple[Answer, ...],
        sent_round: SentRound,
        fence: int,
        options: LeaseOptions,
    ) -> None:
        self.resource: str = resource
        self.claim: Claim = claim
        self.token: bytes = token
        self.ttl_ms: int = ttl_ms
        self.answers: tuple[Answer, ...] = answers
        self.fence: int = fence  # 0: none was requested
        self.loss_listener: LossListener | None = None  # reports the loss; made at first use
        self.options: LeaseOptions = options
        self.renewal: Stops | None = None  # extends it in the background
        self.last_failure: ExtendFailed | None = None  # of renewal, since its last success
        # What set the keys, which a release must follow; None if another process has set them.
        self.target: Target | None = sent_round.target
        self._started_at: Instant = sent_round.started_at
        # The end of its validity, as a duration: one object for many leases.
        self._valid_for: Duration = interned(valid_until - self._started_at)
        self._ending: Ending | None = None
        self._generation = fork.generation

    @property
    def valid_until(self) -> Instant:
        """Derived at every read, so that nothing can revive a lease that is over."""
        if self._ending is not None or self._generation != fork.generation:
            return PAST
        return self._started_at + self._valid_for

    @property
    def held(self) -> bool:
        """True while it may be trusted: a clock comparison, not a flag."""
        return now() < self.valid_until

    @property
    def deadline(self) -> Instant:
        """The instant at which a loss is reported, before the end; in the past once it is over."""
        return self.valid_until - notice(self.ttl_ms)

    @property
    def reported_until(self) -> Instant:
        """The last `valid_until` that was reported; in the past if the holder released the lease.

        The keys of a lost lease are released then, not before: the holder may rely on it.
        """
        if self.was_released or self._generation != fork.generation:
            return PAST
        return self._started_at + self._valid_for

    @property
    def hold_until(self) -> Instant:
        """The end of `max_hold`, which counts from before its first byte."""
        return self._started_at + self.options.max_hold

    def check_expired(self) -> bool:
        """End the lease if its deadline has passed; return whether it is still held."""
        if self._ending is None and now() >= self.deadline:
            self.end(self.likely_loss)
        return self.held

    @property
    def likely_loss(self) -> LossReason:
        """The reason for its loss if it runs out: renewal failed, or nothing extended it."""
        return self.last_failure.reason if self.last_failure else LossReason.EXPIRED

    @property
    def loss(self) -> LossReason | None:
        """The reason for its loss; None if it was released, or is not over."""
        return self._ending if isinstance(self._ending, LossReason) else None

    @loss.setter
    def loss(self, loss: LossReason) -> None:
        self._ending = loss

    @property
    def over_because(self) -> LossWord:
        """The reason why the lease is over, as LeaseLost has it."""
        if self._generation != fork.generation:
            return "forked"
        return (self._ending or LossReason.EXPIRED).value

    @property
    def was_released(self) -> bool:
        """True if it was released or handed over: over, but not lost."""
        return self._ending is not None and self.loss is None

    @property
    def was_handed_over(self) -> bool:
        """True if another process may hold it now."""
        return type(self._ending) is HandedOver

    def take_back(self, hand_over: HandedOver) -> bool:
        """Let a lease be released if this call has handed it over; return whether it has.

        Its ticket is lost then.  That of another call may be in use.
        """
        if self._ending is not hand_over:
            return False
        self._ending = Released.RELEASED
        return True

    def end(self, loss: Ending | None = None) -> None:
        """End the lease, before any byte about it is sent. loss: why, unless it was released.

        The first call counts: a lost lease cannot become a released one.
        """
        if self._ending is None:
            self._ending = loss or Released.RELEASED
        if self.loss_listener is not None:
            self.loss_listener.ended()

    def stop_renewal(self) -> None:
        """Stop renewal after the end, so that a release overtakes no restored key (rule 13)."""
        renewal, self.renewal = self.renewal, None
        if renewal is not None:
            renewal.stop()

    def add_release_target(self, target: Target) -> None:
        """Record where keys were restored, or still may be: a release must go there too."""
        self.target = joined(self.target, target, everywhere=(1 << len(self.answers)) - 1)

    def extend_validity(self, valid_until: Instant, ttl_ms: int) -> bool:
        """Record a won extension, which never shortens; return False if the lease had expired.

        Its validity may have been read as lost by then, and a lease that was seen to be lost stays
        lost (rule 4).
        """
        ends = self.valid_until
        if now() >= ends:
            return False
        # Capped: an extension by hand that had to retry reaches further than it asked for.
        valid_until = min(valid_until, self.hold_until)
        self._valid_for = max(self._valid_for, valid_until - self._started_at)
        self.ttl_ms = ttl_ms
        if now() >= ends:  # this thread was paused, and another one may have read it as lost
            self.end(LossReason.EXPIRED)
            return False
        return True

    def facts(self) -> Facts:
        """Return the facts that the flows of the core need."""
        valid_until, target = self.valid_until, self.target
        return Facts(self.resource, self.claim, self.token, valid_until, target, self.in_doubt)

    def release_flow(self, restored: Target | None = None) -> Flow[None]:
        """Release the lease, which is over, without waiting for replies, unless it was handed over.

        That counts when it is sent: another process may hold the lease since.

        restored: Only on these nodes, to which renewal has just sent the key again.  Another call
            releases it on the rest, and reports their replies.
        """
        if not self.was_handed_over:
            yield from release_without_waiting(self.claim, self.token, restored or self.target)


class AdoptedLeaseState(LeaseState):
    """The state of a lease that another process handed over."""

    __slots__ = ("adopted_over", "in_doubt")

    def __init__(
        self,
        request: AcquireRequest,
        token: bytes,
        extended: Extended,
        fence: int,
        options: LeaseOptions,
        in_doubt: InDoubt,
    ) -> None:
        valid_until, answers = extended
        claim, ttl_ms = request.claim, request.ttl_ms
        # `max_hold` counts again from zero: clocks of two machines do not compare.
        asked = SentRound(0, request.asked_at, request.asked_at)
        super().__init__(
            request.resource, claim, token, ttl_ms, valid_until, answers, asked, fence, options
        )
        self.target: Target | None = None
        self.in_doubt: InDoubt | None = in_doubt or None
        self.adopted_over: object = None
