"""A distributed lock for Python, on one or more independent Redis or Valkey servers.

Only one process, on one of many machines, holds the lock on a resource at a time. A minority of the
servers may fail.

    from quorlock import AcquireTimeout, Redlock       # or: from quorlock.asyncio import Redlock

    redlock = Redlock(["redis://a:6379", "redis://b:6379", "redis://c:6379"])
    try:
        with redlock.lock("invoice:42", ttl=10.0, timeout=5.0) as lease:
            lease.ensure()                              # LeaseLost unless the lock is still held
    except AcquireTimeout as error:
        print(error)                                    # who refused, and for how long at most

Start with `help(quorlock.Redlock)`, `help(quorlock.Lock)` and `help(quorlock.Lease)`. Durations are
seconds. `quorlock.asyncio` has the same names, `quorlock.errors` all errors, `quorlock.fencing`
helpers that refuse late writers, `quorlock.testing` nodes in memory. The command line is in the
extra `cli`: `quorlock --help`. The documentation is in the folder `docs` of the repository and of
the sdist.
"""

# Names are loaded when they are first used: asyncio has no use for the blocking API
# (docs/contributing/decisions/0011-named-tuples-for-facts.md).
TYPE_CHECKING = False  # type checkers take it for true, by its name, and `typing` is not needed
if TYPE_CHECKING:
    from quorlock import errors as errors
    from quorlock._api.clock import now
    from quorlock._api.election import Leader
    from quorlock._api.health import Health
    from quorlock._api.inspection import Inspection, NodeView, Reader
    from quorlock._api.ticket import Ticket
    from quorlock._core.results import NodeStatus
    from quorlock._nodes.node import Node
    from quorlock._nodes.tls import Tls
    from quorlock._sync.election import Election
    from quorlock._sync.lease import Lease
    from quorlock._sync.lock import Lock, LockDecorator
    from quorlock._sync.once import Once
    from quorlock._sync.redlock import Redlock
    from quorlock._sync.rlock import RLock
    from quorlock._sync.semaphore import Semaphore
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

__version__ = "0.1.0"

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

# The modules of the names that are not in `errors`; tests/tooling/project/test_imports.py compares.
_MODULES = {
    "Election": "_sync.election",
    "Health": "_api.health",
    "Inspection": "_api.inspection",
    "Leader": "_api.election",
    "Lease": "_sync.lease",
    "Lock": "_sync.lock",
    "LockDecorator": "_sync.lock",
    "Node": "_nodes.node",
    "NodeStatus": "_core.results",
    "NodeView": "_api.inspection",
    "Once": "_sync.once",
    "RLock": "_sync.rlock",
    "Reader": "_api.inspection",
    "Redlock": "_sync.redlock",
    "Semaphore": "_sync.semaphore",
    "Ticket": "_api.ticket",
    "Tls": "_nodes.tls",
    "now": "_api.clock",
}

if not TYPE_CHECKING:  # else every name would be one of `quorlock`

    def __getattr__(name: str) -> object:
        if name != "errors" and name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # `import_module` would load five modules more.
        module = __import__(f"quorlock.{_MODULES.get(name, 'errors')}", fromlist=["*"])
        globals()[name] = found = module if name == "errors" else getattr(module, name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "errors"})
