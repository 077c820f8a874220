"""What can go wrong, as a tree. Leaves the causes to the nodes' votes.

    QuorlockError
    ├─ AcquireError          .resource .votes .attempts .elapsed
    │  ├─ AcquireTimeout     also TimeoutError: somebody else held it to the end
    │  └─ QuorumUnreachable  too many nodes did not answer; which, and why
    ├─ LeaseLost             .lease .reason (expired | taken | unreachable | evicted)
    ├─ HoldLimitReached      .resource .max_hold: a lease may not be extended for ever
    ├─ StaleFence            .resource .fence .seen: a later holder has been there
    ├─ NodeError             .resource .votes: nodes answered what they never should
    └─ ConfigError           also ValueError: .argument .value .fix

Facts are attributes; the sentence is built when somebody asks for it.  A password never
reaches this module: addresses come without user info, server texts come redacted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock._core.outcomes import NodeVote


class QuorlockError(Exception):
    """Anything that quorlock raises on its own account."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Errors travel between processes (multiprocessing, Celery): rebuilt from their facts.
        return _rebuild, (type(self), self.facts())

    def facts(self) -> dict[str, Any]:
        """The attributes, as the constructor takes them."""
        return {"message": self.message}


# The words of `Cause.UNHEARD` (this module imports nothing): the verdict fell without that node.
_UNHEARD = "not waited for"
# And those of `Cause.UNFENCED`.
_UNFENCED = "granted, but issued another fence"
_LOOK = "look at these nodes"


def _rebuild(kind: type[QuorlockError], facts: dict[str, Any]) -> QuorlockError:
    return kind(**facts)


class ConfigError(QuorlockError, ValueError):
    """An argument or a set-up that cannot work, found before anything was sent.

    Attributes:
        argument: the argument's name, as in the signature (`ttl`, `nodes[1]`).
        value: what was given, passwords taken out.
        fix: what to do.
    """

    def __init__(self, argument: str, value: object, fix: str) -> None:
        self.argument = argument
        self.value = value
        self.fix = fix
        super().__init__(f"{argument}={_shortened(value)}: {fix}")

    def facts(self) -> dict[str, Any]:
        """The attributes, as the constructor takes them."""
        return {
            "argument": self.argument,
            "value": _Quoted(_shortened(self.value)),
            "fix": self.fix,
        }


class _Voted(QuorlockError):
    """What the errors that follow a round have in common."""

    def __init__(
        self, resource: str, votes: Sequence[NodeVote], attempts: int, elapsed: float
    ) -> None:
        super().__init__()
        self.resource = resource
        self.votes = tuple(votes)
        self.attempts = attempts
        self.elapsed = elapsed

    def facts(self) -> dict[str, Any]:
        """The attributes, as the constructor takes them."""
        return {
            "resource": self.resource,
            "votes": self.votes,
            "attempts": self.attempts,
            "elapsed": self.elapsed,
        }

    def _effort(self) -> str:
        tries = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return f"after {tries} in {_seconds(self.elapsed)}"


class AcquireError(_Voted):
    """The lock was not acquired; nothing of ours is left on a node that can be reached.

    Attributes:
        resource: the name that was asked for.
        votes: what every node said in the last attempt.
        attempts: how many there were.
        elapsed: seconds from the call to the end of the last attempt.
    """


class AcquireTimeout(AcquireError, TimeoutError):
    """Somebody else held the resource until our time was up.

    Attributes:
        holder_ttl: seconds until the holder's lease ends on a quorum by itself, at the
            most; None when no node told or when it does not end.
    """

    def __init__(
        self,
        resource: str,
        votes: Sequence[NodeVote],
        attempts: int,
        elapsed: float,
        holder_ttl: float | None = None,
    ) -> None:
        super().__init__(resource, votes, attempts, elapsed)
        self.holder_ttl = holder_ttl

    def __str__(self) -> str:
        return f"{self.resource!r} {self._why()} {self._effort()}{self._hint()}"

    def _why(self) -> str:
        n = len(self.votes)
        granted = sum(vote.vote == "granted" for vote in self.votes)
        if granted > n // 2:
            return f"was granted by {granted} of {n} nodes, but too late to be valid"
        if any(vote.cause == _UNFENCED for vote in self.votes):
            return "was granted by a quorum of nodes, but they did not agree on a fence"
        refused = [vote.node for vote in self.votes if vote.vote == "refused"]
        which = f" ({', '.join(refused)})" if len(refused) < n else ""
        return f"is held by another: {len(refused)} of {n} nodes refused{which}"

    def _hint(self) -> str:
        if self.holder_ttl is not None:
            return f"; the holder's lease ends in at most {_seconds(self.holder_ttl)}"
        if any("without ttl" in vote.cause for vote in self.votes):
            return "; the key there has no ttl and is no lock of ours: delete it if nobody needs it"
        return ""

    def facts(self) -> dict[str, Any]:
        """The attributes, as the constructor takes them."""
        return {**super().facts(), "holder_ttl": self.holder_ttl}


