"""The errors, as a tree.

    QuorlockError
    ├─ AcquireError          .resource .votes .attempts .elapsed
    │  ├─ AcquireTimeout     also TimeoutError: another client held the lock to the end
    │  ├─ AcquireStopped     the event `stop` of the acquire was set
    │  └─ QuorumUnreachable  too few nodes replied; .votes has the nodes and reasons
    ├─ LeaseLost             .lease .reason (expired | taken | unreachable | evicted | …)
    ├─ HoldLimitReached      .resource .max_hold: the limit of extending a lease
    ├─ StaleFence            .resource .fence .seen: a later holder has written
    ├─ NodeError             .resource .votes: nodes returned unexpected errors
    └─ ConfigError           also ValueError: .argument .value .fix

Facts are attributes; the sentence is built by `str`.  `args` holds the same facts, as the
constructor takes them and as JSON knows them: `type(e)(*e.args)` is the same error in another
process.  Celery sends `args` and no more.  A password never reaches this module: addresses come
without user info, server texts come redacted.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

Vote: TypeAlias = "NodeVote | Sequence[Any]"


class VoteCode(StrEnum):
    """The reason for a node's vote, for programs; the values are stable, and JSON has them."""

    GRANTED = "granted"
    HELD = "held"
    HELD_WITHOUT_TTL = "held_without_ttl"  # by a key that never expires: no lock of quorlock
    KEY_MISSING = "key_missing"
    NOT_SET = "not_set"  # not asked: the lock was never set there
    RELEASE_PENDING = "release_pending"  # not asked: a release of the lock is pending there
    FENCE_MISMATCH = "fence_mismatch"  # granted, but the node issued another fence
    WRONG_TYPE = "wrong_type"  # the key holds another type of data
    ACCESS_DENIED = "access_denied"  # a login or a right is missing
    PERMANENT_ERROR = "permanent_error"  # another error that an operator must fix: a replica
    TRANSIENT_ERROR = "transient_error"  # an error that may pass: loading, busy, out of memory
    CLOCK_SKEW = "clock_skew"  # the node's clock or fence counter differs too much for fences
    PROTOCOL_ERROR = "protocol_error"  # no reply of the Redis protocol
    TIMED_OUT = "timed_out"  # no reply in time
    NOT_AWAITED = "not_awaited"  # the verdict was decided without this node
    CONNECTION_LOST = "connection_lost"  # before the reply
    NOT_CONNECTED = "not_connected"  # nothing was sent
    CONNECT_TIMED_OUT = "connect_timed_out"  # nothing was sent: no answer to connecting
    NOT_ADMITTED = "not_admitted"  # nothing was sent: the node replies, and may not vote yet
    BACKLOG = "backlog"  # nothing was sent: too many replies are pending
    LOCAL_QUEUE_TIMEOUT = "local_queue_timeout"  # nothing was sent: too many calls in this process
    QUARANTINED = "quarantined"  # casts no vote yet: the restart guard

    @property
    def is_error(self) -> bool:
        """Return whether the node replied with an error, or is not fit to vote."""
        return self in _ERRORS

    @property
    def is_permanent(self) -> bool:
        """Return whether the error stays until an operator fixes it."""
        return self in _PERMANENT


_PERMANENT = frozenset(
    {
        VoteCode.WRONG_TYPE,
        VoteCode.ACCESS_DENIED,
        VoteCode.PERMANENT_ERROR,
        VoteCode.PROTOCOL_ERROR,
    }
)
_ERRORS = _PERMANENT | {VoteCode.TRANSIENT_ERROR, VoteCode.CLOCK_SKEW}


VoteWord: TypeAlias = Literal["granted", "refused", "unknown"]


class NodeQuarantine(NamedTuple):
    """The time for which the restart guard keeps a node from voting, and the reason.

    Attributes:
        event: what happened to the node, in words for people.
        since: seconds since then; None if the node does not report it.
        votes_in: seconds until the node votes.
    """

    event: str
    since: float | None
    votes_in: float


