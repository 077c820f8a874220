"""The record of a simulated world that the oracle judges, in true time (ns)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorlock._core.claims import Claim
    from quorlock._core.releases_in_doubt import InDoubt
    from quorlock._core.rounds import Target
    from quorlock_sim.oracle_fences import Issue, Loss


@dataclass(slots=True)
class LeaseRecord:
    """A lock that was won, with every validity that its holder may have trusted.

    Attributes:
        since: the instant at which it was won.
        promises: (true instant, valid_until on the client's clock): the first from the acquire,
            then one from every extension that was counted.
        ended: the instant at which it ended locally; None: it expired.
        why: the reason of its end.
        given_up: the instant at which its holder released it or handed it over, also after its
            loss; from then on the holder relies on no earlier promise.
        renewed: it is renewed; then `told` is the instant at which its loss was reported, and
            `hold_until` the end of its max_hold on its client's clock.
        fence: the fencing token; 0 if it has none.
        asked_at: the start of the attempt that won it.
        started_at: the start of the round that won it, on its client's clock; None if adopted.
        in_doubt: releases in doubt, from the process that handed it over
            (`PendingReleases.forbid`).
    """

    client: int
    token: bytes
    resource: str
    claim: Claim
    ttl_ms: int
    since: int
    target: Target | None
    promises: list[tuple[int, int]]
    ended: int | None = None
    why: str = ""
    given_up: int | None = None
    renewed: bool = False
    told: int | None = None
    hold_until: int | None = None
    fence: int = 0
    asked_at: int = 0
    in_doubt: InDoubt | None = None
    started_at: int | None = None

    @property
    def valid_until(self) -> int:
        """The end of its validity on its client's clock; in the past once it has ended."""
        return 0 if self.ended is not None else self.promises[-1][1]


@dataclass(slots=True)
class CallRecord:
    """One call of a client.

    Attributes:
        began, ended: true instants; `ended` is None if it never returned.
        read: the client's clock at its start.
        allowed: the longest duration on the client's clock; None: without limit.
    """

    number: int
    client: int
    what: str
    resource: str
    token: bytes
    began: int
    read: int
    allowed: int | None
    ended: int | None = None
    outcome: str = ""
    late_by: int = 0


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept.

    Attributes:
        rule: the promise, a name in `oracle.RULES`.
        text: the violation in a sentence.
        at: a true instant at which it shows.
        facts: details for the views: tokens, clients, intervals.
    """

    rule: str
    text: str
    at: int
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class History:
    """Everything that the oracle reads, except the clocks."""

    leases: list[LeaseRecord] = field(default_factory=list[LeaseRecord])
    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    # Violations that the world found while it ran:
    found: list[Violation] = field(default_factory=list[Violation])
    # These count only if the assumptions about clocks and memory held:
    uncovered: list[Violation] = field(default_factory=list[Violation])
    # Instant, node and reason of each loss of keys:
    forgotten: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    # Fences that nodes issued, and counters that they lost.
    issues: list[Issue] = field(default_factory=list["Issue"])
    losses: list[Loss] = field(default_factory=list["Loss"])
    # The number of faults by kind and phase:
    phases: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    faults_during_an_attempt: int = 0
    messages: int = 0
    events: int = 0
