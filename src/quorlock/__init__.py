"""The distributed lock for Python: Redlock over N independent Redis or Valkey masters.

    from quorlock import Redlock            # or: from quorlock.asyncio import Redlock

    redlock = Redlock(["redis://a:6379", "redis://b:6379", "redis://c:6379"])
    with redlock.lock("invoice:42") as lease:
        lease.ensure()                      # raises LeaseLost unless the lock is still held

Packages, in the order of their imports, the lowest last:

    _sync/       the blocking API, re-exported here; asyncio/ has the same names
    _api/        the parts that both APIs share: sessions, lease states, tickets, reports
    _drivers/    performing effects: sockets and poll, or asyncio
    _protocol/   commands and replies as bytes
    _core/       the algorithm as pure flows (start at _core/redlock.py)
    scripts/     the Lua scripts that run on the nodes
    _nodes/      how nodes are named: URLs, settings, clients of redis-py and valkey-py
    errors.py    the errors, as a tree
    fencing/     helpers that let a database, Redis or a file refuse late writers
    testing/     memory nodes and real local servers for tests

The sockets of the blocking API, and hiredis, are loaded with the first `Redlock`
(docs/contributing/decisions/0011-named-tuples-for-facts.md).
"""

from quorlock import errors as errors
from quorlock._api.clock import now
from quorlock._api.health import Health
from quorlock._api.inspection import Inspection, NodeView
from quorlock._api.ticket import Ticket
from quorlock._core.results import NodeStatus
from quorlock._nodes.node import Node
from quorlock._nodes.tls import Tls
from quorlock._sync.lease import Lease
from quorlock._sync.lock import Lock, LockDecorator
from quorlock._sync.redlock import Redlock
from quorlock.errors import (
    AcquireError,
    AcquireTimeout,
    ConfigError,
    HoldLimitReached,
    LeaseLost,
    NodeError,
    NodeVote,
    QuorlockError,
    QuorumUnreachable,
    StaleFence,
    VoteCode,
)

__version__ = "0.1.0"

__all__ = [
    "AcquireError",
    "AcquireTimeout",
    "ConfigError",
    "Health",
    "HoldLimitReached",
    "Inspection",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockDecorator",
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
    "VoteCode",
    "now",
]
