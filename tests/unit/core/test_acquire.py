"""Acquiring keeps the Redlock page's steps and our rules 1, 2, 5, 8, 9, 10 and 11, flow by flow."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock._core.acquiring import acquire, try_acquire
from quorlock._core.claims import Keys
from quorlock._core.commands import Acquire, Release
from quorlock._core.effects import Commit, Flow, FlowCancelled, Receive, Send, Sleep, Timeout
from quorlock._core.redlock import attempt, release_without_waiting, time_until_free_ms
from quorlock._core.restart_guard import kept_out
from quorlock._core.results import Acquired, AttemptFailed, FailureReason
from quorlock._core.rounds import NodeReply, SentRound, Target
from quorlock._core.tally import quorum
from quorlock._core.time import NS_PER_S, PAST, to_seconds
from quorlock._core.votes import HELD, Vote
from quorlock.errors import (
    AcquireStopped,
    AcquireTimeout,
    NodeError,
    QuorumUnreachable,
    VoteCode,
)
from tests.harness.support.script import (
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
    policy_of,
    request_of,
    says,
    spread,
    yes,
)

T = TypeVar("T")

BROKEN = says(VoteCode.CONNECTION_LOST, "connection lost: closed by the server")
CROWDED = says(VoteCode.LOCAL_QUEUE_TIMEOUT, after=0)
KEPT_OUT = Say(kept_out("started", 4.0, 26.0), 0)
NONSENSE = says(VoteCode.PROTOCOL_ERROR)


def cause(say: Say) -> str:
    return say.answer.code.name


def one_attempt(script: Script, **settings: float) -> Acquired | AttemptFailed:
    policy = policy_of(script.n, **settings)
    return script.run(attempt(request_of(policy), policy, Dice()))


def refused(script: Script) -> AttemptFailed:
    outcome = one_attempt(script)
    assert isinstance(outcome, AttemptFailed)
    return outcome


# --- steps 1 to 4: time first, all at once, a majority, within the validity --------------------


def test_the_time_is_taken_before_the_first_byte() -> None:
    """Validity counts from `started`; the nodes' time to answer counts from `sent`."""
    script = Script([[yes(49)] * 3], sending=ms(30))
    granted = one_attempt(script)
    assert isinstance(granted, Acquired)
    assert granted.valid_until == START + 10 * NS_PER_S - ms(102)
    assert script.now == START + ms(30 + 49), "49 ms is within the 50 from the last byte on"


@pytest.mark.parametrize("n", SIZES)
def test_a_majority_is_enough(n: int) -> None:
    """A quorum wins at its last grant, whatever the other nodes do (rules 8 and 9)."""
    others = [NEVER, held(0), NO_ACL, DOWN]
    plan = [yes(i + 1) for i in range(quorum(n))] + others[: n - quorum(n)]
    script = Script([plan])
    granted = one_attempt(script)
    assert isinstance(granted, Acquired)
    assert script.commands == [Acquire(b"r", b"token-0", 10_000)], "and nothing is given back"
    assert (granted.claim.key, granted.token, granted.ttl_ms) == (b"r", b"token-0", 10_000)
    assert script.now == START + ms(quorum(n))
    assert [a.vote is Vote.GRANTED for a in granted.answers[: quorum(n)]] == [True] * quorum(n)
    assert not any(a.code is VoteCode.TIMED_OUT for a in granted.answers), "nobody was waited for"


@pytest.mark.parametrize("n", SIZES)
def test_one_vote_less_is_not_enough(n: int) -> None:
    """A quorum less one does not win, however the rest fails."""
    for rest in (NEVER, held(2), DOWN, BROKEN, LOADING):
        plan = [yes(1)] * (quorum(n) - 1) + [rest] * (n - quorum(n) + 1)
        assert isinstance(one_attempt(Script([plan])), AttemptFailed)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("early", [1, 0, -1])
def test_validity_is_kept_to_the_nanosecond(n: int, early: int) -> None:
    """A quorum whose deciding reply comes 1 ns before the validity ends wins; one that comes at its
    end is late, and is released on all nodes.
    """
    # Sending takes nearly the whole ttl: the last of the quorum answers 1 ms after it.
    validity = 10 * NS_PER_S - ms(102)
    plan = [yes(1 if i < quorum(n) else 2) for i in range(n)]
    script = Script([plan], sending=validity - ms(1) - early)
    outcome = one_attempt(script)
    if early > 0:
        assert isinstance(outcome, Acquired)
        assert script.now == outcome.valid_until - 1
        assert len(script.commands) == 1
    else:
        assert isinstance(outcome, AttemptFailed)
        assert outcome.reason is FailureReason.LATE
        assert script.commands[1:] == [Release(b"r", b"token-0")]


