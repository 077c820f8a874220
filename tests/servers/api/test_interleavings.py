# ruff: noqa: PT012, SIM117 (what a block does when its lease is lost is what is tested)
"""asyncio: losses, cancellations and timeouts that come at the same tick, in nested blocks."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import combinations, permutations
from typing import Any

import pytest

import quorlock.asyncio as aio
from quorlock import LeaseLost
from quorlock._core.results import LossReason
from quorlock.testing.servers import Servers
from tests.servers.api.faces import left_over

# From the outside in, as the blocks stand; what comes first here is what comes out.
EVENTS = ("cancel", "around", "outer", "inner", "inside")
SUBSETS = [chosen for size in range(1, 6) for chosen in combinations(EVENTS, size)]


class Scene:
    """One task in its blocks, and what may befall it."""

    def __init__(self, redlock: aio.Redlock) -> None:
        self.redlock = redlock
        self.ready = asyncio.Event()
        self.blocks: dict[str, Any] = {}
        self.cancelling_after: int | None = None

    async def work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with (
                asyncio.timeout(None) as self.blocks["around"],
                self.redlock.lock("outer", renew=True) as self.blocks["outer"],
                self.redlock.lock("inner", renew=True) as self.blocks["inner"],
                asyncio.timeout(None) as self.blocks["inside"],
            ):
                self.ready.set()
                await asyncio.sleep(30)
        finally:
            self.cancelling_after = task.cancelling()

    def strike(self, event: str, task: asyncio.Task[None]) -> None:
        block: Any = self.blocks.get(event)
        if event == "cancel":
            task.cancel()
        elif isinstance(block, aio.Lease):
            block._state.end(LossReason.TAKEN)  # as renewal says it
        else:
            with contextlib.suppress(RuntimeError):  # it is over already
                block.reschedule(asyncio.get_running_loop().time())


async def outcome(task: asyncio.Task[None]) -> str:
    try:
        await asyncio.wait_for(asyncio.shield(task), 10)
    except asyncio.CancelledError:
        return "cancel"
    except LeaseLost as lost:
        return lost.resource
    except TimeoutError:
        return "timeout" if task.done() else "it hangs"
    return "nothing"


def expected(chosen: tuple[str, ...]) -> str:
    return "timeout" if chosen[0] in ("around", "inside") else chosen[0]


@pytest.mark.parametrize("gap", [0, 1, 2], ids=lambda gap: f"{gap} ticks apart")
async def test_what_comes_at_once_comes_out_right(nodes: Servers, gap: int) -> None:
    """A caller that cancels the task gets CancelledError; otherwise the outermost block that has
    ended says why. No request is left over, and every lock is released.
    """
    async with aio.Redlock(nodes.urls[:3], node_timeout=0.5, ttl=5.0) as redlock:
        for chosen in SUBSETS:
            for order in permutations(chosen) if len(chosen) < 4 else (chosen, chosen[::-1]):
                scene = Scene(redlock)
                task = asyncio.create_task(scene.work())
                await scene.ready.wait()
                for event in order:
                    if task.done():
                        break
                    scene.strike(event, task)
                    for _ in range(gap):
                        await asyncio.sleep(0)
                said = await outcome(task)
                # Some ticks apart, the first may have ended the task before the others came.
                possible = {expected(chosen)} | ({expected((e,)) for e in order} if gap else set())
                assert said in possible, (order, said)
                if "cancel" in chosen and gap == 0:
                    assert task.cancelled()
                assert scene.cancelling_after == (said == "cancel"), (order, said)
    assert left_over(nodes) == {}


async def test_a_task_group_around_and_inside(nodes: Servers) -> None:
    """A child that loses its lease ends the group by LeaseLost; one that fails inside a block comes
    out in its group, also when the lease is lost at the same tick.
    """
    async with aio.Redlock(nodes.urls[:3], ttl=5.0) as redlock:

        async def holds() -> None:
            async with redlock.lock("a", renew=True) as lease:
                asyncio.get_running_loop().call_soon(lease._state.end, LossReason.TAKEN)
                await asyncio.sleep(30)

        with pytest.raises(ExceptionGroup) as group:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(holds())
                other = tasks.create_task(asyncio.sleep(30))
        assert [type(error) for error in group.value.exceptions] == [LeaseLost]
        assert other.cancelled()

        task = asyncio.current_task()
        assert task is not None
        for lost_too in (False, True):
            before = task.cancelling()  # the group above may leave one: a fault of CPython 3.12

            async def fails(lease: aio.Lease, lost: bool = lost_too) -> None:
                if lost:
                    lease._state.end(LossReason.TAKEN)
                raise ValueError("theirs")

            with pytest.raises(ExceptionGroup) as group:
                async with redlock.lock("a", renew=True, timeout=5) as lease:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(fails(lease))
                        await asyncio.sleep(30)
            assert [type(error) for error in group.value.exceptions] == [ValueError]
            assert task.cancelling() == before
    assert left_over(nodes) == {}