class NodeVote(NamedTuple):
    """The vote of one node, as users see it.

    Attributes:
        node: its address, without user info.
        vote: "granted", "refused" or "unknown" (no reply: it may have been granted).
        cause: the reason, in words for people.
        answered: whether it replied, even with an error.
        code: the reason, for programs.
        quarantine: how long the restart guard keeps the node from voting; None if it does not, or
            if that time has no known end.
    """

    node: str
    vote: VoteWord
    cause: str
    answered: bool
    code: VoteCode
    quarantine: NodeQuarantine | None = None


class QuorlockError(Exception):
    """The base of all errors that quorlock raises."""

    def __init__(self, message: str = "") -> None:
        super().__init__()
        self.message = message
        self.args: tuple[Any, ...] = (message,)

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the attributes, except notes: a lease cannot be pickled.
        notes = getattr(self, "__notes__", None)
        return type(self), self.args, {"__notes__": notes} if notes else None


_LOOK = "check these nodes"
_FRESH = "wait, or mark nodes that are new: quorlock nodes fresh"


class ConfigLimit(NamedTuple):
    """A bound that a duration is beyond.

    Attributes:
        argument: what sets the bound: `max_ttl`, `node_timeout`, `ttl` or `renew`.
        seconds: the bound.
        is_most: whether values up to the bound are valid; else those from it on.
    """

    argument: str
    seconds: float
    is_most: bool


class ConfigError(QuorlockError, ValueError):
    """An argument or a set-up that cannot work, found before anything was sent.

    Attributes:
        argument: the argument's name, as in the signature (`ttl`, `nodes[1]`).
        value: the given value, without passwords.  In another process a long value, or one that
            JSON does not know, is text.
        fix: what to do.
        limit: the bound that the value is beyond; None if there is none.
    """

    def __init__(
        self,
        argument: str,
        value: object,
        fix: str,
        shown: str | None = None,
        limit: ConfigLimit | Sequence[Any] | None = None,
    ) -> None:
        self.argument = argument
        self.value = value
        self.fix = fix
        shown = _shortened(value) if shown is None else shown
        super().__init__(f"{argument}={shown}: {fix}")
        plain = value if _is_plain(value) else shown
        told = (argument, plain, fix)
        self.args: tuple[Any, ...] = told if _shortened(plain) == shown else (*told, shown)
        parts: Any = limit  # in another process a list
        self.limit: ConfigLimit | None = None if parts is None else ConfigLimit(*parts)
        if self.limit is not None:
            self.args = (*told, shown, list(self.limit))


class _Voted(QuorlockError):
    """The part that the errors of a round share: resource, votes, attempts and time."""

    def __init__(self, resource: str, votes: Iterable[Vote], attempts: int, elapsed: float) -> None:
        super().__init__()
        self.resource = resource
        self.votes: tuple[NodeVote, ...] = _votes(votes)
        self.attempts = attempts
        self.elapsed = elapsed
        self.args: tuple[Any, ...] = (resource, _plain_votes(self.votes), attempts, elapsed)

    def _effort(self) -> str:
        if not self.attempts:
            return f"after {_seconds(self.elapsed)} in line"
        tries = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return f"after {tries} in {_seconds(self.elapsed)}"


class AcquireError(_Voted):
    """The lock was not acquired; no key of it is left on a node that can be reached.

    Attributes:
        resource: the name of the resource.
        votes: the vote of every node in the last attempt, perhaps of another waiter of this
            process.
        attempts: the number of attempts; 0 if it waited in line behind others of this process.
        elapsed: seconds from the call to its end.
    """