def test_a_late_reply_of_an_earlier_attempt_is_not_counted_in_the_next() -> None:
    """Grants that come after their attempt are no votes of the one under way (rule 1)."""
    script = Script([[yes(1), yes(200), yes(201)], [held(40), NEVER, NEVER]])
    policy = policy_of(3, outage_timeout=0.5)
    with pytest.raises(QuorumUnreachable):
        script.run(acquire(request_of(policy, 0.3), policy, Dice()))
    assert any(at > START + ms(201) for at in script.at(Receive)), "they came while it listened"


# --- step 5: release ----------------------------------------------------------------------------

KINDS: list[Kind] = [yes, held, NEVER, DOWN, BROKEN, NO_ACL, LOADING]


def rounds(n: int) -> list[Round]:
    """Every combination of what n nodes can say, the next one a ms after the one before."""
    return [spread(plan) for plan in product(KINDS, repeat=n)]


def truth(plan: Round) -> FailureReason | None:
    """Return the outcome of a round from the answers of all nodes; None: granted."""
    causes = [say.answer.code for say in plan if say is not NEVER]
    needed = quorum(len(plan))
    if causes.count(VoteCode.GRANTED) >= needed:
        return None
    lasting = causes.count(VoteCode.ACCESS_DENIED)
    spoken = causes.count(VoteCode.GRANTED) + causes.count(VoteCode.HELD)
    if len(plan) - lasting < needed:
        return FailureReason.FORBIDDEN
    if spoken >= needed:
        return FailureReason.HELD
    faults = lasting + causes.count(VoteCode.TRANSIENT_ERROR)
    return FailureReason.FAULTY if spoken + faults >= needed else FailureReason.UNREACHABLE


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_every_combination_of_replies_is_classified_and_released(n: int) -> None:
    """Held, unreachable, faulty and forbidden are different outcomes, for every combination; a
    failed attempt is released once, on all nodes, behind its acquire (rule 5).
    """
    for plan in rounds(n):
        script = Script([plan])
        outcome = one_attempt(script)
        found = outcome.reason if isinstance(outcome, AttemptFailed) else None
        assert found is truth(plan), plan
        behind = [send.behind for send in script.sends]
        if found is None:
            assert len(behind) == 1
        else:
            assert script.commands[1:] == [Release(b"r", b"token-0")]
            assert isinstance(behind[1], Target)
            asked = [say is not DOWN for say in plan]
            assert [bool(behind[1].nodes >> i & 1) for i in range(n)] == asked
        assert script.now <= START + 2 * ms(50)


def test_an_even_split_is_released_at_once() -> None:
    """The flow does not wait for the rest with 2-2 of 4, nor with 1-1 of 2 (rule 8)."""
    four = Script([[held(1), yes(2), held(3), yes(40)]])
    assert refused(four).reason is FailureReason.HELD
    assert four.sent(Release) == [START + ms(3)]
    two = Script([[held(1), yes(40)]])
    assert refused(two).reason is FailureReason.HELD
    assert two.sent(Release) == [START + ms(1)]


def test_stragglers_separate_held_from_unreachable() -> None:
    """Lost at once by broken connections, it is held when a quorum does answer after that, and
    unreachable when it does not.
    """
    slow = Script([[BROKEN, BROKEN, held(3), held(20), held(30)]])
    assert refused(slow).reason is FailureReason.HELD
    assert slow.sent(Release) == [START + ms(3)]
    silent = Script([[BROKEN, BROKEN, held(3), held(20), NEVER]])
    assert refused(silent).reason is FailureReason.UNREACHABLE
    assert silent.now <= START + ms(3 + 50)


