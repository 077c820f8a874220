"""Who takes part, what each must offer to be measured, and how to get hold of it.

Leaves what is measured to `bench.works`, and each library's settings to the module that wraps it.
Importing this imports no contestant: each is imported in the child process that measures it.
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

# A resource is never held longer than this by anybody, and no contestant's ttl is shorter.
TTL = 10.0
# So many resources in turn, shared out among the workers.
NAMES = 1000


class NotAcquired(Exception):
    """One attempt on a lock that was to be free did not get it."""


class Blocking(Protocol):
    """A library's blocking face. One instance a process, shared by its threads.

    `pause`: seconds between two tries of `wait`; None is the library's own.
    """

    def __init__(self, urls: Sequence[str], ttl: float, pause: float | None = None) -> None: ...

    def acquire(self, resource: str) -> Any:
        """One attempt on a free lock: what `release` wants. Raises if it was not acquired."""

    def wait(self, resource: str) -> Any:
        """Wait as long as it takes, in the library's own way."""

    def release(self, handle: Any) -> None:
        """Give it back; raises where the library does."""

    def extend(self, handle: Any) -> None:
        """Another ttl from now on. NotImplementedError where the library has none."""

    def close(self) -> None:
        """Close all connections."""


class Asyncio(Protocol):
    """The same for a library's asyncio face. One instance an event loop, shared by its tasks."""

    def __init__(self, urls: Sequence[str], ttl: float, pause: float | None = None) -> None: ...

    async def open(self) -> None:
        """Called once, in the loop."""

    async def acquire(self, resource: str) -> Any:
        """One attempt on a free lock: what `release` wants. Raises if it was not acquired."""

    async def wait(self, resource: str) -> Any:
        """Wait as long as it takes, in the library's own way."""

    async def release(self, handle: Any) -> None:
        """Give it back; raises where the library does."""

    async def extend(self, handle: Any) -> None:
        """Another ttl from now on. NotImplementedError where the library has none."""

    async def close(self) -> None:
        """Close all connections."""


T = TypeVar("T")
Face = Literal["blocking", "asyncio", "program"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One row of every table. A `program` is no Python: bench/node/one.js speaks for it."""

    name: str
    face: Face
    where: str  # "module:Class"
    needs: tuple[str, ...]  # what must be importable
    settings: str  # in a few words, for the table; why: bench/README.md
    one_node: bool = False  # asks urls[0] alone
    uvloop: bool = False
    extends: bool = True
    same_as: str = ""  # the name under which its ratio is told: a tuned peer is still that peer

    @property
    def kin(self) -> str:
        """The library, whatever its settings here."""
        return self.same_as or self.name

    @property
    def missing(self) -> str:
        """What it lacks here; empty if it can take part."""
        lacking = [module for module in self.needs if find_spec(module) is None]
        if self.face == "program":
            lacking += [] if which("node") else ["node"]
            lacking += [] if (NODE_FOLDER / "node_modules" / "redlock").is_dir() else ["npm ci"]
        return ", ".join(lacking)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it to its end in the event loop that this contestant asks for."""
        if not self.uvloop:
            return run(coroutine)
        import uvloop

        with Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(coroutine)

    def load(self) -> Any:
        """Its class."""
        module, _, name = self.where.partition(":")
        return getattr(import_module(module), name)


def blocking(
    name: str, urls: Sequence[str], ttl: float = TTL, pause: float | None = None
) -> Blocking:
    """A contestant that is ready to be asked; those for one node get urls[0] alone."""
    return cast("Blocking", _made(name, "blocking", urls, ttl, pause))


def asyncio(
    name: str, urls: Sequence[str], ttl: float = TTL, pause: float | None = None
) -> Asyncio:
    """The same; `open()` is still to be awaited."""
    return cast("Asyncio", _made(name, "asyncio", urls, ttl, pause))


def _made(name: str, face: Face, urls: Sequence[str], ttl: float, pause: float | None) -> Any:
    contestant = CONTESTANTS[name]
    assert contestant.face == face, name
    return contestant.load()(urls[:1] if contestant.one_node else urls, ttl, pause)


def _peer(
    name: str, face: Face, where: str, needs: tuple[str, ...], settings: str, **more: Any
) -> Contestant:
    return Contestant(name, face, f"bench.contestants.{where}", needs, settings, **more)


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
    _peer("quorlock.asyncio", "asyncio", "ours:OursAsyncio", (), "defaults"),
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
