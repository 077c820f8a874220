"""What a node can be asked. Data only: bytes are made of it in `_wire`.

Every command is aimed at one lock key, and all but `Inspect` carry a token, so that none of
them can touch what somebody else holds.
"""

from typing import NamedTuple

# No `from __future__ import annotations` here, in `outcomes` and in `effects`: a named tuple
# compiles every annotation that is a string, which makes 2 ms of our import.


class Acquire(NamedTuple):
    """Set the key to the token for ttl_ms, if nothing is there (SET NX PX)."""

    key: bytes
    token: bytes
    ttl_ms: int

    # A named tuple equals any tuple with the same facts, and an Extend has the same.
    def __eq__(self, other: object) -> bool:
        return type(other) is Acquire and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Acquire, *self))


class Extend(NamedTuple):
    """Let the key live ttl_ms from now, if it holds the token; never shorten its life."""

    key: bytes
    token: bytes
    ttl_ms: int

    def __eq__(self, other: object) -> bool:
        return type(other) is Extend and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Extend, *self))


class Release(NamedTuple):
    """Delete the key, if it holds the token; else tell how long another's will live."""

    key: bytes
    token: bytes


class AcquireByScript(NamedTuple):
    """The same, where a SET tells too little: with a fence, or with a look at the guard's marker.

    grid_ms: the fence is at least the next multiple of it on the node's clock; 0: none is wanted.
    marker_ms: for how long the node must have had its marker; 0: it needs none.
    """

    key: bytes
    token: bytes
    ttl_ms: int
    grid_ms: int = 0
    marker_ms: int = 0


class Raise(NamedTuple):
    """Issue this fence to us as well, if the key holds the token and the counter is below it.

    ahead_ms: how far it may be ahead of the node's clock.
    """

    key: bytes
    token: bytes
    fence: int
    ahead_ms: int


class Inspect(NamedTuple):
    """Tell which token the key holds and how long it will live."""

    key: bytes


class Track(Inspect):
    """Tell from now on when somebody else changes a key that is read over this connection.

    Of no one key, so that is empty; nobody waits for the answer.  See `Agenda.hint`.
    """

    __slots__ = ()


Command = Acquire | AcquireByScript | Raise | Extend | Release | Inspect
# What sets keys, and must therefore be followed by a release, or be owed one.
ACQUIRES = (Acquire, AcquireByScript)
# A node that owes too many answers is spared these: they are asked again, and owe nobody anything.
SPARED = (*ACQUIRES, Inspect)
AnyAcquire = Acquire | AcquireByScript