@pytest.mark.parametrize("fault", [NO_ACL, LOADING, NONSENSE, BROKEN, DOWN], ids=cause)
@pytest.mark.parametrize("n", [3, 4, 5, 9])
def test_a_faulty_minority_does_not_hide_that_it_is_held(n: int, fault: Say) -> None:
    """However quick the faulty nodes are, a quorum that answers "held" makes it held."""
    minority = n - quorum(n)
    plan = [fault] * minority + [held(2 + i) for i in range(quorum(n))]
    assert refused(Script([plan])).reason is FailureReason.HELD


def test_nodes_that_were_not_waited_for_are_not_accused_of_silence() -> None:
    """A node without time to answer is "not waited for"; one that had time is silent."""
    outcome = refused(Script([[held(1), held(1), held(1), held(45), NEVER]]))
    assert [a.code for a in outcome.answers] == [VoteCode.HELD] * 3 + [VoteCode.NOT_AWAITED] * 2
    outcome = refused(Script([[yes(1), held(1), held(1), NEVER, NEVER]]))
    assert [a.code for a in outcome.answers][3:] == [VoteCode.TIMED_OUT] * 2


def test_the_release_reports_how_long_the_holder_has() -> None:
    """A refusal carries the holder's remaining life, which the release reports."""
    script = Script([[held(1)] * 3], backs=[held(1, left=900), held(1, left=-1), held(2)])
    assert [a.ttl_left_ms for a in refused(script).answers] == [900, -1, None]
    # A key that is gone by then was held when it was asked for.
    outcome = refused(Script([[held(1)] * 3], backs=[absent(1), absent(1), absent(1)]))
    assert outcome.answers == (HELD,) * 3


def test_a_wrong_type_is_seen_by_the_release() -> None:
    """SET NX calls a list "held"; the release says what it is, and it lasts."""
    script = Script([[held(1)] * 3], backs=[WRONG_TYPE, WRONG_TYPE, held(1)])
    assert refused(script).reason is FailureReason.FORBIDDEN


def test_release_without_waiting_waits_for_nothing() -> None:
    """A lock whose caller is gone is released on all nodes without listening."""
    target = Target(0b111, None)
    script = Script([[NEVER] * 3])
    script.run(release_without_waiting(Keys(b"r"), b"t", target))
    assert script.sends == [Send(Release(b"r", b"t"), target, connect_until=PAST)]


# --- retries -----------------------------------------------------------------------------------


def failing(script: Script, timeout: float | None, dice: Dice, **settings: object) -> Exception:
    """The error with which acquire ends; the plan never grants."""
    policy = policy_of(script.n, **settings)
    with pytest.raises((AcquireTimeout, QuorumUnreachable, NodeError)) as caught:
        script.run(acquire(request_of(policy, timeout), policy, dice))
    return caught.value


def test_every_attempt_has_a_fresh_token() -> None:
    """No token is used twice, and each is released before the next (rule 2)."""
    script = Script([[held(1)] * 3, [held(1)] * 3, [yes(1)] * 3])
    policy = policy_of(3)
    granted = script.run(acquire(request_of(policy), policy, Dice()))
    assert [(type(c), c.token) for c in script.commands if isinstance(c, Acquire | Release)] == [
        (Acquire, b"token-0"),
        (Release, b"token-0"),
        (Acquire, b"token-1"),
        (Release, b"token-1"),
        (Acquire, b"token-2"),
    ]
    assert granted.token == b"token-2"
    assert granted.valid_until == script.sent(Acquire)[-1] + 10 * NS_PER_S - ms(102)


@pytest.mark.parametrize("say", [held(1), DOWN, BROKEN, LOADING, NO_ACL], ids=cause)
def test_timeout_zero_is_one_attempt(say: Say) -> None:
    """One attempt is always made, and no sleep follows the last one (rule 10)."""
    script = Script([[say] * 3])
    error = failing(script, 0, Dice())
    assert isinstance(error, AcquireTimeout | QuorumUnreachable | NodeError)
    assert (error.attempts, script.at(Sleep)) == (1, [])
    assert len(script.sent(Acquire)) == 1


def test_the_last_sleep_is_clamped_for_one_attempt_at_the_end() -> None:
    """The attempts of 300 ms with pauses of 200 ms begin at 0, 202 and 300 ms, and none later."""
    script = Script([[held(1)] * 3])
    error = failing(script, 0.3, Dice(1.0))
    assert [at - START for at in script.sent(Acquire)] == [0, ms(202), ms(300)]
    assert isinstance(error, AcquireTimeout)
    assert (error.attempts, error.elapsed) == (3, to_seconds(ms(302)))


