"""The wait of a call in an event loop until enough nodes are connected."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from quorlock._core.time import NS_PER_S
from quorlock._drivers.aio.admission import Readiness
from quorlock._drivers.clock import SLEEP_MAX
from quorlock._drivers.node_state import Reachability
from quorlock.asyncio import Redlock
from quorlock.testing.memory import MemoryNodes
from tests.harness.support.script import policy_of
from tests.harness.support.wait import until_async

if TYPE_CHECKING:
    from quorlock._drivers.aio.connector import AsyncConnector


async def cut(nodes: MemoryNodes, redlock: Redlock) -> AsyncConnector:
    """Lose all connections of a Redlock to nodes that it knows; only the first node replies then.

    Returns:
        The connector of that node.
    """
    connectors = redlock._session.driver.loop_driver().connectors
    assert not await redlock.lock("a").locked()
    assert await until_async(lambda: all(each.connection for each in connectors))
    for node in nodes:
        node.stop()
        node.start()
    for node in nodes[1:]:
        node.hang()
    assert await until_async(lambda: not any(each.connection for each in connectors))
    return connectors[0]


def test_a_connection_that_is_lost_during_the_wait_is_replaced() -> None:
    """The call waits for two hung nodes, and the third one closes its connection."""

    async def main(nodes: MemoryNodes) -> None:
        async with Redlock(nodes.urls, connect_timeout=60.0, restart_guard=None) as redlock:
            connector = await cut(nodes, redlock)
            call = asyncio.create_task(redlock.lock("a").acquire())
            connection = await until_async(lambda: connector.connection)
            assert connection is not None
            nodes[0].stop()
            nodes[0].start()
            assert await until_async(lambda: connection.lost)
            assert await until_async(lambda: connector.connection)
            for node in nodes[1:]:
                node.go_on()
            assert await (await call).release()

    with MemoryNodes(3) as nodes:
        asyncio.run(main(nodes))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks begin later than they are made")
def test_an_eager_task_is_the_only_connector_of_its_node() -> None:
    """The attempt fails at once, and the call looks again before the task is known."""

    async def main(nodes: MemoryNodes) -> None:
        asyncio.get_running_loop().set_task_factory(vars(asyncio)["eager_task_factory"])
        async with Redlock(nodes.urls, connect_timeout=60.0, restart_guard=None) as redlock:
            connector = await cut(nodes, redlock)
            call = asyncio.create_task(redlock.lock("a").acquire())
            assert await until_async(lambda: connector.connection)
            nodes[0].stop()
            state = connector.node_state
            assert await until_async(lambda: state.reachability is Reachability.DOWN)
            names = [task.get_name() for task in asyncio.all_tasks()]
            assert names.count(f"quorlock connector of {nodes[0].url}") == 1
            nodes[0].start()
            for node in nodes[1:]:
                node.go_on()
            assert await (await call).release()

    with MemoryNodes(3) as nodes:
        asyncio.run(main(nodes))


class Connector:
    """A connector that is about to connect."""

    connection: object = None
    may_still_connect = True

    def wake(self) -> None:
        """Connect."""


class Timers:
    """The timers of an event loop; none of them goes off."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def call_later(self, delay: float, _: object) -> Any:
        self.delays.append(delay)
        return SimpleNamespace(cancel=lambda: None)


def test_the_timer_is_set_for_the_end_of_the_present_wait() -> None:
    """A quorum is connected, waits a moment for the other nodes, and is lost again.

    From then on the timer is set for the end of the long wait. The moment would be over at once,
    and the call would look again and again.
    """
    policy = policy_of(5, node_timeout=0.001, connect_timeout=1000.0)
    connectors, timers = [Connector() for _ in range(5)], Timers()
    readiness = Readiness(
        cast("Any", timers),
        lambda call: call,
        cast("Any", connectors),
        cast("Any", SimpleNamespace(is_complete=False)),
        policy,
    )
    for connector in connectors[:3]:
        connector.connection = object()
    readiness.when_ready(lambda: None)
    connectors[0].connection = None
    readiness.on_change()
    moment, rest = timers.delays
    assert moment <= 0.001
    assert rest == SLEEP_MAX / NS_PER_S
