"""Renewal as a flow: what is due when, what is sent, what a round means for each of many leases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from quorlock._core.commands import Acquire, Extend
from quorlock._core.effects import Receipt, SendAll, joined
from quorlock._core.outcomes import Answer, Loss
from quorlock._core.policy import Policy
from quorlock._core.quorum import quorum
from quorlock._core.redlock import Holding
from quorlock._core.renewal import (
    ALONG,
    CHUNK,
    FIRST_LOOK,
    HINTED,
    PAUSE_MIN,
    Agenda,
    Renewal,
    renew,
)
from quorlock._core.time import FOR_EVER, NS_PER_S, PAST, Instant
from tests.support.script import (
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
        self.trouble: Loss | None = None
        self.against: tuple[Answer, ...] = ()
        self.loss: Loss | None = None
        self.receipt: Receipt | None = Receipt(1, START, START, (1 << policy.n) - 1, "its own")
        self.everywhere = (1 << policy.n) - 1

    @property
    def valid_until(self) -> Instant:
        return PAST if self.loss else self.until

    @property
    def deadline(self) -> Instant:
        return self.valid_until - ms(self.ttl_ms / 20)

    def facts(self) -> Holding:
        return Holding("r", self.name, b"t", self.until, self.receipt)

    def prolong(self, valid_until: Instant, ttl_ms: int) -> bool:
        if self.loss is not None:
            return False
        self.until = max(self.until, valid_until)
        return True

    def end(self, loss: Loss | None = None) -> None:
        self.loss = self.loss or loss or Loss.EXPIRED

    def follow(self, receipt: Receipt) -> None:
        self.receipt = joined(self.receipt, receipt, self.everywhere)


def renewal_of(policy: Policy, ttl_ms: int = TTL_MS, dice: Dice | None = None) -> Renewal:
    return Renewal(Leased(policy, ttl_ms=ttl_ms), ttl_ms, START, dice or Dice())


def lease(renewal: Renewal) -> Leased:
    assert isinstance(renewal.holding, Leased)
    return renewal.holding


def passed(
    plan: Sequence[Round], renewals: Sequence[Renewal], at: Instant | None = None, sending: int = 0
) -> Script:
    """One pass over these."""
    policy = policy_of(len(plan[0]))
    script = Script(plan, sending=sending)
    script.now = renewals[0].due if at is None else at
    script.run(renew(renewals, script.now, policy, Dice()))
    return script


def asked(script: Script) -> list[list[object]]:
    """The commands of every packet."""
    packets = [effect for _, effect in script.effects if isinstance(effect, SendAll)]
    return [[send.command for send in packet.sends] for packet in packets]


# --- when ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl_ms", [30, 200, 10_000, 3_600_000])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_lease_is_due_when_a_third_of_it_is_over(ttl_ms: int, share: float) -> None:
    """By chance a little earlier or later, and two thirds are left for trying again."""
    policy = policy_of(3, node_timeout=0.005, ttl=10, max_ttl=3600)
    due = renewal_of(policy, ttl_ms, Dice(share)).due
    left = policy.valid_until(START, ttl_ms) - due
    assert 0.5 * ms(ttl_ms) <= left <= 0.7 * ms(ttl_ms)
    assert due >= START + PAUSE_MIN


def test_those_that_soon_will_be_due_are_taken_along() -> None:
    """Nobody before one is due; then all that are due within a part of their ttl, in order."""
    policy, agenda = policy_of(3), Agenda()
    renewals = [renewal_of(policy) for _ in range(5)]
    for number, renewal in enumerate(renewals):
        renewal.due = START + number * ms(TTL_MS) // ALONG // 2
        agenda.add(renewal)
    assert agenda.next_due() == START
    assert agenda.take(START - 1) == []
    assert agenda.take(START) == renewals[:3]
    assert agenda.next_due() == renewals[3].due
    agenda.drop(renewals[3])
    assert agenda.take(renewals[4].due) == renewals[4:]
    assert len(agenda) == 4
    assert agenda.next_due() is None


def test_what_is_over_takes_no_room() -> None:
    """A million locks that were taken and given back leave nothing behind until they were due."""
    policy, agenda = policy_of(3), Agenda()
    for _ in range(10 * CHUNK):
        renewal = renewal_of(policy)
        agenda.add(renewal)
        agenda.drop(renewal)
    assert len(agenda) == 0
    assert len(agenda._heap) <= CHUNK + 1
    assert agenda.next_due() is None


# --- hints -------------------------------------------------------------------------------------


def named(policy: Policy, name: bytes) -> Renewal:
    return Renewal(Leased(policy, name), TTL_MS, START, Dice())


def test_a_hint_makes_those_that_it_names_due() -> None:
    """At once, if they were not looked at lately; the others stay; none for all."""
    policy, agenda = policy_of(3), Agenda()
    renewals = [named(policy, name) for name in (b"a", b"b", b"c")]
    for renewal in renewals:
        agenda.add(renewal)
    at = START + ms(TTL_MS) // HINTED
    agenda.hint([b"a", b"c", b"other"], at)
    assert agenda.next_due() == at
    assert agenda.take(at) == [renewals[0], renewals[2]]
    agenda.hint(None, at)
    assert agenda.take(at) == [renewals[1]]
    assert agenda.knows([b"other", b"a"])
    assert not agenda.knows([b"other"])
    assert agenda.knows(None)


def test_hints_never_make_a_hot_loop() -> None:
    """Thousands of them, for years: a lease is looked at HINTED times in its ttl, and its entries
    take no room.
    """
    policy, agenda = policy_of(3), Agenda()
    renewal = named(policy, b"a")
    agenda.add(renewal)
    looks, at = 0, START
    while at < START + ms(TTL_MS):
        at += ms(1)
        agenda.hint([b"a"], at)
        agenda.hint(None, at)
        taken = agenda.take(at)
        looks += len(taken)
        for taken_one in taken:
            lease(taken_one).until = at + ms(TTL_MS)  # won
            taken_one.begin(at)
            taken_one.due = at + ms(TTL_MS)
        agenda.settle(taken, at)
    assert HINTED - 1 <= looks <= HINTED
    assert len(agenda._heap) < 2 * HINTED + 2


def test_what_was_due_before_a_hint_is_forgotten() -> None:
    """The engine does not find again and again that the lease is not due after all (found by
    simulation).
    """
    policy, agenda = policy_of(3), Agenda()
    renewal = named(policy, b"a")
    agenda.add(renewal)
    was_due, at = renewal.due, START + ms(TTL_MS) // HINTED
    agenda.hint(None, at)
    taken = agenda.take(at)
    renewal.due = was_due + ms(TTL_MS)
    agenda.settle(taken, at)
    assert agenda.take(was_due) == []
    assert agenda.next_due() == was_due + ms(TTL_MS)


def test_a_short_ttl_is_hinted_no_faster_than_it_is_tried() -> None:
    """PAUSE_MIN is the least between two rounds for one lease, whatever is said of its key."""
    policy = policy_of(3, node_timeout=0.005, ttl=1)
    renewal = renewal_of(policy, 100)
    assert renewal.hint(START)
    assert renewal.due == START + PAUSE_MIN
    assert not renewal.hint(START)


def test_hinted_leases_are_not_taken_along() -> None:
    """Else each of many would take all others along, long before a hint may make them look (found
    by simulation).
    """
    policy, agenda = policy_of(3), Agenda()
    first, second = named(policy, b"a"), named(policy, b"b")
    agenda.add(first)
    agenda.add(second)
    at = START + ms(TTL_MS) // HINTED
    second.begin(at - ms(1))
    agenda.hint(None, at)
    assert agenda.take(at) == [first]
    assert agenda.next_due() == second.due == at - ms(1) + ms(TTL_MS) // HINTED


def test_a_hint_never_puts_a_lease_off() -> None:
    """Nor does one that comes while its round is under way bring it into the agenda twice."""
    policy, agenda = policy_of(3), Agenda()
    renewal = named(policy, b"a")
    agenda.add(renewal)
    due = renewal.due
    for at in (START, due, due + ms(1)):
        agenda.hint(None, at)
        assert renewal.due <= due
    taken = agenda.take(due)
    assert taken == [renewal]
    agenda.hint([b"a"], due)
    assert agenda.take(due + ms(TTL_MS)) == []
    agenda.settle(taken, due)
    assert agenda.take(due + ms(TTL_MS)) == [renewal]
    assert agenda.take(due + ms(TTL_MS)) == []


def test_a_hint_of_a_lease_that_is_over_is_ignored() -> None:
    """The one that came after it is looked at, under the same key."""
    policy, agenda = policy_of(3), Agenda()
    first, second = named(policy, b"a"), named(policy, b"a")
    agenda.add(first)
    agenda.add(second)
    agenda.drop(first)
    at = START + ms(TTL_MS) // HINTED
    agenda.hint([b"a"], at)
    assert agenda.take(at) == [second]
    agenda.drop(second)
    agenda.hint([b"a"], at)
    agenda.hint(None, at)
    assert agenda.take(at) == []
    assert not agenda.knows([b"a"])
    assert not agenda.knows(None)


def test_a_false_hint_costs_a_round_and_nothing_else() -> None:
    """The lease is extended, as if it had been due."""
    policy, agenda = policy_of(3), Agenda()
    renewal = named(policy, b"a")
    agenda.add(renewal)
    at = START + ms(TTL_MS) // HINTED
    agenda.hint(None, at)
    script = passed([[yes(1), yes(1), yes(1)]], agenda.take(at), at)
    assert asked(script) == [[Extend(b"a", b"t", TTL_MS)]]
    assert agenda.settle([renewal], script.now) == ([], [])
    assert lease(renewal).loss is None
    assert lease(renewal).until > policy.valid_until(START, TTL_MS)


def test_the_first_look_is_early() -> None:
    """Where nodes may give hints: they do from the first extension on."""
    renewal = renewal_of(policy_of(3))
    renewal.look_first()
    assert renewal.due == START + ms(TTL_MS) // FIRST_LOOK


# --- a round that is won -----------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_quorum_extends(n: int) -> None:
    """Valid from before its own first byte; the others are heard, and no longer than allowed."""
    renewal = renewal_of(policy_of(n))
    script = passed([[yes(1)] * quorum(n) + [NEVER] * (n - quorum(n))], [renewal], sending=ms(20))
    due = script.effects[0][0]
    assert asked(script) == [[Extend(b"r", b"t", TTL_MS)]]
    assert lease(renewal).until == due + 10 * NS_PER_S - DRIFT
    assert script.now == due + ms(20) + (ms(50) if n > quorum(n) else ms(1))
    assert not renewal.in_flight
    assert script.sends == []


def test_who_says_that_it_is_not_there_gets_it_back() -> None:
    """In a second step, for what is left, and only there; it is followed by the release then."""
    renewal = renewal_of(policy_of(5))
    script = passed([[yes(1), absent(7), yes(2), yes(3), held(4)]], [renewal])
    first, second = [effect for _, effect in script.effects if isinstance(effect, SendAll)]
    assert first.sends[0].command == Extend(b"r", b"t", TTL_MS)
    assert second.sends[0].command == Acquire(b"r", b"t", TTL_MS - 7)
    behind = second.sends[0].behind
    assert behind is not None
    assert behind.asked == 0b00010
    receipt = lease(renewal).receipt
    assert receipt is not None
    assert receipt.path == ("its own", None)  # the script's own path is None
    assert receipt.asked == 0b11111


@pytest.mark.parametrize(
    "lost", [[yes(1), yes(1), absent(1), NEVER, NEVER], [DOWN] * 3 + [absent()] * 2]
)
def test_a_round_that_is_not_won_writes_nothing(lost: Round) -> None:
    """Else the next one would count the keys that this one wrote."""
    renewal = renewal_of(policy_of(5))
    script = passed([lost], [renewal])
    assert asked(script) == [[Extend(b"r", b"t", TTL_MS)]]
    assert lease(renewal).loss is None
    assert lease(renewal).trouble is Loss.UNREACHABLE


def test_a_late_top_up_is_for_what_is_left_or_not_at_all() -> None:
    """An answer that came when the ttl was over sets no key."""
    policy = policy_of(3, node_timeout=3.0)
    renewal = renewal_of(policy, 10_000)
    lease(renewal).until = START + 60 * NS_PER_S
    script = Script([[yes(1), yes(1), absent(2_999)]])
    script.now = START
    script.run(renew([renewal], START, policy, Dice()))
    assert asked(script)[1] == [Acquire(b"r", b"t", 10_000 - 2_999)]


def test_an_extension_by_another_path_is_followed_too() -> None:
    """An adopted lease has no receipt: a release asks every node, and follows the top-up."""
    renewal = renewal_of(policy_of(3))
    lease(renewal).receipt = None
    passed([[yes(1), yes(1), absent(1)]], [renewal])
    receipt = lease(renewal).receipt
    assert receipt is not None
    assert receipt.asked == 0b111


# --- a round that is not ------------------------------------------------------------------------


@pytest.mark.parametrize("early", [1, 0, -1])
def test_it_counts_only_before_the_old_validity_ends(early: int) -> None:
    """Decided 1 ns before the end it counts; at the end somebody else may have the lock."""
    renewal = renewal_of(policy_of(3))
    at = lease(renewal).until - ms(600)
    script = passed([[yes(1)] * 3], [renewal], at, sending=ms(599) - early)
    assert asked(script) == [[Extend(b"r", b"t", TTL_MS)]]
    extended = lease(renewal).until > at + ms(600)
    assert extended == (early > 0)
    assert lease(renewal).trouble is (None if early > 0 else Loss.UNREACHABLE)


def test_after_the_deadline_nothing_is_sent() -> None:
    """It is over by then, told and given back."""
    renewal = renewal_of(policy_of(3))
    agenda = Agenda()
    agenda.add(renewal)
    deadline = lease(renewal).deadline
    script = passed([[yes(1)] * 3], [renewal], deadline)
    assert script.effects == []
    assert agenda.settle([renewal], deadline) == ([renewal], [])
    assert len(agenda) == 0


@pytest.mark.parametrize(("against", "loss"), [(absent(), Loss.EVICTED), (held(), Loss.TAKEN)])
def test_a_quorum_that_says_no_ends_it_at_once(against: object, loss: Loss) -> None:
    renewal = renewal_of(policy_of(5))
    script = passed([[against, against, against, yes(1), NEVER]], [renewal])  # type: ignore[list-item]
    assert lease(renewal).loss is loss
    assert script.now < renewal.due + ms(50)
    assert len(asked(script)) == 1


@pytest.mark.parametrize("failing", [[NEVER] * 3, [DOWN] * 3, [LOADING] * 3, [yes(1), DOWN, DOWN]])
@pytest.mark.parametrize("ttl_ms", [150, 200, 10_000])
def test_it_is_tried_again_to_the_end(failing: Round, ttl_ms: int) -> None:
    """At once closer and closer, never without a pause; the holder is warned once, in time."""
    policy, agenda = policy_of(3), Agenda()
    renewal = renewal_of(policy, ttl_ms)
    agenda.add(renewal)
    rounds: list[Instant] = []
    warnings: list[Instant] = []
    at = START
    while len(agenda):
        at = max(at, agenda.next_due() or 0)
        due = agenda.take(at)
        script = Script([failing])
        script.now = at
        script.run(renew(due, at, policy, Dice(1)))
        rounds += [at] if asked(script) else []
        at = script.now
        over, warned = agenda.settle(due, at)
        warnings += [at] * len(warned)
        assert not over or over == [renewal]
    assert len(rounds) >= 2
    assert len(rounds) <= ttl_ms // 5
    assert all(b - a >= PAUSE_MIN for a, b in pairwise(rounds))
    assert rounds[-1] < lease(renewal).deadline <= at
    assert lease(renewal).deadline - rounds[-1] <= ms(50) + 4 * PAUSE_MIN + ms(ttl_ms) // 4
    assert len(warnings) == 1
    assert warnings[0] <= lease(renewal).deadline
    assert lease(renewal).trouble is Loss.UNREACHABLE


def test_a_warning_for_every_decline() -> None:
    """When it has been extended again, the next failure is another one."""
    policy, agenda = policy_of(3), Agenda()
    renewal = renewal_of(policy)
    agenda.add(renewal)
    half = lease(renewal).until - ms(TTL_MS) // 2
    told = []
    for plan in ([DOWN] * 3, [yes(1)] * 3, [DOWN] * 3, [DOWN] * 3):
        at = half if lease(renewal).until < START + ms(TTL_MS) else lease(renewal).until - ms(4_000)
        script = passed([plan], [renewal], at)
        told.append(len(agenda.settle([renewal], script.now)[1]))
    assert told == [1, 0, 1, 0]


# --- the limit ---------------------------------------------------------------------------------


def test_the_last_extension_ends_at_the_limit() -> None:
    """Shortened to what max_hold leaves room for; then no more, a warning, and the end."""
    policy, agenda = policy_of(3), Agenda()
    renewal = renewal_of(policy)
    lease(renewal).hold_until = START + ms(14_000)
    agenda.add(renewal)
    sent: list[object] = []
    warnings = 0
    over: list[Renewal] = []
    at = START
    while len(agenda):
        at = max(at, agenda.next_due() or 0)
        due = agenda.take(at)
        script = Script([[yes(1)] * 3])
        script.now = at
        script.run(renew(due, at, policy, Dice()))
        sent += [command for packet in asked(script) for command in packet]
        at = script.now
        over, warned = agenda.settle(due, at)
        warnings += len(warned)
    first, last = sent
    assert first == Extend(b"r", b"t", TTL_MS)
    assert isinstance(last, Extend)
    assert 0 < last.ttl_ms < TTL_MS
    assert START + ms(13_000) < lease(renewal).until <= lease(renewal).hold_until
    assert at == lease(renewal).deadline
    assert over == [renewal]
    assert warnings == 1
    assert lease(renewal).trouble is None


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
    """In chunks; each lease by its own votes, and a node that hangs costs its time once."""
    policy = policy_of(3)
    renewals = [
        Renewal(Leased(policy, b"r%d" % number), TTL_MS, START, Dice()) for number in range(300)
    ]
    script = Script([[yes(1), yes(1), NEVER]])
    script.now = at = renewals[0].due
    script.run(renew(renewals, at, policy, Dice()))
    packets = asked(script)
    assert [len(packet) for packet in packets] == [CHUNK, CHUNK, 300 - 2 * CHUNK]
    assert [c for packet in packets for c in packet] == [
        Extend(b"r%d" % number, b"t", TTL_MS) for number in range(300)
    ]
    assert all(lease(renewal).until > START + ms(TTL_MS) for renewal in renewals)
    assert script.now == at + ms(3) + ms(50) - ms(1)


def test_each_lease_is_judged_by_its_own_votes() -> None:
    """One is lost, one is unreachable, one is won and repaired, in the same packet."""
    policy = policy_of(3)
    renewals = [Renewal(Leased(policy, name), TTL_MS, START, Dice()) for name in (b"a", b"b", b"c")]
    plan = [[absent(1)] * 3, [DOWN, DOWN, yes(2)], [yes(1), yes(2), absent(3)]]
    script = passed(plan, renewals)
    losses = [lease(renewal).loss for renewal in renewals]
    assert losses == [Loss.EVICTED, None, None]
    assert [lease(renewal).trouble for renewal in renewals] == [None, Loss.UNREACHABLE, None]
    assert asked(script)[1] == [Acquire(b"c", b"t", TTL_MS - 3)]
