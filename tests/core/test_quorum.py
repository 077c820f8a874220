"""Votes are counted once, in their round, and decided at the first reply that decides them."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock._core.effects import Replied
from quorlock._core.outcomes import ABSENT, GRANTED, HELD, SILENT, UNHEARD, Answer, Cause, Vote
from quorlock._core.quorum import Tally, Verdict, quorum

BROKEN = Answer(Vote.UNKNOWN, Cause.LOST)
ROUND = 7


def reply(node: int, answer: Answer, round_: int = ROUND) -> Replied:
    return Replied(round_, node, answer, at=0)


def decided(n: int, granted: int, pending: int) -> Verdict:
    """By definition: what all possible ends of the round have in common."""
    ends = {granted + more > n / 2 for more in range(pending + 1)}
    return Verdict.PENDING if len(ends) == 2 else Verdict.WON if ends.pop() else Verdict.LOST


def test_quorum_is_the_smallest_majority() -> None:
    """Any two quorums share a node, and one vote less would not do, for every N."""
    assert [quorum(n) for n in range(1, 10)] == [1, 2, 2, 3, 3, 4, 4, 5, 5]
    for n in range(1, 1_000):
        assert 2 * quorum(n) > n >= 2 * (quorum(n) - 1)


@pytest.mark.parametrize("n", range(1, 10))
def test_every_sequence_of_votes_is_decided_at_the_earliest_reply(n: int) -> None:
    """For every N up to 9 and every order in which votes of every kind can come, the verdict is
    WON iff a majority of all N granted, falls as early as it can, and then stands.
    """
    for votes in product((GRANTED, HELD, BROKEN), repeat=n):
        tally = Tally(n, ROUND)
        granted = 0
        # Nodes answer in some order of their own; the next test tries all of them.
        for count, (node, answer) in enumerate(zip(reversed(range(n)), votes, strict=True), 1):
            granted += answer is GRANTED
            expected = decided(n, granted, n - count)
            assert tally.count(reply(node, answer)) is expected, (votes, count)
        assert tally.verdict is (Verdict.WON if granted >= n // 2 + 1 else Verdict.LOST)
        assert tally.closed() == tuple(reversed(votes))


@pytest.mark.parametrize("n", range(1, 6))
def test_it_does_not_matter_who_votes(n: int) -> None:
    """The verdict and the reply that decides it depend on the votes, not on the nodes' order."""
    for votes in product((GRANTED, HELD), repeat=n):
        expected = None
        for order in permutations(range(n)):
            tally = Tally(n, ROUND)
            verdicts = [tally.count(reply(*said)) for said in zip(order, votes, strict=True)]
            expected = expected or verdicts
            assert verdicts == expected


@pytest.mark.parametrize("n", [2, 4, 6, 8])
def test_an_even_split_is_lost_at_once(n: int) -> None:
    """With 1-1, 2-2, 3-3, 4-4 the last refusal of the half decides against, whoever is pending."""
    tally = Tally(n, ROUND)
    for node in range(n // 2 - 1):
        assert tally.count(reply(node, HELD)) is Verdict.PENDING
    assert tally.count(reply(n // 2 - 1, HELD)) is Verdict.LOST
    for node in range(n // 2, n):
        assert tally.count(reply(node, GRANTED)) is Verdict.LOST


@settings(deadline=None)
@given(st.data())
def test_only_one_reply_of_each_node_and_only_this_round_count(data: st.DataObject) -> None:
    """Late answers of other rounds and second answers of a node change nothing."""
    n = data.draw(st.integers(1, 9))
    order = data.draw(st.permutations(range(n)))
    answers = st.sampled_from([GRANTED, HELD, ABSENT, BROKEN])
    noisy, clean = Tally(n, ROUND), Tally(n, ROUND)
    for count, node in enumerate(order):
        for _ in range(data.draw(st.integers(0, 2))):
            foreign = data.draw(st.integers(0, 20).filter(lambda r: r != ROUND))
            noisy.count(reply(data.draw(st.integers(0, n - 1)), GRANTED, foreign))
        for again in order[:count]:
            noisy.count(reply(again, data.draw(answers)))
        said = data.draw(answers)
        assert noisy.count(reply(node, said)) is clean.count(reply(node, said))
        assert (noisy.granted, noisy.pending) == (clean.granted, clean.pending)
    assert noisy.answers == clean.answers


def test_who_was_not_waited_for_is_not_accused_of_silence() -> None:
    """Nodes that said nothing are "not waited for" until their time is up, then "no answer"."""
    tally = Tally(3, ROUND)
    tally.count(reply(1, HELD))
    assert tally.closed() == (UNHEARD, HELD, UNHEARD)
    assert (tally.granted, tally.pending) == (0, 2), "closing is only a view"
    tally.silence()
    assert tally.closed() == (SILENT, HELD, SILENT)
    assert tally.verdict is Verdict.LOST
    assert tally.count(reply(0, GRANTED)) is Verdict.LOST, "too late to count"
