# ruff: noqa: PT012 (what a block does when its lease is lost is what is tested)
"""Renewal in both APIs: automatic extension up to a limit, repair, and reports of losses."""

from __future__ import annotations

import _thread
import asyncio
import gc
import logging
import math
import re
import threading
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import ConfigError, HoldLimitReached, LeaseLost
from quorlock._core.renewal_schedule import RenewalSchedule
from quorlock._drivers import threads
from quorlock._drivers.sync.polling import Poll
from quorlock._drivers.sync.tracking import TrackedConnections
from quorlock._sync.renewal import RenewalThread
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import Proxy
from tests.harness.support.wait import until, until_async
from tests.servers.api.faces import Face, emptied, holders, left_over, raises, real, steal, wipe

# Short enough to wait for, long enough for a machine that runs other tests as well.
TTL = 0.9
SETTINGS: dict[str, Any] = {"node_timeout": 0.1, "retry_delay": (0.01, 0.03), "ttl": TTL}
MAJORITY = slice(0, 3)


def flag(face: Face) -> dict[str, Any]:
    """Settings of a lock whose block is not cancelled, in either face."""
    return {"on_lost": "flag"} if face.name == "asyncio" else {}


def loop_drivers() -> list[str]:
    """Return the running renewals of this process."""
    try:
        tasks = [task.get_name() for task in asyncio.all_tasks()]
    except RuntimeError:
        tasks = []
    threads = [thread.name for thread in threading.enumerate()]
    return [name for name in tasks + threads if name == "quorlock renewal"]


async def test_a_renewed_lease_outlives_its_ttl(face: Face, nodes: Servers) -> None:
    """The lease is held for several times the ttl on every node and released at the end; then
    renewal ends.
    """
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        async with redlock.lock("a", renew=True) as lease:
            first = lease.valid_until
            while quorlock.now() < first + 2 * TTL:
                await asyncio.sleep(TTL / 10)
                assert lease.held
                assert lease.validity < TTL
            # A node that was late for one extension gets its key back with the next one.
            everywhere = [lease.token.encode()] * 5
            assert await until_async(lambda: holders(nodes, "a") == everywhere, TTL)
            assert loop_drivers() == ["quorlock renewal"]
        assert left_over(nodes) == {}
        assert await until_async(lambda: not loop_drivers())


@pytest.mark.parametrize("by_hand", [False, True], ids=["renewed", "by hand"])
async def test_nodes_that_reply_after_node_timeout_extend(
    face: Face, nodes: Servers, by_hand: bool
) -> None:
    """All nodes take three times as long as they may: much validity is left to wait for them."""
    settings = SETTINGS | {"node_timeout": 0.05, "outage_timeout": 5.0, "ttl": 1.5}
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(url)) for url in nodes.urls]
        async with face.redlock([proxy.url for proxy in proxies], **settings) as redlock:
            lease = await redlock.lock("a", renew=not by_hand).acquire(timeout=5.0)
            for proxy in proxies:
                proxy.delay = 0.15
            # Twice: the first one on a connection brings the script, and goes another way.
            for _ in range(2):
                before = lease.valid_until
                if by_hand:
                    await lease.extend()
                await until_async(lambda: lease.valid_until != before or not lease.held)  # noqa: B023
                assert lease.held
            for proxy in proxies:
                proxy.delay = 0.0


async def test_without_renew_it_ends(face: Face, nodes: Servers) -> None:
    """A lease without `renew` expires."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=0.4).acquire()
        assert not loop_drivers()
        assert await until_async(lambda: not lease.held)


async def test_many_leases_hang_on_one_engine(face: Face, nodes: Servers) -> None:
    """One thread (task) for all; each is released separately while the others continue."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        names = [f"a{number}" for number in range(300)]
        leases = [await redlock.lock(name, ttl=3, renew=True).acquire() for name in names]
        assert loop_drivers() == ["quorlock renewal"]
        firsts = [lease.valid_until for lease in leases]
        assert await until_async(lambda: quorlock.now() > max(firsts), 20)
        assert all(lease.held for lease in leases)
        assert all([await lease.release() for lease in leases[::2]])
        assert all(lease.held for lease in leases[1::2])
        assert all([await lease.release() for lease in leases[1::2]])
        assert left_over(nodes) == {}


