# ruff: noqa: PT012 (what a block does when its lease is lost is what is tested)
"""The lease in both APIs: held by the clock alone, extended, released, lost, and how a loss is
reported.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import tracemalloc
import weakref
from types import FrameType
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import ConfigError, LeaseLost
from quorlock._api.lease_state import LeaseState
from quorlock._core.results import LossReason
from quorlock._core.time import FOR_EVER
from quorlock._drivers import clock
from quorlock._sync.loss_event import _first, lost_event
from quorlock.testing.servers import Server, Servers
from tests.harness.support.wait import until, until_async
from tests.servers.api.faces import (
    Face,
    emptied,
    holders,
    left_over,
    raises,
    real,
    sees_all,
    steal,
    until_over,
    wipe,
)

# Short enough to wait for, long enough for a busy machine to do something within.
SHORT = 0.16
SETTINGS: dict[str, Any] = {"node_timeout": 0.05, "retry_delay": (0.002, 0.01)}


def flag(face: Face) -> dict[str, Any]:
    """Settings of a lock whose block is not cancelled, in either face."""
    return {"on_lost": "flag"} if face.name == "asyncio" else {}


def held(lease: aio.Lease) -> bool:
    """Return `lease.held`; type checkers would assume that it does not change."""
    return lease.held


def ttls(nodes: Servers, resource: str) -> list[int]:
    return [node.execute("PTTL", resource) for node in nodes]


# --- held is a comparison of clocks --------------------------------------------------------------


async def test_held_asks_no_node(face: Face, mortal_nodes: Servers) -> None:
    """The lease is held up to its validity and not longer, with all servers stopped."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=1.0).acquire()
        for node in mortal_nodes:
            node.stop()
        assert lease.held
        lease.ensure()
        assert 0 < lease.validity < 1.0
        assert lease.valid_until == pytest.approx(quorlock.now() + lease.validity, abs=0.1)
        await asyncio.sleep(lease.validity / 2)
        assert lease.held == (lease.validity > 0)
        await until_over(lease)
        assert held(lease) is False
        assert lease.validity < 0
        with pytest.raises(LeaseLost) as reported:
            lease.ensure()
        lost = reported.value
        assert (lost.reason, lost.lease, lost.resource) == ("expired", real(lease), "a")
        assert await lease.release() is False
        for node in mortal_nodes:
            node.cont()
    assert left_over(mortal_nodes) == {}


async def test_after_the_ttl_release_says_false(face: Face, nodes: Servers) -> None:
    """An expired lease cannot be released, a second time neither; there is no error."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=SHORT).acquire()
        await asyncio.sleep(SHORT + 0.01)
        assert not lease.held
        assert await lease.release() is False
        assert await lease.release() is False


async def test_a_second_release_says_false(face: Face, nodes: Servers) -> None:
    """True once; then it is over, and another's lock is not touched by saying it again."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()
        assert await lease.release() is True
        assert (lease.held, lease.valid_until) == (False, 0.0)
        async with redlock.lock("a", timeout=5) as other:
            assert await lease.release() is False
            assert holders(nodes, "a").count(other.token.encode()) >= 3


async def test_of_many_that_release_at_once_one_gets_true(face: Face, nodes: Servers) -> None:
    """A lease that threads (tasks) share is released once."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()

        async def release_once(_: int) -> bool:
            return await lease.release()

        assert sorted(map(str, await face.crowd(6, release_once))) == ["False"] * 5 + ["True"]


async def test_ensure_wants_a_margin(face: Face, nodes: Servers) -> None:
    """LeaseLost is raised if less than the margin is left; the lease continues."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", ttl=5).acquire()
        lease.ensure(margin=3)
        with pytest.raises(LeaseLost, match="is held, but for less time than the margin") as told:
            lease.ensure(margin=6)
        assert (told.value.reason, told.value.lease) == ("margin", real(lease))
        with pytest.raises(ConfigError, match="margin"):
            lease.ensure(margin=-1)
        assert lease.held
        assert await lease.release() is True
        with pytest.raises(LeaseLost):
            lease.ensure()


