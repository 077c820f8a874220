"""Extending keeps rules 4 and 6: a re-vote within the old validity, or the lease is over."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock._api.lease_options import lease_options
from quorlock._api.lease_state import LeaseState
from quorlock._core.claims import Keys
from quorlock._core.commands import Extend, Release
from quorlock._core.effects import FlowCancelled, Sleep
from quorlock._core.redlock import LeaseFacts, adopt, extend, extend_by_token
from quorlock._core.results import Extended, ExtendFailed, LossReason
from quorlock._core.rounds import SentRound, Target
from quorlock._core.tally import quorum
from quorlock._core.time import FOR_EVER, NS_PER_S, PAST, Instant
from quorlock._drivers.clock import now
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
    Dice,
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

DRIFT = ms(102)  # of 10 s
OPTIONS = lease_options(False, 60.0, None)


def cause(say: Say) -> str:
    return say.answer.code.name


def facts(valid_until: Instant, target: Target | None = None) -> LeaseFacts:
    return LeaseFacts("r", Keys(b"r"), b"t", valid_until, target)


def extended(
    script: Script, left: int = 5 * NS_PER_S, dice: Dice | None = None
) -> Extended | ExtendFailed:
    """Extend a lease that is valid for `left` ns more, by 10 s."""
    policy = policy_of(script.n)
    flow = extend(facts(START + left), 10_000, START, policy, dice or Dice())
    return script.run(flow)


# --- one round -------------------------------------------------------------------------------


def test_a_quorum_that_replies_after_node_timeout_extends() -> None:
    """The first round extends: asking again would not bring the replies sooner."""
    script = Script([[yes(80), yes(300), NEVER]])
    assert isinstance(extended(script), Extended)
    assert script.commands == [Extend(b"r", b"t", 10_000)]


@pytest.mark.parametrize(("left_ms", "waits_ms"), [(5_000, 500), (400, 200), (90, 50), (20, 20)])
def test_half_of_the_validity_is_left_for_trying_again(left_ms: int, waits_ms: int) -> None:
    """A round lasts at most half a second, at least node_timeout (50 ms), and ends with the
    validity.
    """
    script = Script([[yes(1), NEVER, NEVER], [yes(1)] * 3])
    extended(script, ms(left_ms))
    (first, *_) = script.at(Sleep)
    assert first == START + ms(waits_ms)


@pytest.mark.parametrize("n", SIZES)
def test_a_majority_extends(n: int) -> None:
    """Valid until ttl - drift after the round's start, whatever the other nodes say."""
    others = [NEVER, held(0), absent(0), DOWN]
    script = Script([[yes(1)] * quorum(n) + others[: n - quorum(n)]], sending=ms(20))
    outcome = extended(script)
    assert isinstance(outcome, Extended)
    assert outcome.valid_until == START + 10 * NS_PER_S - DRIFT
    (send,) = script.sends
    assert send.command == Extend(b"r", b"t", 10_000)
    assert send.connect_until == START + 5 * NS_PER_S, "no connection is waited for after the end"
    assert script.now == START + ms(21)


def test_it_follows_the_acquire_of_its_lease() -> None:
    """Nodes that were never asked for this key are not asked to extend it."""
    target = Target(0b011, None)
    policy = policy_of(3)
    script = Script([[yes(1)] * 3])
    outcome = script.run(extend(facts(FOR_EVER, target), 10_000, START, policy, Dice()))
    assert isinstance(outcome, Extended)
    assert script.sends[0].behind is target


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("early", [1, 0, -1])
def test_it_counts_only_before_the_old_validity_ends(n: int, early: int) -> None:
    """Decided 1 ns before the old end it counts; at the end another client may have the lock."""
    script = Script([[yes(10)] * n])
    outcome = extended(script, left=ms(10) + early)
    if early > 0:
        assert isinstance(outcome, Extended)
    else:
        assert isinstance(outcome, ExtendFailed)
        assert outcome.reason is LossReason.UNREACHABLE
        assert script.now == START + ms(10) + early
        assert len(script.commands) == 1, "nothing is sent after the end"


