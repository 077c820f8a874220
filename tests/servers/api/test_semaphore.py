"""Semaphores, and any one of several resources, with both APIs."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from itertools import combinations
from typing import Any

import pytest

from quorlock import AcquireStopped, AcquireTimeout, ConfigError, LeaseLost, Ticket
from quorlock._core.places import RESERVED
from quorlock._core.resources import AnyNames, PermitName
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import Proxy
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, emptied, holders, keys_on, left_over, raises, wipe

SETTINGS: dict[str, Any] = {"node_timeout": 0.25}
PERMITS = ("pool#0", "pool#1", "pool#2")


async def test_every_permit_is_held_once(face: Face, nodes: Servers) -> None:
    """A permit is a lock like any other: plain locks on it are refused, and follow afterwards."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        semaphore = redlock.semaphore("pool", 3, ttl=9)
        assert (semaphore.permits, semaphore.resource, semaphore.ttl) == (3, "pool", 9)
        leases = [await semaphore.acquire() for _ in range(3)]
        assert sorted([lease.permit for lease in leases if lease.permit is not None]) == [0, 1, 2]
        assert {lease.resource for lease in leases} == set(PERMITS)
        for lease in leases:
            assert lease.resource == f"pool#{lease.permit}"
            assert lease.fence is None
            assert holders(nodes, lease.resource).count(lease.token.encode()) >= 3
            assert await redlock.lock(lease.resource).try_acquire() is None
            assert (await redlock.inspect(lease.resource)).verdict == "held"
        assert await semaphore.try_acquire() is None
        assert await semaphore.locked()
        assert await leases[1].release()
        assert not await semaphore.locked()
        async with semaphore as again:
            assert again.permit == leases[1].permit
        async with redlock.lock(leases[1].resource) as plain:
            assert plain.permit is None
            assert await semaphore.try_acquire() is None
        for lease in (leases[0], leases[2]):
            assert await lease.release()
    assert left_over(nodes) == {}


async def test_what_others_have_given_is_released_at_once(face: Face, nodes: Servers) -> None:
    """Nodes that give another permit, or answer late, keep nothing but the one that is won."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        for node in list(nodes)[:2]:  # a minority has one permit of others
            node.execute("SET", "pool#0", "another", "PX", 20_000)
            node.execute("SET", "pool#2", "another", "PX", 20_000)
        for _ in range(20):
            lease = await redlock.semaphore("pool", 3, ttl=20).acquire(timeout=5)
            token = lease.token.encode()
            strays = [name for name in PERMITS if name != lease.resource]

            def is_clean(token: bytes = token, strays: list[str] = strays) -> bool:
                return not any(token in holders(nodes, name) for name in strays)

            assert await until_async(is_clean)
            assert lease.held
            assert await lease.release()
        wipe(nodes, "pool#0")
        wipe(nodes, "pool#2")
    assert left_over(nodes) == {}


async def test_the_error_says_when_one_is_free(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        semaphore = redlock.semaphore("pool", 3)
        leases = [await semaphore.acquire(), await semaphore.acquire()]
        leases.append(await redlock.semaphore("pool", 3, ttl=5).acquire())
        for timeout in (0, 0.1):
            error = await raises(AcquireTimeout, semaphore.acquire(timeout=timeout))
            assert (error.resource, error.permits, error.holder) == ("pool", 3, None)
            assert error.holder_ttl is not None
            assert 4 < error.holder_ttl <= 5
            assert str(error).startswith("'pool': none of 3 permits was granted (")
            assert "; the first is free in at most " in str(error)
            assert str(pickle.loads(pickle.dumps(error))) == str(error)
        single = redlock.semaphore("single", 1)
        async with single:
            error = await raises(AcquireTimeout, single.acquire(timeout=0))
            assert str(error).startswith("'single': the only permit is held (")
        for lease in leases:
            await lease.release()


async def test_it_waits_for_a_permit(face: Face, nodes: Servers) -> None:
    """A caller tries again until one is free, or until its stop event is set."""
    settings = {"node_timeout": 1.0, "retry_delay": (0.01, 0.02)}
    async with face.redlock(nodes.urls, **settings) as redlock:
        leases = [await redlock.semaphore("pool", 2).acquire() for _ in range(2)]

        async def work(index: int) -> object:
            if index:
                await asyncio.sleep(0.1)
                await leases[0].release()
                return None
            async with face.redlock(nodes.urls, **settings) as own:
                lease = await own.semaphore("pool", 2, timeout=20).acquire()
                await lease.release()
                return lease.permit

        permit, _ = await face.crowd(2, work)
        assert permit == leases[0].permit
        stop = threading.Event()
        stop.set()
        lease = await redlock.semaphore("pool", 2).acquire()
        await raises(AcquireStopped, redlock.semaphore("pool", 2, stop=stop).acquire())
        await lease.release()
        await leases[1].release()
    assert left_over(nodes) == {}


async def test_a_permit_that_is_reserved_is_not_taken(face: Face, nodes: Servers) -> None:
    """A node has called a waiter of that single lock: it is no one else's until that is over."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        for node in nodes:
            node.execute("SET", "pool#0", RESERVED + b"00000000000000a1:1:5000", "PX", 9_000)
        semaphore = redlock.semaphore("pool", 2)
        async with semaphore as lease:
            assert lease.permit == 1
            assert await semaphore.try_acquire() is None
        wipe(nodes, "pool#0")


