"""Counts votes. Leaves time and addresses to its callers."""

from __future__ import annotations

import functools
from enum import Enum
from typing import TYPE_CHECKING

from quorlock._core.outcomes import GRANTED as YES
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


# A name of a module is read in a quarter of the time that Python 3.11 takes for an Enum's member.
WON, LOST, PENDING = Verdict.WON, Verdict.LOST, Verdict.PENDING
_GRANTED = Vote.GRANTED


class Tally:
    """The votes of one round.

    It counts a reply only if it names this very round: a late answer from an earlier round,
    counted in the next, would be a vote that nobody cast (rule 1).
    """

    __slots__ = ("answers", "granted", "n", "pending", "quorum", "round", "verdict", "yes")

    def __init__(self, n: int, round_: int) -> None:
        self.n = n
        self.round = round_
        self.quorum = quorum(n)
        self.granted = 0
        self.pending = n
        self.yes = 0  # bit i: node i granted
        self.answers: list[Answer | None] = [None] * n
        self.verdict = PENDING

    def count(self, reply: Replied) -> Verdict:
        """Count one reply, at most one of each node, and tell the verdict."""
        round_, node, answer, _ = reply
        if round_ == self.round and self.answers[node] is None:
            self.answers[node] = answer
            self.pending -= 1
            # Decided as soon as it can be, for or against; an even split is against.
            if answer.vote is _GRANTED:
                self.yes |= 1 << node
                self.granted += 1
                if self.granted >= self.quorum:
                    self.verdict = WON
            elif self.granted + self.pending < self.quorum:
                self.verdict = LOST
        return self.verdict

    def grant(self, round_: int, nodes: int) -> None:
        """Count a plain yes of each of these nodes (bit i: node i), as `count` does one by one.

        For drivers that hear many at a time: a sixth of what one by one takes.
        """
        if round_ != self.round:
            return
        if self.pending < self.n:  # of some the answers have come already
            nodes &= ~sum([1 << node for node, said in enumerate(self.answers) if said is not None])
            for node in range(self.n):
                if nodes >> node & 1:
                    self.answers[node] = YES
        else:
            self.answers = _yes_of(self.n, nodes).copy()
        self.yes |= nodes
        count = nodes.bit_count()
        self.pending -= count
        self.granted += count
        if self.granted >= self.quorum:
            self.verdict = WON

    def silence(self) -> None:
        """The time is up: who has not answered is silent, and does not count any more."""
        self.pending = 0
        self.answers = [SILENT if answer is None else answer for answer in self.answers]
        if self.verdict is PENDING:
            self.verdict = LOST  # a quorum would have been won before

    def overrule(self, answers: list[Answer]) -> None:
        """A second round has shown more: these are the votes, and they did not win."""
        self.answers = list(answers)
        self.granted = sum(answer.vote is _GRANTED for answer in answers)
        self.pending = 0
        self.verdict = LOST

    def closed(self) -> tuple[Answer, ...]:
        """All answers; nodes that the verdict did not wait for are not accused of silence."""
        if self.granted + self.pending == self.n:
            return _granted(self.n, self.yes)
        return tuple([UNHEARD if answer is None else answer for answer in self.answers])


@functools.lru_cache
def _yes_of(n: int, nodes: int) -> list[Answer | None]:
    """The answers of a round of which nothing else has come; not to be changed."""
    return [YES if nodes >> node & 1 else None for node in range(n)]


@functools.lru_cache
def _granted(n: int, nodes: int) -> tuple[Answer, ...]:
    """One tuple for all leases that nobody refused: half of what a lease would take besides."""
    return tuple([YES if nodes >> node & 1 else UNHEARD for node in range(n)])