class At:
    """An event that is set from an instant on."""

    def __init__(self, script: Script, instant: int) -> None:
        self._script = script
        self._instant = instant

    def is_set(self) -> bool:
        return self._script.now >= self._instant


def stopped(script: Script, at: int, timeout: float | None = None) -> AcquireStopped:
    """Run an acquire with an event that is set so many ms after its start."""
    policy = policy_of(script.n)
    request = request_of(policy, timeout)._replace(stop=At(script, START + ms(at)))
    flow = acquire(request, policy, Dice())
    with pytest.raises(AcquireStopped) as caught:
        script.run(flow)
    return caught.value


def test_an_event_that_is_set_begins_no_attempt() -> None:
    """Nothing is sent."""
    script = Script([[yes(1)] * 3])
    error = stopped(script, 0)
    assert (error.attempts, error.votes, error.elapsed, script.effects) == (0, (), 0.0, [])


def test_an_event_ends_the_attempts_and_each_is_released() -> None:
    """No attempt begins once it is set; the waits may end by it."""
    script = Script([[held(1)] * 3])
    error = stopped(script, 300)
    begun = script.sent(Acquire)
    assert begun[-1] < START + ms(300)
    assert error.attempts == len(begun) == len(script.sent(Release)) > 1
    assert error.elapsed == to_seconds(begun[-1] + ms(2) - START)
    waits = [one for _, one in script.effects if isinstance(one, Sleep)]
    waits += [send for send in script.sends if isinstance(send.command, Acquire)]  # type: ignore[misc]
    assert all(wait.stop is not None for wait in waits)


def test_the_event_and_the_timeout_in_one_attempt() -> None:
    """The event is the reason where both are over."""
    assert stopped(Script([[held(5)] * 3]), 3, timeout=0).attempts == 1


def test_an_attempt_that_wins_is_not_thrown_away() -> None:
    """The event was set while the nodes replied: the caller has the lease."""
    script, policy = Script([[yes(5)] * 3]), policy_of(3)
    flow = acquire(request_of(policy)._replace(stop=At(script, START + ms(1))), policy, Dice())
    assert isinstance(script.run(flow), Acquired)


@settings(deadline=None)
@given(
    st.integers(0, 3_000),
    st.integers(0, 40),
    st.floats(0, 1),
    st.sampled_from([(0.02, 0.02), (0.05, 0.2), (0.5, 2.0)]),
    st.integers(0, 30),
)
def test_deadlines_are_honest(
    timeout_ms: int, latency: int, share: float, delay: tuple[float, float], sending: int
) -> None:
    """All timeouts, latencies and pauses: no attempt begins after the deadline, one begins at it
    (or ran over it), no sleep reaches beyond it, none follows the last attempt.
    """
    script = Script([[held(latency)] * 3], sending=ms(sending))
    error = failing(script, timeout_ms / 1e3, Dice(share), retry_delay=delay)
    deadline = START + ms(timeout_ms)
    begun = script.sent(Acquire)
    assert isinstance(error, AcquireTimeout)
    assert error.attempts == len(begun) == len(script.at(Sleep)) + 1
    assert begun[-1] <= deadline <= script.now
    assert begun[-1] == deadline or script.now >= deadline
    sleeps = [effect.until for _, effect in script.effects if isinstance(effect, Sleep)]
    assert all(until <= deadline for until in sleeps)
    assert not isinstance(script.effects[-1][1], Sleep)
    assert script.now - begun[-1] <= ms(2 * (latency + sending)), "one attempt over, no more"


