"""What happened in a simulated world, as far as a judge needs it. Facts only, in true time (ns)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorlock._core.effects import Receipt
    from quorlock.testing.fences import Issue, Loss


@dataclass(slots=True)
class Lease:
    """A lock that was won: what its holder may have trusted, and for how long.

    Attributes:
        since: when it was won.
        promises: (true instant, valid_until on the client's own clock): the first by the
            acquire, then one for every extension that was counted.
        ended: when it ended locally; None: it was left to run out.
        why: how it ended.
        renewed: it extends itself; `told`: when its loss was told then, `hold_until`: how far, on
            its client's clock, it may go.
        fence: 0 if it has none. asked_at: when the attempt that won it began.
    """

    client: int
    token: bytes
    resource: str
    key: bytes
    ttl_ms: int
    since: int
    receipt: Receipt | None
    promises: list[tuple[int, int]]
    ended: int | None = None
    why: str = ""
    renewed: bool = False
    told: int | None = None
    hold_until: int | None = None
    fence: int = 0
    asked_at: int = 0

    @property
    def valid_until(self) -> int:
        """On its client's clock; in the past once it has ended."""
        return 0 if self.ended is not None else self.promises[-1][1]


@dataclass(slots=True)
class Call:
    """One call of a client.

    Attributes:
        began, ended: true instants; `ended` None: it never came back.
        read: its clock when it began.
        allowed: how long it may take on its own clock; None: no limit was given.
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
        rule: which, a name in `checker.RULES`.
        text: what happened, in a sentence.
        at: a true instant at which it is to be seen.
        facts: for those who show it: tokens, clients, intervals.
    """

    rule: str
    text: str
    at: int
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class History:
    """Everything that a judge looks at, besides the clocks."""

    leases: list[Lease] = field(default_factory=list[Lease])
    calls: list[Call] = field(default_factory=list[Call])
    # Found by the world itself, on the spot:
    found: list[Violation] = field(default_factory=list[Violation])
    # And what is one only where clocks and memory were as they must be:
    uncovered: list[Violation] = field(default_factory=list[Violation])
    # At, node, how:
    forgotten: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    # Fences that nodes issued, and counters that they lost.
    issues: list[Issue] = field(default_factory=list["Issue"])
    losses: list[Loss] = field(default_factory=list["Loss"])
    # Fault and phase: how often.
    phases: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    faults_during_an_attempt: int = 0
    messages: int = 0
    events: int = 0
