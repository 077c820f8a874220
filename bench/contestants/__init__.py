"""The contestants and the protocols that they implement to be measured.

Each library's settings are in the module that wraps it. Importing this package imports no
contestant: the child process that measures one imports it.
"""

from __future__ import annotations

from asyncio import Runner, run
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

NODE_FOLDER = Path(__file__).parents[1] / "node"

# The ttl of all contestants; no resource is held longer.
TTL = 10.0
# The number of resources, used in turn and divided among the workers.
NAMES = 1000


class NotAcquired(Exception):
    """One attempt on a free lock did not acquire it."""


class Blocking(Protocol):
    """A library's blocking API: one instance per process, shared by its threads."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None: ...

    def acquire(self, resource: str) -> Any:
        """Make one attempt on a free lock; return the handle for `release` or raise NotAcquired."""

    def wait(self, resource: str) -> Any:
        """Wait without a limit, in the way of the library."""

    def release(self, handle: Any) -> None:
        """Release the lock; raise if the library does."""

    def extend(self, handle: Any) -> None:
        """Extend the lock by the ttl; raise NotImplementedError if the library cannot."""

    def close(self) -> None:
        """Close all connections."""


class Asyncio(Protocol):
    """A library's asyncio API: one instance per event loop, shared by its tasks."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None: ...

    async def open(self) -> None:
        """Connect; called once, in the loop."""

    async def acquire(self, resource: str) -> Any:
        """Make one attempt on a free lock; return the handle for `release` or raise NotAcquired."""

    async def wait(self, resource: str) -> Any:
        """Wait without a limit, in the way of the library."""

    async def release(self, handle: Any) -> None:
        """Release the lock; raise if the library does."""

    async def extend(self, handle: Any) -> None:
        """Extend the lock by the ttl; raise NotImplementedError if the library cannot."""

    async def close(self) -> None:
        """Close all connections."""


def block_of(lock: Blocking | Asyncio) -> Any:
    """Return what makes the block that is a cycle; None for a contestant without blocks.

    The works enter it where they measure, since a function around it would be measured too.
    """
    return getattr(lock, "block", None)


