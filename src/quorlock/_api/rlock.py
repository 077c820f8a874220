"""The part of a re-entrant lock that both APIs share: how often its owner holds it.

The owner is a thread, or an asyncio task.  The nodes have one token, and this process counts.
Counts on nodes are unsound (docs/explanation/left-out.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar

from quorlock._api.lease import LeaseBase, state_of
from quorlock._api.lock import LockBase
from quorlock._api.misuse import HintedNames
from quorlock._core.config import Seconds
from quorlock._drivers import fork
from quorlock.errors import ConfigError, LeaseLost

K = TypeVar("K", bound=LockBase[Any, Any])
L = TypeVar("L", bound=LeaseBase[Any])


class Hold(Generic[L]):
    """A lease, and how often its owner has acquired it and not yet released it.

    blocks: the open `async with` blocks among these.
    """

    __slots__ = ("blocks", "count", "generation", "lease")

    def __init__(self, lease: L) -> None:
        self.lease = lease
        self.count = 1
        self.blocks = 0
        self.generation = fork.generation


class Holds(Protocol[L]):
    """The holds of each owner through the re-entrant locks of one Redlock."""

    @property
    def by_key(self) -> MutableMapping[bytes, Hold[L]]:
        """The holds of the calling owner."""
        ...


class RLockBase(HintedNames, ABC, Generic[K, L]):
    """A resource that its owner may acquire again while it holds it, in both APIs."""

    __slots__ = ("_holds", "_key", "_lock", "_renew")

    _OWNER: ClassVar[str]

    _HINTS: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("extend", "renew"), "use `extend` of the lease that acquire() returned"),
        **dict.fromkeys(("owned", "held"), "see `held` of the lease that acquire() returned"),
        "unlock": "use `release`",
    }

    def __init__(
        self,
        lock: K,
        key: bytes,
        renew: bool,  # noqa: FBT001 (not public: `Redlock.rlock` takes it by name)
        holds: Holds[L],
    ) -> None:
        self._lock = lock
        self._key = key
        self._renew = renew
        self._holds = holds

    @property
    def resource(self) -> str:
        """The name of the protected resource."""
        return self._lock.resource

    @property
    def shared(self) -> bool:
        """True if it shares the lock with others that do so too."""
        return self._lock.shared

    @property
    def ttl(self) -> float:
        """The lease time in seconds."""
        return self._lock.ttl

    @property
    def fencing(self) -> bool:
        """True if its leases have a `fence`."""
        return self._lock.fencing

    @property
    def timeout(self) -> Seconds | None:
        """The time to wait for the lock: seconds, None without limit, 0 for one attempt."""
        return self._lock.timeout

    def _hold(self) -> Hold[L] | None:
        """Return the hold of the calling owner; a forked process has none of its parent's."""
        hold = self._holds.by_key.get(self._key)
        return hold if hold is not None and hold.generation == fork.generation else None

    def _own_hold(self) -> Hold[L]:
        """Return what the owner holds. Raises RuntimeError."""
        hold = self._hold()
        if hold is None:
            message = f"{self.resource!r} is not held by this {self._OWNER}"
            raise RuntimeError(f"{message}: release it where it was acquired, and as often")
        return hold

    def _begin(self, lease: L) -> L:
        """Record a lease that the owner has just acquired."""
        self._holds.by_key[self._key] = Hold(lease)
        return lease

    def _count(self) -> int:
        """Return how often the owner holds the lock."""
        hold = self._hold()
        return 0 if hold is None else hold.count

    def _is_short(self, hold: Hold[L]) -> bool:
        """Return whether a nested acquire must extend the lease first.

        Raises:
            LeaseLost: the lease of the outer acquire is over.
            ConfigError: it lacks what this lock promises, or is shared.
        """
        lease = hold.lease
        lease.ensure()
        if self.fencing and lease.fence is None:
            self._raise_unlike("fencing")
        if lease.shared and not self.shared:
            fix = f"this {self._OWNER} shares {self.resource!r}: release it before it is held alone"
            raise ConfigError("shared", False, fix)
        if self._renew and state_of(lease).renewal is None:
            self._raise_unlike("renew")
        return lease.validity < self.ttl / 2

    def _raise_unlike(self, argument: str) -> NoReturn:
        fix = (
            f"this {self._OWNER} holds {self.resource!r} without it: give it to the outer lock too"
        )
        raise ConfigError(argument, True, fix)

    def _end(self, hold: Hold[L]) -> None:
        """Forget what the owner holds, before its release is sent."""
        if self._holds.by_key.get(self._key) is hold:
            del self._holds.by_key[self._key]

    def _restore(self, hold: Hold[L] | None, count: int) -> None:
        """Leave the owner with this count, after an interrupt at any point."""
        if hold is None:
            return
        hold.count = min(hold.count, count)
        hold.blocks = min(hold.blocks, count)
        if not count:
            self._end(hold)
            self._drop(hold.lease)

    def _abandon(self) -> None:
        """Release the lock once, after an interrupt that came before that."""
        hold = self._hold()
        if hold is not None:
            self._restore(hold, hold.count - 1)

    @abstractmethod
    def _drop(self, lease: L) -> None:
        """Release a lease in the background, unless it has been released."""

    def _left_unheld(self, error: BaseException | None) -> None:
        """Report the end of a block whose lock the owner does not hold; mask no error."""
        if error is None:
            self._own_hold()
        else:
            error.add_note(f"quorlock: {self.resource!r} was not held at the end of its block")

    def _lost_inside(self, hold: Hold[L], error: BaseException | None) -> None:
        """Report a loss at the end of a block inside another one, which releases the lease."""
        state = state_of(hold.lease)
        if state.held or state.was_released:
            return
        lost = LeaseLost(self.resource, state.over_because, lease=hold.lease)
        if error is None:
            raise lost
        if isinstance(error, Exception) and not isinstance(error, LeaseLost):
            error.add_note(f"quorlock: {lost}")

    def __repr__(self) -> str:
        return f"<RLock on {self.resource!r}, ttl {self.ttl:g} s>"

    def __reduce__(self) -> NoReturn:
        message = "a lock cannot be copied or pickled: make one in each process"
        raise TypeError(message)
