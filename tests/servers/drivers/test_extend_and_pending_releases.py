"""A node with a pending release of a token never counts for an extension of its lease."""

import asyncio

import pytest

from quorlock import LeaseLost, Redlock
from quorlock._core.commands import Release
from quorlock._drivers.clock import now
from quorlock.asyncio import Redlock as AsyncRedlock
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import Proxy
from tests.harness.support.wait import until

SETTINGS = {"ttl": 2.0, "max_ttl": 4.0, "node_timeout": 0.2, "connect_timeout": 0.4}


def pend_everywhere(redlock: object, token: str) -> None:
    """Add pending releases, as after connections that broke with the acquire unanswered."""
    session = redlock._session  # type: ignore[attr-defined]
    for node_state in session.driver.node_states.all:
        node_state.pending_releases.add(Release(b"x", token.encode()), node_state.run_id, now())


def test_blocking(nodes: Servers) -> None:
    """The keys are ours, but are about to be deleted: the lease is lost."""
    with Redlock(nodes.urls, **SETTINGS) as redlock:  # type: ignore[arg-type]
        lease = redlock.lock("x").acquire()
        pend_everywhere(redlock, lease.token)
        with pytest.raises(LeaseLost):
            lease.extend()
        assert not lease.held


def test_asyncio(nodes: Servers) -> None:
    """The keys are about to be deleted: the lease is lost."""

    async def main() -> None:
        async with AsyncRedlock(nodes.urls, **SETTINGS) as redlock:  # type: ignore[arg-type]
            lease = await redlock.lock("x").acquire()
            pend_everywhere(redlock, lease.token)
            with pytest.raises(LeaseLost):
                await lease.extend()
            assert not lease.held

    asyncio.run(main())


def test_a_vote_that_was_never_received_is_no_vote_later(nodes: Servers) -> None:
    """Cut off before its answer, the node gives the key back, and an extension has two of three.

    With a second node dead one is left, which is no quorum: whatever the first one has or had.
    """
    with Proxy(nodes[2].url) as proxy:
        urls = [nodes[0].url, nodes[1].url, proxy.url]
        with Redlock(urls, **SETTINGS) as redlock:  # type: ignore[arg-type]
            redlock.lock("warm").acquire().release()
            proxy.hold(requests=False)
            lease = redlock.lock("x").acquire()
            proxy.cut()
            proxy.resume()
            nodes[1].kill()
            with pytest.raises(LeaseLost):
                lease.extend()
            until(lambda: not nodes[0].keys() and not nodes[2].keys(), 3)
            assert [nodes[0].keys(), nodes[2].keys()] == [[], []]


def test_a_lease_that_moved_away_is_not_released_from_here(nodes: Servers) -> None:
    """One node lost its connection during the acquire; the process that adopts the lease may count
    that node's key.
    """
    with Proxy(nodes[2].url) as proxy:
        urls = [nodes[0].url, nodes[1].url, proxy.url]
        with Redlock(urls, **SETTINGS) as redlock:  # type: ignore[arg-type]
            redlock.lock("warm").acquire().release()
            proxy.hold(requests=False)
            ticket = redlock.lock("x").acquire().hand_over()
            proxy.cut()
            proxy.resume()
            redlock.lock("warm").acquire().release()  # sees the cut, and connects again
            pending_releases = redlock._session.driver.node_states.all[2].pending_releases
            assert pending_releases.may_still_release(ticket.token.encode(), 0) is False
        assert nodes[2].keys() == [b"x"]
        with Redlock([node.url for node in nodes][:3], **SETTINGS) as elsewhere:  # type: ignore[arg-type]
            assert elsewhere.adopt(ticket).release() is True