async def test_max_hold_ends_it(face: Face, nodes: Servers) -> None:
    """The limit shortens the last extension; then the lease is lost and released."""
    warned: list[aio.Lease] = []
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lock = redlock.lock("a", renew=True, max_hold=2 * TTL, on_warning=warned.append)
        began = quorlock.now()
        lease = await lock.acquire()
        limit = quorlock.now() + 2 * TTL
        event = lease.lost
        while lease.held:
            assert lease.valid_until <= limit
            await asyncio.sleep(0.01)
        assert quorlock.now() > began + TTL, "it was extended"
        assert await face.is_set_within(event, 5)
        assert await emptied(nodes)
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason == "expired"
        assert [real(warned[0])] == [real(lease)]


async def test_no_client_gets_the_lock_before_the_promised_validity_ends(
    face: Face, nodes: Servers
) -> None:
    """`valid_until` and a margin that `ensure` has granted bind, also past the end of max_hold."""
    settings = SETTINGS | {"ttl": 0.4, "retry_delay": (0.001, 0.002)}
    async with face.redlock(nodes.urls, **settings) as redlock:
        lease = await redlock.lock("a", renew=True, max_hold=0.4).acquire()
        promised_until, got = lease.valid_until, [0.0]

        def contend() -> None:
            with quorlock.Redlock(nodes.urls, **settings) as other, other.lock("a", timeout=9):
                got[0] = quorlock.now()

        contender = threading.Thread(target=contend)
        contender.start()
        assert await face.is_set_within(lease.lost, 9)
        await asyncio.to_thread(contender.join)
        assert got[0] >= promised_until


async def test_a_loss_that_is_seen_early_leaves_the_other_keys_until_then(
    face: Face, nodes: Servers
) -> None:
    """A majority has lost the key; the others stay until the `valid_until` that the holder was
    given.
    """
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        for renew in (True, False):
            lease = await redlock.lock("a", ttl=0.5, renew=renew).acquire()
            await until_async(lambda: None not in holders(nodes, "a"))
            promised_until = lease.valid_until
            wipe(nodes[MAJORITY], "a")
            await raises(LeaseLost, lease.extend())
            assert not lease.held
            assert await until_async(lambda: holders(nodes, "a") == [None] * 5)
            assert quorlock.now() >= promised_until


async def test_a_lost_lease_is_released_at_once_when_its_block_is_left(
    face: Face, nodes: Servers
) -> None:
    """A holder that leaves the block has stopped, so other clients need not wait for its
    `valid_until`.
    """
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        error = None
        try:
            async with redlock.lock("a", ttl=10, renew=True, **flag(face)) as lease:
                wipe(nodes[MAJORITY], "a")
                assert await face.is_set_within(lease.lost, 9)
        except LeaseLost as lost:
            error = lost
        assert error is not None
        assert error.reason == "evicted"
        assert left_over(nodes) == {}