@pytest.mark.parametrize("early", [1, 0])
def test_it_counts_only_within_its_own_validity(early: int) -> None:
    """A round that takes longer than the new ttl is worth nothing either."""
    script = Script([[yes(1)] * 3], sending=10 * NS_PER_S - DRIFT - ms(1) - early)
    outcome = extended(script, left=11 * NS_PER_S)
    assert isinstance(outcome, Extended if early else ExtendFailed)


KINDS: list[Kind] = [yes, held, absent, not_set, NEVER, DOWN, WRONG_TYPE, LOADING]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_every_combination_of_answers(n: int) -> None:
    """Every combination: extended iff a majority did; lost at once iff so many deny it that no
    majority can be left; otherwise retried to the end of the validity.
    """
    for kinds in product(KINDS, repeat=n):
        plan = spread(kinds)
        script = Script([plan])
        outcome = extended(script, left=ms(180))
        causes = [say.answer.code for say in plan if say is not NEVER]
        gone = causes.count(VoteCode.KEY_MISSING) + causes.count(VoteCode.NOT_SET)
        taken = causes.count(VoteCode.HELD) + causes.count(VoteCode.WRONG_TYPE)
        if causes.count(VoteCode.GRANTED) >= quorum(n):
            assert isinstance(outcome, Extended), plan
        elif n - gone - taken < quorum(n):
            assert isinstance(outcome, ExtendFailed), plan
            possible = {LossReason.EVICTED} if not taken else {LossReason.TAKEN, LossReason.EVICTED}
            possible -= {LossReason.EVICTED} if n - gone >= quorum(n) else set()
            assert outcome.reason in possible, plan
            assert len(script.commands) == 1, plan
            assert script.now <= START + ms(50), plan
        else:
            assert isinstance(outcome, ExtendFailed), plan
            assert outcome.reason is LossReason.UNREACHABLE, plan
            assert script.now == START + ms(180), plan
            assert len(script.commands) > 1, plan


@pytest.mark.parametrize("n", [3, 4, 5, 9])
@pytest.mark.parametrize("dead", [DOWN, BROKEN, LOADING], ids=cause)
@pytest.mark.parametrize(
    ("against", "loss"), [(absent, LossReason.EVICTED), (held, LossReason.TAKEN)]
)
def test_a_dead_minority_does_not_hide_a_loss(
    n: int, dead: Say, against: Callable[[float], Say], loss: LossReason
) -> None:
    """Replies of live nodes count after dead nodes have decided: a quorum that reports a missing
    key ends the lease at once, not when its validity ends.
    """
    minority = n - quorum(n)
    plan = [dead] * minority + [against(i + 2) for i in range(quorum(n))]
    script = Script([plan])
    outcome = extended(script)
    assert isinstance(outcome, ExtendFailed)
    assert outcome.reason is loss
    assert len(script.commands) == 1
    policy = policy_of(n)
    flow = extend_by_token(request_of(policy), b"t", policy)
    assert Script([plan]).run(flow) is False


def test_nodes_that_were_not_waited_for_are_not_accused_of_silence() -> None:
    """The rest is "not waited for" after an early verdict, and silent at the deadline."""
    won = extended(Script([[yes(1), yes(1), yes(1), yes(30), NEVER]]))
    assert [a.code for a in won.answers] == [VoteCode.GRANTED] * 3 + [VoteCode.NOT_AWAITED] * 2
    gone = extended(Script([[absent(1), absent(1), absent(1), yes(30), NEVER]]))
    assert [a.code for a in gone.answers] == [VoteCode.KEY_MISSING] * 3 + [VoteCode.NOT_AWAITED] * 2
    silent = extended(Script([[yes(1), yes(1), NEVER, NEVER, NEVER]]), left=ms(60))
    assert [a.code for a in silent.answers] == [VoteCode.GRANTED] * 2 + [VoteCode.TIMED_OUT] * 3


# --- retries ---------------------------------------------------------------------------------


def test_it_tries_again_while_validity_remains() -> None:
    """One unreachable round, or five, do not lose a lease that is still valid (rule 13)."""
    out: Round = [yes(1), NEVER, NEVER]
    script = Script([out, [DOWN] * 3, [BROKEN] * 3, [LOADING] * 3, out, [yes(1)] * 3])
    outcome = extended(script)
    assert isinstance(outcome, Extended)
    assert len(script.commands) == 6
    last = script.sent(Extend)[-1]
    assert outcome.valid_until == last + 10 * NS_PER_S - DRIFT, "counted from its own round"


