"""Owed releases are paid at once, then at doubling pauses, until settled or pointless (rule 3)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quorlock._core.commands import Release
from quorlock._core.debts import FIRST_PAUSE, REFUSED_MAX, Debts
from quorlock._core.time import NS_PER_MS

MAX_TTL = 30_000 * NS_PER_MS
TOKENS = st.sampled_from([b"t1", b"t2", b"t3", b"t4"])
RUN_IDS = st.sampled_from(["one", "two", ""])


@dataclass
class Expected:
    """What a debt is, told simply: when it was made, by whom, when it was paid so far."""

    since: int
    run_id: str
    payments: list[int]

    @property
    def over(self) -> bool:
        """It was paid when no old bytes were to be expected any more."""
        return bool(self.payments) and self.payments[-1] >= self.since + MAX_TTL

    @property
    def due(self) -> int:
        """At once; then 100, 200, 400, ... ms after the payment before; and at the very end."""
        if not self.payments:
            return self.since
        due = self.payments[-1] + (FIRST_PAUSE << len(self.payments) - 1)
        return due if self.over else min(due, self.since + MAX_TTL)


class DebtsMachine(RuleBasedStateMachine):
    """Owes, pays and settles in any order; a plain list of expectations says what is right."""

    def __init__(self) -> None:
        super().__init__()
        self.debts = Debts(MAX_TTL)
        self.expected: dict[bytes, Expected] = {}
        self.now = 1_000 * NS_PER_MS

    def forget_the_old(self) -> None:
        """After its last payment it is kept for one more pause, and that is all."""
        for token, debt in list(self.expected.items()):
            if debt.over and debt.due <= self.now:
                del self.expected[token]

    @rule(token=TOKENS, run_id=RUN_IDS)
    def owe(self, token: bytes, run_id: str) -> None:
        self.debts.owe(b"key of " + token, token, run_id, self.now)
        self.expected.setdefault(token, Expected(self.now, run_id, []))

    @rule(step=st.sampled_from([0, 1, FIRST_PAUSE - 1, FIRST_PAUSE, 3 * FIRST_PAUSE, MAX_TTL // 2]))
    def wait(self, step: int) -> None:
        self.now += step

    @rule()
    def wait_for_the_next(self) -> None:
        self.now = max(self.now, self.debts.next_due() or 0)

    @rule()
    def pay(self) -> None:
        self.forget_the_old()
        due = [token for token, debt in self.expected.items() if debt.due <= self.now]
        assert sorted(self.debts.due(self.now), key=lambda release: release.token) == [
            Release(b"key of " + token, token) for token in sorted(due)
        ]
        for token in due:
            self.expected[token].payments.append(self.now)
        assert self.debts.due(self.now) == [], "once paid it is not due at the same instant"

    @rule(token=TOKENS, run_id=RUN_IDS, deleted=st.booleans())
    def answered(self, token: bytes, run_id: str, deleted: bool) -> None:
        self.debts.answered(token, run_id, deleted=deleted)
        debt = self.expected.get(token)
        if debt is not None and (deleted or debt.run_id != run_id):
            del self.expected[token]

    @invariant()
    def next_due_is_the_earliest(self) -> None:
        assert len(self.debts) == len(self.expected)
        dues = [debt.due for debt in self.expected.values()]
        assert self.debts.next_due() == min(dues, default=None)


TestDebts = DebtsMachine.TestCase
TestDebts.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_the_life_of_a_debt() -> None:
    """Due at once, after 100 ms, 200 ms, 400 ms, ..., and when max_ttl has passed; then gone."""
    debts = Debts(MAX_TTL)
    debts.owe(b"k", b"t", "run", 5)
    assert (len(debts), debts.next_due()) == (1, 5)
    paid = []
    while debts.next_due() is not None:
        now = debts.next_due()
        assert now is not None
        paid += [now] * len(debts.due(now))
    pauses = [round((b - a) / NS_PER_MS) for a, b in pairwise(paid)]
    assert pauses == [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 4_500]
    assert len(debts) == 0


def test_the_last_payment_counts_as_owed_until_it_has_arrived() -> None:
    """A node whose key we are about to delete must not count for an extension."""
    debts = Debts(MAX_TTL)
    debts.owe(b"k", b"t", "run", 0)
    assert len(debts.due(MAX_TTL)) == 1
    assert b"t" in debts
    assert debts.due(MAX_TTL + FIRST_PAUSE) == []
    assert b"t" not in debts


def test_a_node_that_deleted_the_key_may_get_another_copy_of_the_release() -> None:
    """Sent before, over a connection that broke or is slow: until max_ttl after the last one left
    the node gets no top-up and does not count, or a key that was counted would be deleted.
    """
    debts = Debts(MAX_TTL)
    debts.owe(b"k", b"t", "run", 0)
    debts.due(0)
    debts.due(FIRST_PAUSE)
    debts.answered(b"t", "run", deleted=True)
    assert b"t" not in debts
    assert debts.owes(b"t", FIRST_PAUSE + MAX_TTL - 1)
    assert not debts.owes(b"t", FIRST_PAUSE + MAX_TTL)
    debts.forgive(b"moved", 0)
    debts.owe(b"k", b"moved", "run", 0)
    assert not debts.owes(b"moved", 0), "nothing of it is sent from here"
    debts.owe(b"k", b"later", "run", 2 * MAX_TTL)
    assert list(debts._late) == [b"later"], "what is over is forgotten"


def test_a_refused_release_is_tried_again_after_a_pause() -> None:
    """Nobody waits for it when closing, what is owed already stays as it is, and it is bounded."""
    debts = Debts(MAX_TTL)
    debts.refused(b"k", b"t", "run", 0)
    assert (debts.due(0), debts.next_due(), debts.unpaid()) == ([], FIRST_PAUSE, False)
    assert debts.due(FIRST_PAUSE) == [Release(b"k", b"t")]
    debts.owe(b"k", b"owed", "run", 0)
    debts.refused(b"k", b"owed", "run", 0)
    assert debts.unpaid(), "never carried out, whatever a later error says"
    debts.forgive(b"gone", 0)
    debts.refused(b"k", b"gone", "run", 0)
    assert not debts.owes(b"gone", FIRST_PAUSE)
    for number in range(2 * REFUSED_MAX):
        debts.refused(b"k", b"%d" % number, "run", 0)
    assert len(debts) == REFUSED_MAX


def test_a_debt_ends_when_the_node_deleted_the_key() -> None:
    """Not before: "absent" may mean that the SET is still on its way to the same process."""
    debts = Debts(MAX_TTL)
    debts.owe(b"k", b"t", "run", 0)
    debts.answered(b"other", "run", deleted=True)
    debts.answered(b"t", "run", deleted=False)
    assert len(debts) == 1
    debts.answered(b"t", "run", deleted=True)
    assert (len(debts), debts.next_due(), debts.due(10**18)) == (0, None, [])


def test_a_debt_ends_when_the_node_is_another_process() -> None:
    """Nothing that was sent to the old process can reach the new one."""
    debts = Debts(MAX_TTL)
    debts.owe(b"k", b"t", "run", 0)
    debts.answered(b"t", "another run", deleted=False)
    assert len(debts) == 0


def test_owing_twice_is_one_debt() -> None:
    """The first word counts: its pauses go on and its end stays."""
    debts = Debts(MAX_TTL)
    debts.owe(b"k", b"t", "run", 0)
    assert len(debts.due(0)) == 1
    debts.owe(b"k", b"t", "", 1)
    assert (len(debts), debts.due(1), debts.next_due()) == (1, [], FIRST_PAUSE)
