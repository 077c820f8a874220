"""Releases that were sent to a node and may still be carried out there (rule 3).

A key that such a release may delete must neither be counted nor be set again.  A copy of a release
is in doubt while it is in flight, and for max_ttl after that: bytes of a lost connection may arrive
until then.  A lease that goes to another process takes its doubts along, by the run_id of the
server that a copy was sent to.  After a restart, no bytes arrive that were sent before it, and two
clients may know one server by two addresses.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from quorlock._core.commands import Release
from quorlock._core.time import FOR_EVER, NS_PER_MS, Duration, Instant, drift, from_seconds

if TYPE_CHECKING:
    from quorlock._core.config import Policy

# By run_id: until when a release may be carried out there; FOR_EVER: no end is known.
InDoubt: TypeAlias = Mapping[str, Instant]
# The same on its way to another process, in seconds from now; None: no end is known.
Remaining: TypeAlias = Mapping[str, float | None]

# Expired entries are removed when there are twice as many entries as after the last removal.
_FEW = 16


class ReleaseCopy(NamedTuple):
    """One release, sent to one server process."""

    release: Release
    run_id: str


class ReleasesInDoubt:
    """The copies that were sent to one node, and until when each may be carried out."""

    def __init__(self, max_ttl: Duration) -> None:
        self._max_ttl = max_ttl
        self._under_way: list[ReleaseCopy] = []
        self._until: dict[bytes, dict[str, Instant]] = {}  # for every token in doubt
        self._purge_at = _FEW

    def sent(self, copy: ReleaseCopy, now: Instant) -> None:
        """Note a copy that is in flight from now on, until `on_connection_lost`."""
        self._under_way.append(copy)
        self.note(copy.release.token, copy.run_id, now)

    def on_connection_lost(self, copy: ReleaseCopy, now: Instant) -> None:
        """End a copy: it was answered, or its connection is lost, or it was never sent.

        Its time begins to run only now: the sender may have been delayed after taking it.
        """
        self.note(copy.release.token, copy.run_id, now)
        if copy in self._under_way:  # equal ones are interchangeable
            self._under_way.remove(copy)

    def note(self, token: bytes, run_id: str, now: Instant) -> None:
        """Note that a copy may have left by now, over a connection that is lost."""
        self._until[token] = self._until.get(token, {}) | {run_id: now + self._max_ttl}
        if len(self._until) >= self._purge_at:
            self._purge(now)

    def are_about(self, token: bytes, now: Instant) -> bool:
        """Return whether a copy of this token's release may still be carried out."""
        until = self._until.get(token)
        return until is not None and (max(until.values()) > now or self.is_under_way(token))

    def is_under_way(self, token: bytes) -> bool:
        """Return whether a copy was sent over a living connection and is not answered."""
        return any(copy.release.token == token for copy in self._under_way.copy())

    def still_in_doubt(self, token: bytes, now: Instant) -> dict[str, Instant]:
        """Return until when copies may be carried out, by server process."""
        # In this order: a copy that ends between the two reads is in the second.
        under_way = [copy for copy in self._under_way.copy() if copy.release.token == token]
        until = self._until.get(token, {}) | {copy.run_id: FOR_EVER for copy in under_way}
        return {run_id: end for run_id, end in until.items() if end > now}

    def _purge(self, now: Instant) -> None:
        for token, until in list(self._until.copy().items()):
            if max(until.values()) <= now and not self.is_under_way(token):
                popped = self._until.pop(token, until)
                if popped is not until:  # another thread has noted a copy in between
                    self._until[token] = popped
        self._purge_at = max(_FEW, 2 * len(self._until))


def merged(first: InDoubt, second: InDoubt) -> dict[str, Instant]:
    """Return both, with the later end where both name a server process."""
    return {**first, **{r: max(end, first.get(r, end)) for r, end in second.items()}}


def remaining(in_doubt: InDoubt, now: Instant) -> dict[str, float | None]:
    """Return the remaining doubts as durations, for a process with another clock."""
    return {
        run_id: None if end == FOR_EVER else -(-(end - now) // NS_PER_MS) / 1000
        for run_id, end in in_doubt.items()
        if end > now
    }


def counted_from(now: Instant, left: Remaining, policy: "Policy") -> dict[str, Instant]:
    """Return the reverse of `remaining`, lengthened by the drift between two clocks."""
    return {
        run_id: FOR_EVER if seconds is None else now + _longer(from_seconds(seconds), policy)
        for run_id, seconds in left.items()
    }


def _longer(left: Duration, policy: "Policy") -> Duration:
    return left + drift(left, policy.drift_factor)
