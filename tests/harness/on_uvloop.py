"""A pytest plugin: all event loops of this process are uvloop's (`-p tests.harness.on_uvloop`)."""

import asyncio

import uvloop

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


async def _nothing() -> None:
    pass


# The first loop of a process makes descriptors that stay: before any test is watched.
asyncio.run(_nothing())
