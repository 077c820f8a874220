"""quorlock for asyncio: the same names as in `quorlock`, with `await`.

from quorlock.asyncio import Redlock
"""

from __future__ import annotations

from quorlock import (
    AcquireError,
    AcquireTimeout,
    ConfigError,
    HoldLimitReached,
    Inspection,
    LeaseLost,
    Node,
    NodeError,
    NodeStatus,
    NodeView,
    NodeVote,
    QuorlockError,
    QuorumUnreachable,
    StaleFence,
    Ticket,
    Tls,
    now,
)
from quorlock.asyncio.lease import Lease
from quorlock.asyncio.lock import Lock
from quorlock.asyncio.redlock import Redlock

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
