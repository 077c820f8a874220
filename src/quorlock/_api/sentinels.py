"""Defaults that signatures share, and the sentinel for "the lock's own timeout"."""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, TypeAlias

from quorlock._core.config import Seconds


class Own(Enum):
    """The value of an argument that was not given."""

    TIMEOUT = "the lock's own timeout"

    def __repr__(self) -> str:
        return "OWN_TIMEOUT"


OWN_TIMEOUT: Final = Own.TIMEOUT
Timeout: TypeAlias = Seconds | Literal[Own.TIMEOUT] | None
