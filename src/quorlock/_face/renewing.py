"""What both faces' engines of renewal have in common: everything that does not wait.

One engine for all leases of a Redlock (in asyncio: of each of its event loops).  It knows holdings,
not leases, and not the session: nothing of a lease that is garbage is kept alive by it.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quorlock._core import redlock as flows
from quorlock._core.outcomes import Loss
from quorlock._core.renewal import Renewal
from quorlock._drivers.clock import now
from quorlock._face.session import ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._core.effects import Chance, Flow
    from quorlock._core.time import Instant
    from quorlock._face.holding import Holding
    from quorlock._face.lease import LeaseBase
    from quorlock._face.session import Session
    from quorlock._face.terms import Warns

D = TypeVar("D")


class Kept(Renewal):
    """One lease that is renewed, and whom to warn."""

    __slots__ = ("_lease", "_on_warning", "kept")

    def __init__(
        self, lease: LeaseBase[D], on_warning: Warns | None, at: Instant, chance: Chance
    ) -> None:
        self.kept: Holding = lease.holding
        super().__init__(self.kept, self.kept.ttl_ms, at, chance)
        self.look_first()
        self._lease = weakref.ref(lease)
        self._on_warning = on_warning

    def warn(self) -> None:
        """Tell the user; what comes out of the user's function is logged, and ends nothing."""
        lease = self._lease()
        if lease is None or self._on_warning is None:
            return
        try:
            self._on_warning(lease)
        except Exception as error:  # noqa: BLE001 (theirs)
            log_trouble(f"on_warning of {lease!r} failed", error)


class Renewer(ABC, Generic[D]):
    """See the module."""

    def __init__(self, session: Session[D]) -> None:
        self.driver = session.driver
        self.policy = session.policy
        self.chance = session.chance
        self._holdings = session.holdings

    @abstractmethod
    def add(self, lease: LeaseBase[D], on_warning: Warns | None) -> None:
        """Renew it from now on, until it is over."""

    @abstractmethod
    def close(self) -> Any:
        """End, without giving back; to be awaited in asyncio."""

    def lost(self, over: Sequence[Renewal]) -> list[Flow[None]]:
        """Of those that are over: what gives back the ones that nobody else gives back."""
        flows_back: list[Flow[None]] = []
        for renewal in over:
            assert isinstance(renewal, Kept)
            holding = renewal.kept
            if ended(self._holdings, holding, holding.trouble or Loss.EXPIRED):
                flow = flows.give_back(holding.key, holding.token, holding.receipt)
                flows_back.append(flow)
        return flows_back

    def warn(self, warned: Sequence[Renewal]) -> None:
        """Tell the users of these."""
        for renewal in warned:
            assert isinstance(renewal, Kept)
            renewal.warn()


def begin(session: Session[D], lease: LeaseBase[D], on_warning: Warns | None) -> Kept:
    """The renewal of a lease that has just been won."""
    return Kept(lease, on_warning, now(), session.chance)


def log_trouble(text: str, error: Exception) -> None:
    """To the logger `quorlock`, with the traceback."""
    import logging  # here: nearly nobody needs it

    logging.getLogger("quorlock").error(text, exc_info=error)
