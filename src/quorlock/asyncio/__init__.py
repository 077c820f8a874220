"""quorlock for asyncio: the same names as in `quorlock`, with `await`.

from quorlock.asyncio import Redlock
"""

from __future__ import annotations

from quorlock._core.outcomes import NodeStatus, NodeVote
from quorlock._face.clock import now
from quorlock._face.inspection import Inspection, NodeView
from quorlock._face.ticket import Ticket
from quorlock._wire.nodes import Node, Tls
from quorlock.asyncio.lease import Lease
from quorlock.asyncio.lock import Lock
from quorlock.asyncio.redlock import Redlock
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
