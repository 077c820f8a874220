"""A lock on several resources: all of them or none, with both APIs."""

from __future__ import annotations

import asyncio
import pickle
import time
from typing import Any

import pytest

import quorlock
from quorlock import AcquireTimeout, ConfigError, LeaseLost, Ticket
from quorlock._protocol.encoding import COUNTER
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, emptied, holders, keys_on, left_over, raises, wipe

NAMES = ("account:1", "account:2", "account:3")


async def test_all_are_held_and_freed(face: Face, nodes: Servers) -> None:
    """One token at every key; plain locks on any of them are refused, and follow afterwards."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        lock = redlock.lock("account:3", "account:1", b"account:2", "account:1", ttl=9)
        assert lock.resources == NAMES
        assert lock.resource == "account:1 + account:2 + account:3"
        async with lock as lease:
            assert (lease.resources, lease.held) == (NAMES, True)
            for name in NAMES:
                assert holders(nodes, name).count(lease.token.encode()) >= 3
                assert await redlock.lock(name).try_acquire() is None
                assert (await redlock.inspect(name)).verdict == "held"
        for name in NAMES:
            assert await (await redlock.lock(name).acquire()).release()
    assert left_over(nodes) == {}


async def test_one_that_is_held_keeps_all_out(face: Face, nodes: Servers) -> None:
    """The error names it, and its holder; no other key is left behind."""
    async with (
        face.redlock(nodes.urls, owner="web-3", node_timeout=1.0) as theirs,
        face.redlock(nodes.urls, node_timeout=1.0) as redlock,
    ):
        lease = await theirs.lock("account:2", ttl=8).acquire()
        lock = redlock.lock(*NAMES)
        assert await lock.try_acquire() is None
        for timeout in (0, 0.1):
            error = await raises(AcquireTimeout, lock.acquire(timeout=timeout))
            assert (error.in_the_way, error.holder) == ("account:2", "web-3")
            assert error.resource == lock.resource
            assert error.holder_ttl is not None
            assert 7 < error.holder_ttl <= 8
            begin = "'account:1' + 'account:2' + 'account:3': 'account:2' is held by web-3: "
            assert str(error).startswith(begin)
            assert str(pickle.loads(pickle.dumps(error))) == str(error)
        free = redlock.lock("account:1", "account:3")
        assert await until_async(free.try_acquire), "nothing of the attempts is left"
        await lease.release()
    assert left_over(nodes) == {}


async def test_a_single_name_says_what_it_always_did(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        one = redlock.lock("a", "a")
        assert (one.resource, one.resources) == ("a", ("a",))
        lease = await redlock.lock("a").acquire()
        assert lease.resources == ("a",)
        error = await raises(AcquireTimeout, one.acquire(timeout=0))
        assert error.in_the_way == "a"
        assert str(error).startswith("'a' is held by ")
        await lease.release()


@pytest.mark.parametrize("waiting", ["auto", "poll"])
async def test_it_waits_for_one_after_the_other(face: Face, nodes: Servers, waiting: str) -> None:
    """A waiter queues for the key in its way: the last release lets it in, or a retry after it."""
    settings = {"node_timeout": 1.0, "waiting": waiting, "retry_delay": (0.01, 0.02)}
    async with (
        face.redlock(nodes.urls, node_timeout=1.0) as theirs,
        face.redlock(nodes.urls, **settings) as redlock,
    ):
        leases = [await theirs.lock(name).acquire() for name in NAMES]

        async def work(index: int) -> float:
            if index:
                for lease in leases:
                    await asyncio.sleep(0.1)
                    await lease.release()
                return time.monotonic()
            lease = await redlock.lock(*NAMES, timeout=20).acquire()
            came = time.monotonic()
            await lease.release()
            return came

        came, freed = await face.crowd(2, work)
        assert isinstance(came, float), came
        assert isinstance(freed, float), freed
        assert came - freed < 2
    assert left_over(nodes) == {}


async def test_a_plain_waiter_gets_what_it_frees(face: Face, nodes: Servers) -> None:
    """A waiter in a queue of any of its keys is called by its release."""
    settings = {"node_timeout": 1.0, "retry_delay": (30.0, 40.0)}  # no polling in this time
    async with (
        face.redlock(nodes.urls, **settings) as redlock,
        face.redlock(nodes.urls, **settings) as theirs,
    ):

        async def work(index: int) -> bool:
            async with face.redlock(nodes.urls, **settings) as own:
                if index < len(NAMES):
                    for _ in range(5):
                        async with own.lock(NAMES[index], timeout=20):
                            pass
                    return True
                for _ in range(5):
                    async with own.lock(*NAMES, timeout=20):
                        pass
                return True

        assert await face.crowd(5, work) == [True] * 5
        assert await theirs.lock("account:1").try_acquire() is not None
        assert await redlock.lock("account:2").try_acquire() is not None
    assert left_over(nodes) == {}


async def test_any_order_of_names_ends(face: Face, nodes: Servers) -> None:
    """No deadlock: an attempt that does not win keeps nothing while it waits."""
    counts = dict.fromkeys(NAMES, 0)

    async def work(index: int) -> bool:
        names = [NAMES[index % 3], NAMES[(index + 1) % 3]]
        async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
            for _ in range(10):
                async with redlock.lock(*(names if index % 2 else reversed(names)), timeout=30):
                    seen = [counts[name] for name in names]
                    await asyncio.sleep(0)
                    for name, count in zip(names, seen, strict=True):
                        counts[name] = count + 1
        return True

    assert await face.crowd(6, work) == [True] * 6
    assert counts == dict.fromkeys(NAMES, 40)
    assert left_over(nodes) == {}


async def test_extend_renewal_and_loss(face: Face, nodes: Servers) -> None:
    """Extended as one; lost as one, as soon as another client changes any of its keys."""
    async with face.redlock(nodes.urls, node_timeout=0.2, max_ttl=30) as redlock:
        lease = await redlock.lock(*NAMES, ttl=5).acquire()
        await lease.extend(20)
        assert all(sum(n.execute("PTTL", name) > 15_000 for n in nodes) >= 3 for name in NAMES)
        await lease.release()
        renewed = await redlock.lock(*NAMES, ttl=3, renew=True).acquire()
        assert await until_async(lambda: all(n.execute("PTTL", NAMES[2]) > 2_900 for n in nodes))
        nodes[0].execute("DEL", NAMES[1])  # one node: the key is restored there
        token = renewed.token.encode()
        assert await until_async(lambda: holders(nodes, NAMES[1]).count(token) == 5)
        wipe(nodes, NAMES[2])
        assert await face.is_set_within(renewed.lost, 10)
        error = await raises(LeaseLost, as_coroutine(renewed.ensure))
        assert error.reason == "evicted"
        assert str(error).startswith("lease on 'account:1' + 'account:2' + 'account:3' is lost")
        assert await emptied(nodes, 10), "what is left of it is released"


async def as_coroutine(function: object) -> None:
    function()  # type: ignore[operator]


async def test_the_fence_rises_for_every_resource(face: Face, nodes: Servers) -> None:
    """One fence above all counters; those of plain locks are above it."""
    async with face.redlock(nodes.urls, node_timeout=1.0, restart_guard="uptime") as redlock:
        fences: list[int] = []
        for names in (("a",), ("a", "b"), ("b", "c"), ("c",), ("a", "b", "c"), ("b",)):
            async with redlock.lock(*names, fencing=True) as lease:
                assert lease.fence is not None
                fences.append(lease.fence)
                for name in names:
                    counters = [n.execute("GET", COUNTER + name.encode()) for n in nodes]
                    assert counters.count(b"%d" % lease.fence) >= 3
        assert fences == sorted(set(fences))


async def test_the_marker_guard(face: Face, nodes: Servers) -> None:
    """The script checks the marker for several keys as for one."""
    settings = {"node_timeout": 1.0, "restart_guard": "marker"}
    async with face.redlock(nodes.urls, **settings) as redlock:
        async with redlock.lock(*NAMES) as lease:
            assert holders(nodes, NAMES[2]).count(lease.token.encode()) >= 3
        assert await emptied(nodes) or keys_on(nodes)  # the marker itself may stay


async def test_hand_over_and_by_token(face: Face, nodes: Servers) -> None:
    """A ticket names them all, as text too; a bare token works with all of the names."""
    async with (
        face.redlock(nodes.urls, node_timeout=1.0) as redlock,
        face.redlock(nodes.urls, node_timeout=1.0) as other,
    ):
        lease = await redlock.lock(*NAMES, ttl=9).acquire()
        ticket = await lease.hand_over()
        assert ticket.resources == NAMES
        assert Ticket.from_json(ticket.to_json()) == ticket
        adopted = await other.adopt(Ticket.from_json(ticket.to_json()))
        assert adopted.resources == NAMES
        assert await other.extend(NAMES, adopted.token, ttl=20)
        assert all(sum(n.execute("PTTL", name) > 15_000 for n in nodes) >= 3 for name in NAMES)
        token = (await adopted.hand_over()).token
        assert await redlock.release(list(NAMES), token) is True
        assert await redlock.release(NAMES, token) is False
    assert left_over(nodes) == {}


@pytest.mark.parametrize("whole", [True, False])
async def test_a_lease_that_is_released_by_one_name_is_over(
    face: Face, nodes: Servers, *, whole: bool
) -> None:
    """All of its keys are freed in the process that has it; elsewhere the one that was named is."""
    async with (
        face.redlock(nodes.urls, node_timeout=1.0) as redlock,
        face.redlock(nodes.urls, node_timeout=1.0) as other,
    ):
        lease = await redlock.lock(*NAMES, ttl=9).acquire()
        view = (await other.inspect("account:2")).nodes[0]
        assert view.holder is not None
        if whole:
            assert await redlock.release("account:2", lease.token)
            assert not lease.held
            assert await emptied(nodes)
        else:
            assert await other.break_lease("account:2", view.holder)
            assert await (await other.lock("account:2").acquire()).release()
            await raises(LeaseLost, lease.extend())
            assert await emptied(nodes, 12)


async def test_a_lock_named_by_arguments(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        real: Any = getattr(redlock, "real", redlock)

        def names(source: int, target: int) -> tuple[str, ...]:
            return (f"account:{source}", f"account:{target}")

        held: list[int] = []

        def body() -> None:
            keys = [holders(nodes, f"account:{number}") for number in (1, 2)]
            held.extend(sum(value is not None for value in values) for values in keys)

        if face.name == "asyncio":

            async def transfer(source: int, target: int) -> None:
                del source, target
                body()

            await real.lock(names)(transfer)(2, 1)
        else:

            def transfer_now(source: int, target: int) -> None:
                del source, target
                body()

            real.lock(names)(transfer_now)(2, 1)
        assert min(held) >= 3


BAD = [
    ((), "resources=(): give at least one"),
    (tuple(f"r{n}" for n in range(65)), "resources=65: give at most 64"),
    (("x" * 500, "y" * 500, "z" * 201), "1201 bytes"),
    (("a", ""), "resource='': give a name that is not empty"),
    (("a", 5), "resource=5: give the resource's name as str or bytes"),
    (("a", "quorlock:b"), "keys that begin with 'quorlock:' are reserved"),
]


@pytest.mark.parametrize(("names", "text"), BAD, ids=range(len(BAD)))
async def test_bad_resources(face: Face, names: tuple[str, ...], text: str) -> None:
    """Found before any node is asked."""
    async with face.redlock(["redis://127.0.0.1:1"]) as redlock:
        with pytest.raises(ConfigError) as raised:
            redlock.lock(*names)
        assert text in str(raised.value)
        assert len(redlock.lock(*(f"r{n}" for n in range(64))).resources) == 64
        if names == ():
            error = await raises(ConfigError, redlock.release((), "token"))
            assert text in str(error)


def test_the_names_survive_a_pickle() -> None:
    from quorlock._core.resources import ResourceNames

    names = ResourceNames(("a", "b + c"))
    again = pickle.loads(pickle.dumps(names))
    assert (again, again.names, repr(again)) == ("a + b + c", ("a", "b + c"), "'a' + 'b + c'")
    assert quorlock.AcquireTimeout(names, (), 1, 1.0).resource == "a + b + c"