async def test_many_permits_are_asked_for_in_windows(face: Face, nodes: Servers) -> None:
    """All are found in one attempt, with the last one too; a larger number on the same name."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        semaphore = redlock.semaphore("pool", 40, ttl=20)
        leases = [await semaphore.acquire(timeout=0) for _ in range(40)]
        assert sorted([lease.permit or 0 for lease in leases]) == list(range(40))
        assert await semaphore.try_acquire() is None
        error = await raises(AcquireTimeout, semaphore.acquire(timeout=0))
        assert error.permits == 40
        for node in nodes:  # in any of three windows
            node.execute("PEXPIRE", "pool#7", 5_000)
        for _ in range(8):
            error = await raises(AcquireTimeout, semaphore.acquire(timeout=0))
            assert error.holder_ttl is not None
            assert error.holder_ttl <= 5
        for node in nodes:
            node.execute("PEXPIRE", "pool#7", 20_000)
        async with redlock.semaphore("pool", 41) as lease:
            assert lease.permit == 40
        for lease in leases:
            assert await lease.release()
    assert left_over(nodes) == {}


@pytest.mark.parametrize("permits", [5, 40])
async def test_the_free_one_is_found_where_others_are_on_bare_quorums(
    face: Face, nodes: Servers, permits: int
) -> None:
    """Many clients that come at once leave it so: each node has another one free, and all have one.

    A node gives the latter only if it comes first in the order that is drawn.
    """
    quorums = list(combinations(nodes, 3))
    for number in range(permits - 1):
        for node in quorums[number % len(quorums)]:
            node.execute("SET", f"pool#{number}", "another", "PX", 60_000)
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        semaphore = redlock.semaphore("pool", permits)
        for wait in (None, 0, 5):
            for _ in range(10):
                made = semaphore.try_acquire() if wait is None else semaphore.acquire(timeout=wait)
                lease = await made
                assert lease is not None
                assert lease.permit == permits - 1
                assert await lease.release()
        async with semaphore:
            assert await semaphore.try_acquire() is None


async def test_extend_renewal_and_loss(face: Face, nodes: Servers) -> None:
    """A permit is renewed like a lock: its key is restored, and no other permit's."""
    async with face.redlock(nodes.urls, node_timeout=0.2, max_ttl=30) as redlock:
        lease = await redlock.semaphore("pool", 3, ttl=3, renew=True).acquire()
        token = lease.token.encode()
        nodes[0].execute("DEL", lease.resource)
        assert await until_async(lambda: holders(nodes, lease.resource).count(token) == 5)
        others = [name for name in PERMITS if name != lease.resource]
        assert not any(token in holders(nodes, name) for name in others)
        await lease.extend(20)
        assert sum(n.execute("PTTL", lease.resource) > 15_000 for n in nodes) >= 3
        wipe(nodes, lease.resource)
        assert await face.is_set_within(lease.lost, 10)

        async def ensure() -> None:
            lease.ensure()

        error = await raises(LeaseLost, ensure())
        assert (error.reason, error.resource) == ("evicted", lease.resource)
        assert await emptied(nodes, 10)


