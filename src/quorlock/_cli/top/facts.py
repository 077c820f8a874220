"""The facts of one turn, which `report` displays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from quorlock import Inspection

UP, DOWN, HUNG, KEPT_OUT = "up", "down", "hung", "kept out"


class TopNodeFacts(NamedTuple):
    """One node.

    state: UP, DOWN, HUNG (it is reachable but does not reply) or KEPT_OUT (it replies but does not
        vote).
    why: the reason in words; "" if it is up.
    latency_p50, latency_max: of TIME, in seconds, over recent requests.
    connections: the number of those named quorlock, including this program's.
    keys: in the database; None: unknown.
    ops: commands per second, as the node counts; None: unknown.
    lacks: the missing permissions.
    """

    node: str
    state: str
    why: str = ""
    latency_p50: float | None = None
    latency_max: float | None = None
    connections: int | None = None
    keys: int | None = None
    ops: int | None = None
    lacks: Sequence[str] = ()


class LockFacts(NamedTuple):
    """One resource that is not free.

    seen_for: seconds since this holder was first seen.
    changes: how often the holder changed.
    tried: connections that tried to acquire it during a sample; None: no sample.
    """

    inspection: Inspection
    seen_for: float
    changes: int
    tried: int | None = None


class NodeColumns(NamedTuple):
    """All facts of a turn.

    more: the number of matching resources that were not inspected.
    notes: sentences about what is missing.
    """

    at: datetime
    nodes: Sequence[TopNodeFacts]
    locks: Sequence[LockFacts]
    more: int
    notes: Sequence[str]