@pytest.mark.parametrize(
    ("latency", "delay", "expected"),
    [
        (1, (0.05, 0.2), (ms(50), ms(200))),
        (40, (0.05, 0.2), (ms(80), ms(200))),
        (40, (0.05, 0.1), (ms(80), ms(160))),
        (40, (0.001, 0.001), (ms(80), ms(160))),
        (1, (0.3, 0.3), (ms(300), ms(600))),
    ],
)
def test_the_pause_is_random_and_longer_than_a_round(
    latency: int, delay: tuple[float, float], expected: tuple[int, int]
) -> None:
    """Redlock page, "Retry on failure": else two contenders who split the votes meet again."""
    script, dice = Script([[held(latency)] * 3]), Dice(0.5)
    failing(script, 1.0, dice, retry_delay=delay)
    assert set(dice.ranges) == {expected}
    pauses = {until.until - at for at, until in script.effects[:-9] if isinstance(until, Sleep)}
    assert pauses == {sum(expected) // 2}


def test_a_pause_of_the_process_makes_no_longer_pause_of_the_call() -> None:
    """An attempt takes 100 ms at most, whatever time passes while the process does not run."""
    script, dice = Script([[held(1)] * 3], sending=ms(500)), Dice(0.5)
    failing(script, 5.0, dice, retry_delay=(0.01, 0.02))
    assert set(dice.ranges) == {(ms(100), ms(200))}


# --- outages -----------------------------------------------------------------------------------

OUTAGES: list[Round] = [
    [DOWN] * 3 + [yes(1)] * 2,
    [NEVER] * 3 + [yes(1)] * 2,
    [BROKEN] * 3 + [held(1)] * 2,
    [NEVER] * 5,
    [DOWN] * 5,
    [DOWN, NEVER, BROKEN, yes(49), held(49)],
]


@pytest.mark.parametrize("plan", OUTAGES, ids=range(len(OUTAGES)))
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_an_outage_ends_within_its_time(plan: Round, share: float, timeout: float | None) -> None:
    """QuorumUnreachable no later than outage_timeout, after trying nearly that long."""
    script = Script([plan])
    error = failing(script, timeout, Dice(share), outage_timeout=2.0)
    assert isinstance(error, QuorumUnreachable)
    assert START + ms(1_850) <= script.now <= START + ms(2_000)
    assert error.attempts == len(script.sent(Acquire)) > 5
    assert not isinstance(script.effects[-1][1], Sleep)
    assert error.elapsed == to_seconds(script.now - START)


@pytest.mark.parametrize("outage_timeout", [0, 0.05, 0.1])
def test_a_short_outage_timeout_is_one_attempt(outage_timeout: float) -> None:
    """One attempt is always made, and no other if two rounds would not fit."""
    script = Script([[DOWN] * 3])
    failing(script, None, Dice(), outage_timeout=outage_timeout)
    assert len(script.sent(Acquire)) == 1


def test_a_shorter_timeout_goes_first() -> None:
    """The caller's own deadline holds in an outage too, and the error says what it was."""
    script = Script([[DOWN] * 3])
    assert isinstance(failing(script, 0.3, Dice()), QuorumUnreachable)
    assert script.now == START + ms(300)


def test_contention_resets_the_outage_clock() -> None:
    """Only an uninterrupted outage counts: one answer that the lock is held restarts its clock."""
    out, busy = [DOWN] * 3, [held(1)] * 3
    # Pauses of 50 ms: 16 attempts of an outage fill 800 of 1,000 ms.
    script = Script([*[out] * 16, busy, out])
    error = failing(script, None, Dice(), outage_timeout=1.0)
    assert isinstance(error, QuorumUnreachable)
    second_outage = script.sent(Acquire)[17]
    assert second_outage > START + ms(800)
    assert second_outage + ms(850) <= script.now <= second_outage + ms(1_000)


def test_time_before_the_first_attempt_counts_as_outage() -> None:
    """Connecting came before the first round and is part of the outage."""
    script = Script([[DOWN] * 3], now=START + ms(1_000))
    failing(script, None, Dice(), outage_timeout=2.0)
    assert START + ms(1_850) <= script.now <= START + ms(2_000)


def test_a_pause_of_the_process_is_no_outage() -> None:
    """However long it does not run: it tries as often as it would otherwise."""
    script = Script([[DOWN] * 3], sending=ms(20_000))
    failing(script, None, Dice(1.0), outage_timeout=5.0)
    assert len(script.sent(Acquire)) == 4
    script = Script([[DOWN] * 3], now=START + ms(60_000))
    failing(script, None, Dice(1.0), outage_timeout=5.0)
    assert len(script.sent(Acquire)) > 10


def test_it_continues_when_the_nodes_come_back() -> None:
    """An outage that ends within its time is only a delay."""
    script = Script([[DOWN] * 3, [NEVER] * 3, [LOADING] * 3, [yes(1)] * 3])
    policy = policy_of(3)
    granted = script.run(acquire(request_of(policy), policy, Dice()))
    assert granted.token == b"token-3"


# --- quarantine --------------------------------------------------------------------------------

WAITS = [
    [KEPT_OUT] * 5,
    [KEPT_OUT, KEPT_OUT, yes(1), DOWN, NEVER],
    [KEPT_OUT, held(1), held(2), DOWN, LOADING],
    [KEPT_OUT, KEPT_OUT, KEPT_OUT, LOADING, LOADING],
    [KEPT_OUT, KEPT_OUT, KEPT_OUT, NO_ACL, NO_ACL],
]


@pytest.mark.parametrize("plan", WAITS, ids=range(len(WAITS)))
@pytest.mark.parametrize("outage_timeout", [0.0, 1.0])
def test_a_quarantine_is_no_outage(plan: Round, outage_timeout: float) -> None:
    """The nodes will vote: the caller's timeout alone ends the wait, and the error says why."""
    script = Script([plan])
    error = failing(script, 8.0, Dice(1.0), outage_timeout=outage_timeout)
    assert isinstance(error, QuorumUnreachable)
    begun = script.sent(Acquire)
    assert begun[-1] == START + ms(8_000), "the last attempt is made when the time is up"
    assert error.attempts == len(begun)
    assert "quorlock nodes fresh" in str(error)
    votes = [vote for vote in error.votes if vote.code is VoteCode.QUARANTINED]
    assert all(vote.quarantine and vote.quarantine.votes_in == 26.0 for vote in votes)


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_the_lock_is_granted_when_enough_nodes_vote(timeout: float | None) -> None:
    """The next attempt finds it, long after outage_timeout."""
    script = Script([*[[KEPT_OUT] * 3] * 200, [yes(1), yes(1), KEPT_OUT]])
    policy = policy_of(3)
    granted = script.run(acquire(request_of(policy, timeout), policy, Dice()))
    assert granted.token == b"token-200"
    assert script.now > START + 2 * policy.outage_timeout


def test_a_quarantine_that_cannot_help_is_an_outage() -> None:
    """Too few nodes would be there, or the quarantine has no known end."""
    endless = says(VoteCode.QUARANTINED, "its address leads to another server", after=0)
    for plan in ([KEPT_OUT, KEPT_OUT, DOWN, DOWN, NEVER], [endless] * 5):
        script = Script([plan])
        error = failing(script, None, Dice(), outage_timeout=2.0)
        assert isinstance(error, QuorumUnreachable)
        assert START + ms(1_850) <= script.now <= START + ms(2_000)
        assert str(error).endswith("check these nodes")


def test_a_quarantine_between_outages_restarts_the_clock() -> None:
    """A quorum of nodes was there, as under contention."""
    out, waits = [DOWN] * 3, [KEPT_OUT] * 3
    script = Script([*[out] * 16, waits, out])
    failing(script, None, Dice(), outage_timeout=1.0)
    second_outage = script.sent(Acquire)[17]
    assert second_outage > START + ms(800)
    assert second_outage + ms(850) <= script.now <= second_outage + ms(1_000)


def test_one_attempt_does_not_wait_for_a_quarantine() -> None:
    """`try_acquire` and timeout=0 raise at once."""
    for plan in WAITS:
        policy = policy_of(5)
        script = Script([plan])
        with pytest.raises(QuorumUnreachable, match="quorlock nodes fresh"):
            script.run(try_acquire(request_of(policy), policy, Dice()))
        assert len(script.sent(Acquire)) == 1
        assert script.at(Sleep) == []
        script = Script([plan])
        assert isinstance(failing(script, 0, Dice()), QuorumUnreachable)
        assert len(script.sent(Acquire)) == 1


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [NO_ACL, NONSENSE, WRONG_TYPE], ids=cause)
def test_permanent_errors_are_reported_at_once(fault: Say) -> None:
    """Permanent errors are not waited for: NodeError after one attempt, even without a timeout."""
    script = Script([[fault] * 3 + [yes(1)] * 2])
    error = failing(script, None, Dice())
    assert isinstance(error, NodeError)
    assert (error.attempts, script.at(Sleep)) == (1, [])
    assert [vote.code.is_error for vote in error.votes] == [True] * 3 + [False] * 2
    assert script.commands[1:] == [Release(b"r", b"token-0")]


