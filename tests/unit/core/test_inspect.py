"""A report asks all nodes, waits for all of them, and says what a quorum of them says."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from quorlock._api.inspection import Inspection, digest, inspection, token_of
from quorlock._core.commands import Inspect
from quorlock._core.redlock import inspect, raise_no_quorum, time_until_free_ms
from quorlock._core.tally import quorum
from quorlock._core.votes import Answer, Vote
from quorlock.errors import NodeError, QuorumUnreachable, VoteCode
from tests.harness.support.script import (
    DOWN,
    NEVER,
    NO_ACL,
    START,
    Round,
    Say,
    Script,
    absent,
    ms,
    policy_of,
    request_of,
    says,
)


def holds(token: bytes, left: int, after: float = 1) -> Say:
    return Say(Answer(Vote.REFUSED, VoteCode.HELD, "", left, token), ms(after))


def report(script: Script) -> Inspection:
    """Make a report like both APIs."""
    policy = policy_of(script.n)
    answers = script.run(inspect(b"r", policy))
    assert script.commands == [Inspect(b"r")]
    return inspection("r", policy.addresses, answers, time_until_free_ms(answers, policy.quorum))


A, B, FREE = holds(b"A", 1_000), holds(b"B", 2_000), absent()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_every_combination_of_holders(n: int) -> None:
    """held: one token on a quorum; free: no key on a quorum; unreachable: fewer than a quorum
    could say; split: none of them. Its end is when a quorum of nodes is free.
    """
    for plan in product([A, B, FREE, DOWN, NO_ACL], repeat=n):
        made = report(Script([plan]))
        count = Counter(plan)
        replied = count[A] + count[B] + count[FREE]
        if replied < quorum(n):
            expected = "unreachable"
        elif count[FREE] >= quorum(n):
            expected = "free"
        else:
            expected = "held" if max(count[A], count[B]) >= quorum(n) else "split"
        assert made.verdict == expected, plan
        ends = sorted([1.0] * count[A] + [2.0] * count[B] + [0.0] * count[FREE])
        free_at = ends[quorum(n) - 1] if replied >= quorum(n) else None
        assert made.ttl_left == (free_at or None), plan


def test_it_waits_for_all_nodes_until_their_time_is_up() -> None:
    """A report is no vote: a majority does not end it, the deadline does."""
    script = Script([[A, A, A, holds(b"A", 7, after=49), NEVER]])
    made = report(script)
    assert script.now == START + ms(50)
    assert [view.holder for view in made.nodes] == [digest(b"A")] * 4 + [None]
    assert [view.error for view in made.nodes] == ["", "", "", "", "no answer in time"]
    quick = Script([[A, B, FREE]])
    report(quick)
    assert quick.now == START + ms(1)


def test_every_node_is_shown_with_what_it_said() -> None:
    """Digests instead of tokens, seconds instead of ms, errors in words."""
    plan: Round = [A, holds(b"B", -1), FREE, NO_ACL, says(VoteCode.WRONG_TYPE)]
    made = report(Script([plan]))
    assert (made.resource, made.verdict, made.ttl_left) == ("r", "split", None)
    assert [(v.node, v.holder, v.ttl_left, v.error) for v in made.nodes] == [
        ("a", digest(b"A"), 1.0, ""),
        ("b", digest(b"B"), None, ""),
        ("c", None, None, ""),
        ("d", None, None, "NOPERM no"),
        ("e", None, None, "the key holds another type of data"),
    ]
    assert "A" not in digest(b"A")
    assert digest(b"A") != digest(b"B")


def waiting(say: Say, ahead: int) -> Say:
    """Return the same answer, of a node where so many wait."""
    assert isinstance(say.answer, Answer)
    return say._replace(answer=say.answer._replace(ahead=ahead))


CALLED = holds(b"quorlock:next:00f1e2d3c4b5a697:1:100", 100)


@pytest.mark.parametrize(
    ("plan", "verdict"),
    [
        ([CALLED, CALLED, CALLED], "passing"),
        ([CALLED, CALLED, A], "passing"),
        ([CALLED, FREE, A], "passing"),
        ([CALLED, FREE, FREE], "free"),
        ([CALLED, A, A], "held"),
        ([CALLED, A, B], "split"),
        ([CALLED, CALLED, DOWN], "passing"),
        ([CALLED, A, DOWN], "split"),
        ([CALLED, DOWN, DOWN], "unreachable"),
    ],
)
def test_a_lock_that_is_passed_on_has_no_holder(plan: Round, verdict: str) -> None:
    """A node that keeps it for a waiter shows no digest, and names none that could be broken."""
    made = report(Script([plan]))
    assert made.verdict == verdict
    kept = [say is CALLED for say in plan]
    assert [view.reserved for view in made.nodes] == kept
    assert all(view.holder is None for view in made.nodes if view.reserved)
    reservation = b"quorlock:next:00f1e2d3c4b5a697:1:100"
    answers = (Answer(Vote.REFUSED, VoteCode.HELD, "", 100, reservation),) * 3
    policy = policy_of(3)
    assert token_of(digest(reservation), answers, request_of(policy), policy) is None


@pytest.mark.parametrize(
    ("counts", "waiters"),
    [((0, 0, 0), 0), ((2, 2, 1), 2), ((2, 1, 0), 1), ((9, 0, 0), 0), ((3, 3, None), 3)],
)
def test_as_many_wait_as_a_quorum_of_nodes_has(
    counts: tuple[int | None, ...], waiters: int
) -> None:
    """A minority may have forgotten its queue, or have places of clients that are gone."""
    plan = [DOWN if count is None else waiting(A, count) for count in counts]
    assert report(Script([plan])).waiters == waiters
    assert report(Script([[A, A, A]])).waiters == 0, "a node that does not say"


def test_a_holder_without_ttl_is_never_free_by_itself() -> None:
    """The lock is held, without an end to report."""
    made = report(Script([[holds(b"A", -1)] * 3]))
    assert (made.verdict, made.ttl_left) == ("held", None)


@pytest.mark.parametrize(
    ("causes", "error"),
    [
        (
            (
                VoteCode.HELD,
                VoteCode.HELD,
                VoteCode.WRONG_TYPE,
                VoteCode.NOT_CONNECTED,
                VoteCode.NOT_CONNECTED,
            ),
            NodeError,
        ),
        (
            (
                VoteCode.TRANSIENT_ERROR,
                VoteCode.TRANSIENT_ERROR,
                VoteCode.TRANSIENT_ERROR,
                VoteCode.HELD,
                VoteCode.HELD,
            ),
            NodeError,
        ),
        (
            (
                VoteCode.HELD,
                VoteCode.TRANSIENT_ERROR,
                VoteCode.NOT_CONNECTED,
                VoteCode.NOT_CONNECTED,
                VoteCode.NOT_CONNECTED,
            ),
            QuorumUnreachable,
        ),
        (
            (
                VoteCode.NOT_CONNECTED,
                VoteCode.NOT_CONNECTED,
                VoteCode.NOT_CONNECTED,
                VoteCode.HELD,
                VoteCode.HELD,
            ),
            QuorumUnreachable,
        ),
    ],
)
def test_whose_fault_it_is_that_nothing_can_be_said(
    causes: tuple[VoteCode, ...], error: type[Exception]
) -> None:
    """The unfit node is named where it would have made the quorum, as an acquire does."""
    policy = policy_of(5)
    answers = tuple(Answer(Vote.UNKNOWN, cause) for cause in causes)
    with pytest.raises(error):
        raise_no_quorum(answers, START, request_of(policy), policy)