def test_a_loss_is_reported_also_without_a_thread(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the keys are not released later: they expire."""
    with quorlock.Redlock(nodes.urls, **SETTINGS) as redlock:
        lease = redlock.lock("a").acquire()
        wipe(nodes[MAJORITY], "a")

        def refuse(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(_thread, "start_new_thread", refuse)
            with pytest.raises(LeaseLost):
                lease.extend()
        assert lease.lost.is_set()


async def test_a_release_that_is_refused_does_not_hide_the_loss(face: Face) -> None:
    """The nodes became replicas: LeaseLost comes out of the block, with a note of the release."""
    # The loss is reported a tenth of the ttl before the keys expire; then there is no release.
    settings = SETTINGS | {"ttl": 2.0}
    # Other servers than those of the session: a node's marker is not valid after it was a replica.
    with Servers(3) as nodes:
        async with face.redlock(nodes.urls, **settings) as redlock:
            lost = None
            try:
                async with redlock.lock("a", renew=True, max_hold=2.0) as lease:
                    for node in nodes:
                        node.execute("REPLICAOF", "127.0.0.1", "1")
                    await face.is_set_within(lease.lost, 9)
                    await asyncio.sleep(0)
            except LeaseLost as error:
                lost = error
        assert lost is not None
        # That it is one now is seen by an answer, or by connecting again.
        assert re.search("READONLY|is not a master", lost.__notes__[0])


async def test_an_extension_that_has_to_try_again_does_not_pass_it(
    face: Face, mortal_nodes: Servers
) -> None:
    """Within the limit when it was asked for; beyond it by the time that nodes answer again."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        began = quorlock.now()
        lease = await redlock.lock("a", ttl=4, max_hold=6).acquire()
        limit = quorlock.now() + 6
        for node in mortal_nodes[:3]:
            node.stop()

        def go_on() -> None:
            for node in mortal_nodes[:3]:
                node.cont()

        resume_later = threading.Timer(1.5, go_on)
        resume_later.start()
        await lease.extend(began + 6 - quorlock.now() - 0.5)  # half a second of room
        resume_later.join()
        assert lease.valid_until <= limit
        assert lease.validity > 2


async def test_extensions_by_hand_count_too(face: Face, nodes: Servers) -> None:
    """HoldLimitReached before anything is sent; the lease continues until it ends."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=5, max_hold=8).acquire()
        await lease.extend(6)
        error = await raises(HoldLimitReached, lease.extend(9))
        assert (error.resource, error.max_hold) == ("a", 8.0)
        assert "math.inf" in str(error)
        assert lease.held
        await lease.extend(7)
        assert await lease.release() is True
        endless = await redlock.lock("a", ttl=5, max_hold=math.inf).acquire()
        await endless.extend(30)
        assert await endless.release() is True


# --- loss --------------------------------------------------------------------------------------


async def test_all_nodes_hang(face: Face, mortal_nodes: Servers) -> None:
    """The loss is reported before `valid_until`, by at most a tenth of the ttl, with a warning when
    half was left; the keys are released when the nodes resume.
    """
    warned: list[float] = []
    reported: list[float] = []

    def warn(lease: aio.Lease) -> None:
        warned.append(lease.validity)

    ttl = 6.0  # a tenth is time enough for this thread to be woken
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=ttl, renew=True, on_warning=warn).acquire()
        event, ends = lease.lost, lease.valid_until
        assert await until_async(lambda: lease.valid_until > ends)
        for node in mortal_nodes:
            node.stop()
        await asyncio.sleep(0.2)  # what was under way has come down
        end = lease.valid_until
        assert await face.is_set_within(event, 10)
        reported.append(quorlock.now())
        assert not lease.held
        assert end - ttl / 10 <= reported[0] < end
        assert len(warned) == 1
        assert 0.1 < warned[0] <= ttl / 2
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason == "unreachable"
        assert {vote.cause for vote in lost.votes} == {"no answer in time"}
        for node in mortal_nodes:
            node.cont()
        assert await emptied(mortal_nodes)
        assert lease.held is False


@pytest.mark.parametrize(("thief", "reason"), [(True, "taken"), (False, "evicted")])
async def test_keys_that_are_gone_are_reported_at_the_next_renewal(
    face: Face, nodes: Servers, thief: bool, reason: str
) -> None:
    """The loss is reported long before the ttl ends; nothing is written on any node; the other keys
    are released.
    """
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=6, renew=True).acquire()
        event = lease.lost
        assert await until_async(lambda: None not in holders(nodes, "a"))
        wipe(nodes[MAJORITY], "a")
        if thief:
            steal(nodes[MAJORITY], "a")
        assert await face.is_set_within(event, 5)
        assert lease.valid_until == 0.0
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason == reason
        theirs = b"theirs" if thief else None
        assert await lease.release() is False
        assert holders(nodes, "a") == [theirs] * 3 + [None] * 2


async def test_a_lost_lease_stays_lost_when_its_key_comes_back(face: Face, nodes: Servers) -> None:
    """Renewal does not revive it either; a key that came back is released when the block is
    left.
    """
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        with pytest.raises(LeaseLost):
            async with redlock.lock("a", ttl=2, renew=True, **flag(face)) as lease:
                wipe(nodes, "a")
                assert await face.is_set_within(lease.lost, 5)
                for node in nodes:
                    node.execute("SET", "a", lease.token, "PX", 60_000)
                await asyncio.sleep(0.1)
                assert not lease.held
                await raises(LeaseLost, lease.extend())
        assert await until_async(lambda: not loop_drivers())
    wipe(nodes, "a")


async def test_what_a_warning_raises_is_logged(
    face: Face, mortal_nodes: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged once for each decline; renewal continues, and wins again when the nodes
    are back.
    """

    def fails(lease: aio.Lease) -> None:
        raise RuntimeError("theirs")

    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lock = redlock.lock("a", ttl=2.5, renew=True, on_warning=fails)
        async with lock as lease:
            for declines in (1, 2):
                for node in mortal_nodes:
                    node.stop()
                assert await until_async(lambda: len(caplog.records) == declines, 6)  # noqa: B023
                for node in mortal_nodes:
                    node.cont()
                assert await until_async(lambda: lease.validity > 1.5)
            assert lease.held
    assert {record.name for record in caplog.records} == {"quorlock"}
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert "theirs" in caplog.text
    assert lease.token not in caplog.text
    assert len(caplog.records) == 2


class Theirs(BaseException):
    """An exception like GreenletExit."""


def warned_by(error: BaseException) -> dict[str, Any]:
    """The settings of a lock whose holder is warned after half of its ttl, and then raises."""

    def raises(_: object) -> None:
        raise error

    return {"ttl": TTL, "max_hold": TTL, "renew": True, "on_warning": raises}


def test_a_warning_that_exits_ends_no_renewal(
    nodes: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """Blocking: a background thread cannot end the process; the exit is logged, and other leases
    are renewed.
    """
    errors = [SystemExit(3), KeyboardInterrupt(), Theirs("theirs")]
    with quorlock.Redlock(nodes.urls, **SETTINGS) as redlock:
        other = redlock.lock("b", renew=True).acquire()
        leases = [redlock.lock(repr(e), **warned_by(e)).acquire() for e in errors]
        assert all(lease.lost.wait(10) for lease in leases)
        first = other.valid_until
        assert not other.lost.wait(max(0.0, first - quorlock.now()) + 0.1)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    for error, lease in zip(errors, leases, strict=True):
        assert type(error).__name__ in caplog.text
        assert lease.token not in caplog.text


def raise_once(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: BaseException
) -> threading.Event:
    """Have a function raise in place of its first call; the event is set then."""
    function, raised = getattr(owner, name), threading.Event()

    def raises(*args: object) -> object:
        if not raised.is_set():
            raised.set()
            raise error
        return function(*args)

    monkeypatch.setattr(owner, name, raises)
    return raised


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (RenewalSchedule, "add"),
        (RenewalSchedule, "reschedule"),
        (Poll, "poll_with"),
        (TrackedConnections, "wait"),
    ],
)
def test_an_exception_of_other_code_ends_no_renewal(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """Blocking: in a step of the thread, or while it sleeps and reads invalidations."""
    with quorlock.Redlock(nodes.urls, **SETTINGS) as redlock:
        old = redlock.lock("old", ttl=5.0, renew=True).acquire()
        renewer = redlock._session.renewers[0]
        assert isinstance(renewer, RenewalThread)
        assert until(lambda: renewer._watch)
        assert renewer._watch is not None
        before = renewer._watch.connection_set
        raised = raise_once(monkeypatch, owner, name, Theirs("theirs"))
        lease = redlock.lock("a", ttl=1.5, renew=True).acquire()
        assert raised.wait(10)
        ends = [old.valid_until, lease.valid_until]
        assert until(lambda: lease.valid_until > ends[1])
        assert until(lambda: old.valid_until > ends[0])
        # Its bytes may have been read in part.
        assert (renewer._watch.connection_set is before) == (owner is not Poll)


def test_a_thread_that_ended_is_replaced(nodes: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocking: a second exception comes during the report of the first. The next lease starts
    another thread, for all.
    """
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    raised = raise_once(monkeypatch, threads, "log_trouble", Theirs("theirs"))
    with quorlock.Redlock(nodes.urls, **SETTINGS) as redlock:
        raise_once(monkeypatch, TrackedConnections, "wait", Theirs("theirs"))
        old = redlock.lock("old", ttl=5.0, renew=True).acquire()
        assert raised.wait(10)
        assert until(lambda: not loop_drivers())
        new, end = redlock.lock("new", ttl=30.0, renew=True).acquire(), old.valid_until
        assert until(lambda: old.valid_until > end)
        assert new.held


async def test_a_warning_that_raises_anything_ends_no_task(
    nodes: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio: no more than an exception does."""
    errors = [Theirs("theirs"), asyncio.CancelledError()]
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        other = await redlock.lock("b", renew=True).acquire()
        leases = [await redlock.lock(repr(e), **warned_by(e)).acquire() for e in errors]
        for lease in leases:
            await asyncio.wait_for(lease.lost.wait(), 10)
        first = other.valid_until
        assert await until_async(lambda: quorlock.now() > first + 0.1)
        assert other.held
    for error in errors:
        assert type(error).__name__ in caplog.text


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_warning_that_exits_leaves_the_loop(nodes: Servers, error: BaseException) -> None:
    """asyncio: the exit propagates as from any callback; renewal continues when the loop does."""

    async def begin() -> None:
        leases["b"] = await redlock.lock("b", renew=True).acquire()
        leases["a"] = await redlock.lock("a", **warned_by(error)).acquire()
        await asyncio.sleep(60)

    async def go_on() -> None:
        first = leases["b"].valid_until
        assert await until_async(lambda: quorlock.now() > first + 0.1)
        assert leases["b"].held
        await redlock.close()

    leases: dict[str, aio.Lease] = {}
    redlock = aio.Redlock(nodes.urls, **SETTINGS)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        beginning = loop.create_task(begin())
        with pytest.raises(type(error)):
            loop.run_until_complete(beginning)
        assert not beginning.done()
        loop.run_until_complete(go_on())


# --- repair ------------------------------------------------------------------------------------


async def test_nodes_that_lack_the_key_get_it_back(face: Face, mortal_nodes: Servers) -> None:
    """A node was down at the acquire, restarted empty, or lost the key: after the next renewal all
    nodes have it, for no longer than the others, and it is released there too.
    """
    mortal_nodes[0].kill()
    async with face.redlock(mortal_nodes.urls, restart_guard=None, **SETTINGS) as redlock:
        async with redlock.lock("a", ttl=2, renew=True) as lease:
            token = lease.token.encode()
            mortal_nodes[0].restart()
            assert await until_async(lambda: holders(mortal_nodes, "a") == [token] * 5, 20)
            mortal_nodes[1].restart()
            mortal_nodes[2].execute("DEL", "a")
            assert await until_async(lambda: holders(mortal_nodes, "a") == [token] * 5, 20)
            lives = [node.execute("PTTL", "a") for node in mortal_nodes]
            assert max(lives) <= 2000
            assert lease.held
        assert await emptied(mortal_nodes)


async def test_a_restored_key_is_never_left_behind(face: Face, nodes: Servers) -> None:
    """Released at any moment of renewal, with a key always to be restored: nothing stays."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        for number in range(12):
            lease = await redlock.lock("a", ttl=0.5, renew=True).acquire()
            nodes[number % 5].execute("DEL", "a")
            await asyncio.sleep(0.14 + 0.005 * number)
            await lease.release()
            assert await emptied(nodes)


# --- the end -----------------------------------------------------------------------------------


async def test_a_lease_that_is_garbage_is_not_renewed(face: Face, nodes: Servers) -> None:
    """A garbage lease is released, and its renewal ends."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", renew=True).acquire()
        assert await until_async(lambda: loop_drivers() != [])
        del lease
        gc.collect()
        assert await emptied(nodes)
        assert await until_async(lambda: not loop_drivers())


async def test_close_ends_renewal(face: Face, nodes: Servers) -> None:
    """The leases are released, and the thread (task) has ended."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        leases = [await redlock.lock(name, renew=True).acquire() for name in "abc"]
    assert not any(lease.held for lease in leases)
    assert left_over(nodes) == {}
    assert not loop_drivers()


async def test_a_lease_is_renewed_where_it_was_adopted(face: Face, nodes: Servers) -> None:
    """The giver renews no longer after the hand-over; the adopter does."""
    async with face.redlock(nodes.urls, **SETTINGS) as giver, face.redlock(nodes.urls) as taker:
        lease = await giver.lock("a", ttl=1, renew=True).acquire()
        ticket = await lease.hand_over()
        assert await until_async(lambda: not loop_drivers())
        adopted = await taker.adopt(ticket, renew=True, max_hold=60)
        first = adopted.valid_until
        assert await until_async(lambda: quorlock.now() > first + 0.2)
        assert adopted.held
        assert await adopted.release() is True
    assert left_over(nodes) == {}


async def test_release_by_token_ends_renewal(face: Face, nodes: Servers) -> None:
    """The lease is one of this Redlock's: it is not renewed afterwards."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", renew=True).acquire()
        assert await redlock.release("a", lease.token) is True
        assert not lease.held
        assert await until_async(lambda: not loop_drivers())
        assert left_over(nodes) == {}


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"renew": 1}, "renew"),
        ({"max_hold": 0}, "max_hold"),
        ({"max_hold": -1}, "max_hold"),
        ({"max_hold": math.nan}, "max_hold"),
        ({"max_hold": None}, "max_hold"),
        ({"max_hold": "long"}, "max_hold"),
        ({"renew": True, "max_hold": TTL / 2}, "max_hold"),
        ({"renew": True, "on_warning": 3}, "on_warning"),
        ({"on_warning": print}, "on_warning"),
        ({"renew": True, "on_warning": raises}, "on_warning"),
        ({"renew": True, "on_warning": partial(raises)}, "on_warning"),
    ],
)
async def test_terms_that_cannot_work(face: Face, settings: dict[str, Any], argument: str) -> None:
    """ConfigError names the argument, for lock and adopt alike; no node is asked."""
    async with face.redlock(["redis://127.0.0.1:1"], **SETTINGS) as redlock:
        ticket = quorlock.Ticket("a", "t", TTL)
        for call in (lambda: redlock.lock("a", **settings), None):
            with pytest.raises(ConfigError) as caught:
                if call is not None:
                    call()
                else:
                    await redlock.adopt(ticket, **settings)
            assert caught.value.argument == argument