class AcquireTimeout(AcquireError, TimeoutError):
    """Another client held the resource until the timeout.

    Attributes:
        holder_ttl: the most seconds until the holder's keys expire on a quorum; None if no node
            reported it, or if they do not expire.
        holder: who holds it, by the `owner` of its `Redlock` (host:pid by default); None if no
            quorum of nodes names the same, or if the client that holds it has none.  It is what
            another client has written: show it, and decide nothing by it.
        in_the_way: the name of the resource that is held; of several, that of one of them.
        permits: of a semaphore, how many permits it has, of which none was granted; of `any_of`,
            how many resources.  Then `holder_ttl` is about the first that is free, of those that
            the last attempt asked for.  None for a lock.
        shared_by: how many share the lock (`shared=True`); then `holder` names a few of them.  None
            if one client holds it alone.
        done: True if no client holds it, and its work counts as done (`once`, `keep`) for
            `holder_ttl`; `holder` did it.
    """

    def __init__(
        self,
        resource: str,
        votes: Iterable[Vote],
        attempts: int,
        elapsed: float,
        holder_ttl: float | None = None,
        holder: str | None = None,
        in_the_way: str | None = None,
        permits: int | None = None,
        shared_by: int | None = None,
        done: bool | None = None,  # noqa: FBT001 (as `args` has it)
    ) -> None:
        super().__init__(resource, votes, attempts, elapsed)
        self.holder_ttl = holder_ttl
        self.holder = holder
        self.in_the_way: str = resource if in_the_way is None else in_the_way
        self.permits = permits
        self.shared_by = shared_by
        self.done: bool = bool(done)
        more = [in_the_way, permits, shared_by, done]
        while more and more[-1] is None:
            more.pop()
        self.args: tuple[Any, ...] = (*self.args, holder_ttl, holder, *more)

    def __str__(self) -> str:
        if self.permits is not None:
            return f"{self.resource!r}: {self._why_no_permit()} {self._effort()}{self._hint()}"
        why = self._why()
        if self.in_the_way != self.resource and why.startswith(("is held", "was done")):
            why = f": {self.in_the_way!r} {why}"
        else:
            why = f" {why}"
        return f"{self.resource!r}{why} {self._effort()}{self._hint()}"

    def _why(self) -> str:
        n = len(self.votes)
        granted = sum(vote.vote == "granted" for vote in self.votes)
        if granted > n // 2:
            return f"was granted by {granted} of {n} nodes, but too late to be valid"
        if any(vote.code is VoteCode.FENCE_MISMATCH for vote in self.votes):
            return "was granted by a quorum of nodes, but they did not agree on a fence"
        refused = [vote.node for vote in self.votes if vote.vote == "refused"]
        which = f" ({', '.join(refused)})" if len(refused) < n else ""
        state = "was done" if self.done else "is held"
        return f"{state} by {self._holders()}: {len(refused)} of {n} nodes refused{which}"

    def _holders(self) -> str:
        if self.shared_by is None:
            return self.holder or "another"
        named = f" ({self.holder})" if self.holder else ""
        return f"{self.shared_by} who share it{named}" if self.shared_by > 1 else f"a reader{named}"

    def _why_no_permit(self) -> str:
        n = len(self.votes)
        granted = sum(vote.vote == "granted" for vote in self.votes)
        if granted > n // 2:
            return f"a permit was granted by {granted} of {n} nodes, but too late to be valid"
        several = getattr(self.resource, "names", None)  # of `any_of`
        # Not that all are held: the last attempt may have had no time to ask for each of them.
        many = f"none of {self.permits} {'' if several else 'permits '}was granted"
        if self.permits == 1:
            many = "the only one is held" if several else "the only permit is held"
        refused = [vote.node for vote in self.votes if vote.vote == "refused"]
        which = f": {', '.join(refused)}" if len(refused) < n else ""
        return f"{many} ({len(refused)} of {n} nodes refused{which})"

    def _hint(self) -> str:
        if self.permits is not None:
            left = self.holder_ttl
            first = "; the first is free in at most"
            return "" if left is None else f"{first} {_seconds(left)}"
        if self.holder_ttl is not None:
            most = _seconds(self.holder_ttl)
            if self.done:
                return f"; it counts as done for at most {most} more"
            whose = "the holder's lease ends" if self.shared_by is None else "the last lease ends"
            return f"; {whose} in at most {most}"
        if any(vote.code is VoteCode.HELD_WITHOUT_TTL for vote in self.votes):
            why = "the key there has no ttl, so it is no lock of quorlock"
            return f"; {why}: delete it if no program needs it"
        return ""


