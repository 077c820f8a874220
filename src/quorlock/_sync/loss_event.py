"""The event that reports the loss of a lease: by the local clock, whatever the network does.

It needs no thread: `is_set` and `wait` read the clock.  Renewal, which may learn earlier that a
lease is lost, sets it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from quorlock._core.time import FOR_EVER, from_seconds
from quorlock._drivers.clock import now
from quorlock._drivers.wait import OneShotEvent

if TYPE_CHECKING:
    from quorlock._api.lease_state import LeaseState


class LostEvent(threading.Event):
    """An event that is set shortly before a lost lease's validity ends; never by a release.

    Made of raw locks: a Ctrl-C in threading's own `wait` can leave its lock taken, and the thread
    that renews all leases would hang in `set`.
    """

    def __init__(self, lease_state: LeaseState) -> None:
        super().__init__()
        self._lease_state = lease_state
        self._event = OneShotEvent()

    def __repr__(self) -> str:
        # threading's own shows a flag that is not used here.
        return f"<{type(self).__name__}: {'set' if self.is_set() else 'unset'}>"

    def is_set(self) -> bool:
        """Return whether the lease was lost."""
        if not self._event.up:
            self.ended()
        return self._event.up

    def set(self) -> None:
        """Set the event and notify the waiting threads."""
        self._event.set()

    def clear(self) -> None:
        """Do nothing: a lost lease stays lost."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost, for at most `timeout` seconds; return whether it is."""
        until = FOR_EVER if timeout is None else now() + from_seconds(timeout)
        while not self.is_set() and now() < until:
            is_over = self._lease_state.was_released
            self._event.wait(until if is_over else min(until, self._lease_state.deadline))
        return self.is_set()

    def ended(self) -> None:
        """Set the event if the lease is lost; called whenever it may be."""
        if not (
            self._lease_state.was_released
            or self._lease_state.check_expired()
            or self._lease_state.was_released
        ):
            self._event.set()


# The events of leases that are asked for theirs right now, for the first time.
_first: dict[LeaseState, LostEvent] = {}


def lost_event(lease_state: LeaseState) -> LostEvent:
    """Return the event of a lease, the same at every call and in every thread."""
    while not isinstance(event := lease_state.loss_listener, LostEvent):
        # Of several threads here, one makes the event of all: only the stored one learns of a loss.
        first = _first.setdefault(lease_state, LostEvent(lease_state))
        if lease_state.loss_listener is None:
            lease_state.loss_listener = first
        _first.pop(lease_state, None)  # last: who finds no entry finds the stored event
    return event