def test_transient_errors_are_waited_for() -> None:
    """LOADING and similar errors are retried for outage_timeout, then raised."""
    script = Script([[LOADING] * 3])
    error = failing(script, None, Dice(), outage_timeout=1.0)
    assert isinstance(error, NodeError)
    assert error.attempts > 5
    assert START + ms(850) <= script.now <= START + ms(1_000)


def test_a_timeout_has_the_reply_of_every_node() -> None:
    """The error has the last attempt's votes under the nodes' names and the holder's rest."""
    backs = [held(1, left=3_000), held(1, left=1_000), held(1, left=2_000)]
    script = Script([[held(1)] * 3 + [NO_ACL, DOWN]], backs=[*backs, NO_ACL, DOWN])
    error = failing(script, 0, Dice())
    assert isinstance(error, AcquireTimeout)
    assert error.resource == "r"
    assert error.holder_ttl == 3.0, "the third shortest of 1, 2 and 3 s: then a quorum is free"
    assert [(v.node, v.vote, v.cause, v.answered, v.code) for v in error.votes] == [
        ("a", "refused", "held by another", True, "held"),
        ("b", "refused", "held by another", True, "held"),
        ("c", "refused", "held by another", True, "held"),
        ("d", "refused", "NOPERM no", True, "access_denied"),
        ("e", "unknown", "connection refused", False, "not_connected"),
    ]


