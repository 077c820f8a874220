"""What a lease tells of itself without asking anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from quorlock._core.outcomes import Loss, NodeVote, node_votes
from quorlock._core.policy import Seconds, non_negative
from quorlock._core.time import NS_PER_MS, to_seconds
from quorlock._drivers.clock import now
from quorlock.errors import HoldLimitReached, LeaseLost

if TYPE_CHECKING:
    from quorlock._core.outcomes import Answer, Released
    from quorlock._face.holding import Holding
    from quorlock._face.session import Session

D = TypeVar("D")


class LeaseBase(Generic[D]):
    """Facts of a lease, for both faces."""

    __slots__ = ("__weakref__", "_holding", "_session")

    def __init__(self, session: Session[D], holding: Holding) -> None:
        self._session = session
        self._holding = holding

    @property
    def holding(self) -> Holding:
        """Its state; for the account of its Redlock."""
        return self._holding

    @property
    def resource(self) -> str:
        """The name of what is protected."""
        return self._holding.resource

    @property
    def token(self) -> str:
        """The proof of ownership: a secret, since it authorises extend and release."""
        return self._holding.token.decode()

    @property
    def fence(self) -> int | None:
        """The fencing token: larger than that of every lease before; None without `fencing=True`.

        Unique for the resource, also if two hold it at once by a pause or a clock; so what the lock
        protects can refuse the one that comes late (docs/decisions/0014-fences.md).
        """
        return self._holding.fence or None

    @property
    def ttl(self) -> float:
        """The lease time that was last asked of the nodes, in seconds."""
        return self._holding.ttl_ms / 1000

    @property
    def valid_until(self) -> float:
        """The instant, in seconds of `quorlock.now()`, up to which it may be trusted.

        0.0, long past, once the lease is over.
        """
        return to_seconds(self._holding.valid_until)

    @property
    def validity(self) -> float:
        """Seconds left, negative when over (Redlock page, "The Redlock algorithm", step 4)."""
        return to_seconds(self._holding.valid_until - now())

    @property
    def held(self) -> bool:
        """May it be trusted now? A clock comparison, no I/O."""
        return self._holding.held

    @property
    def votes(self) -> tuple[NodeVote, ...]:
        """What every node had said when the lease was won; late answers are not added."""
        return node_votes(self._session.policy.addresses, self._holding.answers)

    def ensure(self, margin: Seconds = 0.0) -> None:
        """Raise LeaseLost unless it is held now, and for `margin` seconds more."""
        if now() + non_negative("margin", margin) >= self._holding.valid_until:
            self._raise_lost()

    def _ttl_ms(self, ttl: Seconds | None) -> int:
        """By how much to extend it. Raises ConfigError, HoldLimitReached."""
        holding, policy = self._holding, self._session.policy
        ttl_ms = holding.ttl_ms if ttl is None else policy.checked_ttl_ms(ttl)
        if holding.held and now() + ttl_ms * NS_PER_MS > holding.hold_until:
            raise HoldLimitReached(self.resource, to_seconds(holding.max_hold))
        return ttl_ms

    def _reason(self, released: Released, *, was_held: bool) -> Loss:
        """Why it was lost, of which its release may have told something."""
        gone = released.gone
        if was_held and gone is Loss.EXPIRED:
            gone = Loss.EVICTED  # before its time
        return self._holding.loss or gone or self._holding.trouble or Loss.EXPIRED

    def _raise_lost(self, answers: tuple[Answer, ...] = ()) -> NoReturn:
        raise self._loss(answers)

    def _loss(self, answers: tuple[Answer, ...] = ()) -> LeaseLost:
        reason = self._holding.loss or Loss.EXPIRED
        answers = answers or self._holding.against
        votes = node_votes(self._session.policy.addresses, answers) if answers else ()
        return LeaseLost(self.resource, reason.value, lease=self, votes=votes)

    def __repr__(self) -> str:
        token = self.token[:6]
        state = f"held for {self.validity:.3f} s more" if self.held else "over"
        return f"<Lease on {self.resource!r}, token {token}…, {state}>"

    def __reduce__(self) -> NoReturn:
        message = "a lease cannot be copied or pickled: move it with hand_over() and adopt()"
        raise TypeError(message)