async def test_hand_over_break_and_by_token(face: Face, nodes: Servers) -> None:
    """The permit goes along, as text too; by token and by force as for any lock."""
    async with (
        face.redlock(nodes.urls, node_timeout=1.0) as redlock,
        face.redlock(nodes.urls, node_timeout=1.0) as other,
    ):
        semaphore = redlock.semaphore("pool", 3, ttl=9)
        lease = await semaphore.acquire()
        ticket = await lease.hand_over()
        assert (ticket.resource, ticket.permit) == (lease.resource, lease.permit)
        assert Ticket.from_json(ticket.to_json()) == ticket
        adopted = await other.adopt(Ticket.from_json(ticket.to_json()))
        assert (adopted.permit, adopted.resource) == (lease.permit, lease.resource)
        assert await redlock.extend(lease.resource, adopted.token, ttl=20)
        assert await other.release(lease.resource, adopted.token)
        assert not adopted.held
        lease = await semaphore.acquire()
        # A node that had not executed the release may have given another permit.
        views = (await other.inspect(lease.resource)).nodes
        holder = next(view.holder for view in views if view.holder is not None)
        assert await other.break_lease(lease.resource, holder)
        await raises(LeaseLost, lease.extend())
    assert await emptied(nodes, 10)


@pytest.mark.parametrize("guard", ["uptime", "marker"])
async def test_the_restart_guards(face: Face, nodes: Servers, guard: str) -> None:
    """The script checks the marker as that of a lock does."""
    async with face.redlock(nodes.urls, node_timeout=1.0, restart_guard=guard) as redlock:
        semaphore = redlock.semaphore("pool", 2)
        async with semaphore, semaphore:
            assert await semaphore.try_acquire() is None
        assert await emptied(nodes) or keys_on(nodes)  # the marker itself may stay


async def test_any_of_some_resources(face: Face, nodes: Servers) -> None:
    """The lease is on the one that it got, and has no number."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        lock = redlock.any_of("gpu0", b"gpu1", "gpu0", ttl=9)
        assert (lock.resource, lock.resources) == ("gpu0 or gpu1", ("gpu0", "gpu1"))
        first, second = await lock.acquire(), await lock.acquire()
        assert {first.resource, second.resource} == {"gpu0", "gpu1"}
        assert (first.permit, first.resources) == (None, (first.resource,))
        error = await raises(AcquireTimeout, lock.acquire(timeout=0))
        assert str(error).startswith("'gpu0' or 'gpu1': none of 2 was granted (")
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        assert await lock.locked()
        assert await first.release()
        assert (await second.hand_over()).permit is None
        for names in (("gpu0",), ("gpu0", b"gpu0")):
            only = redlock.any_of(*names)
            assert (only.resource, only.resources) == ("gpu0", ("gpu0",))
            async with only as lease:
                assert lease.resource == "gpu0"
                error = await raises(AcquireTimeout, only.acquire(timeout=0))
                assert str(error).startswith("'gpu0': the only one is held (")
                assert str(pickle.loads(pickle.dumps(error))) == str(error)


async def test_a_function_under_a_permit(face: Face, nodes: Servers) -> None:
    """Every call of a decorated function has a permit."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        real: Any = getattr(redlock, "real", redlock)
        seen: list[bool] = []

        def look() -> None:
            seen.append(any(holders(nodes, name).count(None) <= 2 for name in PERMITS))

        if face.name == "asyncio":

            async def work() -> None:
                look()

            await real.semaphore("pool", 3)(work)()
        else:
            real.semaphore("pool", 3)(look)()
        assert seen == [True]
    assert left_over(nodes) == {}


async def test_an_owner_shows_for_a_permit(face: Face, nodes: Servers) -> None:
    async with (
        face.redlock(nodes.urls, node_timeout=1.0, owner="web-3") as redlock,
        redlock.semaphore("pool", 1) as lease,
    ):
        assert (await redlock.inspect(lease.resource)).owner == "web-3"


