"""Two names of one server are noticed though both are admitted at the same moment.

Threads and event loops share this code; in one event loop no two admissions overlap.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from quorlock import ConfigError, Redlock
from quorlock._drivers import node_states
from quorlock._drivers.node_state import NodeState
from quorlock.testing.servers import Servers


def test_a_thread_that_is_delayed_as_it_admits_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for it no longer than 0.1 s: an interrupt may have left the lock taken."""
    on_connected = NodeState.on_connected

    def late(self: NodeState, *facts: Any) -> None:
        time.sleep(1.5 * node_states._LOCKED_MAX)  # as without the interpreter lock
        on_connected(self, *facts)

    monkeypatch.setattr(NodeState, "on_connected", late)
    with Servers(2, tcp=True) as (one, other):
        twice = [one.tcp_url, one.tcp_url.replace("127.0.0.1", "localhost"), other.tcp_url]
        with Redlock(twice, restart_guard=None, outage_timeout=1.0) as redlock:
            other.stop()
            try:
                with pytest.raises(ConfigError, match="is the same server as"):
                    redlock.lock("x").acquire(timeout=1.0)
            finally:
                other.cont()
