"""quorlock: the distributed lock for Python, Redlock over N independent Redis or Valkey masters.

    _core/       the algorithm, pure: flows that ask for effects      start at _core/redlock.py
    scripts/     what runs on the nodes, in Lua
    _wire/       bytes in, bytes out: commands, replies, addresses
    _drivers/    performs effects: sockets and poll, or asyncio
    _face/       what both faces share: holdings, tickets, reports
    _sync/       the blocking face, re-exported here; asyncio/ is its twin
    fencing/     helpers by which a database, Redis or a file refuses late writers
    testing/     real local servers for tests
    errors.py    what can go wrong, as a tree

from quorlock import Redlock            # or: from quorlock.asyncio import Redlock
"""

from __future__ import annotations

from quorlock._core.outcomes import NodeStatus, NodeVote
from quorlock._core.time import to_seconds as _to_seconds
from quorlock._drivers import clock as _clock
from quorlock._face.inspection import Inspection, NodeView
from quorlock._face.ticket import Ticket
from quorlock._sync.lease import Lease
from quorlock._sync.lock import Lock
from quorlock._sync.redlock import Redlock
from quorlock._wire.nodes import Node, Tls
from quorlock.errors import (
    AcquireError,
    AcquireTimeout,
    ConfigError,
    HoldLimitReached,
    LeaseLost,
    NodeError,
    QuorlockError,
    QuorumUnreachable,
    StaleFence,
)

__version__ = "0.1.0"

__all__ = [
    "AcquireError",
    "AcquireTimeout",
    "ConfigError",
    "HoldLimitReached",
    "Inspection",
    "Lease",
    "LeaseLost",
    "Lock",
    "Node",
    "NodeError",
    "NodeStatus",
    "NodeView",
    "NodeVote",
    "QuorlockError",
    "QuorumUnreachable",
    "Redlock",
    "StaleFence",
    "Ticket",
    "Tls",
    "now",
]


def now() -> float:
    """Seconds of the clock in which `Lease.valid_until` is given; it counts suspended time."""
    return _to_seconds(_clock.now())