class AcquireStopped(AcquireError):
    """The event `stop` of the acquire was set before the lock was granted."""

    def __str__(self) -> str:
        when = self._effort() if self.attempts else "before the first attempt"
        return f"acquire of {self.resource!r} was stopped by its event {when}"


class QuorumUnreachable(AcquireError):
    """Too few nodes replied to know whether the lock is held.

    Fewer than a quorum replied; or, by bare token, the replies do not agree, and those that could
    decide it are missing.
    """

    def __str__(self) -> str:
        silent = [
            vote
            for vote in self.votes
            if vote.code.is_error or not (vote.answered or vote.code is VoteCode.NOT_AWAITED)
        ]
        kept_out = [vote for vote in silent if vote.quarantine]
        what, fix = f"{self._count()} ({_causes(silent)})", _LOOK
        if kept_out:
            n = len(self.votes)
            voted = sum(vote.answered and not vote.code.is_error for vote in self.votes)
            what = f"{voted} of {n} nodes voted, {_needed(n)} ({_causes(silent)})"
            fix = _FRESH if voted + len(kept_out) > n // 2 else _LOOK
        if kept_out and len(kept_out) == len(silent):
            what = self._quarantined(kept_out)
        return f"{self.resource!r}: {what}, {self._effort()}; {fix}"

    def _quarantined(self, kept_out: list[NodeVote]) -> str:
        """Return the facts where the restart guard alone keeps nodes from voting."""
        n, several = len(self.votes), [vote.quarantine for vote in kept_out if vote.quarantine]
        which = f" ({', '.join(vote.node for vote in kept_out)})" if len(kept_out) < n else ""
        votes_in = _whole_seconds([kept.votes_in for kept in several], math.ceil)
        is_one_event = len({kept.event for kept in several}) == 1
        causes = _event_words(several) if is_one_event else _causes(kept_out)
        return (
            f"{len(kept_out)} of {n} nodes{which} cast no vote for {votes_in} more and may have"
            f" forgotten locks (restart guard: {causes})"
        )

    def _count(self) -> str:
        n = len(self.votes)
        answered = sum(vote.answered for vote in self.votes)
        # A node that the verdict did not wait for has not failed, and would not have decided it.
        if answered <= n // 2 and all(vote.code is not VoteCode.NOT_AWAITED for vote in self.votes):
            return f"{answered} of {n} nodes answered, {_needed(n)}"
        granted = sum(vote.vote == "granted" for vote in self.votes)
        refused = sum(vote.vote == "refused" for vote in self.votes)
        return (
            f"{granted} of {n} nodes granted it and {refused} refused, {_needed(n)};"
            f" those that did not answer could decide it"
        )


class NodeError(_Voted):
    """Nodes returned unexpected errors, so many that no quorum is left without them.

    Wrong type of data at the key, no permission, wrong password, read-only, not a Redis server: fix
    the nodes or the configuration.  Loading, busy, out of memory: that may pass.

    Attributes as those of `AcquireError`.
    """

    def __str__(self) -> str:
        faulty = [vote for vote in self.votes if vote.code.is_error]
        return (
            f"{self.resource!r}: {len(faulty)} of {len(self.votes)} nodes cannot vote"
            f" ({_causes(faulty)}), {self._effort()}; {_fix(faulty)}"
        )


