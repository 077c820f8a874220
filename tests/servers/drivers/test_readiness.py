"""The wait of a call in an event loop until enough nodes are connected."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quorlock.asyncio import Redlock
from quorlock.testing.memory import MemoryNodes
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
