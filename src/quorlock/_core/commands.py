"""What a node can be asked. Data only: bytes are made of it in `_wire`.

Every command is aimed at one lock key, and all but `Inspect` carry a token, so that none of
them can touch what somebody else holds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acquire:
    """Set the key to the token for ttl_ms, if nothing is there (SET NX PX)."""

    key: bytes
    token: bytes
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class Extend:
    """Let the key live ttl_ms from now, if it holds the token; never shorten its life."""

    key: bytes
    token: bytes
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the key, if it holds the token; else tell how long another's will live."""

    key: bytes
    token: bytes


@dataclass(frozen=True, slots=True)
class Inspect:
    """Tell which token the key holds and how long it will live."""

    key: bytes


Command = Acquire | Extend | Release | Inspect
