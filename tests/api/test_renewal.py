# ruff: noqa: PT012 (what a block does when its lease is lost is what is tested)
"""Renewal in both faces: leases go on by themselves, up to a limit; repair; how a loss is told."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import threading
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import ConfigError, HoldLimitReached, LeaseLost
from quorlock.testing.servers import Servers
from tests.api.faces import Face, holders, left_over, raises, real, steal, until, wipe

# Short enough to wait for, long enough for a machine that runs other tests as well.
TTL = 0.9
SETTINGS: dict[str, Any] = {"node_timeout": 0.1, "retry_delay": (0.01, 0.03), "ttl": TTL}
MAJORITY = slice(0, 3)


def flag(face: Face) -> dict[str, Any]:
    """Settings of a lock whose block is not cancelled, in either face."""
    return {"on_lost": "flag"} if face.name == "asyncio" else {}


def engines() -> list[str]:
    """What renews at this moment, in this process."""
    try:
        tasks = [task.get_name() for task in asyncio.all_tasks()]
    except RuntimeError:
        tasks = []
    threads = [thread.name for thread in threading.enumerate()]
    return [name for name in tasks + threads if name == "quorlock renewal"]


async def test_a_renewed_lease_outlives_its_ttl(face: Face, nodes: Servers) -> None:
    """Held for several times the ttl, on every node; given back at the end; then nothing renews."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        async with redlock.lock("a", renew=True) as lease:
            first = lease.valid_until
            while quorlock.now() < first + 2 * TTL:
                await asyncio.sleep(TTL / 10)
                assert lease.held
                assert lease.validity < TTL
            assert holders(nodes, "a") == [lease.token.encode()] * 5
            assert engines() == ["quorlock renewal"]
        assert left_over(nodes) == {}
        assert await until(lambda: not engines())


async def test_without_renew_it_ends(face: Face, nodes: Servers) -> None:
    """Nobody extends what was not to be."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire()
        assert not engines()
        assert await until(lambda: not lease.held)


async def test_many_leases_hang_on_one_engine(face: Face, nodes: Servers) -> None:
    """One thread (task) for all; each is given back by itself, the others go on."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        names = [f"a{number}" for number in range(300)]
        leases = [await redlock.lock(name, ttl=3, renew=True).acquire() for name in names]
        assert engines() == ["quorlock renewal"]
        firsts = [lease.valid_until for lease in leases]
        assert await until(lambda: quorlock.now() > max(firsts), 20)
        assert all(lease.held for lease in leases)
        assert all([await lease.release() for lease in leases[::2]])
        assert all(lease.held for lease in leases[1::2])
        assert all([await lease.release() for lease in leases[1::2]])
        assert left_over(nodes) == {}


async def test_max_hold_ends_it(face: Face, nodes: Servers) -> None:
    """The last extension is as long as the limit has room for; then it is lost, and given back."""
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
        assert await face.rings(event, 5)
        assert await until(lambda: left_over(nodes) == {})
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason == "expired"
        assert [real(warned[0])] == [real(lease)]


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

        goes_on = threading.Timer(1.5, go_on)
        goes_on.start()
        await lease.extend(began + 6 - quorlock.now() - 0.5)  # half a second of room
        goes_on.join()
        assert lease.valid_until <= limit
        assert lease.validity > 2


async def test_extensions_by_hand_count_too(face: Face, nodes: Servers) -> None:
    """HoldLimitReached, before anything is sent; the lease goes on until it ends."""
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
    """With every node stopped it is told before `valid_until`, within a tenth of the ttl of it;
    warned of when half was left; given back when the nodes wake.
    """
    warned: list[float] = []
    told: list[float] = []

    def warn(lease: aio.Lease) -> None:
        warned.append(lease.validity)

    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=3.0, renew=True, on_warning=warn).acquire()
        event, ends = lease.lost, lease.valid_until
        assert await until(lambda: lease.valid_until > ends)
        for node in mortal_nodes:
            node.stop()
        await asyncio.sleep(0.2)  # what was under way has come down
        end = lease.valid_until
        assert await face.rings(event, 10)
        told.append(quorlock.now())
        assert not lease.held
        assert end - 0.3 <= told[0] < end
        assert len(warned) == 1
        assert 0.1 < warned[0] <= 1.5
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason == "unreachable"
        assert {vote.cause for vote in lost.votes} == {"no answer in time"}
        for node in mortal_nodes:
            node.cont()
        assert await until(lambda: left_over(mortal_nodes) == {})
        assert lease.held is False


@pytest.mark.parametrize(("thief", "reason"), [(True, "taken"), (False, "evicted")])
async def test_keys_that_are_gone_are_told_at_the_next_renewal(
    face: Face, nodes: Servers, thief: bool, reason: str
) -> None:
    """Long before the ttl ends; nothing is written on any node; given back on the others."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=6, renew=True).acquire()
        event = lease.lost
        assert await until(lambda: None not in holders(nodes, "a"))
        wipe(nodes[MAJORITY], "a")
        if thief:
            steal(nodes[MAJORITY], "a")
        assert await face.rings(event, 5)
        assert lease.valid_until == 0.0
        lost = await raises(LeaseLost, lease.extend())
        assert lost.reason == reason
        theirs = b"theirs" if thief else None
        assert await until(lambda: holders(nodes, "a") == [theirs] * 3 + [None] * 2)
        assert await lease.release() is False


async def test_a_lost_lease_stays_lost_when_its_key_comes_back(face: Face, nodes: Servers) -> None:
    """Also for renewal: it is dead for good, and what came back is given back on leaving."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        with pytest.raises(LeaseLost):
            async with redlock.lock("a", ttl=2, renew=True, **flag(face)) as lease:
                wipe(nodes, "a")
                assert await face.rings(lease.lost, 5)
                for node in nodes:
                    node.execute("SET", "a", lease.token, "PX", 60_000)
                await asyncio.sleep(0.1)
                assert not lease.held
                await raises(LeaseLost, lease.extend())
        assert await until(lambda: not engines())
    wipe(nodes, "a")


