"""The restart guard: how long a node that came up lately keeps out, and in which words.

Redlock page, "Performance, crash recovery and fsync": a node that crashed may have forgotten keys
on which a lease rests, so it must not vote until every lease that existed at the crash is over:
max_ttl after it came up.  Leaves asking the node to the handshake, and keeping it out to the
drivers (docs/decisions/0013-restart-guard.md).
"""

from typing import TYPE_CHECKING, NamedTuple

from quorlock._core.commands import ACQUIRES, Extend, Raise
from quorlock._core.outcomes import Answer, Cause, Vote
from quorlock._core.time import NS_PER_MS, NS_PER_S, Duration, Instant, drift

if TYPE_CHECKING:
    from quorlock._core.policy import Policy

# INFO subtracts whole seconds of the wall clock from whole seconds: it said up to 0.96 s more than
# was true (measured on Redis 7.0).
UPTIME_RESOLUTION: Duration = NS_PER_S
# Ten years: who tells more came up with its clock in 1970, and has set it since.
UPTIME_BELIEVED: Duration = 10 * 365 * 86_400 * NS_PER_S

# What a node is not asked while it is kept out.  Not for extensions either: counted there, it lets
# a second holder in (found by a model checker, 15 steps).  Releases and reports go on.
VOTES = (*ACQUIRES, Extend, Raise)


class Quarantine(NamedTuple):
    """A node that is kept out.

    since: when, at the earliest, that happened for which it is; None: it does not tell.
    until: from then on it votes.
    what: what happened.
    """

    since: Instant | None
    until: Instant
    what: str = "restarted"


class Guard:
    """What one client knows of one node's process.

    quarantine: of that process; None: it may vote, or nobody guards it.
    """

    def __init__(self, policy: "Policy") -> None:
        self.quarantine: Quarantine | None = None
        self._policy = policy
        self._run_id = ""

    def met(
        self,
        run_id: str,
        uptime_s: int | None,
        told_at: Instant,
        *,
        exempt: bool = False,
        marked_ms: int = 0,
    ) -> Quarantine | None:
        """A new connection leads to that process: how long it keeps out.

        marked_ms: what its marker says, where that is what guards.
        """
        policy = self._policy
        found: Quarantine | None = None
        if policy.restart_guard == "marker":
            found = by_marker(marked_ms, told_at, policy.max_ttl, policy.drift_factor)
        elif policy.restart_guard == "uptime" and not exempt:
            found = quarantine(uptime_s, told_at, policy.max_ttl, policy.drift_factor)
        if found is not None and run_id == self._run_id and policy.restart_guard == "uptime":
            # What it tells errs to the safe side, each time by another bit: the best of it counts.
            known = self.quarantine
            found = known if known is None or known.until < found.until else found
        self._run_id, self.quarantine = run_id, found
        return found


def quarantine(
    uptime_s: int | None, told_at: Instant, max_ttl: Duration, drift_factor: float
) -> Quarantine | None:
    """Whether a node keeps out that has been up for so long, and until when.

    told_at: when the answer was there.  Not when it was asked for: the node told its uptime some
    time in between, and had been up for less than that before.
    """
    uptime = None if uptime_s is None else uptime_s * NS_PER_S
    if uptime is None or not 0 <= uptime < UPTIME_BELIEVED:
        uptime = None  # a clock that was set, or no such server: it may have come up just now
    surely_up = 0 if uptime is None else max(0, uptime - UPTIME_RESOLUTION)
    until = _until(surely_up, told_at, max_ttl, drift_factor)
    if until <= told_at:
        return None
    return Quarantine(None if uptime is None else told_at - uptime, until)


def by_marker(
    marked_ms: int, told_at: Instant, max_ttl: Duration, drift_factor: float
) -> Quarantine | None:
    """The same of a node whose marker is so old (scripts/guard.lua)."""
    marked = marked_ms * NS_PER_MS
    until = _until(marked, told_at, max_ttl, drift_factor)
    if until <= told_at:
        return None
    return Quarantine(told_at - marked, until, "restarted, emptied or first used")


def _until(known: Duration, told_at: Instant, max_ttl: Duration, drift_factor: float) -> Instant:
    """When everything is over that it may have forgotten, if it forgot nothing for so long.

    The holder trusts a lease for ttl * (1 - drift_factor) by its own clock.  That covers a holder
    that is slow against the nodes; ours may be as fast against them, and so waits longer.
    """
    return told_at + max_ttl + drift(max_ttl, drift_factor) - known


def kept_out(kept: Quarantine, now: Instant) -> Answer | None:
    """The vote of a node that is kept out; None: it may vote by now."""
    if now >= kept.until:
        return None
    return Answer(Vote.UNKNOWN, Cause.RESTARTED, _words(kept, now))


def _words(kept: Quarantine, now: Instant) -> str:
    since = "does not tell since when it is up"
    if kept.since is not None:
        since = f"{kept.what} {max(0, now - kept.since) // NS_PER_S} s ago"
    left = -((now - kept.until) // NS_PER_S)  # rounded up
    fix = "restart_guard=None where nodes are born empty (tests, CI)"
    return f"{since}, votes again in {left} s; {fix}"
