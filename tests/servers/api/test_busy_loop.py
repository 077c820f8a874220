"""asyncio: a node's time to answer is its own, not the time for which the loop was busy."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from quorlock.asyncio import Redlock

if TYPE_CHECKING:
    from quorlock.testing.servers import Servers

NODE_TIMEOUT = 0.2
BUSY = 2 * NODE_TIMEOUT


async def held(redlock: Redlock, resource: str) -> bool:
    """One attempt, no more."""
    lease = await redlock.lock(resource).acquire(timeout=0)
    return await lease.release()


async def busy() -> None:
    time.sleep(BUSY)  # noqa: ASYNC251 (that is the point)


async def test_time_to_answer_begins_when_the_bytes_are_sent(nodes: Servers) -> None:
    """Commands of one tick go out together at its end, however long it takes: who asked at its
    beginning has not waited for the nodes until then.
    """
    async with Redlock(nodes.urls, node_timeout=NODE_TIMEOUT) as redlock:
        await asyncio.gather(held(redlock, "warm"), held(redlock, "up"))
        first, second, _, third = await asyncio.gather(
            held(redlock, "first"), held(redlock, "second"), busy(), held(redlock, "third")
        )
        assert (first, second, third) == (True, True, True)


async def test_replies_that_have_arrived_are_read_before_the_timeout(nodes: Servers) -> None:
    """The deadline fires in a tick that was busy first; replies that have arrived are read before
    the timeout is reported.
    """
    async with Redlock(nodes.urls, node_timeout=NODE_TIMEOUT) as redlock:
        await held(redlock, "warm")
        for node in nodes:
            node.stop()
        asked = asyncio.create_task(held(redlock, "asked"))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()

        def thaw() -> None:
            for node in nodes:
                node.cont()
            time.sleep(BUSY)  # they reply, and nothing reads

        def freeze() -> None:
            # In the next tick nothing can be read; the deadline is due, and comes after this:
            loop.call_soon(thaw)
            time.sleep(BUSY)

        loop.call_soon(freeze)
        assert await asked


async def test_nodes_that_stood_still_with_us_may_still_answer(nodes: Servers) -> None:
    """One attempt: it was sent, the loop and the nodes stood still, and its time was over when all
    went on.
    """
    async with Redlock(nodes.urls, node_timeout=NODE_TIMEOUT, outage_timeout=0) as redlock:
        await held(redlock, "warm")
        for node in nodes:
            node.stop()
        asked = asyncio.create_task(redlock.lock("asked").acquire(timeout=0))
        await asyncio.sleep(0)
        time.sleep(BUSY)  # noqa: ASYNC251 (that is the point)
        # The loop runs again, and the deadline is due a moment before the nodes resume.
        for node in nodes:
            asyncio.get_running_loop().call_later(0.01, node.cont)
        lease = await asked
        assert await lease.release()
