"""The restart guard: how long a recently started node is kept out, and in which words.

Redlock page, "Performance, crash recovery and fsync": a crashed node may have lost keys on which a
lease rests.  So it must not vote until every lease that existed at the crash is over: max_ttl after
it came up.  The handshake asks the node, and the drivers keep it out
(docs/contributing/decisions/0013-restart-guard.md).
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from quorlock._core.commands import ACQUIRES, Command, Extend, IssueFence, Keep
from quorlock._core.time import FOR_EVER, NS_PER_MS, NS_PER_S, Duration, Instant, drift, to_seconds
from quorlock._core.votes import Answer, Vote
from quorlock.errors import NodeQuarantine, VoteCode, quarantine_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorlock._core.config import Policy

# INFO subtracts whole seconds of the wall clock from whole seconds: it reported up to 0.96 s more
# than the true uptime (measured on Redis 7.0).
UPTIME_RESOLUTION: Duration = NS_PER_S
# Ten years: a server that reports more started with its clock in 1970, and has set it since.
UPTIME_BELIEVED: Duration = 10 * 365 * 86_400 * NS_PER_S

# Events, in words.
UNKNOWN_START = "does not report its uptime"
MARKED = "started, emptied or first used"

# The number of former processes of an address that are remembered; each restart adds one.
_FORMER_MAX = 16
_NEVER: Instant = -FOR_EVER

# Commands that are not sent to a node in quarantine.  Extensions are among them: counted there,
# they admit a second holder (found by a model checker, 15 steps).  Releases and inspections are
# sent.
VOTES = (*ACQUIRES, Extend, Keep, IssueFence)


class Quarantine(NamedTuple):
    """The reason and the end of a node's quarantine.

    since: the earliest instant of the event that caused it; None: the node does not report it.
    until: the instant from which the node votes.
    what: the event.
    is_lasting: neither a restart nor another connection ends it.
    is_endless: it may begin again at any time, until an operator changes the addresses.
    """

    since: Instant | None
    until: Instant
    what: str = "started"
    is_lasting: bool = False
    is_endless: bool = False


class GuardedConnection(Protocol):
    """A connection to the server process `run_id`."""

    run_id: str

    def supersede(self, text: str) -> None:
        """Close it, for this reason. Safe from any thread."""
        ...


class Guard:
    """The knowledge of one client about the processes behind one address.

    quarantine: of the present process; None: it may vote, or there is no guard.
    """

    def __init__(self, policy: "Policy") -> None:
        self.quarantine: Quarantine | None = None
        self._policy = policy
        self._run_id = ""
        self._alive_at = _NEVER  # the latest instant at which the process was surely alive
        # The processes that were replicas, and were not connected to since.
        self._replicas: dict[str, None] = {}
        self._former: tuple[str, ...] = ()  # the processes before it

    def on_alive(self, run_id: str, at: Instant) -> None:
        """Note that this process was alive at that instant."""
        if run_id == self._run_id:
            self._alive_at = max(self._alive_at, at)

    def on_demoted(
        self,
        run_id: str,
        connections: "Iterable[GuardedConnection]",
        why: str,
        *,
        but: object = None,
    ) -> None:
        """Note that this process is a replica now: its keys are replaced by another master's.

        Its connections are closed.  It may be a master again when they are used next, and only a
        new connection gets a quarantine.

        but: the connection that showed it, if one has, which its owner closes.
        """
        self._replicas[run_id] = None
        for old in list(self._replicas.copy())[:-_FORMER_MAX]:
            self._replicas.pop(old, None)
        for connection in connections:
            if connection.run_id == run_id and connection is not but:
                connection.supersede(why)

    def on_connect(
        self,
        run_id: str,
        uptime_s: int | None,
        told_at: Instant,
        *,
        exempt: bool = False,
        marked_ms: int = 0,
        open_rivals: bool = False,
    ) -> Quarantine | None:
        """Record a new connection to that process; return its quarantine.

        marked_ms: the age of its marker, if the guard is "marker".  open_rivals: connections to
        another process at this address are open.
        """
        known = self.quarantine
        found = self._by_policy(uptime_s, told_at, exempt=exempt, marked_ms=marked_ms)
        lasting = (
            known if known is not None and known.is_lasting and known.until > told_at else None
        )
        if self._run_id not in ("", run_id):
            if open_rivals or self._lived_beside(run_id, uptime_s, told_at):
                found = self._moved(run_id, told_at)
            self._former = (*self._former, self._run_id)[-_FORMER_MAX:]
            self._alive_at = _NEVER
        elif self._run_id and self._policy.restart_guard == "uptime":
            # Each reported uptime errs to the safe side by a different amount: the best one counts.
            found = _sooner(known, found)
        if run_id in self._replicas and not (found is not None and found.is_lasting):
            found = self._lasting(
                told_at, "was a replica, or loaded data: all its keys were replaced"
            )
        if found is not None and found.what == "started" and self._former:
            found = found._replace(what="restarted")
        self._run_id, self.quarantine = run_id, _later(lasting, found)
        self._replicas.pop(run_id, None)  # last: after an interrupt before it, it keeps out again
        return self.quarantine

    def _by_policy(
        self, uptime_s: int | None, told_at: Instant, *, exempt: bool, marked_ms: int
    ) -> Quarantine | None:
        policy = self._policy
        if policy.restart_guard == "marker":
            return quarantine_by_marker(marked_ms, told_at, policy.max_ttl, policy.drift_factor)
        if policy.restart_guard == "uptime" and not exempt:
            return quarantine_by_uptime(uptime_s, told_at, policy.max_ttl, policy.drift_factor)
        return None

    def _lived_beside(self, run_id: str, uptime_s: int | None, told_at: Instant) -> bool:
        """Return whether that process was up while the present one was alive.

        A restart ends a process before the next one begins.  If two are alive at the same time, the
        address leads to two servers, or has moved to another: the second lacks the keys of the
        first.
        """
        up_since = told_at - _surely_up(uptime_s)
        return run_id in self._former or up_since < self._alive_at

    def _moved(self, run_id: str, told_at: Instant) -> Quarantine:
        what = f"its address leads to run_id {run_id[:8]}…, and led to {self._run_id[:8]}…"
        kept = self._lasting(told_at, f"{what}, another living server")
        return kept._replace(is_endless=True)

    def _lasting(self, told_at: Instant, what: str) -> Quarantine:
        policy = self._policy
        until = _until(0, told_at, policy.max_ttl, policy.drift_factor)
        return Quarantine(None, until, what, is_lasting=True)


def quarantine_by_uptime(
    uptime_s: int | None, told_at: Instant, max_ttl: Duration, drift_factor: float
) -> Quarantine | None:
    """Return the quarantine that a node with this uptime needs; None: it may vote.

    told_at: the instant at which the reply was there, not the instant of the request.  The node
    read its uptime in between, and had been up for less than that before.
    """
    uptime = _uptime(uptime_s)
    surely_up = _surely_up(uptime_s)
    until = _until(surely_up, told_at, max_ttl, drift_factor)
    if until <= told_at:
        return None
    if uptime is None:
        return Quarantine(None, until, UNKNOWN_START)
    return Quarantine(told_at - uptime, until)


def _sooner(one: Quarantine | None, other: Quarantine | None) -> Quarantine | None:
    if one is None or other is None:
        return None
    return one if one.until < other.until else other


def _later(one: Quarantine | None, other: Quarantine | None) -> Quarantine | None:
    if one is None or other is None:
        return one or other
    return one if one.until > other.until else other


def _uptime(uptime_s: int | None) -> Duration | None:
    uptime = None if uptime_s is None else uptime_s * NS_PER_S
    if uptime is None or not 0 <= uptime < UPTIME_BELIEVED:
        return None  # a clock that was set, or another kind of server: it may have come up just now
    return uptime


def _surely_up(uptime_s: int | None) -> Duration:
    return max(0, (_uptime(uptime_s) or 0) - UPTIME_RESOLUTION)


def quarantine_by_marker(
    marked_ms: int, told_at: Instant, max_ttl: Duration, drift_factor: float
) -> Quarantine | None:
    """Return the quarantine that a node with a marker of this age needs (scripts/guard.lua)."""
    marked = marked_ms * NS_PER_MS
    until = _until(marked, told_at, max_ttl, drift_factor)
    if until <= told_at:
        return None
    return Quarantine(told_at - marked, until, MARKED)


def _until(known: Duration, told_at: Instant, max_ttl: Duration, drift_factor: float) -> Instant:
    """Return when every lease is over that the node may have lost, given what it surely knows.

    known: the duration before `told_at` of which it has lost nothing.  The holder trusts a lease
    for ttl * (1 - drift_factor) by its own clock.  That covers a holder that is slow against the
    nodes; this client may be as fast against them, so it waits longer.
    """
    return told_at + max_ttl + drift(max_ttl, drift_factor) - known


def over_limit(command: Command, ttl_ms_max: int) -> Answer | None:
    """Return the refusal of a ttl above the limit that the node's clients share; None: it fits."""
    ttl_ms = getattr(command, "ttl_ms", 0)
    if not ttl_ms_max or ttl_ms <= ttl_ms_max:
        return None
    text = (
        f"its clients agreed on max_ttl={ttl_ms_max / 1000:g}, and this lease is to last"
        f" {ttl_ms / 1000:g} s; `quorlock nodes max-ttl` raises it"
    )
    return Answer(Vote.UNKNOWN, VoteCode.PERMANENT_ERROR, text)


def quarantine_answer(kept: Quarantine, now: Instant) -> Answer | None:
    """Return the vote of a node in quarantine; None: the quarantine is over."""
    if now >= kept.until:
        return None
    since = None if kept.since is None else to_seconds(max(0, now - kept.since))
    found = kept_out(kept.what, since, to_seconds(kept.until - now))
    if not kept.is_endless:
        return found
    fix = "list independent masters, each by its own address"
    return found._replace(text=f"{found.text}; {fix}", quarantine=None)


def kept_out(event: str, since: float | None, votes_in: float) -> Answer:
    """Return the vote of a node that votes in so many seconds."""
    kept = NodeQuarantine(event, since, votes_in)
    text = quarantine_words([kept])
    return Answer(Vote.UNKNOWN, VoteCode.QUARANTINED, text, quarantine=kept)
