# ruff: noqa: PT012 (what a block does when its lease is lost is what is tested)
"""`with lease:`, and objects that are used as those of the other API or of another library."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import LeaseLost, QuorlockError
from quorlock.testing.servers import Servers
from tests.servers.api.faces import Face, keys_on, raises, real, until_over, wipe

SHORT = 0.16
SETTINGS: dict[str, Any] = {"node_timeout": 0.05, "retry_delay": (0.002, 0.01)}


# --- the block of a lease ---------------------------------------------------------------------


async def test_the_block_releases(face: Face, nodes: Servers) -> None:
    """Also if the body raises; the idiom is that of a job that is skipped while it runs."""
    async with face.redlock(nodes.urls) as redlock:
        if lease := await redlock.lock("a").try_acquire():
            async with lease as entered:
                assert real(entered) is real(lease)
                assert await redlock.lock("a").try_acquire() is None
        assert keys_on(nodes) == {}
        with pytest.raises(ZeroDivisionError) as raised:
            async with await redlock.lock("a").acquire() as second:
                raise ZeroDivisionError
        assert not hasattr(raised.value, "__notes__")
        assert not second.held
        assert keys_on(nodes) == {}


async def test_an_adopted_lease_has_a_block(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as here, face.redlock(nodes.urls) as there:
        ticket = await (await here.lock("a").acquire()).hand_over()
        async with await there.adopt(ticket) as lease:
            assert lease.held
        assert keys_on(nodes) == {}


async def test_a_loss_is_reported_at_the_end(face: Face, nodes: Servers) -> None:
    """A clean body raises LeaseLost at its end; the exception of another body gets a note."""
    async with face.redlock(nodes.urls) as redlock:
        with pytest.raises(LeaseLost) as lost:
            async with await redlock.lock("a").acquire() as lease:
                wipe(nodes, "a")
        assert (lost.value.reason, lost.value.lease) == ("evicted", real(lease))
        with pytest.raises(ZeroDivisionError) as raised:
            async with await redlock.lock("a").acquire():
                wipe(nodes, "a")
                raise ZeroDivisionError
        assert "is lost" in raised.value.__notes__[0]


async def test_a_release_in_the_block_is_no_loss(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as redlock:
        async with await redlock.lock("a").acquire() as lease:
            assert await lease.release()
        async with await redlock.lock("a").acquire() as lease:
            ticket = await lease.hand_over()
        assert await redlock.release("a", ticket.token)


@pytest.mark.parametrize("how", ["released", "handed_over", "expired"])
async def test_a_lease_that_is_over_is_not_entered(face: Face, nodes: Servers, how: str) -> None:
    """The error says what has ended it: there is no work to stop after one's own release."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=SHORT).acquire()
        if how == "released":
            await lease.release()
        elif how == "handed_over":
            await lease.hand_over()
        else:
            await until_over(lease)
        with pytest.raises(LeaseLost) as lost:
            async with lease:
                raise AssertionError("the body ran without the lock")
        assert lost.value.reason == how
        assert ("stop the protected work" in str(lost.value)) == (how == "expired")
        for verb in (lease.extend, lease.hand_over):
            assert (await raises(LeaseLost, verb())).reason == how
        with pytest.raises(LeaseLost, match="is lost" if how == "expired" else "this process"):
            lease.ensure()


async def test_a_lease_is_entered_once(face: Face, nodes: Servers) -> None:
    """The inner block would release the lease under the outer one; that one continues."""
    async with face.redlock(nodes.urls) as redlock:
        async with redlock.lock("a") as lease:
            with pytest.raises(QuorlockError, match="is in a `with` block, which releases it"):
                async with lease:
                    raise AssertionError("entered twice")
            assert lease.held
        async with await redlock.lock("a").acquire() as lease:
            with pytest.raises(QuorlockError, match="leave out the inner `with`"):
                async with lease:
                    raise AssertionError("entered twice")
            assert lease.held
        assert keys_on(nodes) == {}
        with pytest.raises(LeaseLost, match="was released"):
            async with lease:
                raise AssertionError("entered again")


async def test_the_body_is_cancelled_when_the_lease_is_lost(nodes: Servers) -> None:
    """asyncio: as in the lock's own block, and not with on_lost="flag"."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        with pytest.raises(LeaseLost, match="its time ran out"):
            async with await redlock.lock("a", ttl=SHORT).acquire():
                await asyncio.sleep(30)
        lease = await redlock.lock("a", ttl=SHORT, on_lost="flag").acquire()
        went_on = False
        with pytest.raises(LeaseLost):
            async with lease:
                await lease.lost.wait()
                await asyncio.sleep(0.001)
                went_on = True
        assert went_on
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
async def test_an_adopted_lease_takes_on_lost(nodes: Servers, on_lost: Any) -> None:
    """asyncio: the process that adopts a lease chooses, as for a lock."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        ticket = await (await redlock.lock("a", ttl=SHORT).acquire()).hand_over()
        lease = await redlock.adopt(ticket, on_lost=on_lost)
        cancelled = False
        with pytest.raises(LeaseLost):
            async with lease:
                try:
                    await asyncio.sleep(2 * SHORT)
                except asyncio.CancelledError:
                    cancelled = True
                    raise
        assert cancelled == (on_lost == "cancel")
        with pytest.raises(quorlock.ConfigError, match="on_lost='ring'"):
            await redlock.adopt(ticket, on_lost="ring")  # type: ignore[arg-type]


