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


class Inspect(NamedTuple):
    """Tell which token the key holds and how long it will live."""

    key: bytes


Command = Acquire | Extend | Release | Inspect
