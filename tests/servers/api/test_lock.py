# ruff: noqa: PT012 (how errors leave a block is what is tested)
"""The lock in both APIs: acquire, try, wait, share, decorate, and its repr."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import AcquireTimeout, ConfigError, VoteCode
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, holders, left_over, raises, real, steal

QUICK = (0.002, 0.01)


async def test_acquire_sets_the_key_and_release_takes_it_away(face: Face, nodes: Servers) -> None:
    """A lease is our token at the bare resource name on a quorum, with a ttl; then nothing is."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", ttl=5).acquire()
        with_it = [node for node in nodes if node.execute("GET", "a") == lease.token.encode()]
        assert len(with_it) >= 3
        assert all(0 < node.execute("PTTL", "a") <= 5000 for node in with_it)
        assert lease.held
        assert 4.5 < lease.validity <= 5 - 0.05 - 0.002
        assert (lease.resource, lease.ttl) == ("a", 5.0)
        assert await lease.release() is True
        assert lease.valid_until == 0.0
    assert left_over(nodes) == {}


async def test_names_of_any_kind_are_keys_as_they_are(face: Face, nodes: Servers) -> None:
    """Spaces, newlines, non-ASCII and bytes go to the nodes unchanged; the prefix comes before."""
    async with face.redlock(nodes.urls, prefix="p:") as redlock:
        for resource in ("a b", "a\r\nb", "schloß", b"\xff\x01"):
            raw = resource if isinstance(resource, bytes) else resource.encode()
            async with redlock.lock(resource) as lease:
                assert holders(nodes, b"p:" + raw).count(lease.token.encode()) >= 3
    assert left_over(nodes) == {}


async def test_ttl_may_be_a_timedelta(face: Face, nodes: Servers) -> None:
    """Durations are seconds or timedeltas, everywhere."""
    async with face.redlock(nodes.urls, ttl=timedelta(seconds=7)) as redlock:
        assert redlock.lock("a").ttl == 7.0
        lock = redlock.lock("a", ttl=timedelta(milliseconds=900), timeout=timedelta(0))
        async with lock as lease:
            assert (lock.ttl, lease.ttl) == (0.9, 0.9)
            await raises(AcquireTimeout, lock.acquire())


async def test_try_acquire_is_a_lease_or_none(face: Face, nodes: Servers) -> None:
    """One attempt: a Lease when free, None when another has it, and nothing left of the try."""
    async with face.redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        lease = await lock.try_acquire()
        assert lease is not None
        assert await lock.try_acquire() is None
        assert set(holders(nodes, "a")) <= {lease.token.encode(), None}
        await lease.release()
        again = await lock.try_acquire()
        assert again is not None
        await again.release()


async def test_timeout_0_is_one_attempt(face: Face, nodes: Servers) -> None:
    """One attempt wins a free lock, and otherwise raises AcquireTimeout with every node's vote."""
    async with face.redlock(nodes.urls) as redlock:
        async with redlock.lock("a", ttl=5, timeout=0):
            error = await raises(AcquireTimeout, redlock.lock("a").acquire(timeout=0))
        assert (error.resource, error.attempts) == ("a", 1)
        assert isinstance(error, TimeoutError)
        assert [vote.node for vote in error.votes] == [node.path for node in nodes]
        assert sum(vote.vote == "refused" for vote in error.votes) >= 3
        assert error.holder_ttl is not None
        assert 0 < error.holder_ttl <= 5
        assert f"'a' is held by {error.holder}: " in str(error)
    assert left_over(nodes) == {}


async def test_the_locks_own_timeout_holds_unless_another_is_given(
    face: Face, nodes: Servers
) -> None:
    """`lock(timeout=)` is the default of `acquire` and of the block; `acquire(timeout=)` wins."""
    async with face.redlock(nodes.urls, retry_delay=QUICK) as redlock, redlock.lock("a"):
        short, once = redlock.lock("a", timeout=0.1), redlock.lock("a", timeout=0)
        assert (short.timeout, redlock.lock("a").timeout) == (0.1, None)
        own = await raises(AcquireTimeout, short.acquire())
        assert own.attempts > 1
        assert own.elapsed >= 0.1
        assert (await raises(AcquireTimeout, short.acquire(timeout=0))).attempts == 1
        assert (await raises(AcquireTimeout, once.acquire(timeout=0.05))).attempts > 1
        with pytest.raises(AcquireTimeout):
            async with short:
                pytest.fail("the body ran without the lock")
    assert left_over(nodes) == {}


