"""Results of rounds and attempts, and the facts of leases: data only, no procedure."""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import NamedTuple

from quorlock._core.claims import Claim
from quorlock._core.commands import Release
from quorlock._core.rounds import SentRound
from quorlock._core.time import Instant
from quorlock._core.votes import Answer
from quorlock.errors import VoteCode


class NodeStatus(NamedTuple):
    """One node as this process sees it now.

    Attributes:
        address: its address, without user info.
        up: whether the last contact succeeded and the node may vote.
        why: what is wrong; "" while it is up.
        latency: seconds that its last reply took; None before the first.
        version: the server's version; "" while unknown.
        code: what is wrong, for programs; None while it is up.
        queues: whether the node can call waiters (docs/explanation/waiting.md); True until one has
            asked in vain.
        queues_why: why it cannot; "" while it can.
    """

    address: str
    up: bool
    why: str
    latency: float | None
    version: str
    code: VoteCode | None = None
    queues: bool = True
    queues_why: str = ""


class FailureReason(Enum):
    """The reason why an attempt did not win."""

    HELD = "held"  # a quorum replied about the lock, and another client holds it
    LATE = "late"  # a quorum granted, but the validity was over by then
    UNFENCED = "unfenced"  # a quorum granted, but none issued the same fence
    QUARANTINED = "quarantined"  # with the nodes that vote later, a quorum is there
    UNREACHABLE = "unreachable"  # fewer than a quorum replied
    FAULTY = "faulty"  # replies came, too many of them errors that may pass
    FORBIDDEN = "forbidden"  # too many nodes have a lasting fault


class LossReason(Enum):
    """The reason why a lease is over."""

    EXPIRED = "expired"
    TAKEN = "taken"
    UNREACHABLE = "unreachable"
    EVICTED = "evicted"  # its keys are gone early, and no other client has them


class Acquired(NamedTuple):
    """An attempt that won: the facts of a lease. fence: 0 if none was requested."""

    claim: Claim
    token: bytes
    ttl_ms: int
    valid_until: Instant
    answers: tuple[Answer, ...]
    sent_round: SentRound
    fence: int = 0

    @property
    def release(self) -> Release:
        """Return the command that releases it."""
        return self.claim.release(self.token)


class AttemptFailed(NamedTuple):
    """An attempt that did not win; it has been released on all nodes.

    attempts: how many were made in all, with those before it in a wait; 0 if the wait ended without
    any.  key: the one of the claim's keys that most nodes found held; the first if none did.
    """

    reason: FailureReason
    answers: tuple[Answer, ...]
    started: Instant
    ended: Instant
    key: bytes
    attempts: int = 1


class Extended(NamedTuple):
    """A won extension: the lease is valid at least until `valid_until`."""

    valid_until: Instant
    answers: tuple[Answer, ...]


class ExtendFailed(NamedTuple):
    """An extension that did not win: the lease is over for good."""

    reason: LossReason
    answers: tuple[Answer, ...]


def is_unreachable(outcome: Extended | ExtendFailed) -> bool:
    """Return whether the lease was only not confirmed in time: no quorum denied it."""
    return isinstance(outcome, ExtendFailed) and outcome.reason is LossReason.UNREACHABLE


class ReleaseResult(NamedTuple):
    """The replies to a release. `deleted`: a quorum had our key and deleted it."""

    deleted: bool
    gone: LossReason | None  # why our key was no longer on a quorum; None: it may have been
    answers: tuple[Answer, ...]
    ended: Instant  # for the error of a failed release; PAST in a result that is shared


_new = getattr(tuple, "__new__")  # noqa: B009
# As `Acquired(...)`, without the Python call of a named tuple; see `replied` in rounds.py.
acquired: Callable[
    [tuple[Claim, bytes, int, Instant, tuple[Answer, ...], SentRound, int]], Acquired
] = partial(_new, Acquired)
