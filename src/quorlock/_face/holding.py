"""The state of one lease, shared by its handle and the Redlock that keeps account of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quorlock._core.effects import Receipt, joined
from quorlock._core.outcomes import Loss
from quorlock._core.redlock import Holding as Facts
from quorlock._core.time import FOR_EVER, PAST, notice
from quorlock._drivers import fork
from quorlock._drivers.clock import now

if TYPE_CHECKING:
    from quorlock._core.outcomes import Answer
    from quorlock._core.time import Duration, Instant


class Bell(Protocol):
    """Each face's own way of telling that a lease was lost."""

    def ended(self) -> None:
        """The holding is over, lost or given up; safe from any thread."""
        ...


class Stops(Protocol):
    """The renewal of one lease."""

    def stop(self) -> None:
        """Send nothing more for the lease, which is over here already, and wait for what is."""
        ...


class Holding:
    """Valid until an instant, or over: and over is for good (rules 4 and 6)."""

    __slots__ = (
        "_asked",
        "_generation",
        "_over",
        "_path",
        "_valid_until",
        "against",
        "answers",
        "bell",
        "fence",
        "hold_until",
        "key",
        "loss",
        "max_hold",
        "renewal",
        "resource",
        "token",
        "trouble",
        "ttl_ms",
    )

    def __init__(
        self,
        resource: str,
        key: bytes,
        token: bytes,
        ttl_ms: int,
        valid_until: Instant,
        answers: tuple[Answer, ...],
        receipt: Receipt | None,
        fence: int = 0,
        max_hold: Duration = FOR_EVER,
    ) -> None:
        self.resource = resource
        self.key = key
        self.token = token
        self.ttl_ms = ttl_ms
        self.answers = answers
        self.fence = fence  # 0: none was asked for
        self.loss: Loss | None = None
        self.bell: Bell | None = None  # tells of a loss; made when somebody asks for it
        self.max_hold = max_hold  # how long it may be held in all, from before its first byte on
        self.hold_until = FOR_EVER if receipt is None else receipt.started + max_hold
        self.renewal: Stops | None = None  # what extends it by itself
        self.trouble: Loss | None = None  # why renewal failed last, and who was against it
        self.against: tuple[Answer, ...] = ()
        # Of the receipt what a later command has to follow; the whole of it takes 130 bytes more.
        self._asked = 0 if receipt is None else receipt.asked
        self._path = None if receipt is None else receipt.path
        self._valid_until = valid_until
        self._over = False
        self._generation = fork.generation

    @property
    def receipt(self) -> Receipt | None:
        """Of the round that set the keys, as far as `Send.behind` needs it; None if adopted."""
        return None if self._path is None else Receipt(0, PAST, PAST, self._asked, self._path)

    @property
    def valid_until(self) -> Instant:
        """Derived at every look, so that nothing can bring a lease back that is over."""
        if self._over or self._generation != fork.generation:
            return PAST
        return self._valid_until

    @property
    def held(self) -> bool:
        """A clock comparison, not a flag."""
        return now() < self.valid_until

    @property
    def deadline(self) -> Instant:
        """When its loss is told, to be told before the end; in the past once it is over."""
        return self.valid_until - notice(self.ttl_ms)

    def look(self) -> bool:
        """Whether it goes on, for who tells its loss: at the deadline it is over."""
        if not self._over and now() >= self.deadline:
            self.end(self.trouble or Loss.EXPIRED)
        return self.held

    @property
    def given_up(self) -> bool:
        """Released or handed over: over, but not lost."""
        return self._over and self.loss is None

    def end(self, loss: Loss | None = None) -> None:
        """It is over, before any byte about it is sent. loss: why, unless it was given up.

        The first word counts: what was lost is not given up afterwards.
        """
        if not self._over:
            self.loss = loss
        self._over = True
        if self.bell is not None:
            self.bell.ended()

    def stop_renewal(self) -> None:
        """After the end and before anything is sent: a release overtakes no top-up (rule 13)."""
        renewal, self.renewal = self.renewal, None
        if renewal is not None:
            renewal.stop()

    def follow(self, receipt: Receipt) -> None:
        """A top-up has set keys of it, or still may: a release goes behind that as well."""
        everywhere = (1 << len(self.answers)) - 1
        both = joined(self.receipt, receipt, everywhere)
        self._asked, self._path = both.asked, both.path

    def prolong(self, valid_until: Instant, ttl_ms: int) -> bool:
        """An extension has won: never less than before. False: it had run out meanwhile.

        Whoever looked at it by then saw it lost, and what was seen to be lost stays lost (rule 4).
        """
        if not self.held:
            return False
        # Capped: an extension by hand that had to try again was longer than it asked for.
        self._valid_until = max(self._valid_until, min(valid_until, self.hold_until))
        self.ttl_ms = ttl_ms
        return True

    def facts(self) -> Facts:
        """For the core."""
        return Facts(self.resource, self.key, self.token, self.valid_until, self.receipt)
