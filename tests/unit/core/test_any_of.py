"""Any one of several locks: a quorum gives the same one, and the rest is released."""

from __future__ import annotations

import threading
from itertools import product
from random import Random
from typing import Any

import pytest

from quorlock._core.any_of import (
    WINDOW,
    PlaceTally,
    acquire,
    attempt,
    time_until_first_free_ms,
    try_acquire,
    windows,
)
from quorlock._core.claims import AnyOf, Keys
from quorlock._core.commands import AcquireAny, Release, release_of
from quorlock._core.config import Policy
from quorlock._core.effects import Commit, FlowCancelled, Send, Sleep
from quorlock._core.request import AnyRequest
from quorlock._core.results import Acquired, AttemptFailed, FailureReason
from quorlock._core.rounds import NodeReply, Target
from quorlock._core.tally import Verdict, quorum
from quorlock._core.time import NS_PER_S
from quorlock._core.votes import GRANTED, HELD, Answer, Vote
from quorlock.errors import AcquireTimeout, QuorumUnreachable, VoteCode
from tests.harness.support.script import (
    DOWN,
    LOADING,
    NEVER,
    START,
    Dice,
    Round,
    Say,
    Script,
    absent,
    ms,
    policy_of,
)

KEYS = (b"pool#0", b"pool#1", b"pool#2")


def gives(place: int, after: float = 1) -> Say:
    """The node gives the permit at this place of the command."""
    return Say(GRANTED._replace(before=place), ms(after))


def full(left: int = 700, place: int = 0, after: float = 1) -> Say:
    """All are held; the one at this place expires first."""
    return Say(Answer(Vote.REFUSED, VoteCode.HELD, "", left, before=place), ms(after))


def request_of(policy: Policy, timeout: float | None = 0, keys: Any = KEYS) -> AnyRequest:
    wait = None if timeout is None else round(timeout * NS_PER_S)
    return AnyRequest("pool", AnyOf(tuple(keys)), policy.ttl_ms, START, wait)


def one_attempt(script: Script, keys: Any = KEYS) -> Acquired | AttemptFailed:
    policy = policy_of(script.n)
    return script.run(attempt(request_of(policy, keys=keys), policy, Dice()))


def asked_for(script: Script) -> tuple[bytes, ...]:
    command = script.commands[0]
    assert isinstance(command, AcquireAny)
    return (command.key, *command.also)


# --- the count ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 6))
def test_a_quorum_must_give_the_same_one(n: int) -> None:
    """Every sequence of votes for three places: won if a quorum gives one, lost as soon as none can
    be the one, and pending otherwise.
    """
    votes = [GRANTED._replace(before=place) for place in range(3)] + [HELD]
    for said in product(votes, repeat=n):
        tally = PlaceTally(n, 7)
        for count, answer in enumerate(said, 1):
            verdict = tally.count(NodeReply(7, count - 1, answer, 0))
            given = [vote.before for vote in said[:count] if vote.vote is Vote.GRANTED]
            most = max((given.count(place) for place in range(3)), default=0)
            if most >= quorum(n):
                assert verdict is Verdict.WON
                assert given.count(tally.place) == most == tally.granted
                break
            pending = most + n - count >= quorum(n)
            assert verdict is (Verdict.PENDING if pending else Verdict.LOST), (said, count)


def test_a_reply_counts_once_and_in_its_round() -> None:
    tally = PlaceTally(3, 7)
    for round_, granted, pending in ((6, 0, 3), (7, 1, 2), (7, 1, 2)):
        assert tally.count(NodeReply(round_, 0, GRANTED, 0)) is Verdict.PENDING
        assert (tally.granted, tally.pending) == (granted, pending)


# --- an attempt -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(3))
def test_the_lease_is_on_the_one_lock(place: int) -> None:
    script = Script([[gives(place)] * 3])
    won = one_attempt(script)
    assert isinstance(won, Acquired)
    assert won.claim == Keys(asked_for(script)[place])
    assert sorted(asked_for(script)) == sorted(KEYS)