class QuorumUnreachable(AcquireError):
    """Too many nodes did not answer: whether somebody holds it is not known.

    Fewer than a quorum answered, or, by bare token, the answers do not agree and those that
    could decide it did not come.
    """

    def __str__(self) -> str:
        silent = [vote for vote in self.votes if not vote.answered and vote.cause != _UNHEARD]
        return f"{self.resource!r}: {self._count()} ({_causes(silent)}), {self._effort()}; {_LOOK}"

    def _count(self) -> str:
        n = len(self.votes)
        answered = sum(vote.answered for vote in self.votes)
        # A node that the verdict did not wait for is not to blame, and would not have decided it.
        if answered <= n // 2 and all(vote.cause != _UNHEARD for vote in self.votes):
            return f"{answered} of {n} nodes answered, {_needed(n)}"
        granted = sum(vote.vote == "granted" for vote in self.votes)
        refused = sum(vote.vote == "refused" for vote in self.votes)
        return (
            f"{granted} of {n} nodes granted it and {refused} refused, {_needed(n)};"
            f" those that did not answer could decide it"
        )


class NodeError(_Voted):
    """Nodes answered what they never should, so many that no quorum is left without them.

    Wrong type of data at the key, no permission, wrong password, read-only, out of memory,
    not a Redis server: something to mend on the nodes or in the configuration.
    Attributes as those of `AcquireError`.
    """

    def __str__(self) -> str:
        faulty = [vote for vote in self.votes if not vote.fit]
        return (
            f"{self.resource!r}: {len(faulty)} of {len(self.votes)} nodes cannot vote"
            f" ({_causes(faulty)}), {self._effort()}; mend these nodes or their settings"
        )


class LeaseLost(QuorlockError):
    """The lease is over: what it protected may be somebody else's by now.

    Attributes:
        lease: the lease, or None where the error crossed to another process.
        reason: "expired" (its time ran out), "taken" (a node holds another's key),
            "unreachable" (no quorum confirmed it while it was valid), "evicted" (its keys are
            gone before their time: eviction, FLUSHALL, a restart without memory, a DEL).
        resource: its name.
        votes: what the nodes said, where a round found it out.
    """

    _SENTENCES: ClassVar[dict[str, str]] = {
        "expired": "its time ran out or its keys are gone",
        "taken": "somebody else holds it",
        "unreachable": "no quorum of nodes confirmed it before its validity ended",
        "evicted": "its keys are gone before their time",
    }

    def __init__(
        self,
        resource: str,
        reason: str,
        lease: object = None,
        votes: Sequence[NodeVote] = (),
    ) -> None:
        self.resource = resource
        self.reason = reason
        self.lease = lease
        self.votes = tuple(votes)
        super().__init__(f"lease on {resource!r} is lost: {self._SENTENCES[reason]}")

    def __str__(self) -> str:
        against = [vote for vote in self.votes if vote.vote != "granted"]
        said = f" ({_causes(against)})" if against else ""
        return f"{self.message}{said}; stop what it protected, then acquire anew"

    def facts(self) -> dict[str, Any]:
        """The attributes, as the constructor takes them."""
        return {"resource": self.resource, "reason": self.reason, "votes": self.votes}


class HoldLimitReached(QuorlockError):
    """The lease may not be extended any more: `max_hold` is spent. It goes on until it ends.

    Attributes:
        resource: its name.
        max_hold: how long it may be held in all, in seconds.
    """

    def __init__(self, resource: str, max_hold: float) -> None:
        self.resource = resource
        self.max_hold = max_hold
        super().__init__(
            f"lease on {resource!r} may be held for max_hold={max_hold:g} s in all, and this"
            f" extension would pass that: release it, or give a longer max_hold (math.inf: no end)"
        )

    def facts(self) -> dict[str, Any]:
        """The attributes, as the constructor takes them."""
        return {"resource": self.resource, "max_hold": self.max_hold}


class StaleFence(QuorlockError):
    """What a lock protects refused a fence: it has seen a larger one, that of a later holder.

    Attributes:
        resource: what refused: the resource, row, key or file.
        fence: the one that was refused.
        seen: the largest that was accepted there.
    """

    def __init__(self, resource: str, fence: int, seen: int) -> None:
        self.resource = resource
        self.fence = fence
        self.seen = seen
        super().__init__(
            f"{resource!r} refuses fence {fence}: it has seen {seen}, of a later holder;"
            f" stop what the lease protected, then acquire anew"
        )

    def facts(self) -> dict[str, Any]:
        """The attributes, as the constructor takes them."""
        return {"resource": self.resource, "fence": self.fence, "seen": self.seen}


def _causes(votes: Sequence[NodeVote]) -> str:
    return ", ".join(f"{vote.node}: {vote.cause}" for vote in votes)


class _Quoted:
    """A value that is known by its repr alone, in another process."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _shortened(value: object, limit: int = 80) -> str:
    if isinstance(value, _Quoted):
        return repr(value)
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
