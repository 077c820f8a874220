"""A fence is a number that a quorum issued to this very attempt, or there is none."""

from __future__ import annotations

from contextlib import suppress

import pytest

from quorlock._core import fence as fencing
from quorlock._core.acquiring import acquire, try_acquire
from quorlock._core.commands import Acquire, IssueFence, Release, ScriptedAcquire
from quorlock._core.config import Policy
from quorlock._core.effects import Commit, FlowCancelled, Receive, Send
from quorlock._core.redlock import attempt
from quorlock._core.results import Acquired, AttemptFailed, FailureReason
from quorlock._core.rounds import NodeReply, SentRound, Target
from quorlock._core.time import NS_PER_S
from quorlock._core.votes import Answer, Vote
from quorlock.errors import AcquireTimeout, NodeError, VoteCode
from tests.harness.support.script import (
    DOWN,
    NEVER,
    START,
    Dice,
    Say,
    Script,
    absent,
    held,
    ms,
    policy_of,
    request_of,
    says,
)

CLOCK_US = 1_795_000_000_000_000  # what the nodes' clocks show
FENCE = CLOCK_US + 1_000
AHEAD_S = 15  # half of max_ttl


def issues(fence: int, after: float = 1, clock_s: float = 0) -> Say:
    """Granted with that fence, by a clock that is `clock_s` off."""
    clock_us = CLOCK_US + round(clock_s * 1_000_000)
    return Say(Answer(Vote.GRANTED, VoteCode.GRANTED, fence=fence, clock_us=clock_us), ms(after))


def above(after: float = 1) -> Say:
    """A raise that is refused: the counter is absent, or not below it."""
    return Say(Answer(Vote.REFUSED, VoteCode.FENCE_MISMATCH, clock_us=CLOCK_US), ms(after))


def too_far(after: float = 1) -> Say:
    """A raise beyond what the node's clock allows."""
    return Say(Answer(Vote.REFUSED, VoteCode.CLOCK_SKEW, clock_us=CLOCK_US), ms(after))


def one_attempt(script: Script, **settings: float) -> Acquired | AttemptFailed:
    policy = policy_of(script.n, **settings)
    request = request_of(policy)._replace(fencing=True)
    return script.run(attempt(request, policy, Dice()))


def granted(script: Script) -> Acquired:
    outcome = one_attempt(script)
    assert isinstance(outcome, Acquired), outcome
    return outcome


def refused(script: Script) -> AttemptFailed:
    outcome = one_attempt(script)
    assert isinstance(outcome, AttemptFailed), outcome
    assert isinstance(script.commands[-1], Release), "it is given back"
    return outcome


def kinds(script: Script) -> list[type]:
    return [type(command) for command in script.commands]


# --- one round trip --------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9])
def test_what_a_quorum_issued_is_the_fence_in_one_round_trip(n: int) -> None:
    quorum = n // 2 + 1
    plan = [issues(FENCE, i + 1) for i in range(quorum)] + [NEVER] * (n - quorum)
    script = Script([plan])
    won = granted(script)
    assert won.fence == FENCE
    assert script.commands == [ScriptedAcquire(b"r", b"token-0", 10_000, 1_000, 0)]
    assert script.now == START + ms(quorum), "and nobody else was waited for"
    assert script.at(Commit) == [script.now]


def test_a_minority_with_other_values_does_not_matter() -> None:
    """Also a larger one: it was issued by too few to be anybody's fence."""
    late = [issues(FENCE + 7, 3), issues(FENCE + 7, 4)]
    won = granted(Script([[issues(FENCE, 1), issues(FENCE, 2), issues(FENCE, 2), *late]]))
    assert won.fence == FENCE


def test_what_a_quorum_issued_is_not_raised_though_a_node_with_another_clock_came_first() -> None:
    ahead = issues(FENCE + 20_000_000, 1, clock_s=20)
    script = Script([[ahead, issues(FENCE, 2), issues(FENCE, 3)]])
    assert granted(script).fence == FENCE
    assert kinds(script) == [ScriptedAcquire]