@pytest.mark.parametrize("patience", [None, 30.0])
async def test_a_waiter_gets_the_lock_when_it_is_released(
    face: Face, nodes: Servers, patience: float | None
) -> None:
    """timeout=None waits for ever, a number as long: both get the lock soon after the release."""
    async with face.redlock(nodes.urls, retry_delay=QUICK) as redlock:
        lock = redlock.lock("a")
        first = await lock.acquire()
        asked = threading.Event()
        released_at = 0.0

        async def part(index: int) -> float:
            nonlocal released_at
            if index == 0:
                asked.set()
                second = await lock.acquire(timeout=patience)
                got = quorlock.now()
                assert second.token != first.token
                await second.release()
                return got
            assert await until_async(asked.is_set)
            await asyncio.sleep(0.05)
            released_at = quorlock.now()
            await first.release()
            return released_at

        got = (await face.crowd(2, part))[0]
        assert isinstance(got, float), got
        assert got > released_at > 0


async def test_a_waiter_gets_the_lock_when_it_expires(face: Face, nodes: Servers) -> None:
    """A holder that never releases (it died) blocks others no longer than the ttl."""
    steal(nodes, "a")
    for node in nodes:
        node.execute("PEXPIRE", "a", 200)
    async with face.redlock(nodes.urls, retry_delay=QUICK) as redlock:
        lease = await redlock.lock("a").acquire(timeout=30)
        assert lease.held
        await lease.release()


async def test_the_block_holds_and_releases(face: Face, nodes: Servers) -> None:
    """Held inside; free outside, after an error too, which comes out as it is."""
    async with face.redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        async with lock as lease:
            assert lease.held
            assert await lock.locked()
        assert lease.validity < 0
        with pytest.raises(KeyError, match="mine"):
            async with lock:
                raise KeyError("mine")
        assert not await lock.locked()
    assert left_over(nodes) == {}


async def test_one_lock_is_shared_by_many(face: Face, nodes: Servers) -> None:
    """Threads (tasks) use one Lock concurrently; each block has a separate lease, one at a time."""
    inside: list[int] = []
    tokens: set[str] = set()
    async with face.redlock(nodes.urls, retry_delay=QUICK) as redlock:
        lock = redlock.lock("a")

        async def turn(index: int) -> str:
            async with lock as lease:
                inside.append(index)
                assert inside == [index]
                await asyncio.sleep(0.001)
                inside.remove(index)
                tokens.add(lease.token)
            return lease.token

        got = await face.crowd(8, turn)
    assert sorted(map(str, got)) == sorted(tokens)
    assert len(tokens) == 8
    assert left_over(nodes) == {}


async def test_one_lock_may_be_entered_within_itself_by_resource_only(
    face: Face, nodes: Servers
) -> None:
    """A Lock is not reentrant: a holder that acquires again is refused like any other client."""
    async with face.redlock(nodes.urls) as redlock:
        lock = redlock.lock("a", timeout=0)
        async with lock as outer:
            with pytest.raises(AcquireTimeout):
                async with lock:
                    pytest.fail("the body ran without the lock")
            assert outer.held
        assert not outer.held


async def test_nested_blocks_of_one_lock_leave_with_their_own_lease(
    face: Face, nodes: Servers
) -> None:
    """The inner lease, acquired after the outer one has expired, is released by its own block."""
    async with face.redlock(nodes.urls, node_timeout=0.03) as redlock:
        flags: dict[str, Any] = {"on_lost": "flag"} if face.name == "asyncio" else {}
        lock = redlock.lock("a", ttl=0.1, **flags)
        with pytest.raises(quorlock.LeaseLost) as lost:
            async with lock as outer:
                await asyncio.sleep(0.11)
                async with redlock.lock("a", ttl=5, **flags) as inner:
                    assert inner.held
                    async with redlock.lock("b", **flags):
                        assert not outer.held
                    assert inner.held
                assert not inner.held
        assert lost.value.lease is real(outer)
    assert left_over(nodes) == {}


