"""A connection of an event loop that its server has closed, and the loop has not noticed yet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quorlock._core.commands import Release
from quorlock._drivers.clock import now
from quorlock.asyncio import Redlock
from tests.harness.support.wait import until_async

if TYPE_CHECKING:
    import pytest

    from quorlock.testing.servers import Servers


def test_many_releases_are_sent_at_once(nodes: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """Each is written alone. asyncio logs a warning from the sixth write on that fails."""
    asyncio.run(_release_many(nodes))
    assert not caplog.records


async def _release_many(nodes: Servers) -> None:
    async with Redlock(nodes.urls[:1]) as redlock:
        assert await (await redlock.lock("x").acquire()).release()
        connector = redlock._session.driver.loop_driver().connectors[0]
        state, connection = connector.node_state, connector.connection
        assert connection is not None
        for number in range(10):
            release = Release(b"k%d" % number, b"%032d" % number)
            nodes[0].execute("SET", release.key, release.token)
            state.release_later(release, state.run_id, now())
        nodes[0].execute("CLIENT", "KILL", "TYPE", "normal")
        connector._send_due()  # in the tick in which the server closes the connection
        assert await until_async(lambda: not nodes[0].keys())


def test_an_interrupt_before_a_connection_has_its_socket(nodes: Servers) -> None:
    """The connection is given up, and replaced before its `connect_timeout` is over."""
    asyncio.run(_interrupt_early(nodes))


async def _interrupt_early(nodes: Servers) -> None:
    async with Redlock(nodes.urls[:1], connect_timeout=60.0) as redlock:
        lease = await redlock.lock("x").acquire()
        driver = redlock._session.driver.loop_driver()
        (connector,) = driver.connectors
        nodes[0].execute("CLIENT", "KILL", "TYPE", "normal")
        while all(one._transport for one in connector._connections._all):
            await asyncio.sleep(0)
            connector.wake()
        driver.interrupted(Interrupt())
        releasing = asyncio.create_task(lease.release())  # it waits for the node
        assert await until_async(lambda: not nodes[0].keys())
        await releasing


class Interrupt(BaseException):
    """An exception that a signal handler raises."""
