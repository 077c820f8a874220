"""What a node answered, what a round came to, what a lease is. Facts only, no procedure.

Named tuples, not dataclasses: made in half the time, and their classes in a fifth of it at import
(docs/decisions/0011-named-tuples-for-facts.md).
"""

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from quorlock._core.time import Instant

if TYPE_CHECKING:
    from quorlock._core.effects import Receipt


class Vote(Enum):
    """One node's answer, as the tally counts it."""

    GRANTED = "granted"
    REFUSED = "refused"
    UNKNOWN = "unknown"  # no answer: it may have been granted


class Cause(Enum):
    """Why a node voted as it did."""

    YES = "granted"
    HELD = "held by another"
    ABSENT = "the key is gone"
    UNFENCED = "granted, but issued another fence"
    WRONG_TYPE = "the key holds another type of data"
    FORBIDDEN = "refused by the server"  # will not pass by itself: password, permission, replica
    FAILED = "failed in the server"  # may pass: loading, busy, out of memory
    SKEWED = "its clock differs too much for fences"  # or its counter does from its clock
    NONSENSE = "does not speak the Redis protocol"
    SILENT = "no answer in time"
    UNHEARD = "not waited for"  # the verdict fell without it
    LOST = "connection lost before the answer"
    DOWN = "not connected"  # nothing was sent
    BACKLOG = "owes too many answers"  # nothing was sent
    CROWDED = "not asked: too many calls of this process are under way"
    RESTARTED = "restarted"  # kept out by the guard, not asked


_LOCK_ANSWERS = frozenset({Cause.YES, Cause.HELD, Cause.ABSENT, Cause.UNFENCED})
_FAULTS = frozenset({Cause.WRONG_TYPE, Cause.FORBIDDEN, Cause.FAILED, Cause.SKEWED, Cause.NONSENSE})
_LASTING = frozenset({Cause.WRONG_TYPE, Cause.FORBIDDEN, Cause.NONSENSE})


class Answer(NamedTuple):
    """One node's answer in one round, with its reason.

    `ttl_left_ms` is how long the key found there will live (-1: for ever, None: not told);
    `holder` is the token found by an inspection.  `fence` is the one issued (0: none), `clock_us`
    what the node's clock showed then (microseconds since 1970; 0: not told).
    """

    vote: Vote
    cause: Cause
    text: str = ""
    ttl_left_ms: int | None = None
    holder: bytes | None = None
    fence: int = 0
    clock_us: int = 0

    @property
    def is_lock_answer(self) -> bool:
        """The node said something about the lock, be it yes or no."""
        return self.cause in _LOCK_ANSWERS

    @property
    def is_done(self) -> bool:
        """The node carried the command out, whatever it found."""
        return self.is_lock_answer or self.cause is Cause.WRONG_TYPE

    @property
    def is_fault(self) -> bool:
        """The node answered, but with an error."""
        return self.cause in _FAULTS

    @property
    def is_lasting(self) -> bool:
        """An error that trying again will not mend."""
        return self.cause in _LASTING

    @property
    def reason(self) -> str:
        """In words."""
        return self.text or self.cause.value


# Nearly every answer is one of these: made once, so that the hot path makes none.
GRANTED = Answer(Vote.GRANTED, Cause.YES)
HELD = Answer(Vote.REFUSED, Cause.HELD)
ABSENT = Answer(Vote.REFUSED, Cause.ABSENT)
SILENT = Answer(Vote.UNKNOWN, Cause.SILENT)
UNHEARD = Answer(Vote.UNKNOWN, Cause.UNHEARD)


class NodeVote(NamedTuple):
    """What one node said, as users see it.

    Attributes:
        node: its address, without user info.
        vote: "granted", "refused" or "unknown" (no answer: it may have been granted).
        cause: why, in words.
        answered: it said something, be it an error.
        fit: what it said was about the lock, or it said nothing; False for an error.
    """

    node: str
    vote: str
    cause: str
    answered: bool
    fit: bool


def node_votes(addresses: tuple[str, ...], answers: tuple[Answer, ...]) -> tuple[NodeVote, ...]:
    """The answers under the nodes' names."""
    return tuple(
        NodeVote(
            node=address,
            vote=answer.vote.value,
            cause=answer.reason,
            answered=answer.is_lock_answer or answer.is_fault,
            fit=not answer.is_fault,
        )
        for address, answer in zip(addresses, answers, strict=True)
    )


class NodeStatus(NamedTuple):
    """One node as this process sees it now.

    Attributes:
        address: where it is, without user info.
        up: the last contact was a good one, and it may vote.
        why: what is wrong; "" while it is up.
        latency: seconds that its last answer took; None before the first.
        version: of the server; "" while not known.
    """

    address: str
    up: bool
    why: str
    latency: float | None
    version: str


class Refusal(Enum):
    """Why an attempt did not win: three different answers, and the nodes' own faults."""

    HELD = "held"  # a quorum answered about the lock, and somebody else has it
    LATE = "late"  # a quorum granted, but the validity was over by then
    UNFENCED = "unfenced"  # a quorum granted, but none issued the same fence
    UNREACHABLE = "unreachable"  # fewer than a quorum answered
    FAULTY = "faulty"  # answers came, too many of them errors that may pass
    FORBIDDEN = "forbidden"  # too many nodes have a fault that will not pass


class Loss(Enum):
    """Why a lease is over."""

    EXPIRED = "expired"
    TAKEN = "taken"
    UNREACHABLE = "unreachable"
    EVICTED = "evicted"  # its keys are gone before their time, and nobody else has them


class Granted(NamedTuple):
    """An attempt that won: the facts of a lease. fence: 0 where none was asked for."""

    key: bytes
    token: bytes
    ttl_ms: int
    valid_until: Instant
    answers: tuple[Answer, ...]
    receipt: "Receipt"
    fence: int = 0


class Refused(NamedTuple):
    """An attempt that did not win; it has been given back on all nodes."""

    refusal: Refusal
    answers: tuple[Answer, ...]
    started: Instant
    ended: Instant


class Extended(NamedTuple):
    """A won extension: the lease is valid at least until then."""

    valid_until: Instant
    answers: tuple[Answer, ...]


class Lost(NamedTuple):
    """An extension that did not win: the lease is over for good."""

    loss: Loss
    answers: tuple[Answer, ...]


def is_unreachable(outcome: Extended | Lost) -> bool:
    """Nobody said that it is gone: it was only not confirmed while it was known to be valid."""
    return isinstance(outcome, Lost) and outcome.loss is Loss.UNREACHABLE


class Released(NamedTuple):
    """What the nodes said to a release. `deleted`: a quorum had our key and deleted it."""

    deleted: bool
    gone: Loss | None  # so many had it no more that it was not ours on a quorum, and why
    answers: tuple[Answer, ...]
    ended: Instant
