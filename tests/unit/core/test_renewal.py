"""Renewal as a flow: what is due when, what is sent, what a round means for each of many leases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from quorlock._core.claims import Keys
from quorlock._core.commands import Acquire, Extend, Release
from quorlock._core.config import Policy
from quorlock._core.effects import Effect, Flow, Send, SendBatch
from quorlock._core.redlock import LeaseFacts
from quorlock._core.renewal import renew
from quorlock._core.renewal_schedule import (
    BATCH_MAX,
    BATCH_SHARE,
    EXPEDITED_PAUSE_SHARE,
    FIRST_CHECK_SHARE,
    PAUSE_MIN,
    RenewalEntry,
    RenewalSchedule,
)
from quorlock._core.results import ExtendFailed, LossReason
from quorlock._core.rounds import Target, joined
from quorlock._core.tally import quorum
from quorlock._core.time import FOR_EVER, NS_PER_S, PAST, Instant
from tests.harness.support.script import (
    DOWN,
    LOADING,
    NEVER,
    START,
    Dice,
    Round,
    Script,
    absent,
    held,
    ms,
    policy_of,
    yes,
)

TTL_MS = 10_000
DRIFT = ms(102)


class Leased:
    """A lease in virtual time, as renewal sees it."""

    def __init__(self, policy: Policy, name: bytes = b"r", ttl_ms: int = TTL_MS) -> None:
        self.name = name
        self.until = policy.valid_until(START, ttl_ms)
        self.ttl_ms = ttl_ms
        self.hold_until: Instant = FOR_EVER
        self.last_failure: ExtendFailed | None = None
        self.loss: LossReason | None = None
        self.target: Target | None = Target((1 << policy.n) - 1, "its own")
        self.everywhere = (1 << policy.n) - 1
        self.is_released = False

    @property
    def valid_until(self) -> Instant:
        return PAST if self.loss else self.until

    @property
    def deadline(self) -> Instant:
        return self.valid_until - ms(self.ttl_ms / 20)

    @property
    def reported_until(self) -> Instant:
        return PAST if self.is_released else self.until

    def facts(self) -> LeaseFacts:
        return LeaseFacts("r", Keys(self.name), b"t", self.until, self.target)

    @property
    def failure(self) -> LossReason | None:
        return None if self.last_failure is None else self.last_failure.reason

    def extend_validity(self, valid_until: Instant, ttl_ms: int) -> bool:
        if self.loss is not None:
            return False
        self.until = max(self.until, valid_until)
        return True

    def end(self, loss: LossReason | None = None) -> None:
        self.loss = self.loss or loss or LossReason.EXPIRED

    def add_release_target(self, target: Target) -> None:
        self.target = joined(self.target, target, self.everywhere)

    def release_flow(self, restored: Target) -> Flow[None]:
        facts = self.facts()
        yield Send(facts.claim.release(facts.token), restored)


def renewal_of(policy: Policy, ttl_ms: int = TTL_MS, dice: Dice | None = None) -> RenewalEntry:
    return RenewalEntry(Leased(policy, ttl_ms=ttl_ms), ttl_ms, START, dice or Dice())


def lease(renewal: RenewalEntry) -> Leased:
    assert isinstance(renewal.lease, Leased)
    return renewal.lease


def passed(
    plan: Sequence[Round],
    renewals: Sequence[RenewalEntry],
    at: Instant | None = None,
    sending: int = 0,
) -> Script:
    """One pass over these."""
    policy = policy_of(len(plan[0]))
    script = Script(plan, sending=sending)
    script.now = renewals[0].due if at is None else at
    script.run(renew(renewals, script.now, policy, Dice()))
    return script


def asked(script: Script) -> list[list[object]]:
    """The commands of every packet."""
    packets = [effect for _, effect in script.effects if isinstance(effect, SendBatch)]
    return [[send.command for send in packet.sends] for packet in packets]


# --- when ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl_ms", [30, 200, 10_000, 3_600_000])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_lease_is_due_when_a_third_of_it_is_over(ttl_ms: int, share: float) -> None:
    """The due time varies a little at random, and two thirds are left for retries."""
    policy = policy_of(3, node_timeout=0.005, ttl=10, max_ttl=3600)
    due = renewal_of(policy, ttl_ms, Dice(share)).due
    left = policy.valid_until(START, ttl_ms) - due
    assert 0.5 * ms(ttl_ms) <= left <= 0.7 * ms(ttl_ms)
    assert due >= START + PAUSE_MIN


def test_those_that_soon_will_be_due_are_taken_along() -> None:
    """No lease is renewed before one is due; then all that are due within a part of their ttl, in
    order.
    """
    policy, schedule = policy_of(3), RenewalSchedule()
    renewals = [renewal_of(policy) for _ in range(5)]
    for number, renewal in enumerate(renewals):
        renewal.due = START + number * ms(TTL_MS) // BATCH_SHARE // 2
        schedule.add(renewal)
    assert schedule.next_due() == START
    assert schedule.pop_due(START - 1) == []
    assert schedule.pop_due(START) == renewals[:3]
    assert schedule.next_due() == renewals[3].due
    schedule.drop(renewals[3])
    assert schedule.pop_due(renewals[4].due) == renewals[4:]
    assert len(schedule) == 4
    assert schedule.next_due() is None


def test_what_is_over_takes_no_space() -> None:
    """A million locks that were acquired and released leave no entries until they were due.

    The lease that is still held stays due.
    """
    policy, schedule = policy_of(3), RenewalSchedule()
    live = renewal_of(policy)
    schedule.add(live)
    for _ in range(10 * BATCH_MAX):
        renewal = renewal_of(policy)
        schedule.add(renewal)
        schedule.drop(renewal)
    assert len(schedule) == 1
    assert len(schedule._heap) <= BATCH_MAX + 3
    assert schedule.pop_due(live.due) == [live]
    assert schedule.next_due() is None


# --- invalidations -----------------------------------------------------------------------------


def named(policy: Policy, name: bytes) -> RenewalEntry:
    return RenewalEntry(Leased(policy, name), TTL_MS, START, Dice())


def test_an_invalidation_makes_the_leases_of_its_keys_due() -> None:
    """Named leases are due at once, unless checked recently; others stay; a push without keys names
    all.
    """
    policy, schedule = policy_of(3), RenewalSchedule()
    renewals = [named(policy, name) for name in (b"a", b"b", b"c")]
    for renewal in renewals:
        schedule.add(renewal)
    at = START + ms(TTL_MS) // EXPEDITED_PAUSE_SHARE
    schedule.expedite([b"a", b"c", b"other"], at)
    assert schedule.next_due() == at
    assert schedule.pop_due(at) == [renewals[0], renewals[2]]
    schedule.expedite(None, at)
    assert schedule.pop_due(at) == [renewals[1]]
    assert schedule.contains_any([b"other", b"a"])
    assert not schedule.contains_any([b"other"])
    assert schedule.contains_any(None)


def test_invalidations_never_make_a_hot_loop() -> None:
    """Thousands of them, for years: a lease is checked at a bounded rate, and its entries take no
    space.
    """
    policy, schedule = policy_of(3), RenewalSchedule()
    renewal = named(policy, b"a")
    schedule.add(renewal)
    looks, at = 0, START
    while at < START + ms(TTL_MS):
        at += ms(1)
        schedule.expedite([b"a"], at)
        schedule.expedite(None, at)
        taken = schedule.pop_due(at)
        looks += len(taken)
        for taken_one in taken:
            lease(taken_one).until = at + ms(TTL_MS)  # won
            taken_one.mark_in_flight(at)
            taken_one.due = at + ms(TTL_MS)
        schedule.reschedule(taken, at)
    assert EXPEDITED_PAUSE_SHARE - 1 <= looks <= EXPEDITED_PAUSE_SHARE
    assert len(schedule._heap) < 2 * EXPEDITED_PAUSE_SHARE + 2


def test_what_was_due_before_an_invalidation_is_forgotten() -> None:
    """The engine does not find again and again that the lease is not due after all (found by
    simulation).
    """
    policy, schedule = policy_of(3), RenewalSchedule()
    renewal = named(policy, b"a")
    schedule.add(renewal)
    was_due, at = renewal.due, START + ms(TTL_MS) // EXPEDITED_PAUSE_SHARE
    schedule.expedite(None, at)
    taken = schedule.pop_due(at)
    renewal.due = was_due + ms(TTL_MS)
    schedule.reschedule(taken, at)
    assert schedule.pop_due(was_due) == []
    assert schedule.next_due() == was_due + ms(TTL_MS)


def test_a_short_ttl_is_expedited_no_faster_than_it_is_tried() -> None:
    """PAUSE_MIN is the least between two rounds for one lease, whatever is said of its key."""
    policy = policy_of(3, node_timeout=0.005, ttl=1)
    renewal = renewal_of(policy, 100)
    assert renewal.expedite(START)
    assert renewal.due == START + PAUSE_MIN
    assert not renewal.expedite(START)


def test_expedited_leases_are_not_taken_along() -> None:
    """Otherwise each of many would take all others along, long before they may be checked (found by
    simulation).
    """
    policy, schedule = policy_of(3), RenewalSchedule()
    first, second = named(policy, b"a"), named(policy, b"b")
    schedule.add(first)
    schedule.add(second)
    at = START + ms(TTL_MS) // EXPEDITED_PAUSE_SHARE
    second.mark_in_flight(at - ms(1))
    schedule.expedite(None, at)
    assert schedule.pop_due(at) == [first]
    assert schedule.next_due() == second.due == at - ms(1) + ms(TTL_MS) // EXPEDITED_PAUSE_SHARE


def test_an_invalidation_never_postpones_a_lease() -> None:
    """Nor does one that comes while its round is under way bring it into the agenda twice."""
    policy, schedule = policy_of(3), RenewalSchedule()
    renewal = named(policy, b"a")
    schedule.add(renewal)
    due = renewal.due
    for at in (START, due, due + ms(1)):
        schedule.expedite(None, at)
        assert renewal.due <= due
    taken = schedule.pop_due(due)
    assert taken == [renewal]
    schedule.expedite([b"a"], due)
    assert schedule.pop_due(due + ms(TTL_MS)) == []
    schedule.reschedule(taken, due)
    assert schedule.pop_due(due + ms(TTL_MS)) == [renewal]
    assert schedule.pop_due(due + ms(TTL_MS)) == []


def test_an_invalidation_of_a_lease_that_is_over_is_ignored() -> None:
    """The one that came after it is looked at, under the same key."""
    policy, schedule = policy_of(3), RenewalSchedule()
    first, second = named(policy, b"a"), named(policy, b"a")
    schedule.add(first)
    schedule.add(second)
    schedule.drop(first)
    at = START + ms(TTL_MS) // EXPEDITED_PAUSE_SHARE
    schedule.expedite([b"a"], at)
    assert schedule.pop_due(at) == [second]
    schedule.drop(second)
    schedule.expedite([b"a"], at)
    schedule.expedite(None, at)
    assert schedule.pop_due(at) == []
    assert not schedule.contains_any([b"a"])
    assert not schedule.contains_any(None)


def test_a_false_invalidation_costs_a_round_and_nothing_else() -> None:
    """The lease is extended, as if it had been due."""
    policy, schedule = policy_of(3), RenewalSchedule()
    renewal = named(policy, b"a")
    schedule.add(renewal)
    at = START + ms(TTL_MS) // EXPEDITED_PAUSE_SHARE
    schedule.expedite(None, at)
    script = passed([[yes(1), yes(1), yes(1)]], schedule.pop_due(at), at)
    assert asked(script) == [[Extend(b"a", b"t", TTL_MS)]]
    assert schedule.reschedule([renewal], script.now) == ([], [])
    assert lease(renewal).loss is None
    assert lease(renewal).until > policy.valid_until(START, TTL_MS)


def test_the_first_look_is_early() -> None:
    """Nodes send invalidations from the first extension on."""
    renewal = renewal_of(policy_of(3))
    renewal.schedule_early_check()
    assert renewal.due == START + ms(TTL_MS) // FIRST_CHECK_SHARE


# --- a round that is won -----------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_quorum_extends(n: int) -> None:
    """The lease is valid from before its own first byte; the other replies are awaited, within the
    limit.
    """
    renewal = renewal_of(policy_of(n))
    script = passed([[yes(1)] * quorum(n) + [NEVER] * (n - quorum(n))], [renewal], sending=ms(20))
    due = script.effects[0][0]
    assert asked(script) == [[Extend(b"r", b"t", TTL_MS)]]
    assert lease(renewal).until == due + 10 * NS_PER_S - DRIFT
    assert script.now == due + ms(20) + (ms(50) if n > quorum(n) else ms(1))
    assert not renewal.in_flight
    assert script.sends == []


def test_who_says_that_it_is_not_there_gets_it_back() -> None:
    """The key is restored in a second step, for the rest of the ttl, and only there; the release
    follows it.
    """
    renewal = renewal_of(policy_of(5))
    script = passed([[yes(1), absent(7), yes(2), yes(3), held(4)]], [renewal])
    first, second = [effect for _, effect in script.effects if isinstance(effect, SendBatch)]
    assert first.sends[0].command == Extend(b"r", b"t", TTL_MS)
    assert second.sends[0].command == Acquire(b"r", b"t", TTL_MS - 7)
    _, behind, queue_until, connect_until, _, _ = second.sends[0]
    assert behind is not None
    assert behind.nodes == 0b00010
    assert (queue_until, connect_until) == (FOR_EVER, lease(renewal).until)
    target = lease(renewal).target
    assert target is not None
    assert target.path == ("its own", None)  # the script's own path is None
    assert target.nodes == 0b11111


def test_a_lease_that_is_released_as_its_key_is_restored_is_released_there_too() -> None:
    """Another event loop released it after it was found valid, and did not ask that node."""
    renewal = renewal_of(policy_of(3))
    lease(renewal).target = Target(0b011, "its own")

    class Releasing(Script):
        def _perform(self, effect: Effect) -> Any:
            sends = effect.sends if isinstance(effect, SendBatch) else ()
            lease(renewal).is_released = any(isinstance(send.command, Acquire) for send in sends)
            return super()._perform(effect)

    script = Releasing([[yes(1), yes(1), absent(1)]])
    script.now = renewal.due
    script.run(renew([renewal], script.now, policy_of(3), Dice()))
    (back,) = script.sends
    assert back.command == Release(b"r", b"t")
    assert back.behind is not None
    assert back.behind.nodes == 0b100


@pytest.mark.parametrize(
    "lost", [[yes(1), yes(1), absent(1), NEVER, NEVER], [DOWN] * 3 + [absent()] * 2]
)
def test_a_round_that_is_not_won_writes_nothing(lost: Round) -> None:
    """Otherwise the next round would count the keys that this one wrote."""
    renewal = renewal_of(policy_of(5))
    script = passed([lost], [renewal])
    assert asked(script) == [[Extend(b"r", b"t", TTL_MS)]]
    assert lease(renewal).loss is None
    assert lease(renewal).failure is LossReason.UNREACHABLE


def test_a_late_restore_is_for_what_is_left_or_not_at_all() -> None:
    """An answer that came when the ttl was over sets no key."""
    policy = policy_of(3, node_timeout=3.0)
    renewal = renewal_of(policy, 10_000)
    lease(renewal).until = START + 60 * NS_PER_S
    script = Script([[yes(1), yes(1), absent(2_999)]])
    script.now = START
    script.run(renew([renewal], START, policy, Dice()))
    assert asked(script)[1] == [Acquire(b"r", b"t", 10_000 - 2_999)]


def test_an_extension_by_another_path_is_followed_too() -> None:
    """An adopted lease has no target: a release asks every node, and follows the restored key."""
    renewal = renewal_of(policy_of(3))
    lease(renewal).target = None
    passed([[yes(1), yes(1), absent(1)]], [renewal])
    target = lease(renewal).target
    assert target is not None
    assert target.nodes == 0b111


# --- replies that take longer than node_timeout -------------------------------------------------


def test_a_quorum_that_replies_after_node_timeout_extends() -> None:
    """One round: asking again would not bring the replies sooner, and discard those to come."""
    renewal = renewal_of(policy_of(3))  # node_timeout is 50 ms
    script = passed([[yes(80), yes(300), NEVER]], [renewal])
    assert asked(script) == [[Extend(b"r", b"t", TTL_MS)]]
    assert lease(renewal).until == script.effects[0][0] + 10 * NS_PER_S - DRIFT
    assert lease(renewal).failure is None


def test_a_node_that_is_late_with_the_quorum_gets_its_key_restored() -> None:
    """All nodes are slow: the one that lacks the key says so after node_timeout as well."""
    renewal = renewal_of(policy_of(3))
    script = passed([[yes(80), yes(90), absent(120)]], [renewal])
    assert asked(script)[1] == [Acquire(b"r", b"t", TTL_MS - 120)]


@pytest.mark.parametrize(("others_ms", "waits_ms"), [(9_000, 180), (120, 120), (95, 95)])
def test_a_quorum_that_is_late_waits_for_a_hung_node_as_long_again(
    others_ms: int, waits_ms: int
) -> None:
    """Unless other leases are due before that."""
    policy = policy_of(3)
    renewal = renewal_of(policy)
    script = Script([[yes(80), yes(90), NEVER]])
    script.now = at = renewal.due
    script.run(renew([renewal], at, policy, Dice(), at + ms(others_ms)))
    assert script.now == at + ms(waits_ms)


@pytest.mark.parametrize(
    ("left_ms", "waits_ms"), [(6_000, 500), (1_000, 500), (400, 200), (110, 55), (90, 50), (5, 50)]
)
def test_half_of_the_validity_is_left_for_trying_again(left_ms: int, waits_ms: int) -> None:
    """A round lasts at most half a second, at least node_timeout; the next one begins at once,
    because waiting was the pause.
    """
    policy = policy_of(3)
    renewal = renewal_of(policy)
    at = lease(renewal).until - ms(left_ms)
    lease(renewal).ttl_ms = 0  # its loss is not reported before the end
    script = passed([[yes(1), NEVER, NEVER]], [renewal], at)
    assert script.now == at + ms(waits_ms)
    assert renewal.due <= script.now


def test_the_shortest_of_many_is_not_kept_waiting() -> None:
    """All leases go in one packet, and the one that ends first limits the wait."""
    policy = policy_of(3)
    renewals = [renewal_of(policy, ttl_ms) for ttl_ms in (10_000, 400)]
    at = lease(renewals[1]).until - ms(260)
    script = passed([[yes(1), NEVER, NEVER]], renewals, at)
    assert script.now == at + ms(130)


@pytest.mark.parametrize(("others_ms", "waits_ms"), [(20, 50), (70, 70), (9_000, 500)])
def test_other_leases_are_not_kept_waiting(others_ms: int, waits_ms: int) -> None:
    """The round waits only node_timeout when the next lease is due."""
    policy = policy_of(3)
    renewal = renewal_of(policy)
    script = Script([[yes(1), NEVER, NEVER]])
    script.now = at = renewal.due
    script.run(renew([renewal], at, policy, Dice(), at + ms(others_ms)))
    assert script.now == at + ms(waits_ms)


def test_a_refusal_is_followed_by_a_pause() -> None:
    """Nodes that say at once that they cannot: no hot loop."""
    renewal = renewal_of(policy_of(3))
    script = passed([[DOWN] * 3], [renewal])
    assert renewal.due >= script.now + ms(5)


# --- a round that is not ------------------------------------------------------------------------


@pytest.mark.parametrize("early", [1, 0, -1])
def test_it_counts_only_before_the_old_validity_ends(early: int) -> None:
    """Decided 1 ns before the end it counts; at the end another client may have the lock."""
    renewal = renewal_of(policy_of(3))
    at = lease(renewal).until - ms(600)
    script = passed([[yes(1)] * 3], [renewal], at, sending=ms(599) - early)
    assert asked(script) == [[Extend(b"r", b"t", TTL_MS)]]
    extended = lease(renewal).until > at + ms(600)
    assert extended == (early > 0)
    assert lease(renewal).failure is (None if early > 0 else LossReason.UNREACHABLE)


def test_after_the_deadline_nothing_is_sent() -> None:
    """The loss is reported by then, and the lease is released when the last `valid_until` of its
    holder is over.
    """
    renewal = renewal_of(policy_of(3))
    schedule = RenewalSchedule()
    schedule.add(renewal)
    deadline, reported_until = lease(renewal).deadline, lease(renewal).until
    script = passed([[yes(1)] * 3], [renewal], deadline)
    assert script.effects == []
    assert schedule.reschedule([renewal], deadline) == ([], [])
    assert schedule.next_due() == reported_until
    assert schedule.pop_due(reported_until - 1) == []
    assert schedule.pop_due(reported_until) == [renewal]
    assert passed([[yes(1)] * 3], [renewal], reported_until).effects == []
    assert schedule.reschedule([renewal], reported_until) == ([renewal], [])
    assert len(schedule) == 0


@pytest.mark.parametrize(
    ("against", "loss"), [(absent(), LossReason.EVICTED), (held(), LossReason.TAKEN)]
)
def test_a_loss_that_is_seen_early_is_released_when_the_promised_validity_ends(
    against: object, loss: LossReason
) -> None:
    """No node is sent anything before; invalidations cause checks, and change nothing."""
    renewal, schedule = renewal_of(policy_of(5)), RenewalSchedule()
    schedule.add(renewal)
    reported_until, at = lease(renewal).until, renewal.due
    taken = schedule.pop_due(at)
    script = passed([[against, against, against, yes(1), NEVER]], taken, at)  # type: ignore[list-item]
    assert lease(renewal).loss is loss
    assert schedule.reschedule(taken, script.now) == ([], [])
    while (at := schedule.next_due() or FOR_EVER) < reported_until:
        taken = schedule.pop_due(at)
        assert passed([[yes(1)] * 5], taken, at).effects == []
        assert schedule.reschedule(taken, at) == ([], [])
        schedule.expedite(None, at + ms(1))
    assert at == reported_until
    assert schedule.reschedule(schedule.pop_due(at), at) == ([renewal], [])


def test_who_gives_a_lost_lease_up_is_not_waited_for() -> None:
    """The schedule has no entry for a lease that its holder has released."""
    renewal, schedule = renewal_of(policy_of(3)), RenewalSchedule()
    schedule.add(renewal)
    deadline = lease(renewal).deadline
    schedule.reschedule([renewal], deadline)
    schedule.drop(renewal)
    assert len(schedule) == 0
    assert schedule.next_due() is None


@pytest.mark.parametrize(
    ("against", "loss"), [(absent(), LossReason.EVICTED), (held(), LossReason.TAKEN)]
)
def test_a_quorum_that_says_no_ends_it_at_once(against: object, loss: LossReason) -> None:
    renewal = renewal_of(policy_of(5))
    script = passed([[against, against, against, yes(1), NEVER]], [renewal])  # type: ignore[list-item]
    assert lease(renewal).loss is loss
    assert script.now < renewal.due + ms(50)
    assert len(asked(script)) == 1


@pytest.mark.parametrize("failing", [[NEVER] * 3, [DOWN] * 3, [LOADING] * 3, [yes(1), DOWN, DOWN]])
@pytest.mark.parametrize("ttl_ms", [150, 200, 10_000])
def test_it_is_tried_again_to_the_end(failing: Round, ttl_ms: int) -> None:
    """Retries follow at shorter and shorter pauses; the holder is warned once, in time."""
    policy, schedule = policy_of(3), RenewalSchedule()
    renewal = renewal_of(policy, ttl_ms)
    schedule.add(renewal)
    rounds: list[Instant] = []
    warnings: list[Instant] = []
    at = START
    while len(schedule):
        at = max(at, schedule.next_due() or 0)
        due = schedule.pop_due(at)
        script = Script([failing])
        script.now = at
        script.run(renew(due, at, policy, Dice(1)))
        rounds += [at] if asked(script) else []
        at = script.now
        over, warned = schedule.reschedule(due, at)
        warnings += [at] * len(warned)
        assert not over or over == [renewal]
    assert len(rounds) >= 2
    assert len(rounds) <= ttl_ms // 5
    assert all(b - a >= PAUSE_MIN for a, b in pairwise(rounds))
    assert rounds[-1] < lease(renewal).deadline < lease(renewal).reported_until <= at
    assert lease(renewal).deadline - rounds[-1] <= ms(50) + 4 * PAUSE_MIN + ms(ttl_ms) // 4
    assert len(warnings) == 1
    assert warnings[0] <= lease(renewal).deadline
    assert lease(renewal).failure is LossReason.UNREACHABLE


def test_a_warning_for_every_decline() -> None:
    """A failure after another extension is a new one."""
    policy, schedule = policy_of(3), RenewalSchedule()
    renewal = renewal_of(policy)
    schedule.add(renewal)
    half = lease(renewal).until - ms(TTL_MS) // 2
    reported = []
    for plan in ([DOWN] * 3, [yes(1)] * 3, [DOWN] * 3, [DOWN] * 3):
        at = half if lease(renewal).until < START + ms(TTL_MS) else lease(renewal).until - ms(4_000)
        script = passed([plan], [renewal], at)
        reported.append(len(schedule.reschedule([renewal], script.now)[1]))
    assert reported == [1, 0, 1, 0]


# --- the limit ---------------------------------------------------------------------------------


def test_the_last_extension_ends_at_the_limit() -> None:
    """Shortened to what max_hold leaves room for; then no more, a warning, and the end."""
    policy, schedule = policy_of(3), RenewalSchedule()
    renewal = renewal_of(policy)
    lease(renewal).hold_until = START + ms(14_000)
    schedule.add(renewal)
    sent: list[object] = []
    warnings = 0
    over: list[RenewalEntry] = []
    at = START
    while len(schedule):
        at = max(at, schedule.next_due() or 0)
        due = schedule.pop_due(at)
        script = Script([[yes(1)] * 3])
        script.now = at
        script.run(renew(due, at, policy, Dice()))
        sent += [command for packet in asked(script) for command in packet]
        at = script.now
        over, warned = schedule.reschedule(due, at)
        warnings += len(warned)
    first, last = sent
    assert first == Extend(b"r", b"t", TTL_MS)
    assert isinstance(last, Extend)
    assert 0 < last.ttl_ms < TTL_MS
    assert START + ms(13_000) < lease(renewal).until <= lease(renewal).hold_until
    assert at == lease(renewal).reported_until
    assert over == [renewal]
    assert warnings == 1
    assert lease(renewal).failure is None


def test_no_start_makes_it_pass_the_limit() -> None:
    """Also if the first byte left long after the ttl was chosen."""
    policy = policy_of(3)
    renewal = renewal_of(policy)
    lease(renewal).hold_until = renewal.due + ms(9_000)
    script = Script([[yes(1)] * 3])
    script.now = renewal.due + ms(500)
    script.run(renew([renewal], renewal.due, policy, Dice()))
    assert lease(renewal).until == lease(renewal).hold_until


# --- many ----------------------------------------------------------------------------------------


def test_many_go_in_one_packet() -> None:
    """Many leases go in batches; each is decided by its own votes, and a hung node costs its time
    once.
    """
    policy = policy_of(3)
    renewals = [
        RenewalEntry(Leased(policy, b"r%d" % number), TTL_MS, START, Dice())
        for number in range(300)
    ]
    script = Script([[yes(1), yes(1), NEVER]])
    script.now = at = renewals[0].due
    script.run(renew(renewals, at, policy, Dice()))
    packets = asked(script)
    assert [len(packet) for packet in packets] == [BATCH_MAX, BATCH_MAX, 300 - 2 * BATCH_MAX]
    assert [c for packet in packets for c in packet] == [
        Extend(b"r%d" % number, b"t", TTL_MS) for number in range(300)
    ]
    assert all(lease(renewal).until > START + ms(TTL_MS) for renewal in renewals)
    assert script.now == at + ms(3) + ms(50) - ms(1)


def test_a_quorum_that_hangs_delays_the_next_packet_by_no_more_than_node_timeout() -> None:
    policy = policy_of(3)
    renewals = [
        RenewalEntry(Leased(policy, b"r%d" % number), TTL_MS, START, Dice())
        for number in range(BATCH_MAX + 1)
    ]
    script = passed([[yes(1), NEVER, NEVER]], renewals)
    first, second = script.at(SendBatch)
    assert second == first + ms(50)


def test_a_lease_is_extended_when_its_quorum_replies_whatever_the_others_wait_for() -> None:
    policy = policy_of(3)
    ending, hung = [
        RenewalEntry(Leased(policy, name), TTL_MS, START, Dice()) for name in (b"a", b"b")
    ]
    at = lease(ending).deadline - 1
    lease(ending).until = at + ms(30)
    lease(ending).ttl_ms = 0  # its loss is not reported before the end
    passed([[yes(1), yes(1), NEVER], [NEVER] * 3], [ending, hung], at)
    assert (lease(ending).failure, lease(hung).failure) == (None, LossReason.UNREACHABLE)


def test_each_lease_is_judged_by_its_own_votes() -> None:
    """One is lost, one is unreachable, one is won and repaired, in the same packet."""
    policy = policy_of(3)
    renewals = [
        RenewalEntry(Leased(policy, name), TTL_MS, START, Dice()) for name in (b"a", b"b", b"c")
    ]
    plan = [[absent(1)] * 3, [DOWN, DOWN, yes(2)], [yes(1), yes(2), absent(3)]]
    script = passed(plan, renewals)
    losses = [lease(renewal).loss for renewal in renewals]
    assert losses == [LossReason.EVICTED, None, None]
    assert [lease(renewal).failure for renewal in renewals] == [
        LossReason.EVICTED,
        LossReason.UNREACHABLE,
        None,
    ]
    assert asked(script)[1] == [Acquire(b"c", b"t", TTL_MS - 3)]
