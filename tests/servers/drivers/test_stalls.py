"""A process that stood still together with its nodes: that was no time to answer."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from quorlock import Redlock
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from quorlock import Lease
    from quorlock.testing.servers import Servers

NODE_TIMEOUT = 0.4


def stall(seconds: float) -> None:
    """Keep the interpreter lock: no other thread of this process runs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
    finally:
        sys.setswitchinterval(before)


def test_nodes_that_stood_still_with_us_may_still_answer(nodes: Servers) -> None:
    """One attempt: it was sent, everybody stood still, and its time was over when all went on."""
    with Redlock(nodes.urls, node_timeout=NODE_TIMEOUT, outage_timeout=0) as redlock:
        redlock.lock("warm").acquire().release()
        (connection_set,) = redlock._session.driver._pool.all()
        for node in nodes:
            node.stop()
        won: list[Lease] = []
        thread = threading.Thread(
            target=lambda: won.append(redlock.lock("x", timeout=0).acquire()), daemon=True
        )
        thread.start()
        connections = connection_set.connections
        assert until(lambda: all(one is not None and one.pending for one in connections))
        stall(2 * NODE_TIMEOUT)
        for node in nodes:
            node.cont()
        thread.join(10)
        assert [lease.held for lease in won] == [True]
        assert won[0].release()
