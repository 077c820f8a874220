"""A node that was not asked is not reported as having answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import quorlock.asyncio as aio
from quorlock import LeaseLost, QuorumUnreachable
from quorlock.testing.memory import MemoryNode, MemoryNodes
from tests.servers.api.faces import Face, raises

SETTINGS: dict[str, Any] = {"connect_timeout": 0.1}
NOT_SET = "not asked: the lock was never set there"


class Partial(NamedTuple):
    """A lease on "x", which was never set on the node that was dead at its acquire."""

    redlock: aio.Redlock
    lease: aio.Lease
    dead: MemoryNode
    other: MemoryNode


@asynccontextmanager
async def on_two_of_three(face: Face) -> AsyncIterator[Partial]:
    with MemoryNodes(3) as (dead, other, live):
        dead.stop()
        async with face.redlock([dead.url, other.url, live.url], **SETTINGS) as redlock:
            lease = await redlock.lock("x").acquire(timeout=0)
            yield Partial(redlock, lease, dead, other)


async def test_a_node_that_was_down_at_acquire_is_not_said_to_have_lost_the_key(
    face: Face,
) -> None:
    """The lease is lost all the same: two of three surely have no key."""
    async with on_two_of_three(face) as (_, lease, dead, robbed):
        robbed.execute("DEL", "x")
        error = await raises(LeaseLost, lease.extend())
    assert error.reason == "evicted"
    causes = {vote.node: (vote.vote, vote.cause, vote.answered) for vote in error.votes}
    assert causes[dead.url] == ("unknown", NOT_SET, False)
    assert causes[robbed.url] == ("refused", "the key is gone", True)
    assert f"{dead.url}: {NOT_SET}" in str(error)


async def test_the_same_once_it_is_up_again(face: Face) -> None:
    """A key on a node that was not asked does not belong to the lease."""
    async with on_two_of_three(face) as (redlock, lease, dead, robbed):
        dead.start()
        async with redlock.lock("y", timeout=5):
            pass
        robbed.execute("DEL", "x")
        error = await raises(LeaseLost, lease.extend())
    assert [vote.cause for vote in error.votes if vote.node == dead.url] == [NOT_SET]


async def test_a_release_by_token_that_stays_undecided(face: Face) -> None:
    """One deleted it, one is silent, one was never asked: one answer of three."""
    async with on_two_of_three(face) as (redlock, lease, dead, hung):
        hung.hang()
        error = await raises(QuorumUnreachable, redlock.release("x", lease.token))
        hung.go_on()
    assert "1 of 3 nodes answered" in str(error)
    assert f"{dead.url}: {NOT_SET}" in str(error)
