"""quorlock for asyncio: the names of `quorlock`, with `await`.

from quorlock.asyncio import Redlock
"""

from __future__ import annotations

from quorlock._api.clock import now
from quorlock._api.election import Leader
from quorlock._api.health import Health
from quorlock._api.inspection import Inspection, NodeView, Reader
from quorlock._api.ticket import Ticket
from quorlock._core.results import NodeStatus
from quorlock._nodes.node import Node
from quorlock._nodes.tls import Tls
from quorlock.asyncio.election import Election
from quorlock.asyncio.lease import Lease
from quorlock.asyncio.lock import Lock, LockDecorator
from quorlock.asyncio.once import Once
from quorlock.asyncio.redlock import Redlock
from quorlock.asyncio.rlock import RLock
from quorlock.asyncio.semaphore import Semaphore
from quorlock.errors import (
    AcquireError,
    AcquireStopped,
    AcquireTimeout,
    ConfigError,
    HoldLimitReached,
    LeaseLost,
    NodeError,
    NodeQuarantine,
    NodeVote,
    QuorlockError,
    QuorumUnreachable,
    StaleFence,
    VoteCode,
)

__all__ = [
    "AcquireError",
    "AcquireStopped",
    "AcquireTimeout",
    "ConfigError",
    "Election",
    "Health",
    "HoldLimitReached",
    "Inspection",
    "Leader",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockDecorator",
    "Node",
    "NodeError",
    "NodeQuarantine",
    "NodeStatus",
    "NodeView",
    "NodeVote",
    "Once",
    "QuorlockError",
    "QuorumUnreachable",
    "RLock",
    "Reader",
    "Redlock",
    "Semaphore",
    "StaleFence",
    "Ticket",
    "Tls",
    "VoteCode",
    "now",
]