def _fix(faulty: Sequence[NodeVote]) -> str:
    stays = [vote.node for vote in faulty if vote.code is not VoteCode.TRANSIENT_ERROR]
    if not stays:
        return f"this may pass: try again, or {_LOOK}"
    if len(stays) == len(faulty):
        return "fix these nodes or their configuration"
    return f"fix {', '.join(stays)}, or the configuration; the other errors may pass"


LossWord: TypeAlias = Literal[
    "expired",
    "taken",
    "unreachable",
    "evicted",
    "gone",
    "released",
    "handed_over",
    "kept",
    "forked",
    "margin",
]


class LeaseLost(QuorlockError):
    """The lease is over: another client may hold the lock by now.

    `reason` says whether it was lost ("expired", "taken", "unreachable", "evicted", "gone"), or was
    ended by its own process ("released", "handed_over", "kept", "forked").  Or it is held, but for
    less time than the margin of `ensure` ("margin").

    Attributes:
        lease: the lease, or None if the error crossed to another process.
        reason: "expired" (its time ran out), "taken" (a node holds another's key), "unreachable"
            (no quorum confirmed it while it was valid), "evicted" (its keys are gone before their
            time: eviction, FLUSHALL, a restart without persistence, a DEL), "gone" (its keys are
            gone, early or not: the process that adopts a lease does not know), "released" or
            "handed_over" (this process ended it), "kept" (its work is done), "forked" (the parent
            process has it), "margin" (it is held, for less time than the margin).
        resource: the name of the resource.
        votes: the votes of the round that found it, if one did.
    """

    _SENTENCES: ClassVar[dict[LossWord, str]] = {
        "expired": "its time ran out",
        "taken": "another client holds it",
        "unreachable": "no quorum of nodes confirmed it before its validity ended",
        "evicted": "its keys are gone before their time",
        "gone": "its time ran out, or its keys were deleted",
    }
    # These are no losses: what happened, and what to do.
    _NOT_LOST: ClassVar[dict[LossWord, str]] = {
        "released": "was released by this process; acquire the lock again",
        "handed_over": "was handed over by this process; use the lease that `adopt` returns",
        "kept": "was kept as done by this process; it can be acquired when the mark has expired",
        "margin": "is held, but for less time than the margin; extend it before you go on",
        "forked": "belongs to the parent of this forked process; acquire the lock here",
    }

    def __init__(
        self,
        resource: str,
        reason: LossWord,
        votes: Iterable[Vote] = (),
        lease: object = None,
    ) -> None:
        self.resource = resource
        self.reason = reason
        self.votes: tuple[NodeVote, ...] = _votes(votes)
        self.lease = lease
        said = self._NOT_LOST.get(reason) or f"is lost: {self._SENTENCES[reason]}"
        super().__init__(f"lease on {resource!r} {said}")
        self.args: tuple[Any, ...] = (resource, reason, _plain_votes(self.votes))

    def __str__(self) -> str:
        if self.reason in self._NOT_LOST:
            return self.message
        against = [vote for vote in self.votes if vote.vote != "granted"]
        said = f" ({_causes(against)})" if against else ""
        return f"{self.message}{said}; stop the protected work, then acquire the lock again"


class HoldLimitReached(QuorlockError):
    """The lease may not be extended any more: `max_hold` is spent. It stays valid until it ends.

    Attributes:
        resource: the name of the resource.
        max_hold: how long it may be held in all, in seconds.
    """

    def __init__(self, resource: str, max_hold: float) -> None:
        self.resource = resource
        self.max_hold = max_hold
        super().__init__(
            f"lease on {resource!r} may be held for max_hold={max_hold:g} s in all, and this"
            f" extension would pass that: release it, or give a longer max_hold (math.inf: no end)"
        )
        self.args: tuple[Any, ...] = (resource, max_hold)


