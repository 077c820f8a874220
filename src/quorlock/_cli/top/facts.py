"""The facts of one turn, which `report` displays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from quorlock import Inspection

UP, DOWN, HUNG, KEPT_OUT = "up", "down", "hung", "kept out"


class TopNodeFacts(NamedTuple):
    """One node; None: unknown."""

    node: str
    state: str  # UP, DOWN, HUNG (reachable, and does not reply), KEPT_OUT (replies without a vote)
    why: str = ""  # in words; "" if it is up
    latency_p50: float | None = None  # of TIME, in seconds, over recent requests
    latency_max: float | None = None
    connections: int | None = None  # those named quorlock, including this program's
    keys: int | None = None  # in the database
    ops: int | None = None  # commands per second, as the node counts
    lacks: Sequence[str] = ()  # the missing permissions


class LockFacts(NamedTuple):
    """One resource that is not free."""

    inspection: Inspection
    seen_for: float  # seconds since this holder was first seen
    changes: int  # how often the holder changed
    tried: int | None = None  # connections that tried to acquire it in a sample; None: no sample


class NodeColumns(NamedTuple):
    """All facts of a turn."""

    at: datetime
    nodes: Sequence[TopNodeFacts]
    locks: Sequence[LockFacts]
    more: int  # matching resources that were not inspected
    notes: Sequence[str]  # sentences about what is missing
