"""Votes: one node's answer in one round, with its reason in words."""

from enum import Enum
from typing import NamedTuple

from quorlock.errors import NodeQuarantine, NodeVote, VoteCode


class Vote(Enum):
    """One node's answer, as the tally counts it."""

    GRANTED = "granted"
    REFUSED = "refused"
    UNKNOWN = "unknown"  # no reply: it may have been granted


# The reasons in words, for errors and reports.
WORDS = {
    VoteCode.GRANTED: "granted",
    VoteCode.HELD: "held by another",
    VoteCode.HELD_WITHOUT_TTL: "held by another, by a key without ttl",
    VoteCode.KEY_MISSING: "the key is gone",
    VoteCode.NOT_SET: "not asked: the lock was never set there",
    VoteCode.RELEASE_PENDING: "not asked: a release of the lock is pending there",
    VoteCode.FENCE_MISMATCH: "granted, but issued another fence",
    VoteCode.WRONG_TYPE: "the key holds another type of data",
    VoteCode.ACCESS_DENIED: "refused by the server",
    VoteCode.PERMANENT_ERROR: "refused by the server",
    VoteCode.TRANSIENT_ERROR: "failed in the server",
    VoteCode.CLOCK_SKEW: "its clock differs too much for fences",
    VoteCode.PROTOCOL_ERROR: "does not speak the Redis protocol",
    VoteCode.TIMED_OUT: "no answer in time",
    VoteCode.NOT_AWAITED: "not waited for",
    VoteCode.CONNECTION_LOST: "connection lost before the answer",
    VoteCode.NOT_CONNECTED: "not connected",
    VoteCode.CONNECT_TIMED_OUT: "no answer to connecting",
    VoteCode.NOT_ADMITTED: "may not vote yet",
    VoteCode.BACKLOG: "too many replies are pending",
    VoteCode.LOCAL_QUEUE_TIMEOUT: "not asked: too many calls of this process are under way",
    VoteCode.QUARANTINED: "kept out by the restart guard",
}
_HELD = frozenset({VoteCode.HELD, VoteCode.HELD_WITHOUT_TTL})
_LOCK_ANSWERS = _HELD | {VoteCode.GRANTED, VoteCode.KEY_MISSING, VoteCode.FENCE_MISMATCH}
_DONE = _LOCK_ANSWERS | {VoteCode.WRONG_TYPE}
_LACKS = frozenset({VoteCode.KEY_MISSING, VoteCode.NOT_SET, VoteCode.RELEASE_PENDING})
_AGAINST = _HELD | _LACKS | {VoteCode.WRONG_TYPE}


class Answer(NamedTuple):
    """One node's answer in one round, with its reason.

    `ttl_left_ms` is the remaining ttl of the key found there (-1: no expiry, None: not in the
    reply); `holder` is the token found by an inspection, `owner` the encoded owner in it
    (b"": none, or not in the reply).  `fence` is the one issued (0: none),
    `clock_us` the node's clock at that time (microseconds since 1970; 0: not in the reply).
    `quarantine`: how long the node casts no vote; None if it may vote, or if the end is not known.
    `ticket`: the number of the sender's place in the node's queue (0: it is not queued), `ahead`
    how many places are before it; for an inspection, how many wait; for a grant, 1 if some wait
    (-1: not in the reply).
    `replaced`: the key held the token that the grant was to replace.
    `before`: of a claim on several keys, how many are before the one that the answer is about.
    `readers`: the tokens found by an inspection where the lock is shared, with the ms that each has
    left.
    """

    vote: Vote
    code: VoteCode
    text: str = ""
    ttl_left_ms: int | None = None
    holder: bytes | None = None
    fence: int = 0
    clock_us: int = 0
    owner: bytes = b""
    quarantine: NodeQuarantine | None = None
    ticket: int = 0
    ahead: int = -1
    replaced: bool = False
    before: int = 0
    readers: tuple[tuple[bytes, int], ...] = ()

    @property
    def is_held(self) -> bool:
        """Return whether the node has a key with another token."""
        return self.code in _HELD

    @property
    def is_lock_answer(self) -> bool:
        """Return whether the node replied about the lock, with yes or no."""
        return self.code in _LOCK_ANSWERS

    @property
    def lacks_key(self) -> bool:
        """Return whether the node has no key that counts: it is absent, or was never set there."""
        return self.code in _LACKS

    @property
    def denies_ownership(self) -> bool:
        """Return whether the node has no key with our token."""
        return self.code in _AGAINST

    @property
    def is_done(self) -> bool:
        """Return whether the node carried the command out, whatever it found."""
        return self.code in _DONE

    @property
    def is_fault(self) -> bool:
        """Return whether the node replied with an error."""
        return self.code.is_error

    @property
    def is_lasting(self) -> bool:
        """Return whether the error stays until an operator fixes it: trying again cannot help."""
        return self.code.is_permanent

    @property
    def reason(self) -> str:
        """Return the reason in words."""
        return self.text or WORDS[self.code]


# Nearly every answer is one of these: shared, so that the hot path allocates none.
GRANTED = Answer(Vote.GRANTED, VoteCode.GRANTED)
HELD = Answer(Vote.REFUSED, VoteCode.HELD)
ABSENT = Answer(Vote.REFUSED, VoteCode.KEY_MISSING)
NOT_SET = Answer(Vote.UNKNOWN, VoteCode.NOT_SET)
RELEASING = Answer(Vote.UNKNOWN, VoteCode.RELEASE_PENDING)
TIMED_OUT = Answer(Vote.UNKNOWN, VoteCode.TIMED_OUT)
NO_REPLY = Answer(Vote.UNKNOWN, VoteCode.NOT_AWAITED)
BACKLOG = Answer(Vote.UNKNOWN, VoteCode.BACKLOG)


def node_votes(addresses: tuple[str, ...], answers: tuple[Answer, ...]) -> tuple[NodeVote, ...]:
    """Return the answers as public votes, each with its node's address."""
    return tuple(
        NodeVote(
            node=address,
            vote=answer.vote.value,
            cause=answer.reason,
            answered=answer.is_lock_answer or answer.is_fault,
            code=answer.code,
            quarantine=answer.quarantine,
        )
        for address, answer in zip(addresses, answers, strict=True)
    )