def test_an_attempt_that_was_not_sent_does_not_hide_the_holder() -> None:
    """A process with too many calls may not ask again at the end. Without votes it says so."""
    error = failing(Script([[held(1)] * 3, [CROWDED] * 3]), 0.01, Dice())
    assert isinstance(error, AcquireTimeout)
    assert [vote.code for vote in error.votes] == [VoteCode.HELD] * 3
    error = failing(Script([[CROWDED] * 3]), 0, Dice())
    assert isinstance(error, QuorumUnreachable)


def test_try_acquire_is_one_attempt() -> None:
    """The lease, None when it is held (or came too late), the errors for what is neither."""
    policy = policy_of(3)

    def once(script: Script) -> Acquired | None:
        return script.run(try_acquire(request_of(policy), policy, Dice()))

    assert isinstance(once(Script([[yes(1)] * 3])), Acquired)
    assert once(Script([[held(1)] * 3])) is None
    assert once(Script([[yes(1)] * 3], sending=10 * NS_PER_S)) is None
    for plan, kind in (([DOWN] * 3, QuorumUnreachable), ([NO_ACL] * 3, NodeError)):
        script = Script([plan])
        with pytest.raises(kind) as caught:
            once(script)
        assert isinstance(caught.value, QuorumUnreachable | NodeError)
        assert caught.value.attempts == 1
        assert script.at(Sleep) == []


LIFE = st.one_of(st.none(), st.integers(-1, 5))


@settings(deadline=None)
@given(st.lists(st.one_of(LIFE, st.sampled_from(["yes", "absent", "down", "fault"])), max_size=9))
def test_the_holders_rest_is_when_a_quorum_is_free(lives: list[int | str | None]) -> None:
    """The quorum-th shortest of the lives left: the first ms at which enough nodes are free."""
    words = {"yes": yes(), "absent": absent(), "down": DOWN, "fault": NO_ACL}
    answers = [words[x] if isinstance(x, str) else held(left=x) for x in lives]
    ends = [0 if x in ("yes", "absent") else x for x in lives]
    known = [end for end in ends if isinstance(end, int) and end >= 0]
    needed = quorum(len(lives))
    free_at = (t for t in range(7) if sum(end <= t for end in known) >= needed)
    assert time_until_free_ms(tuple(a.answer for a in answers), needed) == next(free_at, None)


# --- the caller goes away ----------------------------------------------------------------------

LIVES: list[list[Round]] = [
    [[yes(1), yes(2), yes(3)]],
    [[yes(1), held(2), held(3)], [DOWN, NEVER, yes(1)], [yes(1), NEVER, yes(2)]],
    [[held(1)] * 3, [NO_ACL] * 3],
    [[yes(1), yes(60), NEVER], [BROKEN, held(1), yes(2)], [yes(1)] * 3],
    [[NEVER] * 4, [yes(1), yes(1), held(1), held(1)], [yes(1)] * 4],
]