def test_a_loss_in_a_later_round_is_final() -> None:
    """Unreachable, then seen to be taken: over, and not tried again."""
    script = Script([[NEVER] * 3, [held(1)] * 3, [yes(1)] * 3])
    outcome = extended(script)
    assert isinstance(outcome, ExtendFailed)
    assert outcome.reason is LossReason.TAKEN
    assert len(script.commands) == 2


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([DOWN, NEVER, BROKEN, yes(7), LOADING]), min_size=3, max_size=3),
    st.integers(1, 1_000),
    st.floats(0, 1),
    st.integers(0, 3),
)
def test_nothing_is_sent_after_the_end(
    plan: list[Say], left: int, share: float, sending: int
) -> None:
    """No extension begins when the old validity is over, no sleep goes beyond it, and without a
    majority the lease is lost when it ends, as unreachable.
    """
    script = Script([plan], sending=ms(sending))
    outcome = extended(script, left=ms(left), dice=Dice(share))
    end = START + ms(left)
    assert all(at < end for at in script.sent(Extend))
    sleeps = [effect.until for _, effect in script.effects if isinstance(effect, Sleep)]
    assert all(until <= end for until in sleeps)
    if isinstance(outcome, ExtendFailed):
        assert outcome.reason is LossReason.UNREACHABLE
        assert end <= script.now <= end + ms(sending)
    else:
        assert plan.count(yes(7)) >= 2


def test_a_lease_that_is_over_asks_no_node() -> None:
    """An extension at or after the end of its lease is lost without a byte."""
    for left in (0, -1, -START):
        script = Script([[yes(1)] * 3])
        outcome = extended(script, left=left)
        assert isinstance(outcome, ExtendFailed)
        assert (outcome.reason, outcome.answers, script.effects) == (LossReason.EXPIRED, (), [])


def test_permanent_errors_are_reported_at_once() -> None:
    """Nodes that refuse for good will not extend however often they are asked."""
    script = Script([[NO_ACL, NO_ACL, yes(1)]])
    with pytest.raises(NodeError) as caught:
        extended(script)
    assert (caught.value.resource, caught.value.elapsed) == ("r", 0.001)
    assert len(script.commands) == 1
    minority = extended(Script([[NO_ACL, yes(1), yes(1)]]))
    assert isinstance(minority, Extended)


@pytest.mark.parametrize("plan", [[yes(1)] * 3, [NEVER] * 3, [absent(1)] * 3, [DOWN] * 3])
def test_cancelled_anywhere_it_sends_nothing_more(plan: Round) -> None:
    """An extension that is cancelled leaves the lease as it is: it is still held."""
    policy = policy_of(3)
    calm = Script([plan])
    calm.run(extend(facts(START + ms(300)), 10_000, START, policy, Dice()))
    for step in range(len(calm.effects)):
        script = Script([plan])
        flow = extend(facts(START + ms(300)), 10_000, START, policy, Dice())
        with pytest.raises(FlowCancelled):
            script.run(flow, abandon_at=step)
        assert len(script.effects) == step + 1


def test_a_shorter_extension_never_shortens_a_lease() -> None:
    """`extend` means at least this long: a validity that reaches further stays (rule 4)."""
    at = now()
    soon = at + 50 * NS_PER_S
    sent = SentRound(1, at, at)
    lease = LeaseState("r", Keys(b"r"), b"t", 10_000, soon + 500, (), sent, 0, OPTIONS)
    assert lease.extend_validity(soon + 400, 4_000)
    assert lease.valid_until == soon + 500
    assert lease.extend_validity(soon + 600, 6_000)
    assert lease.valid_until == soon + 600
    lease.end()
    assert not lease.extend_validity(soon + 900, 9_000)
    assert lease.valid_until == 0, "nothing brings a lease back that is over"


def test_only_the_keys_of_a_lost_lease_are_kept() -> None:
    """The end is that of the validity that its holder has read."""
    at = now()
    sent, until = SentRound(1, at, at), at + 50 * NS_PER_S
    for loss, kept_until in ((None, PAST), (LossReason.UNREACHABLE, until)):
        lease = LeaseState("r", Keys(b"r"), b"t", 10_000, until, (), sent, 0, OPTIONS)
        assert lease.reported_until == until
        lease.end(loss)
        assert lease.reported_until == kept_until