def test_what_others_gave_or_may_give_is_released_before_the_commit() -> None:
    """One packet, to the nodes that gave another or have not replied, for the other keys only."""
    plan = [gives(1, 1), gives(0, 2), gives(1, 3), gives(1, 4), NEVER]
    script = Script([plan])
    won = one_attempt(script)
    assert isinstance(won, Acquired)
    _, stray = script.sends
    assert isinstance(stray.command, Release)
    keys = asked_for(script)
    assert set(stray.command.keys) == {keys[0], keys[2]}
    assert stray.behind is not None
    assert stray.behind == Target(0b10010, won.sent_round.target.path)
    kinds = [type(effect) for _, effect in script.effects]
    assert kinds.index(Commit) == len(kinds) - 1
    codes = [answer.code for answer in won.answers]
    assert codes == [VoteCode.GRANTED, VoteCode.HELD, *[VoteCode.GRANTED] * 2, VoteCode.NOT_AWAITED]


def test_nothing_more_is_sent_where_all_is_known() -> None:
    """Each node gave the same one, or has refused, or got nothing."""
    script = Script([[full(after=0.5), DOWN, *[gives(0, 2)] * 3]])
    assert isinstance(one_attempt(script), Acquired)
    assert len(script.sends) == 1


def test_a_failed_attempt_releases_all_keys_on_all_nodes() -> None:
    script = Script([[gives(0), gives(1), gives(2)], [full()] * 3], backs=[absent()] * 3)
    failed = one_attempt(script)
    assert isinstance(failed, AttemptFailed)
    assert failed.reason is FailureReason.HELD
    (acquired, released, *_) = script.sends
    assert isinstance(released.command, Release)
    assert isinstance(acquired.command, AcquireAny)
    assert released.command.keys == asked_for(script)
    assert released.command == release_of(acquired.command)
    assert released.behind is not None
    assert released.behind.nodes == 0b111


@pytest.mark.parametrize("effect", range(4))
def test_a_caller_that_leaves_releases_everything(effect: int) -> None:
    """A caller may leave at any effect, also with a lease that it does not get."""
    script = Script([[gives(0), gives(0), gives(1)]])
    policy = policy_of(3)
    with pytest.raises(FlowCancelled):
        script.run(attempt(request_of(policy), policy, Dice()), abandon_at=effect)
    last = script.sends[-1].command
    assert isinstance(last, Release)
    assert sorted(last.keys) == sorted(KEYS)
    # Behind the acquire, if that was sent (rule 3).
    assert (script.sends[-1].behind is None) == (effect == 0)


# --- windows --------------------------------------------------------------------------------------


