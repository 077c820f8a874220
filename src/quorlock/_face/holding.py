"""The state of one lease, shared by its handle and the Redlock that keeps account of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quorlock._core.effects import Receipt
from quorlock._core.redlock import Holding as Facts
from quorlock._core.time import PAST
from quorlock._drivers import fork
from quorlock._drivers.clock import now

if TYPE_CHECKING:
    from quorlock._core.outcomes import Answer, Loss
    from quorlock._core.time import Instant


class Bell(Protocol):
    """Each face's own way of telling that a lease was lost."""

    def ended(self) -> None:
        """The holding is over, lost or given up; safe from any thread."""
        ...


class Holding:
    """Valid until an instant, or over: and over is for good (rules 4 and 6)."""

    __slots__ = (
        "_asked",
        "_generation",
        "_over",
        "_path",
        "_valid_until",
        "answers",
        "bell",
        "key",
        "loss",
        "resource",
        "token",
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
    ) -> None:
        self.resource = resource
        self.key = key
        self.token = token
        self.ttl_ms = ttl_ms
        self.answers = answers
        self.loss: Loss | None = None
        self.bell: Bell | None = None  # tells of a loss; made when somebody asks for it
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
    def given_up(self) -> bool:
        """Released or handed over: over, but not lost."""
        return self._over and self.loss is None

    def end(self, loss: Loss | None = None) -> None:
        """It is over, before any byte about it is sent. loss: why, unless it was given up."""
        self.loss = loss
        self._over = True
        if self.bell is not None:
            self.bell.ended()

    def prolong(self, valid_until: Instant, ttl_ms: int) -> bool:
        """An extension has won: never less than before. False: it had run out meanwhile.

        Whoever looked at it by then saw it lost, and what was seen to be lost stays lost (rule 4).
        """
        if not self.held:
            return False
        self._valid_until = max(self._valid_until, valid_until)
        self.ttl_ms = ttl_ms
        return True

    def facts(self) -> Facts:
        """For the core."""
        return Facts(self.resource, self.key, self.token, self.valid_until, self.receipt)
