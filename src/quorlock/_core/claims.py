"""Claims: what a node keeps for a token, and the commands that ask for it.

A flow has a claim and knows no more of it than this: how to acquire, extend and release it.

A claim is sound on a quorum if its conflicts are pairwise: two claims that must not be held at once
are refused by every single node that has the other, and two quorums share a node.  Counting is not
of this kind (rule 15).
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from quorlock._core.commands import (
    JOIN,
    Acquire,
    AcquireAny,
    AnyAcquire,
    Extend,
    IssueFence,
    Release,
    ScriptedAcquire,
    Share,
)
from quorlock._core.places import shared_place

if TYPE_CHECKING:
    from quorlock._core.config import Policy


# As `Acquire(...)`, `Release(...)` and `Keys(...)`, without the Python call of a named tuple; see
# `replied` in rounds.py.  Each saves ten instructions of a cycle.
_new = getattr(tuple, "__new__")  # noqa: B009
_acquire: Callable[[tuple[bytes, bytes, int]], Acquire] = partial(_new, Acquire)
_release: Callable[[tuple[bytes, bytes, bytes, int, tuple[bytes, ...]]], Release] = partial(
    _new, Release
)


class BaseClaim(Protocol):
    """The keys that a request asks for."""

    @property
    def key(self) -> bytes:
        """The lock key by which waiters and reports name it."""
        ...

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All keys that the token may be at."""
        ...

    def release(self, token: bytes) -> Release:
        """Return the command that releases what the token has, or may get."""
        ...


class Claim(BaseClaim, Protocol):
    """The keys that a lease has, or a request for them all."""

    def acquire(
        self,
        token: bytes,
        ttl_ms: int,
        policy: "Policy",
        *,
        fenced: bool = False,
        place: bytes = b"",
        instead: bytes = b"",
    ) -> AnyAcquire:
        """Return the command of an acquire.

        Args:
            token: The proof of ownership.
            ttl_ms: The lease time.
            policy: The settings.
            fenced: The node issues a fence.
            place: The caller's place in the queue of `key`; b"": it has none.
            instead: A token at `key` that is replaced; b"": none.
        """
        ...

    def extend(self, token: bytes, ttl_ms: int) -> Extend:
        """Return the command that extends what the token has."""
        ...

    def release(self, token: bytes, place: bytes = b"", ticket: int = JOIN) -> Release:
        """Return the command that releases what the token has, or may get.

        The place and its ticket are those of a `Release`, in the queue of `key`.
        """
        ...

    def issue_fence(self, token: bytes, fence: int, ahead_ms: int) -> IssueFence:
        """Return the command that issues a fence of another node to this token too."""
        ...

    def led_by(self, key: bytes) -> "Claim":
        """Return the same claim with this one of its keys as `key`."""
        ...


class Keys(NamedTuple):
    """One lock, or several locks at once: all of the keys have the token, or none has."""

    key: bytes
    also: tuple[bytes, ...] = ()

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All keys."""
        return (self.key, *self.also)

    def acquire(
        self,
        token: bytes,
        ttl_ms: int,
        policy: "Policy",
        *,
        fenced: bool = False,
        place: bytes = b"",
        instead: bytes = b"",
    ) -> AnyAcquire:
        """Return a plain SET if possible: the cheapest command, and compatible."""
        key, also = self
        has_marker = policy.restart_guard == "marker"
        if not (fenced or has_marker or place or instead or also):
            return _acquire((key, token, ttl_ms))
        marker_ms = policy.max_ttl_ms if has_marker else 0
        grid_ms = policy.fence_grid_ms if fenced else 0
        return ScriptedAcquire(key, token, ttl_ms, grid_ms, marker_ms, place, instead, also)

    def extend(self, token: bytes, ttl_ms: int) -> Extend:
        """Return the command that extends all keys."""
        return Extend(self.key, token, ttl_ms, self.also)

    def release(self, token: bytes, place: bytes = b"", ticket: int = JOIN) -> Release:
        """Return the command that frees all keys."""
        key, also = self
        return _release((key, token, place, ticket, also))

    def issue_fence(self, token: bytes, fence: int, ahead_ms: int) -> IssueFence:
        """Return the command that issues a fence to all keys."""
        return IssueFence(self.key, token, fence, ahead_ms, self.also)

    def led_by(self, key: bytes) -> "Keys":
        """Return the same keys, this one first."""
        return Keys(key, tuple([other for other in self.keys if other != key]))


class AnyOf(NamedTuple):
    """Any one of several locks: a node gives the first that is free, and a quorum the same one.

    The lease that is won is a lease on that lock alone, with the claim `Keys`.  Other locks that
    nodes have given are released at once (`any_of`).  So no lease has this claim: it is neither
    extended nor fenced, and never waits in a queue.
    """

    keys: tuple[bytes, ...]

    @property
    def key(self) -> bytes:
        """The first key."""
        return self.keys[0]

    def acquire(self, token: bytes, ttl_ms: int, policy: "Policy") -> AcquireAny:
        """Return the command for all keys, in this order."""
        key, *also = self.keys
        marker_ms = policy.max_ttl_ms if policy.restart_guard == "marker" else 0
        return AcquireAny(key, token, ttl_ms, marker_ms, tuple(also))

    def release(self, token: bytes) -> Release:
        """Return the command that frees whichever key the token has."""
        key, *also = self.keys
        return Release(key, token, also=tuple(also))


class Shared(NamedTuple):
    """One lock that others may share: a reader excludes holders that have it alone, and no reader.

    That is a conflict of two, so a quorum is enough.  It has no fence: the attempts of readers
    overlap, so the counters of the nodes would disagree.  Each of its waiters has a place in the
    queue of the lock, also in one process, since several may be granted together.
    """

    key: bytes

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The key."""
        return (self.key,)

    def acquire(
        self,
        token: bytes,
        ttl_ms: int,
        policy: "Policy",
        *,
        fenced: bool = False,
        place: bytes = b"",
        instead: bytes = b"",
    ) -> Share:
        """Return the command that joins the readers."""
        if fenced or instead:
            raise _only_alone("acquired with a fence, or in exchange")
        marker_ms = policy.max_ttl_ms if policy.restart_guard == "marker" else 0
        return Share(self.key, token, ttl_ms, marker_ms, place)

    def extend(self, token: bytes, ttl_ms: int) -> Extend:
        """Return the command that extends this reader, and no other."""
        return Extend(self.key, token, ttl_ms, shared=True)

    def release(self, token: bytes, place: bytes = b"", ticket: int = JOIN) -> Release:
        """Return the command that removes this reader."""
        return Release(self.key, token, place, ticket)

    def issue_fence(self, token: bytes, fence: int, ahead_ms: int) -> IssueFence:
        """Refuse: leases that are shared have no fence."""
        raise _only_alone("given a fence", token, fence, ahead_ms)

    def led_by(self, key: bytes) -> "Shared":
        """Return the same claim: it has one key."""
        assert key == self.key
        return self


def waits_apart(claim: Claim) -> bool:
    """Return whether each of its waiters queues at the nodes, not in a line of its process."""
    return bool(claim.also) if type(claim) is Keys else True


def place_of_claim(claim: Claim, place: bytes) -> bytes:
    """Return an enlisted place as the nodes have it in their queues."""
    return shared_place(place) if type(claim) is Shared else place


def _only_alone(what: str, *_: object) -> TypeError:
    return TypeError(f"a claim that is shared is not {what}")


keys_of: Callable[[tuple[bytes, tuple[bytes, ...]]], Keys] = partial(_new, Keys)