async def test_contenders_share_the_permits(face: Face, nodes: Servers) -> None:
    """Never more inside than permits, nor two with the same number; each gets its turns."""
    inside: list[int] = []
    most = 0

    async def work(_: int) -> bool:
        nonlocal most
        async with face.redlock(nodes.urls, node_timeout=1.0, retry_delay=(0.002, 0.01)) as redlock:
            for _ in range(5):
                async with redlock.semaphore("pool", 2, timeout=30) as lease:
                    assert lease.permit is not None
                    assert lease.permit not in inside
                    inside.append(lease.permit)
                    most = max(most, len(inside))
                    await asyncio.sleep(0.001)
                    inside.remove(lease.permit)
        return True

    assert await face.crowd(6, work) == [True] * 6
    assert most == 2
    assert await emptied(nodes)


async def test_a_hung_minority_costs_nothing_and_keeps_nothing(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, ttl=3) as redlock:
        semaphore = redlock.semaphore("pool", 3)
        async with semaphore:
            pass
        for node in list(nodes)[:2]:
            node.stop()
        begin = time.monotonic()
        leases = [await semaphore.acquire() for _ in range(3)]
        assert time.monotonic() - begin < 2
        assert await semaphore.try_acquire() is None
        for lease in leases:
            assert await lease.release()
        for node in list(nodes)[:2]:
            node.cont()
        assert await emptied(nodes, 10)


async def test_a_hung_node_is_not_asked_for_ever(face: Face, nodes: Servers) -> None:
    """The asyncio API sent it the requests of every acquire, as long as it hung."""
    with Proxy(nodes[0].url) as proxy:
        async with face.redlock([proxy.url, *nodes.urls[1:]], **SETTINGS) as redlock:
            semaphore = redlock.semaphore("pool", 9)
            for _ in range(20):
                assert await (await semaphore.acquire()).release()
            proxy.hold(requests=False)  # so that the proxy reads on, and records
            before = len(proxy.requests)
            for _ in range(200):
                assert await (await semaphore.acquire()).release()
            assert len(proxy.requests) - before < 100
            proxy.resume()
            assert await emptied(nodes)
    assert left_over(nodes) == {}


BAD: list[tuple[object, str]] = [
    *((permits, f"permits={permits!r}: give a whole number from 1 to 1024") for permits in (0, -1)),
    *((permits, f"permits={permits!r}: give a whole number") for permits in (1025, True, 2.0)),
    ("3", "permits='3': give a whole number from 1 to 1024"),
]


async def test_bad_input(face: Face) -> None:
    """Found before any node is asked."""
    async with face.redlock(["redis://127.0.0.1:1"]) as redlock:
        for permits, text in BAD:
            with pytest.raises(ConfigError) as raised:
                redlock.semaphore("pool", permits)  # type: ignore[arg-type]
            assert str(raised.value).startswith(text)
        for bad in ("", "quorlock:x", "x" * 511):
            with pytest.raises(ConfigError):
                redlock.semaphore(bad, 11)
        for make in (lambda **more: redlock.semaphore("pool", 3, **more), redlock.any_of):
            names = () if make != redlock.any_of else ("a",)
            with pytest.raises(ConfigError) as raised:
                make(*names, fencing=True)
            assert str(raised.value) == "fencing=True: permits have no fences yet"
        with pytest.raises(ConfigError) as raised:
            redlock.any_of()
        assert str(raised.value) == "resources=(): give at least one"
        with pytest.raises(ConfigError) as raised:
            redlock.any_of(*(f"r{number}" for number in range(1025)))
        assert str(raised.value) == "resources=1025: give at most 1024"
        assert redlock.semaphore("pool", 1024).permits == 1024


def test_the_names_survive_a_pickle() -> None:
    permit = pickle.loads(pickle.dumps(PermitName("pool#2", 2)))
    assert (permit, permit.permit, repr(permit)) == ("pool#2", 2, "'pool#2'")
    names = pickle.loads(pickle.dumps(AnyNames(("a", "b"))))
    assert (names, names.names, repr(names)) == ("a or b", ("a", "b"), "'a' or 'b'")
