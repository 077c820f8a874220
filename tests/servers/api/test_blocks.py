# ruff: noqa: PT012 (what a block does when its lease is lost is what is tested)
"""`with` blocks of one Lock that are left in another order than they were entered.

Generators and exit stacks do that.  No block may end the lease of another.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import LeaseLost
from quorlock._api.open_blocks import OpenBlocks, block_of_caller, take_lease
from quorlock._core.results import LossReason
from tests.harness.support.wait import until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from quorlock.testing.servers import Servers


def run_out(lease: Any, nodes: Servers) -> None:
    """End the lease's time, here and on the nodes."""
    lease._state.end(LossReason.EXPIRED)
    for node in nodes:
        node.execute("DEL", lease.resource)


# --- blocking --------------------------------------------------------------------------------


def entered(lock: quorlock.Lock) -> Iterator[quorlock.Lease]:
    with lock as lease:
        yield lease


@pytest.mark.parametrize("how", ["closed", "collected", "closed by another thread"])
def test_a_generator_that_is_left_late_ends_its_own_lease(nodes: Servers, how: str) -> None:
    """The generator's block is entered first and left inside the next block of the same Lock."""
    with quorlock.Redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        generator = entered(lock)
        run_out(next(generator), nodes)
        with lock as lease:
            if how == "collected":
                del generator
                gc.collect()
            elif how == "closed":
                generator.close()  # type: ignore[attr-defined]
            else:
                closing = threading.Thread(target=generator.close)  # type: ignore[attr-defined]
                closing.start()
                closing.join()
            assert lease.held
            assert lock.locked()
            assert not lease.lost.is_set()
        assert not lock.locked()


def test_nested_blocks_are_left_from_the_inside(nodes: Servers) -> None:
    """Each block reports its own loss, also if the outer lease expired first."""
    with quorlock.Redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        with pytest.raises(LeaseLost) as lost, lock as outer:
            run_out(outer, nodes)
            with lock as inner:
                assert inner.held
            assert not lock.locked()
        assert lost.value.lease is outer


def test_a_stack_that_is_left_late_ends_no_block(nodes: Servers) -> None:
    """An ExitStack enters in a frame that has ended: it takes what is over, not what is held."""
    with quorlock.Redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        for _ in range(3):
            stack = contextlib.ExitStack()
            run_out(stack.enter_context(lock), nodes)
            with lock as lease:
                with pytest.raises(LeaseLost):
                    stack.close()
                assert lease.held


def several_leases(redlock: Any, kind: str) -> Any:
    """Return a lock of which several leases may be held at once."""
    if kind == "semaphore":
        return redlock.semaphore("a", 2)
    return redlock.any_of("a", "b") if kind == "any_of" else redlock.lock("a", shared=True)


@pytest.mark.parametrize("kind", ["semaphore", "any_of", "shared"])
@pytest.mark.parametrize("how", ["closed", "closed by another thread"])
def test_a_stack_ends_no_block_of_a_lock_with_several_leases(
    nodes: Servers, kind: str, how: str
) -> None:
    """All of its leases are held: the block that runs on keeps its own."""
    with quorlock.Redlock(nodes.urls) as redlock, contextlib.ExitStack() as stack:
        lock = several_leases(redlock, kind)
        first = stack.enter_context(lock)
        with lock as lease:
            if how == "closed":
                stack.close()
            else:
                closing = threading.Thread(target=stack.close)
                closing.start()
                closing.join()
            assert (first.held, lease.held) == (False, True)


def test_two_stacks(nodes: Servers) -> None:
    """The expired lease is reported in either order, and the held one continues to its end."""
    with quorlock.Redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        early, late = contextlib.ExitStack(), contextlib.ExitStack()
        run_out(early.enter_context(lock), nodes)
        lease = late.enter_context(lock)
        with pytest.raises(LeaseLost):
            early.close()
        assert lease.held
        late.close()
        assert not lock.locked()


def test_threads_enter_and_leave_one_lock(nodes: Servers) -> None:
    """Many at once, each ends its own, and nothing is left."""
    with quorlock.Redlock(nodes.urls, retry_delay=(0.001, 0.003), node_timeout=0.25) as redlock:
        lock = redlock.lock("a", timeout=20)

        def work() -> None:
            for _ in range(5):
                with lock as lease:
                    assert lease.held

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not lock._entered


class Leaving:
    """An owner whose comparison lets another thread leave its block."""

    def __init__(self, entered: OpenBlocks[str]) -> None:
        self.entered = entered

    def __eq__(self, other: object) -> bool:
        self.entered.pop("first", None)
        return self is other

    def __hash__(self) -> int:
        return 0


def test_another_leaves_while_we_look_for_our_own() -> None:
    """The list changes during the search, and no other block's lease is taken."""
    entered: OpenBlocks[str] = {}
    here, owner = block_of_caller(), Leaving(entered)
    entered |= {"first": (here, "another"), "ours": (here, owner), "last": (here, "another")}
    elsewhere = (0, here[1])
    assert take_lease(entered, elsewhere, lambda: owner, lambda _: False) == "ours"


# --- asyncio ---------------------------------------------------------------------------------


async def aentered(lock: aio.Lock) -> AsyncIterator[aio.Lease]:
    async with lock as lease:
        yield lease


@pytest.mark.parametrize("how", ["closed", "abandoned"])
async def test_an_async_generator_that_is_left_late_ends_its_own_lease(
    nodes: Servers, how: str
) -> None:
    """The loop closes an abandoned generator in a separate task."""
    async with aio.Redlock(nodes.urls) as redlock:
        lock = redlock.lock("a", on_lost="flag")
        generator = aentered(lock)
        run_out(await anext(generator), nodes)
        async with lock as lease:
            if how == "closed":
                await generator.aclose()  # type: ignore[attr-defined]
            else:
                asyncio.get_running_loop().set_exception_handler(lambda *_: None)
                del generator
                gc.collect()
                assert await until_async(lambda: len(lock._entered) == 1)
            assert lease.held
            assert await lock.locked()
            assert not lease.lost.is_set()
        assert not await lock.locked()


async def test_nested_blocks_in_asyncio(nodes: Servers) -> None:
    """Each block reports its own loss, although one task has entered both."""
    async with aio.Redlock(nodes.urls) as redlock:
        lock = redlock.lock("a", on_lost="flag")
        with pytest.raises(LeaseLost) as lost:
            async with lock as outer:
                run_out(outer, nodes)
                async with lock as inner:
                    assert inner.held
                assert not await lock.locked()
        assert lost.value.lease is outer


async def test_a_block_that_another_task_leaves(nodes: Servers) -> None:
    """pytest fixtures do this: the frame is the same, the task is not."""
    async with aio.Redlock(nodes.urls) as redlock:
        lock = redlock.lock("a", on_lost="flag")
        generator = aentered(lock)
        run_out(await asyncio.create_task(anext(generator)), nodes)  # type: ignore[arg-type]
        async with lock as lease:
            await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
            assert lease.held


@pytest.mark.parametrize("kind", ["semaphore", "any_of", "shared"])
async def test_an_async_stack_ends_no_block_of_a_lock_with_several_leases(
    nodes: Servers, kind: str
) -> None:
    """The block keeps its lease, as in the blocking API."""
    async with aio.Redlock(nodes.urls) as redlock, contextlib.AsyncExitStack() as stack:
        lock = several_leases(redlock, kind)
        first = await stack.enter_async_context(lock)
        async with lock as lease:
            await stack.aclose()
            assert (first.held, lease.held) == (False, True)