async def test_locked_counts_every_client(face: Face, nodes: Servers) -> None:
    """True for our lease and for another's key on a quorum; False for a leftover minority."""
    async with face.redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        assert await lock.locked() is False
        async with lock:
            assert await lock.locked() is True
        steal(nodes[:2], "a")
        assert await lock.locked() is False
        steal(nodes[:3], "a")
        assert await lock.locked() is True


async def test_votes_have_the_reply_of_every_node(face: Face, nodes: Servers) -> None:
    """A quorum granted; a node that has another's key refused or was not waited for."""
    steal(nodes[:1], "a")
    async with face.redlock(nodes.urls) as redlock, redlock.lock("a") as lease:
        assert [vote.node for vote in lease.votes] == [node.path for node in nodes]
        assert lease.votes[0].vote in ("refused", "unknown")
        granted = [vote for vote in lease.votes if vote.vote == "granted"]
        assert len(granted) >= 3
        assert all(
            vote.answered and vote.code is VoteCode.GRANTED and vote.cause == "granted"
            for vote in granted
        )


async def test_a_repr_gives_no_token_away(face: Face, nodes: Servers) -> None:
    """Six characters distinguish leases; the whole token is only in `token`."""
    async with face.redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        lease = await lock.acquire()
        token = lease.token
        assert len(token) >= 32
        for over in (False, True):
            shown = f"{lease!r} {lock!r} {redlock!r}"
            assert token[:6] in shown
            assert token[:7] not in shown
            assert repr(lease).endswith(", over>") is over
            await lease.release()


async def test_a_lock_cannot_be_changed(face: Face, nodes: Servers) -> None:
    """The attributes of a Lock are read-only and it accepts no new ones, so sharing it is safe."""
    async with face.redlock(nodes.urls) as redlock:
        lock = redlock.lock("a", ttl=3, timeout=4)
        for name in ("resource", "ttl", "timeout", "note"):
            with pytest.raises(AttributeError):
                setattr(real(lock), name, 1)
        assert (lock.resource, lock.ttl, lock.timeout) == ("a", 3.0, 4)


async def test_nothing_that_lives_is_pickled_or_copied(face: Face, nodes: Servers) -> None:
    """Redlock, Lock and Lease refuse, and say what to do; the lease stays as it was."""
    async with face.redlock(nodes.urls) as redlock, redlock.lock("a") as lease:
        for thing in map(real, (redlock, redlock.lock("a"), lease)):
            for move in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="cannot be copied or pickled"):
                    move(thing)
        assert lease.held


async def test_a_wrong_timeout_is_refused_at_once(face: Face, nodes: Servers) -> None:
    """`lock()` checks the lock's timeout, `acquire()` its argument; nothing is sent."""
    async with face.redlock(nodes.urls) as redlock:
        with pytest.raises(ConfigError, match="timeout=-1"):
            redlock.lock("a", timeout=-1)
        await raises(ConfigError, redlock.lock("a").acquire(timeout=float("nan")))
        with pytest.raises(ConfigError, match="max_ttl"):
            redlock.lock("a", ttl=31)
    assert left_over(nodes) == {}


async def test_a_closed_redlock_says_so(face: Face, nodes: Servers) -> None:
    """No verb hangs or pretends after close(); closing twice does no harm."""
    redlock = face.redlock(nodes.urls)
    lease = await redlock.lock("a").acquire()
    await redlock.close()
    await redlock.close()
    assert not lease.held
    assert left_over(nodes) == {}
    for verb in (redlock.lock("a").acquire(), redlock.inspect("a"), redlock.release("a", "x")):
        error = await raises(quorlock.QuorlockError, verb)
        assert "closed" in str(error)
    assert await lease.release() is False


