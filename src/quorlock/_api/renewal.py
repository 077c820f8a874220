"""The part of renewal that both APIs share: everything that does not wait.

One manager serves all leases of a Redlock (in asyncio: one task for each of its event loops).  It
refers to lease states, not to leases, nor to the session, so that it keeps no garbage lease alive.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quorlock._api.lease import state_of
from quorlock._api.session import ended
from quorlock._core.renewal_schedule import RenewalEntry
from quorlock._drivers.log import log_trouble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._api.lease import LeaseBase
    from quorlock._api.lease_options import Warns
    from quorlock._api.lease_state import LeaseState
    from quorlock._api.session import Session
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy, Flow
    from quorlock._core.time import Instant
    from quorlock._drivers.abc import AnyDriver

D = TypeVar("D", bound="AnyDriver")


class RenewedLease(RenewalEntry):
    """The renewal of one lease, with its warning callback."""

    __slots__ = ("_lease", "_on_warning", "entry")

    def __init__(
        self, lease: LeaseBase[D], on_warning: Warns | None, at: Instant, entropy: Entropy
    ) -> None:
        self.entry: LeaseState = state_of(lease)
        super().__init__(self.entry, self.entry.ttl_ms, at, entropy)
        self.schedule_early_check()
        self._lease = weakref.ref(lease)
        self._on_warning = on_warning

    def warn(self) -> None:
        """Call the user's warning function; an exception from it is logged and ends nothing."""
        lease = self._lease()
        if lease is None or self._on_warning is None:
            return
        try:
            self._on_warning(lease)
        except BaseException as error:  # noqa: BLE001 (the user's function may raise anything)
            text = f"on_warning of {lease!r} raised {type(error).__name__}; renewal goes on"
            log_trouble(text, error)
            self.escaped(error)

    def escaped(self, error: BaseException) -> None:
        """Pass on what on_warning raised, if the API has a place for it."""


class RenewalManager(ABC, Generic[D]):
    """The renewals of one session; each API adds the thread or the tasks that run them."""

    def __init__(self, session: Session[D]) -> None:
        self.driver = session.driver
        self.policy: Policy = session.policy
        self.entropy: Entropy = session.entropy
        self._lease_states = session.live

    @abstractmethod
    def add(self, lease: LeaseBase[D], on_warning: Warns | None) -> None:
        """Renew a lease from now on, until it is over."""

    @abstractmethod
    def close(self) -> Any:
        """Stop renewing, without releasing; asyncio awaits the result."""

    def lost(self, over: Sequence[RenewalEntry]) -> list[Flow[None]]:
        """Return the flows that release the leases which are over and released by no other code."""
        flows_back: list[Flow[None]] = []
        for renewal in over:
            assert isinstance(renewal, RenewedLease)
            lease_state = renewal.entry
            if ended(self._lease_states, lease_state, lease_state.likely_loss):
                flows_back.append(lease_state.release_flow())
                self.driver.on_lease_over(lease_state.claim)
        return flows_back

    def warn(self, warned: Sequence[RenewalEntry]) -> None:
        """Warn the holders of these leases."""
        for renewal in warned:
            assert isinstance(renewal, RenewedLease)
            renewal.warn()