class Chance(Dice):
    """Chance that is none: every key and every order is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self._random = Random(5)

    def between(self, shortest: int, longest: int) -> int:
        return self._random.randint(shortest, longest)


def test_windows_have_every_key_once_in_any_order() -> None:
    keys = [b"pool#%d" % permit for permit in range(40)]
    chance, firsts = Chance(), set[bytes]()
    for _ in range(400):
        drawn = list(windows(keys, chance))
        assert [len(window) for window in drawn] == [WINDOW, WINDOW, 8]
        assert sorted(sum(drawn, ())) == sorted(keys)
        firsts.add(drawn[0][0])
    assert firsts == set(keys)


def test_windows_of_long_names_have_less_keys() -> None:
    keys = [b"%b#%d" % (b"x" * 500, permit) for permit in range(9)]
    drawn = list(windows(keys, Chance()))
    assert [len(window) for window in drawn] == [2, 2, 2, 2, 1]
    assert all(sum(map(len, window)) <= 1_200 for window in drawn)


def test_the_next_window_follows_if_no_quorum_has_any_free() -> None:
    keys = [b"pool#%d" % permit for permit in range(40)]
    script = Script([[full()] * 3, [full()] * 3, [gives(3)] * 3])
    won = one_attempt(script, keys)
    assert isinstance(won, Acquired)
    asked = [command for command in script.commands if isinstance(command, AcquireAny)]
    assert len(asked) == 3
    assert len({command.token for command in asked}) == 3
    script = Script([[full()] * 3])
    failed = one_attempt(script, keys)
    assert isinstance(failed, AttemptFailed)
    assert failed.attempts == 3


SPLITS: list[tuple[Round, int]] = [
    # Nodes 1 and 2 have found 0 to 2 held.
    ([gives(0), gives(4), gives(3)], 3),
    ([full(), gives(1), gives(0)], 1),
    ([gives(0), gives(1), gives(1), gives(2), gives(2)], 1),
    # Down: it gives none.  Not waited for: it may have any of them free.
    ([gives(0), DOWN, gives(1)], 1),
    ([gives(0), DOWN, gives(1), DOWN, gives(1)], 1),
    ([gives(0), gives(1), gives(2), gives(3), gives(9, after=40)], 1),
    ([gives(0), gives(1), gives(1), gives(2)], 1),
]


@pytest.mark.parametrize(("split", "left_out"), SPLITS)
def test_what_a_split_shows_to_be_held_is_left_out(split: Round, left_out: int) -> None:
    """The next round asks for the others in the same order: so one that is free is found."""
    keys = [b"pool#%d" % permit for permit in range(5)]
    script = Script([split, [gives(1)] * len(split)], backs=[absent()] * len(split))
    won = one_attempt(script, keys)
    first, second = [c for c in script.commands if isinstance(c, AcquireAny)]
    rest = (first.key, *first.also)[left_out:]
    assert (second.key, *second.also) == rest
    assert isinstance(won, Acquired)
    assert won.claim == Keys(rest[1])
    assert first.token != second.token


def test_a_split_ends_the_first_of_several_attempts() -> None:
    """A pause is more likely to end a collision; the attempts after it ask for every lock."""
    policy = policy_of(3)
    split = [gives(0), gives(1), gives(2)]
    script = Script([split, split, [gives(0)] * 3], backs=[absent()] * 3)
    request = request_of(policy, timeout=None)
    won = script.run(acquire(request, policy, Dice()))
    assert isinstance(won, Acquired)
    (pause,) = script.at(Sleep)
    first, second, third = script.sent(AcquireAny)
    assert first < pause < second < third


@pytest.mark.parametrize(("slow", "rounds"), [(30, 1), (20, 2), (5, 5)])
def test_rounds_of_one_window_end_in_the_time_of_one(slow: float, rounds: int) -> None:
    """An acquire and its release may take node_timeout each: a deadline counts on that."""
    keys = [b"pool#%d" % permit for permit in range(16)]
    plan = [gives(0, slow), gives(1, slow), gives(2, slow)]
    script = Script([plan], backs=[absent(slow)] * 3)
    failed = one_attempt(script, keys)
    assert isinstance(failed, AttemptFailed)
    assert failed.attempts == len(script.sent(AcquireAny)) == rounds
    assert failed.reason is FailureReason.HELD
    assert failed.ended == script.now <= START + ms(2 * 50)


def test_a_further_round_that_gets_no_reply_does_not_hide_what_was_found() -> None:
    """Nodes have replied that they are held, so they are not unreachable."""
    script = Script([[gives(0), gives(1), gives(2)], [NEVER] * 3], backs=[absent()] * 3)
    failed = one_attempt(script)
    assert isinstance(failed, AttemptFailed)
    assert (failed.attempts, failed.reason) == (2, FailureReason.HELD)


def test_silent_nodes_are_not_waited_for_again() -> None:
    """Each window would take node_timeout; nor are nodes asked for more without a quorum."""
    keys = [b"pool#%d" % permit for permit in range(40)]
    for plan in ([gives(1), gives(2), gives(1), NEVER, NEVER], [gives(0), DOWN, DOWN]):
        failed = one_attempt(Script([plan]), keys)
        assert isinstance(failed, AttemptFailed)
        assert failed.attempts == 1


def test_no_further_window_is_asked_for_when_the_time_is_up() -> None:
    """Nor after the caller's stop; a single attempt has no time to lose, and asks for all."""
    keys, policy = [b"pool#%d" % permit for permit in range(40)], policy_of(3)
    for late, stop, windows_asked in ((5.0, False, 3), (30.0, False, 1), (5.0, True, 1)):
        script = Script([[full(after=late)] * 3])
        request = request_of(policy, timeout=0.025, keys=keys)
        if stop:
            event = threading.Event()
            event.set()
            request = request._replace(stop=event)
        failed = script.run(attempt(request, policy, Dice()))
        assert isinstance(failed, AttemptFailed)
        assert failed.attempts == windows_asked


def test_a_failure_reports_what_the_acquire_found() -> None:
    """The release is about all keys, and does not say which of them expires first."""
    back = Say(Answer(Vote.REFUSED, VoteCode.HELD, "", 9_000), ms(1))
    script = Script([[full(700, 2)] * 3], backs=[back] * 3)
    failed = one_attempt(script)
    assert isinstance(failed, AttemptFailed)
    assert failed.key == asked_for(script)[2]
    assert [(a.ttl_left_ms, a.before) for a in failed.answers] == [(700, 2)] * 3


