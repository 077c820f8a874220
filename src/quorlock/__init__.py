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

A name is loaded when it is first asked for: asyncio has no use for the blocking face, nor
`quorlock --help` for either (docs/decisions/0011).
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for true, by its name, and `typing` is not needed
if TYPE_CHECKING:
    from quorlock import errors as errors
    from quorlock._core.outcomes import NodeStatus, NodeVote
    from quorlock._face.clock import now
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

# Where the names are, but for those of `errors`. tests/project/test_imports.py compares.
_HOMES = {
    "Inspection": "_face.inspection",
    "Lease": "_sync.lease",
    "Lock": "_sync.lock",
    "Node": "_wire.nodes",
    "NodeStatus": "_core.outcomes",
    "NodeView": "_face.inspection",
    "NodeVote": "_core.outcomes",
    "Redlock": "_sync.redlock",
    "Ticket": "_face.ticket",
    "Tls": "_wire.nodes",
    "now": "_face.clock",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return _loaded(name)
    if name not in __all__:
        raise AttributeError(f"module 'quorlock' has no attribute {name!r}")
    value = globals()[name] = getattr(_loaded(_HOMES.get(name, "errors")), name)
    return value


def _loaded(module: str) -> object:
    # importlib is five modules more, for the same.
    return __import__(f"quorlock.{module}", fromlist=["*"])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "errors"})