class StaleFence(QuorlockError):
    """A protected resource refused a fence: it has seen the larger one of a later holder.

    Attributes:
        resource: the name of what refused: a resource, row, key or file.
        fence: the fence that was refused.
        seen: the largest fence that was accepted there.
    """

    def __init__(self, resource: str, fence: int, seen: int) -> None:
        self.resource = resource
        self.fence = fence
        self.seen = seen
        super().__init__(
            f"{resource!r} refuses fence {fence}: it has seen {seen}, of a later holder;"
            " stop the protected work, then acquire the lock again"
        )
        self.args: tuple[Any, ...] = (resource, fence, seen)


def _causes(votes: Sequence[NodeVote]) -> str:
    """Return the causes, each once, with its nodes."""
    groups: dict[str, list[NodeVote]] = {}
    for vote in votes:
        # Seconds differ from node to node: one event is one cause.
        groups.setdefault(vote.quarantine.event if vote.quarantine else vote.cause, []).append(vote)
    return "; ".join(
        f"{', '.join(vote.node for vote in group)}: {_cause(group)}" for group in groups.values()
    )


def _cause(group: list[NodeVote]) -> str:
    several = [vote.quarantine for vote in group if vote.quarantine]
    return quarantine_words(several) if several else group[0].cause


def quarantine_words(several: Sequence[NodeQuarantine]) -> str:
    """Return the cause of nodes that the restart guard keeps from voting for the same reason."""
    votes_in = _whole_seconds([quarantine.votes_in for quarantine in several], math.ceil)
    return f"{_event_words(several)}, votes in {votes_in}"


def _event_words(several: Sequence[NodeQuarantine]) -> str:
    since = [quarantine.since for quarantine in several if quarantine.since is not None]
    ago = f" {_whole_seconds(since, math.floor)} ago" if since else ""
    return several[0].event + ago


def _whole_seconds(several: Sequence[float], rounded: Callable[[float], int]) -> str:
    least, most = rounded(min(several)), rounded(max(several))
    return f"{least} s" if least == most else f"{least} to {most} s"


def _votes(votes: Iterable[Vote]) -> tuple[NodeVote, ...]:
    """Return the votes as tuples; they may be lists from JSON."""
    return tuple(v if isinstance(v, NodeVote) else _vote(*v) for v in votes)


def _vote(
    node: str,
    vote: VoteWord,
    cause: str,
    answered: bool,  # noqa: FBT001
    code: str,
    quarantine: Sequence[Any] | None = None,
) -> NodeVote:
    kept = None if quarantine is None else NodeQuarantine(*quarantine)
    return NodeVote(node, vote, cause, answered, VoteCode(code), kept)


def _plain_votes(votes: Iterable[NodeVote]) -> list[list[Any]]:
    """Return the votes as lists that JSON knows."""
    return [
        [*vote[:4], vote.code.value, *([list(vote.quarantine)] if vote.quarantine else [])]
        for vote in votes
    ]


_LARGE = 2**63  # other languages read smaller ones as integers


def _is_plain(value: object, limit: int = 80) -> bool:
    """Return whether JSON knows the value, and it is short.

    Containers are always sent as text, with no more of them than the sentence shows.
    """
    if isinstance(value, str):
        return type(value) is str and len(value) <= limit
    if type(value) is float:
        return value - value == 0  # neither nan nor an infinity
    if type(value) is int:
        return -_LARGE < value < _LARGE
    return value is None or type(value) is bool


def _shortened(value: object, limit: int = 80) -> str:
    # Sliced before repr: a 10 MB value must not be copied several times to be shown.
    if isinstance(value, (str, bytes, bytearray)) and len(value) > limit:
        return f"{value[:limit]!r}… ({len(value)} long)"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 (integers too long to print, objects with a broken repr)
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 2 * limit else f"{text[: 2 * limit]}…"


def _needed(nodes: int) -> str:
    quorum = nodes // 2 + 1
    return f"{quorum} {'is' if quorum == 1 else 'are'} needed"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
