"""The renewal schedule: when each lease is due, and by how much it may be extended.

One heap holds many leases, with due times, invalidations, warnings and the last extension that
`max_hold` allows; it finds the leases that are over.  `renewal` decides what is sent and what the
replies mean.  The two APIs have the clocks, threads and tasks: they run `renewal.renew` over the
entries of `RenewalSchedule.pop_due`, and end the leases that `RenewalSchedule.reschedule` finds to
be over.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

from quorlock._core.claims import Shared
from quorlock._core.results import LossReason
from quorlock._core.time import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from quorlock._core.effects import Entropy, Flow
    from quorlock._core.redlock import LeaseFacts
    from quorlock._core.results import ExtendFailed
    from quorlock._core.rounds import Target
    from quorlock._core.time import Duration, Instant

# Per cent of the ttl that are left when a lease is due: a third of it is over, and two thirds
# remain for retries.  Random, so that leases that began together spread out.
DUE_LEFT = (63, 70)
# A lease due within this part of its ttl joins a batch early: fewer packets.
BATCH_SHARE = 15
# The least pause between two tries for one lease, whatever the shares come to: no hot loop.
PAUSE_MIN: Duration = 5 * NS_PER_MS
# An invalidation leads to a check no sooner than this part of the ttl after the last one.  However
# many come, and however false, they cost a node at most some twenty times what renewal costs.
EXPEDITED_PAUSE_SHARE = 50
# Where nodes push invalidations, the first check is after a tenth of the ttl: reading the key
# starts the tracking.
FIRST_CHECK_SHARE = 10
# The next try comes after at most this part of the time that is left.
RETRY_SHARE = 4
# Warn if renewal fails and less than half of the validity is left.
WARNING_SHARE = 2
# Leases in one packet: some 13 KB, a third of a millisecond of a node's time.
BATCH_MAX = 128


class RenewableLease(Protocol):
    """A lease as renewal uses it.

    deadline: when its loss is reported, a little before `valid_until`; in the past once it is over.
    reported_until: if it is lost, no key of it is released before; in the past once it is released.
    hold_until: no extension may pass this instant.
    last_failure: the last round, if it was not won.
    """

    last_failure: ExtendFailed | None

    @property
    def hold_until(self) -> Instant: ...

    @property
    def valid_until(self) -> Instant: ...

    @property
    def deadline(self) -> Instant: ...

    @property
    def reported_until(self) -> Instant: ...

    def facts(self) -> LeaseFacts:
        """Return the facts that the flows need."""
        ...

    def extend_validity(self, valid_until: Instant, ttl_ms: int) -> bool:
        """Record a won extension; return False if the lease has ended in between."""
        ...

    def end(self, loss: LossReason | None = None) -> None:
        """End the lease for good."""
        ...

    def add_release_target(self, target: Target) -> None:
        """Record that a restored key was sent: a release must follow it too."""
        ...

    def release_flow(self, restored: Target) -> Flow[None]:
        """Release the lease, which is over, where it was restored, unless it was handed over."""
        ...


class RenewalEntry:
    """The renewal of one lease.

    due: when it is to be extended, or checked, next.
    in_flight: something may be in flight for it now; a release waits for that.
    place: which of its heap entries counts; 0: none does.
    """

    __slots__ = (
        "_is_expedited",
        "_is_last",
        "_sent_at",
        "_ttl_ms",
        "_warned",
        "due",
        "in_flight",
        "keys",
        "lease",
        "place",
    )

    def __init__(self, lease: RenewableLease, ttl_ms: int, at: Instant, entropy: Entropy) -> None:
        self.lease: RenewableLease = lease
        claim = lease.facts().claim
        # Of a lock that is shared, others may change the key all the time.
        self.keys: tuple[bytes, ...] = () if type(claim) is Shared else claim.keys
        self.in_flight: bool = False
        self.place: int = 0
        self._sent_at = at  # when something was sent for it last
        self._is_expedited = False  # since then
        self._ttl_ms = ttl_ms
        self._is_last = False  # what was left of max_hold has been used
        self._warned = False
        self.due: Instant = self._next_due(at, entropy)

    @property
    def taken_at(self) -> Instant:
        """Return the instant from which it may join a batch of others."""
        # Exactly when expedited: otherwise each of many such leases would start the others sooner.
        return (
            self.due if self._is_expedited else self.due - self._ttl_ms * NS_PER_MS // BATCH_SHARE
        )

    def mark_in_flight(self, at: Instant) -> LeaseFacts | None:
        """Mark it in flight and return its facts; None: its lease is over."""
        self.in_flight = True
        self._sent_at, self._is_expedited = at, False
        if at < self.lease.deadline:
            return self.lease.facts()
        self.clear_in_flight()
        return None

    def clear_in_flight(self) -> None:
        """Mark it as no longer in flight."""
        self.in_flight = False

    def expedite(self, at: Instant) -> bool:
        """Check it as soon as the pause allows; return whether that is sooner than it was due."""
        pause = max(PAUSE_MIN, self._ttl_ms * NS_PER_MS // EXPEDITED_PAUSE_SHARE)
        due = max(at, self._sent_at + pause)
        if due >= self.due or self._is_last:  # nothing more is sent for it
            return False
        self.due, self._is_expedited = due, True
        return True

    def schedule_early_check(self) -> None:
        """Extend it early for the first time: invalidations start with its first extension."""
        self.due = min(self.due, self._sent_at + self._ttl_ms * NS_PER_MS // FIRST_CHECK_SHARE)

    def ttl_ms(self, at: Instant) -> int:
        """Return the ttl in ms to extend it to now; 0: no more.

        Redlock page, "Extending the lock": the number of re-acquisitions must be limited, or no
        other client ever gets the lock.  So the last extension is as long as `max_hold` allows.
        """
        if self._is_last:
            return 0
        return max(0, min(self._ttl_ms, (self.lease.hold_until - at) // NS_PER_MS))

    def on_extended(self, valid_until: Instant, ttl_ms: int, at: Instant, entropy: Entropy) -> None:
        """Record that a quorum has extended it in time."""
        lease = self.lease
        if lease.extend_validity(min(valid_until, lease.hold_until), ttl_ms):
            lease.last_failure = None
            self._warned = False
            self._is_last = ttl_ms < self._ttl_ms
            self.due = self._next_due(at, entropy)

    def on_failed(self, lost: ExtendFailed, at: Instant, pause: Duration) -> None:
        """Record a round that was not won: end a lease that is gone, else retry it."""
        lease = self.lease
        lease.last_failure = lost
        if lost.reason is not LossReason.UNREACHABLE:
            lease.end(lost.reason)
            return
        self.due = at + min(pause, (lease.deadline - at) // RETRY_SHARE)

    def postpone(self) -> None:
        """Postpone it, as there is nothing to extend now: until its warning or its end."""
        if self._is_last and not self._warned:
            self.due = self.lease.valid_until - self._ttl_ms * NS_PER_MS // WARNING_SHARE
        elif self._is_last:
            self.due = self.lease.deadline

    def should_warn(self, at: Instant) -> bool:
        """Return whether its holder is to be warned now; once in every decline."""
        failing = self._is_last or self.lease.last_failure is not None
        left = self.lease.valid_until - at
        if self._warned or not failing or left * WARNING_SHARE > self._ttl_ms * NS_PER_MS:
            return False
        self._warned = True
        return True

    def _next_due(self, at: Instant, entropy: Entropy) -> Instant:
        ttl = self._ttl_ms * NS_PER_MS
        least, most = DUE_LEFT
        left = entropy.between(ttl * least // 100, ttl * most // 100)
        return max(self.lease.valid_until - left, at + PAUSE_MIN)


class RenewalSchedule:
    """The renewed leases of one renewal engine, ordered by when they are due."""

    __slots__ = ("_by_key", "_heap", "_live", "_serial")

    def __init__(self) -> None:
        self._live: set[RenewalEntry] = set()
        self._by_key: dict[bytes, RenewalEntry] = {}  # the latest of each key; earlier are lost
        self._heap: list[tuple[Instant, int, RenewalEntry]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._live)

    def add(self, renewal: RenewalEntry) -> None:
        """Add an entry."""
        self._live.add(renewal)
        self._by_key.update(dict.fromkeys(renewal.keys, renewal))
        self._push(renewal)

    def drop(self, renewal: RenewalEntry) -> None:
        """Remove an entry; its heap entries go when they come up, or when many are stale."""
        self._forget(renewal)
        if len(self._heap) > 2 * len(self._live) + BATCH_MAX:
            self._heap = [e for e in self._heap if e[1] == e[2].place and e[2] in self._live]
            heapq.heapify(self._heap)

    def rebuilt(self) -> RenewalSchedule:
        """Return a schedule of the same entries, after an interrupt somewhere in this one."""
        schedule = RenewalSchedule()
        for renewal in self._live:
            schedule.add(renewal)
        return schedule

    def next_due(self) -> Instant | None:
        """Return when the next lease is due; None: there is none."""
        head = self._head()
        return head[0] if head is not None and self._live else None

    def pop_due(self, at: Instant) -> list[RenewalEntry]:
        """Return the entries that are due, with those that soon will be; empty if none is due."""
        taken: list[RenewalEntry] = []
        head = self._head()
        if head is not None and head[0] <= at:
            while head is not None and head[2].taken_at <= at:
                renewal = heapq.heappop(self._heap)[2]
                if renewal in self._live:
                    renewal.place = 0
                    taken.append(renewal)
                head = self._head()
        return taken

    def contains_any(self, keys: Iterable[bytes] | None) -> bool:
        """Return whether any of these keys (None: any key at all) belongs to an entry."""
        return bool(self._live) if keys is None else not self._by_key.keys().isdisjoint(keys)

    def expedite(self, keys: Iterable[bytes] | None, at: Instant) -> None:
        """Check the leases of these keys early: another client changed them. None: any may be.

        They are due now, or after the pause between two checks.  An invalidation has no other
        effect: a late or wrong one costs at most one round, as does one about a lease that is not
        ours, is over or is in flight.
        """
        known = self._by_key
        named = known.values() if keys is None else (known[key] for key in keys if key in known)
        for renewal in dict.fromkeys(named):
            if renewal.place and renewal.expedite(at):
                self._push(renewal)

    def reschedule(
        self, taken: Sequence[RenewalEntry], at: Instant
    ) -> tuple[list[RenewalEntry], list[RenewalEntry]]:
        """Put live entries back; return those to be released and those to be warned.

        A lost lease is released at `reported_until`, not at once.  Its holder may rely on every
        `valid_until` that it has read, even if the loss is reported earlier.
        """
        over: list[RenewalEntry] = []
        warned: list[RenewalEntry] = []
        for renewal in taken:
            if at >= renewal.lease.deadline:
                renewal.due = renewal.lease.reported_until
                if at < renewal.due:
                    self._push(renewal)
                else:
                    over.append(renewal)
                    self._forget(renewal)
                continue
            if renewal.should_warn(at):
                warned.append(renewal)
            if renewal.due <= at:
                renewal.postpone()
            renewal.due = max(renewal.due, at + PAUSE_MIN)
            self._push(renewal)
        return over, warned

    def _push(self, renewal: RenewalEntry) -> None:
        self._serial += 1
        renewal.place = self._serial
        heapq.heappush(self._heap, (renewal.due, self._serial, renewal))

    def _forget(self, renewal: RenewalEntry) -> None:
        self._live.discard(renewal)
        for key in renewal.keys:
            if self._by_key.get(key) is renewal:
                del self._by_key[key]

    def _head(self) -> tuple[Instant, int, RenewalEntry] | None:
        """Return the first heap entry that counts."""
        heap = self._heap
        while heap and heap[0][1] != heap[0][2].place:
            heapq.heappop(heap)  # it was expedited
        return heap[0] if heap else None
