"""Which lease a `with` block of a shared Lock entered with.

A Lock may be entered by many threads (tasks) at once; each leaves with its own lease.  Kept by
thread (task); a block that is left elsewhere than it was entered (some fixtures do that) takes
the lease that was entered last.
"""

from __future__ import annotations

from typing import Generic, TypeVar

L = TypeVar("L")


class Entered(Generic[L]):
    """Leases of blocks that have not been left."""

    __slots__ = ("_leases",)

    def __init__(self) -> None:
        self._leases: list[tuple[object, L]] = []

    def push(self, who: object, lease: L) -> None:
        """A block was entered."""
        self._leases.append((who, lease))

    def forget(self, lease: L) -> None:
        """The block was not entered after all."""
        self._leases = [entry for entry in self._leases if entry[1] is not lease]

    def pop(self, who: object) -> L:
        """The same block is left."""
        own = [entry for entry in self._leases if entry[0] == who]
        entry = own[-1] if own else self._leases[-1]
        self._leases.remove(entry)
        return entry[1]
