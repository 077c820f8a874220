"""The facts of one turn, which `report` displays, and the history of holders between turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from quorlock import Inspection
from quorlock._cli.inspection_view import FREE, digests, verdict

UP, DOWN, HUNG, KEPT_OUT = "up", "down", "hung", "kept out"
# The names of resources are unbounded.
_REMEMBERED_MAX = 1_000


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


class _Past(NamedTuple):
    holder: str
    since: float
    changes: int


class LockHistory:
    """The holders seen so far: since when, and how often they changed between two polls."""

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}

    def note(self, inspections: Iterable[Inspection], at: float) -> list[LockFacts]:
        """Record the inspections; return the locks that are not free, the longest seen first.

        at: seconds.
        """
        locks = [self._facts(one, at) for one in inspections if verdict(one) != FREE]
        for name in list(self._past)[: max(0, len(self._past) - _REMEMBERED_MAX)]:
            del self._past[name]
        return sorted(locks, key=lambda lock: (-lock.seen_for, lock.inspection.resource))

    def _facts(self, inspection: Inspection, at: float) -> LockFacts:
        past = self._past.pop(inspection.resource, None)  # moved to the end: seen lately
        there = digests(inspection)
        if past is None:
            past = _Past(there[0] if there else "", at, 0)
        elif there and past.holder not in there:
            changes = past.changes + bool(past.holder)
            past = _Past(there[0], at, changes)
        self._past[inspection.resource] = past
        return LockFacts(inspection, at - past.since, past.changes)
