"""Votes are counted once, in their round, and decided at the first reply that decides them."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock._core.rounds import NodeReply
from quorlock._core.tally import Tally, Verdict, quorum
from quorlock._core.votes import ABSENT, GRANTED, HELD, NO_REPLY, TIMED_OUT, Answer, Vote
from quorlock.errors import VoteCode

BROKEN = Answer(Vote.UNKNOWN, VoteCode.CONNECTION_LOST)
ROUND = 7


def reply(node: int, answer: Answer, round_: int = ROUND) -> NodeReply:
    return NodeReply(round_, node, answer, at=0)


def decided(n: int, granted: int, pending: int) -> Verdict:
    """Return the verdict by definition: that of all possible ends of the round."""
    ends = {granted + more > n / 2 for more in range(pending + 1)}
    return Verdict.PENDING if len(ends) == 2 else Verdict.WON if ends.pop() else Verdict.LOST


def test_quorum_is_the_smallest_majority() -> None:
    """Any two quorums share a node, and one vote less would not do, for every N."""
    assert [quorum(n) for n in range(1, 10)] == [1, 2, 2, 3, 3, 4, 4, 5, 5]
    for n in range(1, 1_000):
        assert 2 * quorum(n) > n >= 2 * (quorum(n) - 1)


@pytest.mark.parametrize("n", range(1, 10))
def test_every_sequence_of_votes_is_decided_at_the_earliest_reply(n: int) -> None:
    """Every N up to 9 and every order of all kinds of votes: the verdict is WON iff a majority of
    all N granted, falls as early as possible, and then stands.
    """
    for votes in product((GRANTED, HELD, BROKEN), repeat=n):
        tally = Tally(n, ROUND)
        granted = 0
        # Nodes answer in one order here; the next test tries all of them.
        for count, (node, answer) in enumerate(zip(reversed(range(n)), votes, strict=True), 1):
            granted += answer is GRANTED
            expected = decided(n, granted, n - count)
            assert tally.count(reply(node, answer)) is expected, (votes, count)
        assert tally.verdict is (Verdict.WON if granted >= n // 2 + 1 else Verdict.LOST)
        assert tally.final_answers() == tuple(reversed(votes))


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
    """The last refusal of 1-1, 2-2, 3-3, 4-4 decides against, regardless of pending votes."""
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
    assert tally.final_answers() == (NO_REPLY, HELD, NO_REPLY)
    assert (tally.granted, tally.pending) == (0, 2), "closing is only a view"
    tally.mark_timed_out()
    assert tally.final_answers() == (TIMED_OUT, HELD, TIMED_OUT)
    assert tally.verdict is Verdict.LOST
    assert tally.count(reply(0, GRANTED)) is Verdict.LOST, "too late to count"


@pytest.mark.parametrize("first", [GRANTED, HELD, BROKEN])
def test_many_votes_at_once_count_a_node_once(first: Answer) -> None:
    """The first vote of a node stands."""
    tally = Tally(5, ROUND)
    tally.count(reply(0, first))
    tally.count_grants(ROUND, 0b00011)
    assert tally.granted == (2 if first is GRANTED else 1)
    assert tally.pending == 3
    assert tally.verdict is Verdict.PENDING
    assert tally.answers == [first, GRANTED, None, None, None]


def test_many_votes_for_another_round_do_not_count() -> None:
    tally = Tally(3, ROUND)
    tally.count_grants(ROUND - 1, 0b111)
    assert (tally.verdict, tally.granted, tally.pending) == (Verdict.PENDING, 0, 3)


@pytest.mark.parametrize("n", range(1, 5))
def test_many_votes_at_once_are_counted_as_one_by_one(n: int) -> None:
    """Every set of grants at once, after every sequence of earlier replies."""
    for earlier, nodes in product(product((None, GRANTED, HELD), repeat=n), range(2**n)):
        one_by_one, at_once = Tally(n, ROUND), Tally(n, ROUND)
        for node, answer in enumerate(earlier):
            if answer is not None:
                one_by_one.count(reply(node, answer))
                at_once.count(reply(node, answer))
        for node in range(n):
            if nodes >> node & 1:
                one_by_one.count(reply(node, GRANTED))
        at_once.count_grants(ROUND, nodes)
        for fact in ("verdict", "granted_mask", "pending"):
            assert getattr(at_once, fact) == getattr(one_by_one, fact), (earlier, nodes, fact)
        assert at_once.final_answers() == one_by_one.final_answers(), (earlier, nodes)