def steps(flow: Flow[T], script: Script) -> int:
    """Return the number of effects of an undisturbed flow."""
    with suppress(AcquireTimeout, QuorumUnreachable, NodeError):
        script.run(flow)
    return len(script.effects)


@pytest.mark.parametrize("flow", [acquire, try_acquire])
@pytest.mark.parametrize("plan", LIVES, ids=range(len(LIVES)))
@pytest.mark.parametrize("sending", [0, 10 * NS_PER_S], ids=["in time", "late"])
def test_cancelled_anywhere_it_releases_on_all_nodes(
    flow: type, plan: list[Round], sending: int
) -> None:
    """Abandoned at every yield, also when it has won but its caller has not got it yet: it sends a
    release of the attempt under way to all nodes that were asked (or all), asks for nothing but
    sends after it, and Abandoned comes out (rule 5).
    """
    policy = policy_of(len(plan[0]))

    def fresh() -> Flow[Acquired]:
        made: Flow[Acquired] = flow(request_of(policy, 3.0), policy, Dice())
        return made

    for step in range(steps(fresh(), Script(plan, sending=sending))):
        script = Script(plan, sending=sending)
        with pytest.raises(FlowCancelled):
            script.run(fresh(), abandon_at=step)
        before, after = script.effects[: step + 1], script.effects[step + 1 :]
        *_, last = (c for c in script.commands if isinstance(c, Acquire))
        if isinstance(before[-1][1], Sleep):
            assert after == [], "between two attempts there is nothing to give back"
        else:
            assert [e.command for _, e in after if isinstance(e, Send)] == [
                Release(b"r", last.token)
            ]
        for command in script.commands:
            if isinstance(command, Acquire):
                assert Release(b"r", command.token) in script.commands
        behind = [s.behind for s in script.sends if isinstance(s.command, Release)]
        unsure = isinstance(before[-1][1], Send) and isinstance(before[-1][1].command, Acquire)
        assert (behind[-1] is None) is unsure, "nobody knows which nodes got it: all of them"


@pytest.mark.parametrize("flow", [acquire, try_acquire])
@pytest.mark.parametrize("plan", LIVES, ids=range(len(LIVES)))
@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit(), ValueError("driver")])
def test_interrupted_or_closed_anywhere(
    flow: type, plan: list[Round], error: BaseException
) -> None:
    """Whatever else is thrown in is answered by a give-back and comes out itself; a flow that is
    closed (its driver is gone) ends quietly and asks for nothing.
    """
    policy = policy_of(len(plan[0]))

    def started(upto: int) -> Flow[Acquired]:
        """A flow that stands at its nth yield."""
        run: Flow[Acquired] = flow(request_of(policy, 3.0), policy, Dice())
        script = Script(plan)
        effect = next(run)
        for _ in range(upto):
            assert not isinstance(effect, Commit)
            effect = run.send(script._perform(effect))
        return run

    total = steps(flow(request_of(policy, 3.0), policy, Dice()), Script(plan))
    for step in range(total):
        run = started(step)
        if isinstance(error, GeneratorExit):
            run.close()
            continue
        with pytest.raises(type(error)) as caught:  # noqa: PT012
            effect = run.throw(error)
            assert isinstance(effect, Send)
            assert isinstance(effect.command, Release)
            effect = run.send(Target(0, None))
        assert caught.value is error


def test_a_lock_that_is_won_is_kept_until_its_caller_has_it() -> None:
    """Commit is the last effect: if the flow is closed there the lock stays, if it is cancelled
    there the lock is released.
    """
    script = Script([[yes(1)] * 3])
    granted = one_attempt(script)
    assert script.effects[-1][1] == Commit(granted)  # type: ignore[arg-type]
    assert script.sent(Release) == []
    policy = policy_of(3)
    script = Script([[yes(1)] * 3])
    with pytest.raises(FlowCancelled):
        script.run(attempt(request_of(policy), policy, Dice()), abandon_at=3)
    assert script.sends[-1] == Send(Release(b"r", b"token-0"), granted.sent_round.target)  # type: ignore[union-attr]


def test_a_flow_is_sent_only_node_replies_and_timeouts() -> None:
    """The driver's vocabulary is what these tests speak: a change of it must be seen here."""
    assert NodeReply._fields == ("round", "node", "answer", "at")
    assert Timeout._fields == ("at",)
    assert SentRound._fields == ("round", "started_at", "sent_at", "target")