T = TypeVar("T")
Api = Literal["blocking", "asyncio", "program"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One row of every table. A `program` is not Python: bench/node/one.js measures it."""

    name: str
    api: Api
    where: str  # "module:Class"
    needs: tuple[str, ...]  # required modules
    settings: str  # a summary for the table; bench/README.md gives the reasons
    one_node: bool = False  # uses only urls[0]
    uvloop: bool = False
    extends: bool = True
    same_as: str = ""  # the untuned contestant, if this one is tuned

    @property
    def kin(self) -> str:
        """The library, regardless of its settings."""
        return self.same_as or self.name

    @property
    def missing(self) -> str:
        """The missing requirements; empty if the contestant can be measured."""
        lacking = [module for module in self.needs if find_spec(module) is None]
        if self.api == "program":
            lacking += [] if which("node") else ["node"]
            lacking += [] if (NODE_FOLDER / "node_modules" / "redlock").is_dir() else ["npm ci"]
        return ", ".join(lacking)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop of this contestant."""
        if not self.uvloop:
            return run(coroutine)
        import uvloop

        with Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(coroutine)

    def load(self) -> Any:
        """Import and return the class."""
        module, _, name = self.where.partition(":")
        return getattr(import_module(module), name)


def blocking(name: str, urls: Sequence[str], ttl: float = TTL) -> Blocking:
    """Return a blocking contestant; those for one node get only urls[0]."""
    return cast("Blocking", _made(name, "blocking", urls, ttl))


def asyncio(name: str, urls: Sequence[str], ttl: float = TTL) -> Asyncio:
    """Return an asyncio contestant; `open()` has to be awaited."""
    return cast("Asyncio", _made(name, "asyncio", urls, ttl))


def _made(name: str, api: Api, urls: Sequence[str], ttl: float) -> Any:
    contestant = CONTESTANTS[name]
    assert contestant.api == api, name
    return contestant.load()(urls[:1] if contestant.one_node else urls, ttl)


def _peer(
    name: str, api: Api, where: str, needs: tuple[str, ...], settings: str, **more: Any
) -> Contestant:
    return Contestant(name, api, f"bench.contestants.{where}", needs, settings, **more)


_TUNED = "no retries, 1 s timeouts, RESP2"
_BARE = "one connection a node, no retries, no timeouts, RESP2"
_ALL = (
    Contestant("limit.all", "blocking", "bench.limit:All", (), "waits for all", extends=False),
    Contestant(
        "limit.quorum", "blocking", "bench.limit:Quorum", (), "stops at the quorum", extends=False
    ),
    Contestant(
        "limit.saturated", "asyncio", "", (), "cycles pipelined to every node", extends=False
    ),
    _peer("quorlock", "blocking", "ours:Ours", (), "defaults"),
    _peer("quorlock+with", "blocking", "ours:OursInBlocks", (), "in a `with` block", extends=False),
    _peer("quorlock.asyncio", "asyncio", "ours:OursAsyncio", (), "defaults"),
    _peer(
        "quorlock.asyncio+with",
        "asyncio",
        "ours:OursAsyncioInBlocks",
        (),
        "in an `async with` block",
        extends=False,
    ),
    _peer(
        "quorlock.asyncio+uvloop",
        "asyncio",
        "ours:OursAsyncio",
        ("uvloop",),
        "defaults, on uvloop",
        uvloop=True,
    ),
    _peer(
        "redlock-py",
        "blocking",
        "redlock_py:RedlockPy",
        ("redlock", "redis"),
        "as its page shows",
        extends=False,
    ),
    _peer(
        "redlock-py.tuned",
        "blocking",
        "redlock_py:Tuned",
        ("redlock", "redis"),
        f"clients without a pool, {_TUNED}",
        extends=False,
        same_as="redlock-py",
    ),
    _peer("pottery", "blocking", "pottery_:Pottery", ("pottery",), "as its page shows"),
    _peer("pottery.tuned", "blocking", "pottery_:Tuned", ("pottery",), _TUNED, same_as="pottery"),
    _peer(
        "pottery.asyncio", "asyncio", "pottery_:PotteryAsyncio", ("pottery",), "as its page shows"
    ),
    _peer(
        "pottery.asyncio.tuned",
        "asyncio",
        "pottery_:TunedAsyncio",
        ("pottery",),
        _BARE,
        same_as="pottery.asyncio",
    ),
    _peer(
        "redis-py.Lock",
        "blocking",
        "redis_py:RedisPyLock",
        ("redis",),
        "one node; as its page shows",
        one_node=True,
    ),
    _peer(
        "redis-py.Lock.tuned",
        "blocking",
        "redis_py:Tuned",
        ("redis",),
        f"one node; no pool, {_TUNED}",
        one_node=True,
        same_as="redis-py.Lock",
    ),
    _peer(
        "python-redis-lock",
        "blocking",
        "redis_lock_:PythonRedisLock",
        ("redis_lock", "redis"),
        "one node; no pool, no retries, no socket timeout",
        one_node=True,
    ),
    _peer(
        "redis.asyncio+gather", "asyncio", "redis_py:GatherAsyncio", ("redis",), "as its page shows"
    ),
    _peer(
        "redis.asyncio+gather.tuned",
        "asyncio",
        "redis_py:GatherTuned",
        ("redis",),
        _BARE,
        same_as="redis.asyncio+gather",
    ),
    _peer(
        "redis.asyncio+gather.careful",
        "asyncio",
        "redis_py:GatherCareful",
        ("redis",),
        _TUNED,
        same_as="redis.asyncio+gather",
    ),
    _peer("coredis+gather", "asyncio", "coredis_:CoredisGather", ("coredis",), "as its page shows"),
    _peer(
        "coredis.Lock",
        "asyncio",
        "coredis_:CoredisLock",
        ("coredis",),
        "one node; as its page shows",
        one_node=True,
    ),
    _peer(
        "valkey-glide+gather",
        "asyncio",
        "glide_:GlideGather",
        ("glide", "redis"),
        "as its page shows",
    ),
    Contestant("node-redlock", "program", "", (), "ioredis, as its page shows"),
    Contestant(
        "node-redlock+autopipelining",
        "program",
        "",
        (),
        "ioredis, enableAutoPipelining",
        same_as="node-redlock",
    ),
)
CONTESTANTS = {contestant.name: contestant for contestant in _ALL}
