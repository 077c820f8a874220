"""The commands that can be sent to a node: data only, encoded in `_protocol`.

Every command names a lock key, and all but `Inspect` carry a token: a command never changes a key
that holds another token.  Readers, which share a lock, have their tokens at its key together.
`also` has further lock keys, if a claim has several: all of them are set or extended by the
command, or none is.  An `AcquireAny` sets one of them.
"""

from typing import NamedTuple

# No `from __future__ import annotations` here, nor where other named tuples are: they compile
# every annotation that is a string, which adds 2 ms to the import.


class Acquire(NamedTuple):
    """A request to set the key to the token for ttl_ms if the key is absent (SET NX PX)."""

    key: bytes
    token: bytes
    ttl_ms: int

    # A named tuple equals any tuple with the same fields, and an Extend has the same fields.
    def __eq__(self, other: object) -> bool:
        return type(other) is Acquire and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Acquire, *self))


class Extend(NamedTuple):
    """A request to extend the key to ttl_ms from now if it holds the token; never shortens it.

    shared: the token is that of a reader.
    """

    key: bytes
    token: bytes
    ttl_ms: int
    also: tuple[bytes, ...] = ()
    shared: bool = False

    def __eq__(self, other: object) -> bool:
        return type(other) is Extend and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Extend, *self))


class Keep(NamedTuple):
    """A request to set the key to a mark for kept_ms, if it holds the token (or that mark)."""

    key: bytes
    token: bytes
    mark: bytes
    kept_ms: int

    def __eq__(self, other: object) -> bool:
        return type(other) is Keep and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Keep, *self))


# Tickets that are no numbers; see `Release`.
JOIN = 0
LEAVE = -1


class Release(NamedTuple):
    """A request to free the key if it holds the token; else the reply has the remaining ttl.

    A node frees a key by passing it on: it reserves the key for the first waiter in its queue that
    receives the call, and deletes it if there is none (`scripts/release.lua`).

    place: the sender's place in that queue; b"": it has none there.
    ticket: what becomes of the place.  JOIN: it is queued behind all others.  LEAVE: it is removed.
    A positive number: it is queued with that number.  Below LEAVE: its number is corrected to
    -ticket if it is queued, and nothing else is done.
    also: each of these keys is freed too, if it holds the token.
    """

    key: bytes
    token: bytes
    place: bytes = b""
    ticket: int = JOIN
    also: tuple[bytes, ...] = ()

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All keys that it frees."""
        return (self.key, *self.also)


class Look(Release):
    """The request of a first waiter: it queues the place, and tracks the key.

    The place and the ticket are those of a `Release`, and so is the reply.  A server that can do so
    reports when another client changes the key after it.
    """

    __slots__ = ()


class ScriptedAcquire(NamedTuple):
    """An acquire by script, for what SET cannot do: issue a fence, check the guard's marker.

    grid_ms: the fence is at least the next multiple of it on the node's clock; 0: no fence.
    marker_ms: the least age of the node's marker; 0: no marker needed.
    place: a key that is reserved for it is granted too; it leaves the queue in any case.
    instead: a key that holds this token is granted too: another lease of this process, which ends.
    """

    key: bytes
    token: bytes
    ttl_ms: int
    grid_ms: int = 0
    marker_ms: int = 0
    place: bytes = b""
    instead: bytes = b""
    also: tuple[bytes, ...] = ()


class AcquireAny(NamedTuple):
    """An acquire of any one of several keys, by script: of the first that is free, in this order.

    The answer's `before` says which.  A key that has the token already is granted again.
    marker_ms: the least age of the node's marker; 0: no marker needed.
    """

    key: bytes
    token: bytes
    ttl_ms: int
    marker_ms: int = 0
    also: tuple[bytes, ...] = ()


class Share(NamedTuple):
    """An acquire of a lock that others may share, by script: the token joins those of its readers.

    It is granted unless the key is held alone, or the first waiter in its queue wants it so.  A
    token that is there already is granted again.
    marker_ms: the least age of the node's marker; 0: no marker needed.
    place: the sender's place in the queue; b"": it has none there.
    """

    key: bytes
    token: bytes
    ttl_ms: int
    marker_ms: int = 0
    place: bytes = b""


def replaced_token(command: "Command") -> bytes:
    """Return the token that an exchange replaces; b"" for any other command."""
    return command.instead if type(command) is ScriptedAcquire else b""


def ends_lease(command: "Command") -> bool:
    """Return whether it ends a lease of this process: a release, or an exchange."""
    return type(command) is Release or bool(replaced_token(command))


def may_be_submitted(command: "Command") -> bool:
    """Return whether another thread may send it later, to all nodes or to some.

    The flow of an exchange, or of a waiter that has a place, has to know which nodes got it: what
    it replaces there is freed by other commands elsewhere.
    """
    if type(command) is Acquire or type(command) is Release:
        return True
    return not (getattr(command, "place", b"") or replaced_token(command))


class IssueFence(NamedTuple):
    """A request to issue this fence too, if the key holds the token and the counter is below.

    ahead_ms: how far the fence may be ahead of the node's clock.
    """

    key: bytes
    token: bytes
    fence: int
    ahead_ms: int
    also: tuple[bytes, ...] = ()


class Inspect(NamedTuple):
    """A request for the token that the key holds, and for its remaining ttl."""

    key: bytes


class EnableTracking(Inspect):
    """A request to push an invalidation when another client changes a key read here.

    It concerns no single key: `key` has the words after CLIENT.  No flow waits for the reply.  See
    `_protocol/tracking.py`.
    """

    __slots__ = ()


class Subscribe(Inspect):
    """A request for the calls to one inbox; `key` is its channel.

    No flow waits for the reply: the server confirms it by a push.
    """

    __slots__ = ()


class Publish(Inspect):
    """A request to publish an empty message; `key` is the channel, the sender's own inbox.

    It shows whether the user has the right to call waiters; no flow waits for the reply.
    """

    __slots__ = ()


AnyAcquire = Acquire | ScriptedAcquire | AcquireAny | Share
Command = AnyAcquire | IssueFence | Extend | Keep | Release | Inspect
# The commands that set keys, so that a release must follow, or become a pending release.
ACQUIRES = (Acquire, ScriptedAcquire, AcquireAny, Share)
# Not sent to a node with too many outstanding replies: they can be retried, and nothing depends on
# their being sent.
SPARED = (*ACQUIRES, Inspect, Look)


def release_of(command: AnyAcquire | Release) -> Release:
    """Return the release of all that the command's token may have; it concerns no place."""
    also = () if isinstance(command, (Acquire, Share)) else command.also
    return Release(command.key, command.token, also=also)
