"""A Redlock, or a connection set, that is closed connects to no node again."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quorlock import Redlock
from quorlock import asyncio as aio
from quorlock.testing.memory import MemoryNodes
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_second_close_does_not_connect() -> None:
    """A release is pending, its node is down at the first close, and comes back after it."""
    with Servers(1) as nodes, socket.socket(socket.AF_UNIX) as successor:
        redlock = Redlock(nodes.urls, ttl=20.0)
        lease = redlock.lock("a").acquire()
        nodes[0].kill()
        assert lease.release() is False
        redlock.close()
        path = nodes[0].path
        Path(path).unlink(missing_ok=True)
        successor.bind(path)
        successor.listen()
        redlock.close()
        successor.settimeout(1.0)
        with pytest.raises(TimeoutError):
            successor.accept()


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_closed_connection_set_asks_for_no_connection(*, interrupted: bool) -> None:
    """A node that is back is connected for the sets that are open.

    A renewal thread closes its set when it ends, and an interrupted call discards the one it had.
    Sets that were closed while a node was down were kept until it was back, and then connected.
    """
    with Servers(3) as nodes, Redlock(nodes.urls, restart_guard=None) as redlock:
        nodes[2].kill()
        driver = redlock._session.driver
        for _ in range(20):
            watch = driver.watch()
            connection_set = watch.connection_set
            connection_set.prepare()
            (connection_set.discard if interrupted else connection_set.close)()
            assert not driver._connectors.all[2]._requests
            watch.close(0)
        nodes[2].restart()
        assert until(lambda: redlock.lock("a").acquire().release() and redlock.nodes[2].up)
        received = re.search(
            rb"total_connections_received:(\d+)", nodes[2].execute("INFO", "stats")
        )
        assert received
        assert int(received[1]) < 10


class SlowNode:
    """A node, and its connection, that replies to some requests at each look."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests, self.replies = requests, replies
        self.connection = self.node_state = self.pending_releases = self

    def has_unconfirmed(self) -> bool:
        return False

    @property
    def open_requests(self) -> int:
        self.requests -= self.replies
        return self.requests


class BusyLoop(SlowNode):
    """A slow node of a loop each of whose steps takes longer than the wait for a reply."""

    @property
    def open_requests(self) -> int:
        asyncio.get_running_loop().call_soon(time.sleep, 0.01)
        return super().open_requests


@pytest.mark.parametrize(
    ("new_node", "hangs"),
    [
        (lambda: SlowNode(30, replies=1), False),
        (lambda: SlowNode(30, replies=0), True),
        (lambda: BusyLoop(3, replies=1), False),
    ],
    ids=["replies", "hangs", "busy-loop"],
)
def test_close_waits_for_a_slow_node_as_long_as_it_replies(
    new_node: Callable[[], Any], hangs: bool
) -> None:
    """A node may have thousands of keys to delete. One that hangs, or sends pushes and no replies,
    is waited for a bounded time. A loop that was busy for that time looks at what has come.
    """

    async def main(nodes: MemoryNodes) -> None:
        async with aio.Redlock(nodes.urls, node_timeout=0.002, restart_guard=None) as redlock:
            shutdown = redlock._session.driver.loop_driver().shutdown
            node = new_node()
            shutdown._connectors, connectors = [node], shutdown._connectors
            try:
                await shutdown._drained()
            finally:
                shutdown._connectors = connectors
            assert (node.requests > 0) is hangs

    with MemoryNodes(1) as nodes:
        asyncio.run(main(nodes))