async def test_what_a_warning_raises_is_logged(
    face: Face, mortal_nodes: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each decline; renewal goes on, and wins again when the nodes are back."""

    def fails(lease: aio.Lease) -> None:
        raise RuntimeError("theirs")

    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lock = redlock.lock("a", ttl=4, renew=True, on_warning=fails)
        async with lock as lease:
            for declines in (1, 2):
                for node in mortal_nodes:
                    node.stop()
                assert await until(lambda n=declines: len(caplog.records) == n, 6)  # type: ignore[misc]
                for node in mortal_nodes:
                    node.cont()
                assert await until(lambda: lease.validity > 2.5)
            assert lease.held
    assert {record.name for record in caplog.records} == {"quorlock"}
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert "theirs" in caplog.text
    assert lease.token not in caplog.text
    assert len(caplog.records) == 2


# --- repair ------------------------------------------------------------------------------------


async def test_nodes_that_lack_the_key_get_it_back(face: Face, mortal_nodes: Servers) -> None:
    """Down when it was acquired, restarted empty, or the key deleted: at the next renewal all nodes
    have it, for no longer than the others; and it is given back there too.
    """
    mortal_nodes[0].kill()
    async with face.redlock(mortal_nodes.urls, restart_guard=None, **SETTINGS) as redlock:
        async with redlock.lock("a", ttl=2, renew=True) as lease:
            token = lease.token.encode()
            mortal_nodes[0].restart()
            assert await until(lambda: holders(mortal_nodes, "a") == [token] * 5, 20)
            mortal_nodes[1].restart()
            mortal_nodes[2].execute("DEL", "a")
            assert await until(lambda: holders(mortal_nodes, "a") == [token] * 5, 20)
            lives = [node.execute("PTTL", "a") for node in mortal_nodes]
            assert max(lives) <= 2000
            assert lease.held
        assert await until(lambda: left_over(mortal_nodes) == {})


async def test_a_topped_up_key_is_never_left_behind(face: Face, nodes: Servers) -> None:
    """Released at any moment of renewal, with a key always to be topped up: nothing stays."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        for number in range(12):
            lease = await redlock.lock("a", ttl=0.5, renew=True).acquire()
            nodes[number % 5].execute("DEL", "a")
            await asyncio.sleep(0.14 + 0.005 * number)
            await lease.release()
            assert await until(lambda: left_over(nodes) == {})


# --- the end -----------------------------------------------------------------------------------


async def test_a_lease_that_is_garbage_is_not_renewed(face: Face, nodes: Servers) -> None:
    """It is given back, and nothing renews any more."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", renew=True).acquire()
        assert engines()
        del lease
        gc.collect()
        assert await until(lambda: left_over(nodes) == {})
        assert await until(lambda: not engines())


async def test_close_ends_renewal(face: Face, nodes: Servers) -> None:
    """The leases are given back, the thread (task) has ended."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        leases = [await redlock.lock(name, renew=True).acquire() for name in "abc"]
    assert not any(lease.held for lease in leases)
    assert left_over(nodes) == {}
    assert not engines()


async def test_a_lease_is_renewed_where_it_was_adopted(face: Face, nodes: Servers) -> None:
    """Handed over it is no longer renewed here, and goes on there."""
    async with face.redlock(nodes.urls, **SETTINGS) as giver, face.redlock(nodes.urls) as taker:
        lease = await giver.lock("a", ttl=1, renew=True).acquire()
        ticket = await lease.hand_over()
        assert await until(lambda: not engines())
        adopted = await taker.adopt(ticket, renew=True, max_hold=60)
        first = adopted.valid_until
        assert await until(lambda: quorlock.now() > first + 0.2)
        assert adopted.held
        assert await adopted.release() is True
    assert left_over(nodes) == {}


async def test_release_by_token_ends_renewal(face: Face, nodes: Servers) -> None:
    """It is one of ours: nothing is renewed afterwards."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", renew=True).acquire()
        assert await redlock.release("a", lease.token) is True
        assert not lease.held
        assert await until(lambda: not engines())
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
    ],
)
async def test_terms_that_cannot_work(face: Face, settings: dict[str, Any], argument: str) -> None:
    """ConfigError names the argument, for lock and adopt alike; nobody is asked."""
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
    """Also while it waits for connections that nobody answers: LeaseLost comes at the end of the
    validity, not a `connect_timeout` later.
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
    assert await until(lambda: left_over(mortal_nodes) == {})


async def test_extending_a_renewed_lease_by_hand(face: Face, nodes: Servers) -> None:
    """Both keep it: the later end counts, and renewal goes on by the lock's own ttl."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", renew=True).acquire()
        await lease.extend(3)
        assert lease.validity > 2
        end = lease.valid_until
        assert await until(lambda: quorlock.now() > end + 0.1, 10)
        assert lease.held
        assert lease.validity < TTL
        assert await lease.release() is True
