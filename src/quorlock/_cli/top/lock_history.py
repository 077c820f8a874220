"""The history of locks: since when the holder was seen, and how often it changed.

Changes between two polls are not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorlock._cli.inspection_view import FREE, digests, verdict
from quorlock._cli.top.facts import LockFacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorlock import Inspection

# The names of resources are unbounded.
_REMEMBERED_MAX = 1_000


class _Past(NamedTuple):
    holder: str
    since: float
    changes: int


class LockHistory:
    """The holders seen so far."""

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