def test_without_fencing_it_is_a_plain_set_and_there_is_none() -> None:
    script = Script([[issues(0)] * 3])
    policy = policy_of(3)
    won = script.run(attempt(request_of(policy), policy, Dice()))
    assert isinstance(won, Acquired)
    assert won.fence == 0
    assert script.commands == [Acquire(b"r", b"token-0", 10_000)]


def test_new_counters_begin_less_far_ahead_than_clocks_may_differ() -> None:
    for max_ttl in (0.15, 0.4, 1.0, 4.0, 30.0, 86_400.0):
        policy = policy_of(3, ttl=0.15, max_ttl=max_ttl)
        assert 1 <= policy.fence_grid_ms <= min(1_000, fencing.ahead_ms(policy))
        # Room for both: a node begins again above what it issued max_ttl before.
        assert 2 * fencing.ahead_ms(policy) <= policy.max_ttl_ms


# --- raising ---------------------------------------------------------------------------------


def test_else_the_highest_is_issued_by_the_others_as_well() -> None:
    """The others raise by compare-and-set, behind the acquire; not to one more than the highest."""
    first = [issues(FENCE, 1), issues(FENCE + 5, 2), NEVER]
    script = Script([first, [issues(FENCE + 5), above(), NEVER]])
    won = granted(script)
    assert won.fence == FENCE + 5
    assert script.commands[1] == IssueFence(b"r", b"token-0", FENCE + 5, AHEAD_S * 1_000)
    assert script.sends[1].behind is not None
    assert script.now == START + ms(2 + 1)
    assert won.valid_until == START + 10 * NS_PER_S - ms(102), "counted from the first round"
    codes = [answer.code for answer in won.answers]
    assert codes == [VoteCode.GRANTED, VoteCode.GRANTED, VoteCode.NOT_AWAITED]


@pytest.mark.parametrize("others", [FENCE - 5, FENCE + 5])
def test_the_same_fence_of_two_in_a_quorum_of_three_is_not_enough(others: int) -> None:
    """Two other nodes may have issued it to another attempt."""
    highest = max(FENCE, others)
    first = [issues(FENCE, 1), issues(FENCE, 2), issues(others, 3), NEVER, NEVER]
    second = [above() if say.answer.fence == highest else issues(highest) for say in first[:3]]
    script = Script([first, [*second, NEVER, NEVER]])
    assert granted(script).fence == highest
    assert kinds(script) == [ScriptedAcquire, IssueFence]


def test_a_node_that_issued_it_first_and_refuses_to_raise_counts_once() -> None:
    """Three of four nodes must have issued it: the one that did, and two that raise."""
    first = [issues(FENCE + 5, 1), issues(FENCE, 2), issues(FENCE, 3), NEVER]
    raised = [above(1), issues(FENCE + 5, 2), NEVER, NEVER]
    assert refused(Script([first, raised])).reason is FailureReason.UNREACHABLE
    raised[2] = issues(FENCE + 5, 3)
    assert granted(Script([first, raised])).fence == FENCE + 5


def test_a_node_that_issues_the_same_twice_is_still_one_node() -> None:
    """The node came back with an old memory in between."""
    first = [issues(FENCE + 5, 1), issues(FENCE, 2), NEVER]
    raised = [issues(FENCE + 5, 1), above(1), NEVER]
    outcome = refused(Script([first, raised]))
    assert outcome.reason is FailureReason.UNFENCED


def test_stragglers_of_the_acquire_round_count_while_others_are_raised() -> None:
    """Late replies count for the value that is being raised, and for any other that a quorum has
    issued.
    """
    never = [NEVER] * 3
    same = Script([[issues(FENCE, 1), issues(FENCE + 5, 2), issues(FENCE + 5, 4)], never])
    assert granted(same).fence == FENCE + 5
    assert same.now == START + ms(4)
    lower = Script([[issues(FENCE, 1), issues(FENCE + 5, 2), issues(FENCE, 4)], never])
    assert granted(lower).fence == FENCE


