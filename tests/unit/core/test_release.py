"""Releasing asks all nodes, is decided by a quorum of them, and distinguishes gone from
unreachable.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from quorlock._core.claims import Keys
from quorlock._core.commands import Release
from quorlock._core.effects import FlowCancelled
from quorlock._core.redlock import release, release_by_token
from quorlock._core.results import LossReason, ReleaseResult
from quorlock._core.rounds import Target
from quorlock._core.tally import quorum
from quorlock._core.time import NS_PER_MS
from quorlock.errors import NodeError, QuorumUnreachable, VoteCode
from tests.harness.support.script import (
    BROKEN,
    DOWN,
    LOADING,
    NEVER,
    NO_ACL,
    SIZES,
    START,
    WRONG_TYPE,
    Kind,
    Round,
    Say,
    Script,
    absent,
    held,
    ms,
    not_set,
    policy_of,
    request_of,
    spread,
    yes,
)

ALL = Target(2**9 - 1, None)
R = Keys(b"r")


def cause(say: Say) -> str:
    return say.answer.code.name


def released(script: Script, target: Target | None = ALL) -> ReleaseResult:
    return script.run(release(R, b"t", target, policy_of(script.n)))


@pytest.mark.parametrize("n", SIZES)
def test_a_quorum_decides(n: int) -> None:
    """Deleted as soon as a quorum had it; the rest is asked, but not waited for."""
    script = Script([[yes(1)] * quorum(n) + [NEVER] * (n - quorum(n))])
    outcome = released(script)
    assert (outcome.deleted, outcome.gone, script.now) == (True, None, START + ms(1))
    assert script.commands == [Release(b"r", b"t")]
    assert script.sends[0].behind is ALL, "behind its acquire, on every node that got it"
    assert not any(answer.code is VoteCode.TIMED_OUT for answer in outcome.answers)


def test_nodes_that_were_never_asked_had_no_key() -> None:
    """The driver answers "never set there" in their name, which does not count as deleted."""
    script = Script([[yes(1)] * 3])
    outcome = released(script, Target(0b001, None))
    assert (outcome.deleted, outcome.gone) == (False, LossReason.EXPIRED)


KINDS: list[Kind] = [yes, held, absent, not_set, NEVER, DOWN, WRONG_TYPE, LOADING, NO_ACL]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_every_combination_of_answers(n: int) -> None:
    """Every combination: deleted iff a majority deleted; gone iff so many did not have it that no
    majority can have had; otherwise unknown, and an error by token.
    """
    policy = policy_of(n)
    for kinds in product(KINDS, repeat=n):
        plan = spread(kinds)
        outcome = released(Script([plan]))
        causes = [say.answer.code for say in plan if say is not NEVER]
        # A node that was down got no acquire from this driver, and by token it says nothing.
        against = {VoteCode.HELD, VoteCode.KEY_MISSING, VoteCode.NOT_SET, VoteCode.WRONG_TYPE}
        missing = sum(c in against for c in causes)
        assert outcome.deleted is (causes.count(VoteCode.GRANTED) >= quorum(n)), plan
        assert (outcome.gone is not None) is (n - missing < quorum(n)), plan
        if outcome.gone is LossReason.TAKEN:
            assert {VoteCode.HELD, VoteCode.WRONG_TYPE} & set(causes), plan
        flow = release_by_token(request_of(policy), b"t", policy)
        if outcome.deleted or outcome.gone is not None:
            assert Script([plan]).run(flow) is outcome.deleted, plan
        else:
            with pytest.raises((QuorumUnreachable, NodeError)):
                Script([plan]).run(flow)


@pytest.mark.parametrize("n", [3, 4, 5, 9])
@pytest.mark.parametrize("dead", [DOWN, BROKEN, LOADING, NO_ACL], ids=cause)
@pytest.mark.parametrize(
    ("against", "loss"), [(absent, LossReason.EXPIRED), (held, LossReason.TAKEN)]
)
def test_a_dead_minority_does_not_hide_that_it_was_gone(
    n: int, dead: Say, against: Callable[[float], Say], loss: LossReason
) -> None:
    """Replies of live nodes count after dead nodes have decided: False is no error."""
    minority = n - quorum(n)
    plan = [dead] * minority + [against(i + 2) for i in range(quorum(n))]
    outcome = released(Script([plan]))
    assert (outcome.deleted, outcome.gone) == (False, loss)
    policy = policy_of(n)
    assert Script([plan]).run(release_by_token(request_of(policy), b"t", policy)) is False


def test_it_waits_no_longer_than_node_timeout() -> None:
    """Silent nodes leave it open at the deadline, and are called silent then."""
    script = Script([[yes(1), absent(1), NEVER, NEVER, NEVER]], sending=ms(5))
    outcome = released(script)
    assert (outcome.deleted, outcome.gone) == (False, None)
    assert outcome.ended == START + 55 * NS_PER_MS
    assert [a.code for a in outcome.answers][2:] == [VoteCode.TIMED_OUT] * 3


def test_the_errors_of_a_release_by_token() -> None:
    """Unreachable and faulty are distinguished, with every node's vote."""
    policy = policy_of(3)
    for plan, kind in (([DOWN, DOWN, yes(1)], QuorumUnreachable), ([NO_ACL] * 3, NodeError)):
        with pytest.raises(kind) as caught:
            Script([plan]).run(release_by_token(request_of(policy), b"t", policy))
        assert isinstance(caught.value, QuorumUnreachable | NodeError)
        assert (caught.value.resource, caught.value.attempts) == ("r", 1)
        assert [vote.node for vote in caught.value.votes] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "plan", [[yes(1)] * 3, [NEVER] * 3, [DOWN, absent(1), held(2)], [BROKEN, NEVER, absent(9)]]
)
def test_cancelled_anywhere_it_asks_once_more(plan: Round) -> None:
    """Interrupted at every yield, perhaps before all nodes were asked: the release is sent again
    behind the same acquire, and nothing else.
    """
    calm = Script([plan])
    released(calm)
    for step in range(len(calm.effects)):
        script = Script([plan])
        with pytest.raises(FlowCancelled):
            script.run(release(R, b"t", ALL, policy_of(3)), abandon_at=step)
        after = script.effects[step + 1 :]
        assert [effect for _, effect in after] == [script.sends[0]]
        assert script.commands == [Release(b"r", b"t")] * 2


def test_closed_anywhere_it_ends_quietly() -> None:
    """A flow whose driver is gone asks for nothing more."""
    flow = release(R, b"t", None, policy_of(3))
    next(flow)
    flow.close()
    flow = release(R, b"t", None, policy_of(3))
    next(flow)
    flow.send(Target(0b111, None))
    flow.close()
