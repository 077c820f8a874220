"""Counts votes. Leaves time and addresses to its callers."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from quorlock._core.outcomes import SILENT, UNHEARD, Answer, Vote

if TYPE_CHECKING:
    from quorlock._core.effects import Replied


def quorum(n: int) -> int:
    """How many of n nodes must agree: more than half of those configured, dead or alive."""
    return n // 2 + 1


class Verdict(Enum):
    """What a round has come to so far."""

    WON = "won"
    LOST = "lost"
    PENDING = "pending"


class Tally:
    """The votes of one round.

    It counts a reply only if it names this very round: a late answer from an earlier round,
    counted in the next, would be a vote that nobody cast (rule 1).
    """

    __slots__ = ("answers", "granted", "n", "pending", "quorum", "round")

    def __init__(self, n: int, round_: int) -> None:
        self.n = n
        self.round = round_
        self.quorum = quorum(n)
        self.granted = 0
        self.pending = n
        self.answers: list[Answer | None] = [None] * n

    def count(self, reply: Replied) -> Verdict:
        """Count one reply, at most one of each node, and tell the verdict."""
        if reply.round == self.round and self.answers[reply.node] is None:
            self.answers[reply.node] = reply.answer
            self.pending -= 1
            if reply.answer.vote is Vote.GRANTED:
                self.granted += 1
        return self.verdict

    @property
    def verdict(self) -> Verdict:
        """Decided as soon as it can be, for or against; an even split is against."""
        if self.granted >= self.quorum:
            return Verdict.WON
        if self.granted + self.pending < self.quorum:
            return Verdict.LOST
        return Verdict.PENDING

    def silence(self) -> None:
        """The time is up: who has not answered is silent, and does not count any more."""
        self.pending = 0
        self.answers = [SILENT if answer is None else answer for answer in self.answers]

    def closed(self) -> tuple[Answer, ...]:
        """All answers; nodes that the verdict did not wait for are not accused of silence."""
        return tuple(UNHEARD if answer is None else answer for answer in self.answers)