# --- the decorator, in each face's own words ----------------------------------------------------


def test_a_decorated_function_runs_under_the_lock(nodes: Servers) -> None:
    """Every call acquires a lease, passes arguments and result, and releases also after an
    error.
    """
    with quorlock.Redlock(nodes.urls) as redlock:
        lock = redlock.lock("nightly", timeout=0)

        @lock
        def nightly(tons: int, *, fast: bool = False) -> tuple[int, bool, str]:
            """Does it."""
            with pytest.raises(AcquireTimeout):
                lock.acquire()
            if tons < 0:
                raise ValueError("negative")
            return tons, fast, redlock.inspect("nightly").verdict

        assert nightly(3, fast=True) == (3, True, "held")
        with pytest.raises(ValueError, match="negative"):
            nightly(-1)
        assert nightly(4) == (4, False, "held")
        check_wrapped(nightly, "nightly", "Does it.")
    assert left_over(nodes) == {}


async def test_a_decorated_coroutine_function_runs_under_the_lock(nodes: Servers) -> None:
    """A decorated coroutine function is still a coroutine function."""
    async with aio.Redlock(nodes.urls) as redlock:
        lock = redlock.lock("nightly", timeout=0)

        @lock
        async def nightly(tons: int, *, fast: bool = False) -> tuple[int, bool, str]:
            """Does it."""
            await raises(AcquireTimeout, lock.acquire())
            if tons < 0:
                raise ValueError("negative")
            return tons, fast, (await redlock.inspect("nightly")).verdict

        assert await nightly(3, fast=True) == (3, True, "held")
        with pytest.raises(ValueError, match="negative"):
            await nightly(-1)
        assert await nightly(4) == (4, False, "held")
        assert inspect.iscoroutinefunction(nightly)
        check_wrapped(nightly, "nightly", "Does it.")
    assert left_over(nodes) == {}


def check_wrapped(function: Any, name: str, doc: str) -> None:
    """Check the attributes that functools.wraps sets."""
    assert (function.__name__, function.__doc__, function.__module__) == (name, doc, __name__)
    assert function.__wrapped__ is not function
    assert list(inspect.signature(function).parameters) == ["tons", "fast"]


def test_methods_can_be_decorated(nodes: Servers) -> None:
    """`self` comes through, and all instances share the lock."""
    with quorlock.Redlock(nodes.urls) as redlock:

        class Job:
            @redlock.lock("job")
            def run(self) -> tuple[object, str]:
                return self, redlock.inspect("job").verdict

        job = Job()
        assert job.run() == (job, "held")


def plain(a: int = 1) -> int:
    return a


async def coroutine_function() -> int:
    return 7


def generator_function() -> Iterator[int]:
    yield 1


async def async_generator_function() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    "wrong", [coroutine_function, generator_function, async_generator_function, 3, None]
)
def test_the_decorator_refuses_the_wrong_kind_of_function(nodes: Servers, wrong: Any) -> None:
    """Functions that would run outside of the lock (awaited or iterated later) are refused."""
    with quorlock.Redlock(nodes.urls) as redlock, pytest.raises(ConfigError, match="function="):
        redlock.lock("a")(wrong)


@pytest.mark.parametrize("wrong", [plain, generator_function, async_generator_function, 3, None])
async def test_asyncios_decorator_refuses_the_wrong_kind_of_function(
    nodes: Servers, wrong: Any
) -> None:
    """Only coroutine functions can be run under a lock that is awaited."""
    async with aio.Redlock(nodes.urls) as redlock:
        with pytest.raises(ConfigError, match="function="):
            redlock.lock("a")(wrong)


async def test_partials_and_lambdas_are_taken(nodes: Servers) -> None:
    """A functools.partial is as good as what it is made of."""
    with quorlock.Redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        assert lock(lambda: 5)() == 5
        assert lock(functools.partial(plain, 7))() == 7
    async with aio.Redlock(nodes.urls) as redlock_:
        assert await redlock_.lock("a")(functools.partial(coroutine_function))() == 7
