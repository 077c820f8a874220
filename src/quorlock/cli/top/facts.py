"""What was seen at one turn. Data only: how it is shown is for `report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from quorlock import Inspection

UP, DOWN, HUNG, KEPT_OUT = "up", "down", "hung", "kept out"


class NodeFacts(NamedTuple):
    """One node.

    state: UP, DOWN, HUNG (it is there and does not answer) or KEPT_OUT (it answers, and does not
    vote).  why: in words; "" while it is up.
    latency_p50, latency_max: of TIME, in seconds, over the last looks.
    connections: those that are named quorlock; one is our own.  keys: in the database.
    ops: commands per second, as the node counts.  None: it did not tell.
    lacks: rights without which it did not.
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

    seen_for: seconds since we first saw this holder.  changes: how often we saw it change hands.
    tried: connections that tried to acquire it during a sample; None: none was taken.
    """

    told: Inspection
    seen_for: float
    changes: int
    tried: int | None = None


class Facts(NamedTuple):
    """All of it. more: resources that match and were not looked at.  notes: what is to be said."""

    at: datetime
    nodes: Sequence[NodeFacts]
    locks: Sequence[LockFacts]
    more: int
    notes: Sequence[str]