@pytest.mark.parametrize("lefts", [(900, 700, 800), (700, 800, 900), (-1, 700, -1), (700, -1, -1)])
def test_the_first_that_is_free_is_that_of_all_windows(lefts: tuple[int, ...]) -> None:
    keys, policy = [b"pool#%d" % permit for permit in range(40)], policy_of(3)
    script = Script([[full(left, 2)] * 3 for left in lefts])
    with pytest.raises(AcquireTimeout) as raised:
        script.run(acquire(request_of(policy, keys=keys), policy, Dice()))
    assert (raised.value.holder_ttl, raised.value.attempts) == (0.7, 3)


def test_a_later_window_without_a_quorum_is_reported_as_such() -> None:
    keys, policy = [b"pool#%d" % permit for permit in range(40)], policy_of(3)
    script = Script([[full()] * 3, [full(), DOWN, DOWN]])
    with pytest.raises(QuorumUnreachable) as raised:
        script.run(try_acquire(request_of(policy, keys=keys), policy, Dice()))
    assert [vote.vote for vote in raised.value.votes] == ["refused", "unknown", "unknown"]


# --- waiting --------------------------------------------------------------------------------------


def test_it_tries_again_after_pauses_until_the_timeout() -> None:
    policy = policy_of(3)
    script = Script([[full(left=900), full(left=700), full(left=800)]])
    with pytest.raises(AcquireTimeout) as raised:
        script.run(acquire(request_of(policy, timeout=0.2), policy, Dice()))
    error = raised.value
    assert (error.permits, error.holder_ttl, error.attempts) == (3, 0.8, 5)
    assert str(error).startswith(
        "'pool': none of 3 permits was granted (3 of 3 nodes refused) after 5"
    )
    assert str(error).endswith("; the first is free in at most 800 ms")
    assert len(script.at(Sleep)) == 4
    assert script.now == START + ms(200 + 2)


def test_other_outcomes_are_those_of_a_lock() -> None:
    policy = policy_of(3)
    script = Script([[full()] * 3, [gives(2)] * 3])
    assert isinstance(
        script.run(acquire(request_of(policy, timeout=None), policy, Dice())), Acquired
    )
    assert Script([[full()] * 3]).run(try_acquire(request_of(policy), policy, Dice())) is None
    for down in (NEVER, DOWN):
        with pytest.raises(QuorumUnreachable):
            Script([[gives(0), down, down]]).run(try_acquire(request_of(policy), policy, Dice()))
    with pytest.raises(QuorumUnreachable):
        Script([[NEVER] * 3]).run(acquire(request_of(policy, timeout=None), policy, Dice()))


def test_a_split_is_no_late_grant() -> None:
    """Many nodes gave a permit, and none had a quorum: the error does not call that late."""
    policy = policy_of(5)
    script = Script([[gives(0), gives(0), gives(1), gives(1), gives(2)]])
    request = request_of(policy, timeout=0.001)
    with pytest.raises(AcquireTimeout) as raised:
        script.run(acquire(request, policy, Dice()))
    assert "too late" not in str(raised.value)
    late: Round = [gives(0)] * 5
    script = Script([late], sending=10 * NS_PER_S)
    with pytest.raises(AcquireTimeout) as raised:
        script.run(acquire(request_of(policy), policy, Dice()))
    assert "a permit was granted by 5 of 5 nodes, but too late to be valid" in str(raised.value)


@pytest.mark.parametrize(
    ("answers", "left"),
    [
        ([full(900, 1), full(700, 1), full(800, 1)], 800),
        ([full(900, 1), full(700, 2), full(800, 1)], 900),
        ([full(900, 0), full(700, 1), full(800, 2)], None),
        ([full(900, 1), LOADING, LOADING], None),
        ([full(-1, 1), full(-1, 1), full(5, 1)], None),
    ],
)
def test_the_time_until_one_is_free_is_that_of_one_key(answers: Round, left: int | None) -> None:
    """The quorum-th expiry of one permit; nodes that name different ones say nothing together."""
    assert time_until_first_free_ms(tuple(say.answer for say in answers), 2) == left


def test_the_marker_is_checked_if_the_guard_asks_for_it() -> None:
    claim, policy = AnyOf(KEYS), policy_of(3)
    marked = policy_of(3, restart_guard="marker")
    assert claim.acquire(b"t", 1_000, marked).marker_ms == 30_000
    assert Send(claim.acquire(b"t", 1_000, policy)).command == AcquireAny(
        KEYS[0], b"t", 1_000, 0, KEYS[1:]
    )