def test_an_extension_that_is_noticed_too_late_does_not_bring_a_lease_back() -> None:
    """Other clients have seen it expire by then, and `lost` has been set (rule 4)."""
    at = now()
    lease = LeaseState("r", Keys(b"r"), b"t", 9_000, at, (), SentRound(1, at, at), 0, OPTIONS)
    assert not lease.extend_validity(now() + 10**12, 9_000)
    assert not lease.held


# --- by bare token, and adopted ---------------------------------------------------------------


def by_token(plan: Round) -> bool:
    policy = policy_of(len(plan))
    script = Script([plan])
    try:
        return script.run(extend_by_token(request_of(policy), b"t", policy))
    finally:
        assert script.commands == [Extend(b"r", b"t", 10_000)], "one round, no retry"
        assert script.sends[0].behind is None, "on all nodes"


@pytest.mark.parametrize("n", SIZES)
def test_extending_by_token(n: int) -> None:
    """One round: True by a quorum, False when it is gone or taken, an error when it is neither."""
    q = quorum(n)
    assert by_token([yes(1)] * q + [NEVER] * (n - q)) is True
    assert by_token([absent(1)] * n) is False
    assert by_token([held(1)] * n) is False
    with pytest.raises(QuorumUnreachable) as unreachable:
        by_token([DOWN] * n)
    assert (unreachable.value.attempts, unreachable.value.elapsed) == (1, 0)
    with pytest.raises(NodeError):
        by_token([LOADING] * n)
    if n > 1:
        # One node more could say that it is gone.
        with pytest.raises(QuorumUnreachable) as silent:
            by_token([NEVER, *[absent(1)] * (n - q), *[DOWN] * (q - 1)])
        assert silent.value.elapsed == 0.05
    with pytest.raises(QuorumUnreachable):
        by_token([yes(1)] * (q - 1) + [NEVER] * (n - q + 1))


def adopted(script: Script, **settings: float) -> Extended | ExtendFailed:
    policy = policy_of(script.n, **settings)
    return script.run(adopt(request_of(policy), b"t", policy, Dice()))


def test_adopting_is_an_extension_that_has_won() -> None:
    """Held from the moment on at which a quorum extended it, with this round's validity."""
    script = Script([[NEVER] * 3, [DOWN, yes(1), yes(1)]])
    outcome = adopted(script)
    assert isinstance(outcome, Extended)
    assert outcome.valid_until == script.sent(Extend)[-1] + 10 * NS_PER_S - DRIFT
    assert [a.code for a in outcome.answers] == [
        VoteCode.NOT_CONNECTED,
        VoteCode.GRANTED,
        VoteCode.GRANTED,
    ]


@pytest.mark.parametrize(
    ("against", "loss"), [(absent(1), LossReason.EXPIRED), (held(1), LossReason.TAKEN)]
)
def test_adopting_what_is_gone_gives_the_rest_back(against: Say, loss: LossReason) -> None:
    """Lost at once, and released on all nodes: a minority may still have the key.

    This process does not know when a key that is gone would have expired.
    """
    script = Script([[against, against, yes(1)]])
    outcome = adopted(script)
    assert isinstance(outcome, ExtendFailed)
    assert outcome.reason is loss
    assert script.commands == [Extend(b"r", b"t", 10_000), Release(b"r", b"t")]
    assert script.sends[1].behind is None


def test_adopting_ends_at_once_where_too_many_nodes_refuse_for_good() -> None:
    script = Script([[NO_ACL, NO_ACL, yes(1)]])
    with pytest.raises(NodeError) as refused:
        adopted(script)
    assert (script.commands, refused.value.elapsed) == ([Extend(b"r", b"t", 10_000)], 0.001)


def test_adopting_ends_when_no_key_can_be_left() -> None:
    """Adopting without a quorum is retried for at most max_ttl."""
    script = Script([[DOWN] * 3])
    outcome = adopted(script, ttl=0.5, max_ttl=1.0)
    assert isinstance(outcome, ExtendFailed)
    assert outcome.reason is LossReason.UNREACHABLE
    assert START + ms(900) <= script.now <= START + ms(1_000)
    assert all(at < START + ms(1_000) for at in script.sent(Extend))