async def test_a_forgotten_lease_is_released(face: Face, nodes: Servers) -> None:
    """A lease that is garbage is released by the library on all nodes."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", ttl=30).acquire()
        gone = weakref.ref(real(lease))
        del lease
        assert gone() is None
        assert await emptied(nodes)


async def test_a_lease_forgotten_just_before_the_end_is_released(
    face: Face, nodes: Servers
) -> None:
    """Closing waits for releases that garbage collection has started."""
    for _ in range(5):
        async with face.redlock(nodes.urls) as redlock:
            await redlock.lock("a", timeout=5).acquire()
        assert left_over(nodes) == {}


# --- extend ---------------------------------------------------------------------------------------


async def test_extend_prolongs(face: Face, nodes: Servers) -> None:
    """The keys live at least ttl from now, the validity follows; without ttl, the last one."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", ttl=1).acquire()
        before = lease.valid_until
        await lease.extend(8)
        assert lease.valid_until > before + 6
        assert lease.ttl == 8.0
        assert sum(7000 < left <= 8000 for left in ttls(nodes, "a")) >= 3
        before = lease.valid_until
        await asyncio.sleep(0.02)
        await lease.extend()
        assert lease.valid_until >= before + 0.02
        assert await lease.release() is True


async def test_an_extension_noticed_after_the_end_is_a_loss(
    face: Face, nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused between the winning answer and the caller: others saw it lost, so lost it stays."""
    prolong = LeaseState.extend_validity

    def after_a_pause(lease_state: LeaseState, valid_until: int, ttl_ms: int) -> bool:
        assert until(lambda: not lease_state.held, 20)
        return prolong(lease_state, valid_until, ttl_ms)

    monkeypatch.setattr(LeaseState, "extend_validity", after_a_pause)
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", ttl=0.8).acquire()
        with pytest.raises(LeaseLost) as caught:
            await lease.extend(20)
        assert caught.value.reason == "expired"
        assert not lease.held
        assert await emptied(nodes)


async def test_an_extension_paused_while_it_is_recorded_is_a_loss(
    face: Face, nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread saw it lost in the middle of `extend_validity`: the loss is final."""
    prolong, hold_until = LeaseState.extend_validity, LeaseState.hold_until

    def after_a_pause(lease_state: LeaseState) -> int:
        assert until(lambda: not lease_state.held, 20)
        limit: int = hold_until.__get__(lease_state)
        return limit

    def paused_inside(lease_state: LeaseState, valid_until: int, ttl_ms: int) -> bool:
        monkeypatch.setattr(LeaseState, "hold_until", property(after_a_pause))
        return prolong(lease_state, valid_until, ttl_ms)

    monkeypatch.setattr(LeaseState, "extend_validity", paused_inside)
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", ttl=0.8).acquire()
        with pytest.raises(LeaseLost) as caught:
            await lease.extend(2)
        assert caught.value.reason == "expired"
        assert not lease.held
        assert lease.lost.is_set()
        assert await emptied(nodes)


async def test_extend_never_shortens(face: Face, nodes: Servers) -> None:
    """A shorter ttl leaves the keys' lives and the validity alone: "at least", not "exactly"."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", ttl=20).acquire()
        before = lease.valid_until
        await lease.extend(1)
        assert lease.valid_until == before
        assert sum(left > 19_000 for left in ttls(nodes, "a")) >= 3
        assert all(left > 19_000 or left == -2 for left in ttls(nodes, "a"))
        assert await redlock.extend("a", lease.token, ttl=0.8) is True
        assert sum(left > 19_000 for left in ttls(nodes, "a")) >= 3
        assert lease.held
        assert await lease.release() is True


async def test_an_extension_outlives_the_first_ttl(face: Face, nodes: Servers) -> None:
    """Held, and seen to be held by others, after the time that was asked for first."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=0.3).acquire()
        first = lease.valid_until
        await lease.extend(5)
        await asyncio.sleep(max(0.0, first + 0.01 - quorlock.now()))
        assert lease.held
        assert await redlock.lock("a").try_acquire() is None
        assert await lease.release() is True


async def test_an_extension_above_max_ttl_is_refused(face: Face, nodes: Servers) -> None:
    """ConfigError before anything is sent; the lease continues."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", ttl=5).acquire()
        await raises(ConfigError, lease.extend(31))
        assert lease.held
        assert await lease.release() is True


async def test_extending_what_ran_out_creates_nothing(face: Face, nodes: Servers) -> None:
    """LeaseLost, `expired`: no key comes back, also where a node's key would still be there."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=SHORT).acquire()
        nodes[0].execute("PERSIST", "a")
        await until_over(lease)
        lost = await raises(LeaseLost, lease.extend())
        assert (lost.reason, lost.lease) == ("expired", real(lease))
        assert await emptied(nodes), "it is given back on all nodes"
        await raises(LeaseLost, lease.extend(10))
        assert not lease.held
        assert await lease.release() is False
    assert left_over(nodes) == {}


async def test_extending_a_vanished_lease_creates_nothing(face: Face, nodes: Servers) -> None:
    """Keys deleted on a quorum: LeaseLost, `evicted`, over for good, released on the others."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()
        assert await until_async(lambda: None not in holders(nodes, "a"))
        wipe(nodes[1:4], "a")
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason == "evicted"
        assert sum(vote.cause == "the key is gone" for vote in lost.votes) >= 3
        assert (lease.held, lease.valid_until) == (False, 0.0)
        assert await lease.release() is False
        assert await emptied(nodes)


async def test_a_minority_that_lost_the_key_does_not_matter(face: Face, nodes: Servers) -> None:
    """Two of five without our key: the extension wins, and their keys are not re-created."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()
        assert await until_async(lambda: None not in holders(nodes, "a"))
        wipe(nodes[:1], "a")
        steal(nodes[1:2], "a")
        await lease.extend(20)
        assert lease.held
        assert holders(nodes, "a")[:2] == [None, b"theirs"]
        assert await lease.release() is True
    assert holders(nodes, "a") == [None, b"theirs", None, None, None]


async def test_a_lost_lease_accuses_no_node_that_was_not_waited_for(
    face: Face, nodes: Servers
) -> None:
    """Early verdicts leave healthy nodes unheard; the error must not call them silent."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        for turn in range(10):
            lease = await redlock.lock(f"a{turn}").acquire()
            wipe(nodes, f"a{turn}")
            lost = await raises(LeaseLost, lease.extend())
            assert "no answer in time" not in str(lost)


# --- theft ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("thief_has", [3, 5])
async def test_anothers_key_is_never_touched(face: Face, nodes: Servers, thief_has: int) -> None:
    """Stolen on a quorum: extend says `taken`, release says False, the thief's keys live on."""
    async with face.redlock(nodes.urls) as redlock:
        first, second = [await redlock.lock(name).acquire() for name in ("a", "b")]
        for name in ("a", "b"):
            assert await until_async(lambda: None not in holders(nodes, name))  # noqa: B023
            wipe(nodes[:thief_has], name)
            steal(nodes[:thief_has], name)
        lost = await raises(LeaseLost, first.extend(1))
        assert lost.reason == "taken"
        assert "another client holds it" in str(lost)
        assert not first.held
        assert second.held, "nothing has reported it"
        assert await second.release() is False
        assert await first.release() is False
        for name in ("a", "b"):
            await raises_or_false(redlock.extend(name, first.token))
            await raises_or_false(redlock.release(name, first.token))
    rest: list[bytes | None] = [None] * (5 - thief_has)
    for name in ("a", "b"):
        assert holders(nodes, name) == [b"theirs"] * thief_has + rest
        assert all(left > 50_000 for left in ttls(nodes, name)[:thief_has])


async def raises_or_false(verb: Any) -> None:
    assert await verb is False


async def test_a_key_of_another_type_is_left_alone(face: Face, nodes: Servers) -> None:
    """The key has become a list: refused, lost, never deleted."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()
        for node in nodes:
            node.execute("DEL", "a")
            node.execute("RPUSH", "a", "x")
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason == "taken"
        assert await lease.release() is False
    assert all(node.execute("LRANGE", "a", 0, -1) == [b"x"] for node in nodes)


# --- unreachable ----------------------------------------------------------------------------------


async def test_without_a_quorum_extend_tries_until_the_validity_ends(
    face: Face, mortal_nodes: Servers
) -> None:
    """Three of five stopped: LeaseLost, `unreachable`, naming them, and no sooner than the end."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=0.4).acquire()
        end = lease.valid_until
        for node in mortal_nodes[:3]:
            node.stop()
        lost = await raises(LeaseLost, lease.extend())
        assert quorlock.now() >= end
        assert lost.reason == "unreachable"
        silent = {vote.node for vote in lost.votes if vote.vote == "unknown"}
        assert silent >= {node.path for node in mortal_nodes[:3]}
        assert not lease.held
        for node in mortal_nodes[:3]:
            node.cont()
        assert await emptied(mortal_nodes)


async def test_extend_gets_through_a_short_outage(face: Face, mortal_nodes: Servers) -> None:
    """Three of five are stopped for a while: extend retries while validity remains, and wins."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=5).acquire()
        for node in mortal_nodes[:3]:
            node.stop()

        def back() -> None:
            for node in mortal_nodes[:3]:
                node.cont()

        later = threading.Timer(0.15, back)
        later.start()
        before = lease.valid_until
        await lease.extend(10)
        later.join()
        assert lease.valid_until > before
        assert await lease.release() is True
    assert left_over(mortal_nodes) == {}


# --- the event ------------------------------------------------------------------------------------


async def test_lost_is_set_when_the_validity_ends(face: Face, mortal_nodes: Servers) -> None:
    """The clock alone decides: with every server stopped it is set, and not before the validity is
    over.
    """
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=0.3).acquire()
        for node in mortal_nodes:
            node.stop()
        event = lease.lost
        assert lease.lost is event
        assert event.is_set() <= (not lease.held)
        assert await face.is_set_within(event, 10)
        assert not lease.held
        assert "unset" not in repr(event)
        for node in mortal_nodes:
            node.cont()
        await lease.release()


async def test_lost_follows_an_extension(face: Face, nodes: Servers) -> None:
    """An event from before the extension is set at the new end, not at the old one."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=0.3).acquire()
        event, old_end = lease.lost, lease.valid_until
        await lease.extend(0.6)
        new_end = lease.valid_until
        assert new_end > old_end
        assert await face.is_set_within(event, 10)
        assert quorlock.now() >= new_end - 0.6 / 20 > old_end
        assert not lease.held


async def test_lost_is_not_set_after_a_release(face: Face, nodes: Servers) -> None:
    """A released or handed-over lease is not lost, whether it is checked before or after, or after
    the ttl.
    """
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        first = await redlock.lock("a", ttl=SHORT).acquire()
        second = await redlock.lock("b", ttl=SHORT).acquire()
        events = [first.lost, second.lost]
        end = second.valid_until
        await first.release()
        await second.hand_over()
        await asyncio.sleep(max(0.0, end - quorlock.now()) + 0.02)
        assert not any(event.is_set() for event in (*events, first.lost, second.lost))


async def test_lost_is_set_at_once_when_extend_finds_out(face: Face, nodes: Servers) -> None:
    """The loss is reported long before the ttl ends, also to callers that get the event later."""
    async with face.redlock(nodes.urls) as redlock:
        early, late = [await redlock.lock(name, ttl=20).acquire() for name in ("a", "b")]
        event = early.lost
        for lease in (early, late):
            wipe(nodes, lease.resource)
            await raises(LeaseLost, lease.extend())
        assert event.is_set()
        assert late.lost.is_set()


async def test_lost_is_set_for_who_asks_when_it_is_over(face: Face, nodes: Servers) -> None:
    """The first look at `lost` after the end finds it set, or sees it set at once."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=SHORT).acquire()
        await until_over(lease)
        assert await face.is_set_within(lease.lost, 5)


def test_many_losses_are_reported_in_any_order(nodes: Servers) -> None:
    """Blocking: each reports its own loss in time, without a thread."""
    with quorlock.Redlock(nodes.urls, **SETTINGS) as redlock:
        times = (0.6, 0.2, 0.4)
        leases = [redlock.lock(f"a{ttl}", ttl=ttl).acquire() for ttl in times]
        events = [lease.lost for lease in leases]
        assert [lease.lost for lease in leases] == events
        in_time = []
        for index in (1, 2, 0):
            valid_until = leases[index].valid_until
            assert events[index].wait(10)
            assert not leases[index].held
            in_time.append(quorlock.now() < valid_until)
        # 10 to 30 ms before the end: a busy machine may let us sleep past one of them.
        assert any(in_time), "reported before the end"
        assert not any("alarm" in thread.name for thread in threading.enumerate())


def test_a_loss_that_renewal_sees_wakes_who_waits(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocking: at once, not when the waiting thread looks at the clock the next time."""
    monkeypatch.setattr(clock, "SLEEP_MAX", FOR_EVER // 1_000)
    with quorlock.Redlock(nodes.urls, ttl=20.0) as redlock:
        lease = redlock.lock("a").acquire()
        lost = lease.lost
        waiter = threading.Thread(target=lost.wait)
        waiter.start()
        waiters = lost._event._waiters  # type: ignore[attr-defined]
        assert until(lambda: waiters.waiting)
        lease._state.end(LossReason.TAKEN)  # as renewal says it
        waiter.join(10)
        assert not waiter.is_alive()


def test_threads_that_ask_for_lost_at_once_get_one_event(nodes: Servers) -> None:
    """Blocking: another thread asks as the first one reaches a line. A loss sets one event."""
    events: list[threading.Event] = []
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code is not lost_event.__code__:
            return None
        lines += event == "line"
        if lines == k and not events:
            other = threading.Thread(target=lambda: events.append(lease.lost))
            other.start()
            other.join(10)
        return trace

    with quorlock.Redlock(nodes.urls, ttl=20.0) as redlock:
        for k in range(1, 100):  # noqa: B007 (read by `trace`)
            lease = redlock.lock("a").acquire()
            before, lines = sys.gettrace(), 0
            sys.settrace(trace)
            try:
                first = lease.lost
            finally:
                sys.settrace(before)
            if not events:
                break
            lease._state.end(LossReason.TAKEN)  # as renewal says it
            assert [first, lease.lost] == events * 2
            assert first._event.up  # type: ignore[attr-defined]
            assert not _first
            events.clear()
            lease.release()
        assert k > 3


@pytest.mark.parametrize("timeout", [0, 0.05, -1])
def test_waiting_for_a_loss_ends_by_its_timeout(nodes: Servers, timeout: float) -> None:
    """Blocking: also for a released lease, which is never lost."""
    with quorlock.Redlock(nodes.urls, ttl=20.0) as redlock:
        lease = redlock.lock("a").acquire()
        assert lease.lost.wait(timeout) is False
        lease.release()
        assert lease.lost.wait(timeout) is False
        assert not lease.lost.is_set()


# --- the block: blocking --------------------------------------------------------------------------


def test_a_lost_lease_is_reported_at_the_end_of_a_clean_block(nodes: Servers) -> None:
    """Blocking: a body that ran to its end too late gets LeaseLost, not silence."""
    with quorlock.Redlock(nodes.urls, **SETTINGS) as redlock:
        done = False
        with pytest.raises(LeaseLost) as lost, redlock.lock("a", ttl=SHORT) as lease:
            assert not lease.lost.wait(0.01)
            assert lease.lost.wait(10)
            done = True
        assert done
        assert (lost.value.reason, lost.value.lease) == ("expired", lease)


@pytest.mark.parametrize(("thief", "reason"), [(True, "taken"), (False, "evicted")])
async def test_a_loss_seen_only_by_the_release_is_reported(
    face: Face, nodes: Servers, thief: bool, reason: str
) -> None:
    """The validity had not ended, but the keys were gone: the block says so, with the votes."""
    async with face.redlock(nodes.urls) as redlock:
        with pytest.raises(LeaseLost) as lost:
            async with redlock.lock("a") as lease:
                wipe(nodes, "a")
                if thief:
                    steal(nodes, "a")
                assert lease.held
        assert lost.value.lease is real(lease)
        assert lost.value.reason == reason
        assert sum(vote.vote == "refused" for vote in lost.value.votes) >= 3
    assert holders(nodes, "a") == [b"theirs" if thief else None] * 5


# --- the block: asyncio ---------------------------------------------------------------------------


async def test_the_body_is_cancelled_when_the_lease_is_lost(nodes: Servers) -> None:
    """asyncio: the block raises LeaseLost, caused by the cancellation; the task continues."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        with pytest.raises(LeaseLost) as lost:
            async with redlock.lock("a", ttl=SHORT) as lease:
                await asyncio.sleep(30)
                pytest.fail("not cancelled")
        assert lost.value.lease is lease
        assert lost.value.reason == "expired"
        assert isinstance(lost.value.__cause__, asyncio.CancelledError)
        await no_task_cancels_us()
    assert left_over(nodes) == {}


async def no_task_cancels_us() -> None:
    """No cancellation request is left on the task, counted or pending."""
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_loss_seen_by_extend_leaves_no_cancellation_behind(nodes: Servers) -> None:
    """asyncio: the body's own extend finds it lost; LeaseLost comes out and nothing comes after."""
    async with aio.Redlock(nodes.urls) as redlock:
        for caught in (False, True):
            with pytest.raises(LeaseLost) as lost:
                async with redlock.lock("a") as lease:
                    wipe(nodes, "a")
                    try:
                        await lease.extend()
                    except LeaseLost:
                        if not caught:
                            raise
            assert lost.value.lease is lease
            await no_task_cancels_us()
            async with redlock.lock("b"):  # and the task can still acquire locks
                await no_task_cancels_us()


async def test_a_body_that_continues_after_a_loss_seen_by_extend_is_cancelled(
    nodes: Servers,
) -> None:
    """asyncio: swallowing extend's LeaseLost does not keep the body running past its next await."""
    async with aio.Redlock(nodes.urls) as redlock:
        with pytest.raises(LeaseLost):
            async with redlock.lock("a") as lease:
                wipe(nodes, "a")
                await raises(LeaseLost, lease.extend())
                await asyncio.sleep(5)
                pytest.fail("not cancelled")
        await no_task_cancels_us()


async def test_a_body_that_is_stuck_past_the_end_leaves_nothing_behind(nodes: Servers) -> None:
    """asyncio: the loop was blocked over the end, the body ends with or without another await."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        for awaits in (False, True):
            with pytest.raises(LeaseLost):
                async with redlock.lock("a", ttl=SHORT) as lease:
                    threading.Event().wait(SHORT + 0.01)
                    assert not lease.held
                    if awaits:
                        await asyncio.sleep(0)
            await no_task_cancels_us()


async def test_an_outer_cancellation_is_not_mistaken_for_ours(nodes: Servers) -> None:
    """asyncio: the canceller gets CancelledError, and the lock is released."""
    async with aio.Redlock(nodes.urls) as redlock:
        inside = asyncio.Event()

        async def work() -> None:
            async with redlock.lock("a"):
                inside.set()
                await asyncio.sleep(30)

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel("theirs")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert await redlock.lock("a").locked() is False


async def test_an_outer_cancellation_wins_over_a_loss(nodes: Servers) -> None:
    """asyncio: if the loss and another caller cancel at once, the other caller must be obeyed."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:

        async def work() -> None:
            async with redlock.lock("a", ttl=SHORT) as lease:
                try:
                    await asyncio.sleep(30)
                finally:
                    assert not lease.held
                    task.cancel()

        task = asyncio.create_task(work())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert task.cancelling() == 1


async def test_of_nested_locks_the_lost_one_is_reported(nodes: Servers) -> None:
    """asyncio: outer lost: the inner is released by the way, the outer's LeaseLost comes out.
    Inner lost: its LeaseLost comes out of it, and the outer is still held.
    """
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        with pytest.raises(LeaseLost) as lost:
            async with redlock.lock("outer", ttl=SHORT), redlock.lock("inner") as inner:
                await asyncio.sleep(30)
        assert lost.value.resource == "outer"
        assert not inner.held
        async with redlock.lock("outer") as outer:
            with pytest.raises(LeaseLost) as lost:
                async with redlock.lock("inner", ttl=SHORT):
                    await asyncio.sleep(30)
            assert lost.value.resource == "inner"
            assert outer.held
        with pytest.raises(LeaseLost):
            async with redlock.lock("outer", ttl=SHORT), redlock.lock("inner", ttl=SHORT):
                await asyncio.sleep(30)
        await no_task_cancels_us()
    assert left_over(nodes) == {}


async def test_a_timeout_inside_and_around(nodes: Servers) -> None:
    """asyncio: `asyncio.timeout` and the loss of the lease each end their own block."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        async with redlock.lock("a") as lease:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await asyncio.sleep(30)
            assert lease.held
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), redlock.lock("a"):
                await asyncio.sleep(30)
        with pytest.raises(LeaseLost):
            async with asyncio.timeout(30), redlock.lock("a", ttl=SHORT, timeout=5):
                await asyncio.sleep(60)
        with pytest.raises(LeaseLost):
            async with redlock.lock("a", ttl=SHORT, timeout=5), asyncio.timeout(30):
                await asyncio.sleep(60)
        await no_task_cancels_us()
    assert left_over(nodes) == {}


async def test_a_timeout_around_the_waiting(nodes: Servers) -> None:
    """asyncio: a timeout that ends an acquire comes out as TimeoutError and leaves no key."""
    steal(nodes, "a")
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03), redlock.lock("a"):
                pytest.fail("the body ran without the lock")
        await no_task_cancels_us()
    assert holders(nodes, "a") == [b"theirs"] * 5


async def test_a_loss_in_a_task_group(nodes: Servers) -> None:
    """asyncio: LeaseLost of one task cancels its siblings and comes out in the group."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        siblings: list[str] = []

        async def work() -> None:
            async with redlock.lock("a", ttl=SHORT):
                await asyncio.sleep(30)

        with pytest.RaisesGroup(LeaseLost):
            async with asyncio.TaskGroup() as group:
                group.create_task(sleeper(siblings))
                group.create_task(work())
        assert siblings == ["cancelled"]
        assert await redlock.lock("a").locked() is False


async def test_a_loss_around_a_task_group(nodes: Servers) -> None:
    """asyncio: a block around a group cancels the group's tasks and raises LeaseLost alone."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        siblings: list[str] = []
        with pytest.raises(LeaseLost):
            async with redlock.lock("a", ttl=SHORT), asyncio.TaskGroup() as group:
                group.create_task(sleeper(siblings))
        assert siblings == ["cancelled"]
        await no_task_cancels_us()


async def sleeper(reported: list[str]) -> None:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        reported.append("cancelled")
        raise


async def test_a_body_that_swallows_its_cancellation_gets_the_loss_nevertheless(
    nodes: Servers,
) -> None:
    """asyncio: it may end as it likes; LeaseLost comes out where no error does."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        went_on = False
        with pytest.raises(LeaseLost) as lost:
            async with redlock.lock("a", ttl=SHORT) as lease:
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    await asyncio.sleep(0)
                    went_on = True
        assert went_on
        assert lost.value.lease is lease
        await no_task_cancels_us()


async def test_an_error_made_of_the_cancellation_comes_out(nodes: Servers) -> None:
    """asyncio: the body turns its cancellation into its own error; that comes out, with a note."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        with pytest.raises(KeyError, match="mine") as mine:
            async with redlock.lock("a", ttl=SHORT):
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    raise KeyError("mine") from None
        assert any("is lost" in note for note in mine.value.__notes__)
        await no_task_cancels_us()


async def test_on_lost_flag_lets_the_body_run(nodes: Servers) -> None:
    """asyncio: with on_lost="flag" nothing is cancelled; the end of the block reports the loss."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        went_on = False
        with pytest.raises(LeaseLost):
            async with redlock.lock("a", ttl=SHORT, on_lost="flag") as lease:
                await lease.lost.wait()
                await asyncio.sleep(0.01)
                went_on = True
        assert went_on
        with pytest.raises(ConfigError, match="on_lost='ring'"):
            redlock.lock("a", on_lost="ring")  # type: ignore[call-overload]


async def test_an_extended_block_is_not_cancelled_at_its_first_end(nodes: Servers) -> None:
    """asyncio: the timer follows the extension; a released lease cancels nothing."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        async with redlock.lock("a", ttl=0.2) as lease:
            first = lease.valid_until
            await lease.extend(5)
            await asyncio.sleep(max(0.0, first - quorlock.now()) + 0.02)
            assert lease.held
        async with redlock.lock("a", ttl=SHORT) as lease:
            await lease.release()
            await asyncio.sleep(SHORT + 0.02)
        async with redlock.lock("a", ttl=SHORT) as lease:
            await lease.hand_over()
            await asyncio.sleep(SHORT + 0.02)


async def test_a_decorated_coroutine_is_cancelled_when_lost(nodes: Servers) -> None:
    """asyncio: the decorator is the block."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:

        @redlock.lock("a", ttl=SHORT)
        async def work() -> None:
            await asyncio.sleep(30)

        with pytest.raises(LeaseLost):
            await work()
        await no_task_cancels_us()


async def test_what_is_left_behind_on_restarted_nodes(face: Face, mortal_nodes: Servers) -> None:
    """Nodes that came back empty do not count as held: extend reports it, and release returns
    False.

    This is without the guard; with it they are not asked (test_restart_guard.py).
    """
    async with face.redlock(mortal_nodes.urls, restart_guard=None) as redlock:
        lease = await redlock.lock("a", ttl=20).acquire()
        other = await redlock.lock("b", ttl=20).acquire()
        restarted: list[Server] = mortal_nodes[:3]
        for node in restarted:
            node.restart()
        assert await sees_all(redlock)
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason == "evicted"
        assert await other.release() is False
    assert left_over(mortal_nodes) == {}


async def test_a_lease_takes_half_a_kilobyte(face: Face, nodes: Servers) -> None:
    """The key and the place in the session count: a program may hold a hundred thousand."""
    count = 1_000
    names = [f"resource:{number}" for number in range(count)]
    leases: list[Any] = [None] * count
    async with face.redlock(nodes.urls, node_timeout=2.0, owner="web-1") as redlock:
        assert await (await redlock.lock("first").acquire()).release()
        gc.collect()
        tracemalloc.start()
        try:
            for number, name in enumerate(names):
                leases[number] = real(await redlock.lock(name, ttl=30).acquire())
            gc.collect()
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert used / count <= 512
    assert left_over(nodes) == {}