def test_votes_of_the_acquire_round_do_not_count_as_raised() -> None:
    """Rule 1: a reply names its round."""
    policy = policy_of(3)
    flow = attempt(request_of(policy)._replace(fencing=True), policy, Dice())
    flow.send(None)
    flow.send(SentRound(1, START, START, Target(7, None)))
    flow.send(NodeReply(1, 0, issues(FENCE).answer, START + 1))
    raising = flow.send(NodeReply(1, 1, issues(FENCE + 5).answer, START + 2))
    assert isinstance(raising, Send)
    assert isinstance(flow.send(SentRound(2, START, START + 2, Target(7, None))), Receive)
    event = flow.send(NodeReply(9, 0, issues(FENCE + 5).answer, START + 3))
    assert isinstance(event, Receive), "of another round: it is no vote"
    assert isinstance(flow.send(NodeReply(2, 0, issues(FENCE + 5).answer, START + 4)), Commit)


def test_it_ends_as_soon_as_no_quorum_can_issue_it() -> None:
    first = [issues(FENCE, 1), issues(FENCE + 5, 2), DOWN]
    script = Script([first, [held(3, left=900), NEVER, DOWN]])
    outcome = refused(script)
    assert script.sent(Release) == [START + ms(2 + 3)], "at the answer that decides, not later"
    assert [answer.code for answer in outcome.answers] == [
        VoteCode.HELD,
        VoteCode.GRANTED,
        VoteCode.NOT_CONNECTED,
    ]


@pytest.mark.parametrize("against", [held(1), absent(1), above(1)])
def test_a_lock_that_is_gone_or_anothers_gets_no_fence(against: Say) -> None:
    first = [issues(FENCE, 1), issues(FENCE + 5, 2), held(1)]
    outcome = refused(Script([first, [against, above(), held(1)]]))
    assert outcome.reason in (FailureReason.HELD, FailureReason.UNFENCED)


def test_no_agreement_is_reported_as_such_and_tried_again() -> None:
    first = [issues(FENCE, 1), issues(FENCE + 5, 2), DOWN]
    script = Script([first, [above(), above(), DOWN]])
    policy = policy_of(3)
    request = request_of(policy, 0.0)._replace(fencing=True)
    with pytest.raises(AcquireTimeout, match="did not agree on a fence"):
        script.run(acquire(request, policy, Dice()))
    # In the next attempt they agree.
    script = Script([first, [above(), above(), DOWN], [issues(FENCE + 9)] * 3])
    request = request_of(policy)._replace(fencing=True)
    won = script.run(acquire(request, policy, Dice()))
    assert (won.fence, won.token) == (FENCE + 9, b"token-1")


# --- time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [1, 0, -1])
def test_a_fence_that_comes_at_the_end_of_the_validity_is_too_late(early: int) -> None:
    validity = 10 * NS_PER_S - ms(102)
    sending = (validity - ms(4) - early) // 2  # of each of two rounds
    first = [issues(FENCE, 1), issues(FENCE + 5, 2), NEVER]
    odd = (validity - ms(4) - early) % 2
    script = Script([first, [Say(issues(FENCE + 5).answer, ms(2) + odd), above(), NEVER]])
    script.sending = sending
    if early > 0:
        assert granted(script).fence == FENCE + 5
    else:
        assert refused(script).reason is FailureReason.LATE


def test_every_node_has_node_timeout_to_raise_and_not_beyond_the_validity() -> None:
    first = [issues(FENCE, 1), issues(FENCE + 5, 2), NEVER]
    script = Script([first, [NEVER, above(), NEVER]])
    outcome = refused(script)
    assert outcome.reason is FailureReason.UNREACHABLE
    assert script.sent(Release) == [START + ms(2 + 50)]
    assert [a.code for a in outcome.answers] == [
        VoteCode.TIMED_OUT,
        VoteCode.GRANTED,
        VoteCode.TIMED_OUT,
    ]


