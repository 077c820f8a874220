"""The commands that can be sent to a node: data only, encoded in `_protocol`.

Every command names one lock key, and all but `Inspect` carry a token: a command never changes a key
that holds another token.
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
    """A request to extend the key to ttl_ms from now if it holds the token; never shortens it."""

    key: bytes
    token: bytes
    ttl_ms: int

    def __eq__(self, other: object) -> bool:
        return type(other) is Extend and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Extend, *self))


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
    """

    key: bytes
    token: bytes
    place: bytes = b""
    ticket: int = JOIN


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


def replaced_token(command: "Command") -> bytes:
    """Return the token that an exchange replaces; b"" for any other command."""
    return command.instead if type(command) is ScriptedAcquire else b""


def ends_lease(command: "Command") -> bool:
    """Return whether it ends a lease of this process: a release, or an exchange."""
    return type(command) is Release or bool(replaced_token(command))


class IssueFence(NamedTuple):
    """A request to issue this fence too, if the key holds the token and the counter is below.

    ahead_ms: how far the fence may be ahead of the node's clock.
    """

    key: bytes
    token: bytes
    fence: int
    ahead_ms: int


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


Command = Acquire | ScriptedAcquire | IssueFence | Extend | Release | Inspect
# The commands that set keys, so that a release must follow, or become a pending release.
ACQUIRES = (Acquire, ScriptedAcquire)
# Not sent to a node with too many outstanding replies: they can be retried, and nothing depends on
# their being sent.
SPARED = (*ACQUIRES, Inspect, Look)
AnyAcquire = Acquire | ScriptedAcquire
