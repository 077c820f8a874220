"""The asyncio driver: flows in tasks. The contract is in `abc`.

All tasks of a loop share one ordered connection to each node. `flow_task` runs one flow, and
`loop_driver` the rounds of one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

from quorlock._core.usual import itself
from quorlock._drivers import fork
from quorlock._drivers.aio.flow_task import FlowTask
from quorlock._drivers.aio.loop_driver import LoopDriver
from quorlock._drivers.clock import now
from quorlock._drivers.node_state import CLOSED, NodeState
from quorlock._drivers.node_states import NodeStates
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from quorlock._core.claims import Claim
    from quorlock._core.config import Policy
    from quorlock._core.effects import Flow
    from quorlock._core.results import NodeStatus
    from quorlock._nodes.node import Node
    from quorlock._protocol.pipeline import InvalidationCallback

T = TypeVar("T")
R = TypeVar("R")


class Driver:
    """The asyncio driver of one set of nodes, usable from several event loops at once."""

    def __init__(self, nodes: tuple[Node, ...], policy: Policy) -> None:
        self._policy = policy
        self.node_states = NodeStates(nodes, policy)
        self.on_loop_end: Callable[[LoopDriver], None] = _nothing
        self.closed = False
        # Other threads add and remove entries at any time: only copies of it are read.
        self._loop_drivers: dict[asyncio.AbstractEventLoop, LoopDriver] = {}
        self._latest: LoopDriver | None = None
        fork.register(self)

    def reset_after_fork(self) -> None:
        """Start again in a forked child, without touching the parent's transports."""
        for loop_driver in self._loop_drivers.values():
            loop_driver.shutdown.abandon()
        self.node_states = self.node_states.in_child()
        self._loop_drivers.clear()
        self._latest = None

    def run(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:
        """Run the flow to its end."""
        return self.run_and_claim(flow, itself)

    def run_and_claim(self, flow: Flow[T], claim: Callable[[T], R]) -> Coroutine[Any, Any, R]:
        """Run the flow to its end, and make the caller's result (a lease) from its outcome."""
        return self.run_task(FlowTask(self.loop_driver(), flow), claim)

    async def run_task(self, task: FlowTask[T], claim: Callable[[T], R]) -> R:
        """Run a task's flow to its end, and make the caller's result from its outcome.

        If the caller is cancelled before that, the flow releases the lock.
        """
        try:
            task.begin()
            result = claim(await task.future)
            task.end()
            return result
        except BaseException:
            task.cancel()
            raise

    def watch(self, callback: InvalidationCallback) -> None:
        """Report invalidations in this loop, from its next extension on."""
        self.loop_driver().watch(callback)

    def statuses(self) -> tuple[NodeStatus, ...]:
        """Return the state of every node as this process knows it; nothing is sent."""
        at = now()
        silent_for = [0] * len(self.node_states.all)
        for loop_driver in list(self._loop_drivers.values()):
            for index, connector in enumerate(loop_driver.connectors):
                if connector.connection is not None:
                    waiting = at - connector.connection.oldest_asked_at(at)
                    silent_for[index] = max(silent_for[index], waiting)
        return tuple(map(NodeState.status, self.node_states.all, silent_for, repeat(at)))

    async def close(self) -> None:
        """Send pending releases for a bounded time, and close everything."""
        self.closed = True
        self.end_soon()  # first: it is done even if this call is cancelled
        loop_driver = self._loop_drivers.get(asyncio.get_running_loop())
        if loop_driver is not None:
            await loop_driver.shutdown.complete()

    def end_soon(self) -> None:
        """End the loop drivers of all loops, each in its loop; safe from any thread."""
        for loop_driver in list(self._loop_drivers.values()):
            loop_driver.shutdown.request_soon()

    def on_lease_over(self, claim: Claim) -> None:
        """Record that a lease is over which was not handed on: the next in each line asks.

        Safe from any thread.
        """
        for loop_driver in list(self._loop_drivers.values()):
            lines = loop_driver.lines
            if lines is not None and any(map(lines.get, claim.keys)):
                with contextlib.suppress(RuntimeError):  # its loop is closed
                    loop_driver.loop.call_soon_threadsafe(
                        loop_driver.guarded(lines.on_released, claim, now())
                    )

    def send_only(self, flow: Flow[None], loop_driver: LoopDriver) -> None:
        """Send the flow's commands over that loop driver, without waiting for replies."""
        FlowTask(loop_driver, flow).run_detached(flow)

    def send_later(self, flow: Flow[None], path: object = None) -> None:
        """Send the flow's commands in a running loop, soon; safe from any thread.

        `path` (default: the current loop's driver) is preferred if it is still open. If its loop
        ends first, that loop releases what was not sent, and no other loop would.
        """
        if path is None:
            with contextlib.suppress(RuntimeError):  # no loop runs in this thread
                path = self._loop_drivers.get(asyncio.get_running_loop())
        loop_drivers = [e for e in list(self._loop_drivers.values()) if not e.shutdown.closing]
        # A stopped loop may never run again: a running one is preferred.
        loop_drivers.sort(
            key=lambda loop_driver: (not loop_driver.loop.is_running(), loop_driver is not path)
        )
        for loop_driver in loop_drivers:
            with contextlib.suppress(RuntimeError):  # its loop is closed, perhaps just now
                loop_driver.loop.call_soon_threadsafe(
                    loop_driver.guarded(self.send_only, flow, loop_driver)
                )
                return

    def loop_driver(self) -> LoopDriver:
        """Return the running loop's part of the driver, made if there is none."""
        loop = asyncio.get_running_loop()
        loop_driver = self._latest
        if (
            loop_driver is not None
            and loop_driver.loop is loop
            and not loop_driver.shutdown.closing
        ):
            return loop_driver
        # Not read back: another loop's thread may have written it since.
        self._latest = loop_driver = self._loop_driver_of(loop)
        return loop_driver

    def _loop_driver_of(self, loop: asyncio.AbstractEventLoop) -> LoopDriver:
        loop_driver = self._loop_drivers.get(loop)
        if loop_driver is None or loop_driver.shutdown.closing:
            if self.closed:
                raise QuorlockError(CLOSED)
            for other in list(self._loop_drivers):
                if other.is_closed():  # its loop driver had no time to end
                    self._loop_drivers.pop(other, None)
            loop_driver = LoopDriver(loop, self.node_states, self._policy, self.on_loop_end)
            loop_driver.shutdown.on_closed = partial(self._ended, loop_driver)
            self._loop_drivers[loop] = loop_driver
        return loop_driver

    def _ended(self, loop_driver: LoopDriver) -> None:
        if self._latest is loop_driver:
            self._latest = None  # calls that waited in it refer to the session
        if self._loop_drivers.get(loop_driver.loop) is loop_driver:
            self._loop_drivers.pop(loop_driver.loop, None)


def _nothing(loop_driver: LoopDriver) -> None:
    del loop_driver