def test_it_is_released_wherever_its_caller_goes_away() -> None:
    """Cancelled at any of its effects: a Release behind the acquire, and no fence."""
    plan = [[issues(FENCE, 1), issues(FENCE + 5, 2), NEVER], [issues(FENCE + 5), above(), NEVER]]
    whole = Script(plan)
    granted(whole)
    for place in range(1, len(whole.effects)):
        script = Script(plan)
        with suppress(FlowCancelled):
            policy = policy_of(3)
            request = request_of(policy)._replace(fencing=True)
            script.run(attempt(request, policy, Dice()), abandon_at=place)
        assert script.commands[-1] == Release(b"r", b"token-0")
        assert script.sends[-1].behind is not None


# --- clocks that differ ----------------------------------------------------------------------


def skewed(fence_s: float, after: float = 1) -> Say:
    """A node whose clock, and so its counter, is off by that."""
    return issues(FENCE + round(fence_s * 1_000_000), after, fence_s)


def test_one_clock_that_is_far_ahead_does_not_set_the_pace() -> None:
    """The others are not raised to its value, but to the highest that a quorum would issue."""
    first = [skewed(3_600, 1), issues(FENCE, 2), issues(FENCE + 5, 3)]
    script = Script([first, [above(), issues(FENCE + 5), above()]])
    won = granted(script)
    assert won.fence == FENCE + 5
    assert script.sent(IssueFence) == [START + ms(3)], (
        "the third was needed to see whose clock is off"
    )


def test_clocks_as_far_apart_as_allowed_are_no_trouble() -> None:
    first = [skewed(AHEAD_S - 1, 1), issues(FENCE, 2), NEVER]
    high = FENCE + (AHEAD_S - 1) * 1_000_000
    assert granted(Script([first, [above(), issues(high), NEVER]])).fence == high


def test_too_few_clocks_that_agree_are_named() -> None:
    """No fence is possible; the error says which clock is off by how much, and from whose."""
    first = [issues(FENCE, 1), DOWN, skewed(3_600, 2)]
    policy = policy_of(3)
    request = request_of(policy, 0.0)._replace(fencing=True)
    with pytest.raises(NodeError) as caught:
        Script([first]).run(try_acquire(request, policy, Dice()))
    assert "its clock is 3600.0 s ahead of that of a; with fences 15 s may be" in str(caught.value)
    assert "its clock is 3600.0 s behind that of c" in str(caught.value)


def test_it_is_tried_again_while_clocks_differ() -> None:
    """The clocks may be corrected, or the missing node may come back."""
    first = [issues(FENCE, 1), DOWN, skewed(3_600, 2)]
    script = Script([first, [issues(FENCE)] * 3])
    policy = policy_of(3)
    request = request_of(policy)._replace(fencing=True)
    assert script.run(acquire(request, policy, Dice())).fence == FENCE
    assert kinds(script) == [ScriptedAcquire, Release, ScriptedAcquire]


def test_a_node_that_refuses_since_its_clock_is_behind_is_named() -> None:
    first = [issues(FENCE, 1), issues(FENCE + 5, 2), NEVER]
    outcome = refused(Script([first, [too_far(), above(), NEVER]]))
    assert outcome.answers[0].code is VoteCode.CLOCK_SKEW
    assert outcome.answers[0].is_fault


def test_a_counter_that_is_far_ahead_of_its_own_clock_is_named() -> None:
    far = Say(
        Answer(Vote.GRANTED, VoteCode.GRANTED, fence=FENCE + 60_000_000, clock_us=CLOCK_US), ms(1)
    )
    outcome = refused(Script([[issues(FENCE, 1), far, says(VoteCode.NOT_CONNECTED)]]))
    assert "its fence counter is 60.0 s ahead of its clock" in outcome.answers[1].reason


def test_who_may_settle_whose_clock_is_off_has_node_timeout() -> None:
    """Counted from the acquire round: nothing was sent to it since."""
    script = Script([[issues(FENCE, 1), NEVER, skewed(3_600, 2)]])
    policy: Policy = policy_of(3)
    script.run(attempt(request_of(policy)._replace(fencing=True), policy, Dice()))
    assert script.sent(Release) == [START + ms(50)]
