"""The flows of a claim on several keys: all of them in every command, one queue at a time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from quorlock._core import handing_on, redlock
from quorlock._core.acquiring import acquire
from quorlock._core.claims import Keys
from quorlock._core.commands import (
    JOIN,
    LEAVE,
    Acquire,
    Extend,
    IssueFence,
    Release,
    ScriptedAcquire,
    release_of,
)
from quorlock._core.effects import Commit, Enlist, FlowCancelled, Send, SendBatch, Sleep
from quorlock._core.line import Lines
from quorlock._core.member import Member
from quorlock._core.renewal import renew
from quorlock._core.renewal_schedule import RenewalEntry, RenewalSchedule
from quorlock._core.request import AcquireRequest
from quorlock._core.results import Acquired, ExtendFailed
from quorlock._core.rounds import NodeReply, SentRound, Target
from quorlock._core.time import from_seconds
from quorlock._core.votes import ABSENT, GRANTED, HELD, Answer
from quorlock.errors import AcquireStopped, AcquireTimeout
from tests.harness.support.script import START, Dice, ms, policy_of
from tests.unit.core.test_waiting import Hand

CLAIM = Keys(b"a", (b"b", b"c"))
POLICY = policy_of(3)
PLACE, NEXT = b"00000000000000a1:1:100", b"00000000000000a1:2:100"
ALL = 0b111
QUEUED = HELD._replace(ticket=4, ahead=0, ttl_left_ms=9_000)


def before(number: int) -> Answer:
    """A refusal for the key after so many others."""
    return HELD._replace(before=number)


def scripted(claim: Keys, token: bytes, place: bytes = b"") -> ScriptedAcquire:
    return ScriptedAcquire(claim.key, token, 10_000, place=place, also=claim.also)


def acquires(
    timeout: float | None = None, lines: Lines | None = None, share: float = 0.0, **rest: Any
) -> Hand:
    wait = None if timeout is None else from_seconds(timeout)
    request = AcquireRequest("a + b + c", CLAIM, 10_000, START, wait, **rest)
    return Hand(acquire(request, POLICY, Dice(share), lines))


def behind_b(lines: Lines | None = None, share: float = 0.0, **request: Any) -> Hand:
    """Return a flow that waits in the queue of the second key."""
    hand = acquires(lines=lines or Lines(), share=share, **request)
    hand.sends(scripted(CLAIM, b"token-0"))
    hand.replies(before(1), before(1), before(1))
    hand.sends(CLAIM.release(b"token-0"))
    hand.replies(before(1), before(1), before(1))
    hand.expects(Enlist)
    assert hand.effect.key == b"b"
    hand.step(PLACE)
    hand.sends(Release(b"b", b"", PLACE, JOIN))
    hand.replies(QUEUED, QUEUED, QUEUED)
    hand.waits()
    return hand


def test_every_command_has_all_keys() -> None:
    assert CLAIM.keys == (b"a", b"b", b"c")
    assert CLAIM.acquire(b"t", 9, POLICY) == ScriptedAcquire(b"a", b"t", 9, also=(b"b", b"c"))
    assert CLAIM.extend(b"t", 9) == Extend(b"a", b"t", 9, (b"b", b"c"))
    assert CLAIM.release(b"t") == Release(b"a", b"t", also=(b"b", b"c"))
    assert CLAIM.issue_fence(b"t", 7, 5) == IssueFence(b"a", b"t", 7, 5, (b"b", b"c"))
    assert CLAIM.led_by(b"b") == Keys(b"b", (b"a", b"c"))
    assert set(CLAIM.led_by(b"c").keys) == set(CLAIM.keys)


def test_a_claim_on_one_key_is_the_plain_lock() -> None:
    """The commands are those of a lock on one resource: the same bytes."""
    assert Keys(b"a").acquire(b"t", 9, POLICY) == Acquire(b"a", b"t", 9)
    assert Keys(b"a").extend(b"t", 9) == Extend(b"a", b"t", 9)
    assert Keys(b"a").release(b"t") == Release(b"a", b"t")


def test_the_release_of_any_command_has_all_keys_and_no_place() -> None:
    wide = CLAIM.release(b"t")
    for command in (CLAIM.acquire(b"t", 9, POLICY, place=PLACE), CLAIM.release(b"t", PLACE, 3)):
        assert release_of(command) == wide
    assert release_of(Acquire(b"a", b"t", 9)) == Release(b"a", b"t")


def test_it_waits_in_the_queue_of_the_key_in_its_way() -> None:
    """And attempts with that key first, so that nodes grant what they have reserved for it."""
    hand = behind_b()
    hand.call(0, 1)
    led = CLAIM.led_by(b"b")
    hand.sends(scripted(led, b"token-1", PLACE))
    hand.replies(GRANTED, GRANTED, GRANTED)
    # The third node had not granted yet, as far as known: it may still reserve the key.
    hand.sends(Release(b"b", b"", PLACE, LEAVE))
    hand.expects(Commit)
    assert hand.effect.granted.claim.keys == led.keys


def test_nodes_that_refused_give_their_reservation_back() -> None:
    """One that grants has no reservation left; one that refuses for another key may have it."""
    hand = behind_b()
    hand.call(0, 1)
    hand.sends(scripted(CLAIM.led_by(b"b"), b"token-1", PLACE))
    hand.replies(before(1), GRANTED, GRANTED)
    send = hand.effect
    assert isinstance(send, Send)
    assert send.command == Release(b"b", b"", PLACE, LEAVE)
    assert send.behind is not None
    assert send.behind.nodes == 0b001


def test_it_goes_on_to_the_queue_of_the_next_key() -> None:
    """The waiter leaves the queue that it was in, at once, and takes no reservation along."""
    hand = behind_b()
    hand.call(0, 1)
    led = CLAIM.led_by(b"b")
    hand.sends(scripted(led, b"token-1", PLACE))
    hand.replies(before(2), before(2), before(2))  # of b, a, c: the last
    hand.sends(led.release(b"token-1", PLACE, LEAVE))
    hand.replies(before(2), before(2), before(2))
    hand.expects(Enlist)
    assert hand.effect.key == b"c"
    hand.step(NEXT)
    hand.sends(Release(b"c", b"", NEXT, JOIN))
    hand.replies(QUEUED, QUEUED, QUEUED)
    hand.call(0, 1)
    hand.sends(scripted(led.led_by(b"c"), b"token-2", NEXT))


def loses(hand: Hand, number: int, led: Keys, trip: float = 0) -> None:
    """Have the flow, which waits in a queue, attempt and find another key held in each way."""
    hand.call(0, 1)
    hand.sends(scripted(led, b"token-%d" % number, PLACE))
    hand.now += ms(trip)
    hand.replies(before(2), before(2), before(2))
    hand.sends(led.release(b"token-%d" % number, PLACE, LEAVE))
    hand.now += ms(trip)
    hand.replies(before(2), before(2), before(2))


def joins(hand: Hand, led: Keys) -> Keys:
    """Expect the flow to join the next queue; return the claim as it is asked for from there."""
    hand.expects(Enlist)
    led = led.led_by(hand.effect.key)
    hand.step(PLACE)
    hand.sends(Release(led.key, b"", PLACE, JOIN))
    hand.replies(QUEUED, QUEUED, QUEUED)
    return led


def pausing(share: float = 1.0, **request: Any) -> tuple[Hand, Keys]:
    """Return a flow in the pause after its third attempt, and its claim."""
    hand = behind_b(share=share, **request)
    led = CLAIM.led_by(b"b")
    loses(hand, 1, led)
    led = joins(hand, led)
    loses(hand, 2, led)
    hand.expects(Sleep)
    return hand, led


@pytest.mark.parametrize(
    ("trip", "pauses"),
    [
        (0, (4, 8, 16, 32, 32, 32, 32, 32)),
        (1, (4, 8, 16, 32, 32, 64, 128, 128)),
        (6, (12, 24, 48, 96, 192, 384, 768, 768)),
        (20, (40, 80, 160, 320, 640, 1000, 1000, 1000)),
        (80, (100, 200, 400, 800, 1000, 1000, 1000, 1000)),
    ],
)
def test_it_pauses_after_some_attempts_before_it_joins_the_next_queue(
    trip: int, pauses: tuple[int, ...]
) -> None:
    """Two waiters, each with a key reserved, would exchange these in step, without an end.

    They are longer than attempts take: in shorter ones many waiters would not part for long.
    """
    hand = behind_b(share=1.0)
    led, found = CLAIM.led_by(b"b"), []
    for number in range(1, 10):
        loses(hand, number, led, trip)
        began = hand.now
        if isinstance(hand.effect, Sleep):
            hand.times_out()
        found.append(hand.now - began)
        led = joins(hand, led)
    assert found == [0, *[ms(pause) for pause in pauses]]


def test_stopped_in_the_pause() -> None:
    """The waiter is in no queue, and has nothing to release."""
    stop = threading.Event()
    hand, _ = pausing(stop=stop)
    assert hand.effect.stop is stop
    stop.set()
    with pytest.raises(AcquireStopped) as raised:
        hand.step(hand.now)
    assert raised.value.attempts == 3


def test_cancelled_in_the_pause() -> None:
    hand, _ = pausing()
    assert hand.cancels() == []
    assert hand.over


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_interrupted_in_the_pause(error: type[BaseException]) -> None:
    hand, _ = pausing()
    with pytest.raises(error):
        hand.flow.throw(error)
    assert hand.flow.gi_frame is None


def test_the_time_is_up_in_the_pause() -> None:
    """The pause ends with the timeout; then there is a last attempt, which leaves the queue."""
    hand, led = pausing(timeout=0.003)
    assert hand.effect.until == START + ms(3)
    hand.times_out()
    led = joins(hand, led)
    hand.times_out()
    assert hand.now == START + ms(3)
    hand.sends(scripted(led, b"token-3", PLACE))
    hand.replies(before(2), before(2), before(2))
    hand.sends(led.release(b"token-3", PLACE, LEAVE))
    with pytest.raises(AcquireTimeout) as raised:
        hand.replies(before(2), before(2), before(2))
    assert raised.value.attempts == 4


def test_it_keeps_its_place_while_the_same_key_is_in_its_way() -> None:
    """The release of the lost round queues it again with its number, as a plain waiter."""
    hand = behind_b()
    hand.call(0, 1)
    led = CLAIM.led_by(b"b")
    hand.sends(scripted(led, b"token-1", PLACE))
    hand.replies(before(0), before(0), GRANTED)
    hand.sends(led.release(b"token-1", PLACE, 4))
    hand.replies(QUEUED, QUEUED, QUEUED)
    hand.waits()


def test_the_time_is_up() -> None:
    """The last attempt leaves the queue, and the error names the key that most nodes found held."""
    hand = acquires(timeout=1.0, lines=Lines())
    hand.sends(scripted(CLAIM, b"token-0"))
    hand.replies(before(1), before(1), before(1))
    hand.sends(CLAIM.release(b"token-0"))
    hand.replies(before(1), before(1), before(1))
    hand.step(PLACE)
    hand.sends(Release(b"b", b"", PLACE, JOIN))
    hand.replies(QUEUED, QUEUED, QUEUED)
    led = CLAIM.led_by(b"b")
    while not (isinstance(hand.effect, Send) and type(hand.effect.command) is ScriptedAcquire):
        if isinstance(hand.effect, Send):
            hand.send()
            hand.replies(QUEUED, QUEUED, QUEUED)
        else:
            hand.times_out()
    hand.sends(scripted(led, b"token-1", PLACE))
    hand.replies(before(2), before(2), before(0))
    hand.sends(led.release(b"token-1", PLACE, LEAVE))
    with pytest.raises(AcquireTimeout) as raised:
        hand.replies(before(2), before(2), before(0))
    assert raised.value.in_the_way == "c"


def test_it_polls_where_no_queue_is_used() -> None:
    hand = acquires(timeout=0.0)
    hand.sends(scripted(CLAIM, b"token-0"))
    hand.replies(GRANTED, before(2), before(2))
    hand.sends(CLAIM.release(b"token-0"))
    with pytest.raises(AcquireTimeout) as raised:
        hand.replies(GRANTED, before(2), before(2))
    assert raised.value.in_the_way == "c"


def test_cancelled_in_a_queue_it_leaves_it() -> None:
    hand = behind_b()
    assert hand.cancels() == [Release(b"b", b"", PLACE, LEAVE)]


def test_cancelled_during_a_round_it_releases_all_keys() -> None:
    hand = acquires()
    flow = hand.flow
    hand.send()
    effect = flow.throw(FlowCancelled())
    assert isinstance(effect, Send)
    assert effect.command == CLAIM.release(b"token-0")


def test_waiters_for_several_share_no_line() -> None:
    """The line of a key hands a lock on by an exchange, which is about one key."""
    lines = Lines()
    behind_b(lines)
    assert lines.get(b"b") is None
    plain = Member(AcquireRequest("a", Keys(b"a"), 10_000, START, None))
    lines.line(b"a", START).join(plain, START)
    flow = handing_on.release(CLAIM, b"t", Target(ALL, "path"), POLICY, Dice(), lines, START)
    effect: Any = next(flow)
    assert effect.command == CLAIM.release(b"t"), "no exchange with the waiter for one of the keys"


def test_a_fence_of_another_node_goes_to_all_keys() -> None:
    request = AcquireRequest("a + b + c", CLAIM, 10_000, START, None, fencing=True)
    hand = Hand(redlock.attempt(request, POLICY, Dice()))
    assert hand.send().command == ScriptedAcquire(
        b"a", b"token-0", 10_000, POLICY.fence_grid_ms, also=(b"b", b"c")
    )
    clock = 1_000_000_000_000
    hand.replies(*(GRANTED._replace(fence=n, clock_us=clock) for n in (5, 7, 7)))
    hand.sends(CLAIM.issue_fence(b"token-0", 7, 15_000))


class Held:
    """A lease for renewal."""

    last_failure: ExtendFailed | None = None
    hold_until = valid_until = deadline = reported_until = START + ms(10_000)

    def facts(self) -> redlock.LeaseFacts:
        return redlock.LeaseFacts("a + b", CLAIM, b"t", self.valid_until, Target(ALL, "path"))

    def extend_validity(self, valid_until: int, ttl_ms: int) -> bool:
        return bool(valid_until and ttl_ms)

    def end(self, loss: object = None) -> None:
        raise AssertionError(loss)

    def add_release_target(self, target: Target) -> None:
        assert target

    def release_flow(self, restored: Target) -> Any:
        raise AssertionError(restored)


def test_renewal_extends_and_restores_all_keys() -> None:
    """A node that lacks one of them is asked to set what is missing."""
    entry = RenewalEntry(Held(), 10_000, START, Dice())
    schedule = RenewalSchedule()
    schedule.add(entry)
    assert all(schedule.contains_any([key]) for key in CLAIM.keys)
    flow = renew([entry], START, POLICY, Dice())
    batch = next(flow)
    assert isinstance(batch, SendBatch)
    assert [send.command for send in batch.sends] == [CLAIM.extend(b"t", 10_000)]
    effect: Any = flow.send((SentRound(1, START, START, Target(ALL, "path")),))
    for node, answer in enumerate((GRANTED, GRANTED, ABSENT)):
        effect = flow.send(NodeReply(1, node, answer, START))
    assert isinstance(effect, SendBatch)
    (send,) = effect.sends
    assert send.command == scripted(CLAIM, b"t")
    assert send.behind is not None
    assert send.behind.nodes == 0b100
    schedule.drop(entry)
    assert not schedule.contains_any(CLAIM.keys)


def test_a_change_of_any_key_has_the_lease_checked_once() -> None:
    entry = RenewalEntry(Held(), 10_000, START, Dice())
    schedule = RenewalSchedule()
    schedule.add(entry)
    due = entry.due
    schedule.expedite([b"c", b"b", b"x"], START)
    assert entry.due < due


def test_the_won_claim_is_released_whole() -> None:
    sent = SentRound(1, START, START, Target(ALL, "path"))
    lease = Acquired(CLAIM.led_by(b"c"), b"t", 10_000, START + ms(9_000), (), sent)
    assert set(lease.release.keys) == set(CLAIM.keys)


def test_the_key_in_the_way_is_that_which_most_nodes_found_held() -> None:
    """A node that has granted them all has found none."""
    for answers, key in (
        ((GRANTED, GRANTED, before(2)), b"c"),
        ((before(1), before(2), before(1)), b"b"),
        ((GRANTED, None, ABSENT), b"a"),
    ):
        assert redlock.key_in_the_way(CLAIM, answers) == key
