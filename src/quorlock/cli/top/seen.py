"""What was seen of the locks since we look: since when, and how often they changed hands. Between
two looks more may have happened than anybody saw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorlock.cli.holders import FREE, digests, verdict
from quorlock.cli.top.facts import LockFacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorlock import Inspection

# Resources are told apart by name, and there may be new ones for ever.
_REMEMBERED_MAX = 1_000


class _Past(NamedTuple):
    holder: str
    since: float
    changes: int


class Seen:
    """Remembers who held what."""

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}

    def note(self, told: Iterable[Inspection], at: float) -> list[LockFacts]:
        """What is not free, whom we see longest first. at: in seconds."""
        locks = [self._facts(one, at) for one in told if verdict(one) != FREE]
        for name in list(self._past)[: max(0, len(self._past) - _REMEMBERED_MAX)]:
            del self._past[name]
        return sorted(locks, key=lambda lock: (-lock.seen_for, lock.told.resource))

    def _facts(self, told: Inspection, at: float) -> LockFacts:
        past = self._past.pop(told.resource, None)  # and to the end: seen lately
        there = digests(told)
        if past is None:
            past = _Past(there[0] if there else "", at, 0)
        elif there and past.holder not in there:
            changes = past.changes + bool(past.holder)
            past = _Past(there[0], at, changes)
        self._past[told.resource] = past
        return LockFacts(told, at - past.since, past.changes)
