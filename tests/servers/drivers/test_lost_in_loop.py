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