async def test_a_cancellation_from_outside_stays_one(nodes: Servers) -> None:
    """asyncio: the block of a lease turns only its own cancellation into LeaseLost."""
    async with aio.Redlock(nodes.urls) as redlock:
        entered = asyncio.Event()

        async def work() -> None:
            async with await redlock.lock("a").acquire():
                entered.set()
                await asyncio.sleep(30)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert keys_on(nodes) == {}


async def test_an_exit_stack_takes_leases(nodes: Servers) -> None:
    """Each by its own block, in any order."""
    with quorlock.Redlock(nodes.urls) as redlock, contextlib.ExitStack() as stack:
        for name in "abc":
            stack.enter_context(redlock.lock(name).acquire())
        stack.pop_all().close()
        assert keys_on(nodes) == {}


def test_another_thread_may_leave_the_block(nodes: Servers) -> None:
    """A lease belongs to no thread."""
    with quorlock.Redlock(nodes.urls) as redlock:
        lease = redlock.lock("a").acquire()
        lease.__enter__()
        thread = threading.Thread(target=lease.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        assert keys_on(nodes) == {}


async def test_a_block_leaves_no_garbage(face: Face, nodes: Servers) -> None:
    """No reference cycle keeps a lease after its block."""
    async with face.redlock(nodes.urls) as redlock:
        gc.collect()
        gc.disable()
        try:
            before = [thing for thing in gc.get_objects() if type(thing).__name__ == "Lease"]
            async with await redlock.lock("a").acquire() as lease:
                pass
            del lease
            after = [thing for thing in gc.get_objects() if type(thing).__name__ == "Lease"]
        finally:
            gc.enable()
        assert len(after) == len(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_is_told_whose_lease_it_is(nodes: Servers) -> None:
    """The error names the parent, and does not say that the time has run out."""
    program = (
        "import os, sys, quorlock\n"
        "redlock = quorlock.Redlock(sys.argv[1:])\n"
        "lease = redlock.lock('a').acquire()\n"
        "if (child := os.fork()) == 0:\n"
        "    try:\n"
        "        lease.ensure()\n"
        "    except quorlock.LeaseLost as error:\n"
        "        print(error.reason, error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "lease.release()\n"
    )
    command = [sys.executable, "-c", program, *nodes.urls]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("forked lease on 'a' belongs to the parent of this forked process")


# --- misuse -----------------------------------------------------------------------------------


async def test_async_with_on_a_blocking_object(nodes: Servers) -> None:
    with quorlock.Redlock(nodes.urls) as redlock:
        lease = redlock.lock("a").acquire()
        things: list[Any] = [redlock, redlock.lock("b"), lease]
        for thing in things:
            name = type(thing).__name__
            with pytest.raises(TypeError) as raised:
                async with thing:
                    raise AssertionError("entered")
            assert f"this is quorlock.{name}, of the blocking API: use `with`" in str(raised.value)
            assert "import Redlock from quorlock.asyncio" in str(raised.value)
        assert lease.held


async def test_with_on_an_asyncio_object(nodes: Servers) -> None:
    async with aio.Redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()
        things: list[Any] = [redlock, redlock.lock("b"), lease]
        for thing in things:
            name = type(thing).__name__
            with pytest.raises(TypeError) as raised, thing:
                raise AssertionError("entered")
            said = f"this is quorlock.asyncio.{name}, of the asyncio API: use `async with`"
            assert said in str(raised.value)
            assert "import Redlock from quorlock for" in str(raised.value)
        assert lease.held


async def test_names_of_other_libraries_get_a_hint(face: Face, nodes: Servers) -> None:
    """Redis-py's lock is released, here a lease is; other names get Python's own message."""
    async with face.redlock(nodes.urls) as redlock:
        lock: Any = real(redlock.lock("a"))
        lease: Any = real(await redlock.lock("a").acquire())
        hints = {
            (lock, "release"): "use `release` of the lease that acquire() returned",
            (lock, "extend"): "use `extend` of the lease that acquire() returned",
            (lock, "owned"): "see `held` of the lease that acquire() returned",
            (lease, "valid"): "see `held`",
        }
        for (thing, name), hint in hints.items():
            assert not hasattr(thing, name)
            with pytest.raises(AttributeError) as raised:
                getattr(thing, name)
            start = f"'{type(thing).__name__}' object has no attribute '{name}': "
            assert str(raised.value) == start + hint
            assert (raised.value.name, raised.value.obj) == (name, thing)
        with pytest.raises(AttributeError, match=r"'Lock' object has no attribute 'nothing'$"):
            lock.nothing  # noqa: B018