async def test_too_short_to_be_renewed(face: Face) -> None:
    """A ttl of a few ms is over before anybody could have extended it twice."""
    async with face.redlock(["redis://127.0.0.1:1"], node_timeout=0.002) as redlock:
        redlock.lock("a", ttl=0.02)
        with pytest.raises(ConfigError, match=r"0\.03 s"):
            redlock.lock("a", ttl=0.02, renew=True)
        redlock.lock("a", ttl=0.03, renew=True)


# --- extensions by hand, beside it ---------------------------------------------------------------


async def test_an_extension_ends_with_the_validity(face: Face, mortal_nodes: Servers) -> None:
    """LeaseLost is raised at the end of the validity, not a `connect_timeout` later, also while
    waiting for connections.
    """
    settings = SETTINGS | {"connect_timeout": 8.0}
    async with face.redlock(mortal_nodes.urls, **settings) as redlock:
        lease = await redlock.lock("a", ttl=1.5).acquire()
        end = lease.valid_until
        for node in mortal_nodes:
            node.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            node.stop()
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason in ("unreachable", "expired")
        assert quorlock.now() - end < 4.0
        for node in mortal_nodes:
            node.cont()
    assert await emptied(mortal_nodes)


async def test_extending_a_renewed_lease_by_hand(face: Face, nodes: Servers) -> None:
    """Both extend it: the later end counts, and renewal continues with the lock's ttl."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", renew=True).acquire()
        await lease.extend(2 * TTL)
        assert lease.validity > TTL
        end = lease.valid_until
        assert await until_async(lambda: quorlock.now() > end + 0.1, 10)
        assert lease.held
        assert lease.validity < TTL
        assert await lease.release() is True
