"""Real servers for every test that asks, and the guards that watch over all of them."""

from __future__ import annotations

import gc
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock.testing.servers import Servers

pytest_plugins = ["tests.guards"]


def pytest_configure() -> None:
    """Ctrl-C must reach the children that we interrupt: a shell's `make test &` ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """The garbage collector need not look at the tests themselves: they are most of all objects,
    and many tests call it, some for each line of ours that they interrupt.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Five real servers that live as long as the session. Tests ask for `nodes`."""
    # Imported here, so that tests of the core run where no server can.
    from quorlock.testing.servers import Servers

    with Servers(5) as started:
        yield started


@pytest.fixture
def nodes(servers: Servers) -> Servers:
    """Five real servers, each alive, running and empty, whatever the test before did to them.

    A test that changes a server's configuration starts servers of its own.
    """
    for server in servers:
        if not server.alive:
            server.restart()
        elif server.stopped:
            server.cont()
        server.born_empty()  # also one that a test restarted
        server.left_alone()
        server.flush()
    return servers


@pytest.fixture
def mortal_nodes(nodes: Servers) -> Iterator[Servers]:
    """The same five servers, for tests that stop or kill: all run again afterwards."""
    yield nodes
    for node in nodes:
        if node.stopped:
            node.cont()
