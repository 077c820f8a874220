"""Clocks of a simulated world: piecewise linear functions of true time.

All numbers are integers, so that every machine computes the same instants.  A clock keeps all its
pieces, so that the oracle can read it at past instants.  The world changes rates and steps clocks.
"""

from __future__ import annotations

from typing import NamedTuple

PPM = 1_000_000
NEVER = 1 << 62  # an instant that no world reaches


class Piece(NamedTuple):
    """A linear piece of a clock, from a true instant on.

    Attributes:
        since: the true instant of its start (ns).
        reading: the clock's reading at that instant (ns).
        pace: parts per million of true time; 1,000,000 is exact, 0 stands still.
    """

    since: int
    reading: int
    pace: int


class Clock:
    """A clock with a reading for every instant of true time, in nanoseconds.

    Args:
        offset: the reading at the start of the world.
        pace: parts per million of true time: 1,010,000 is 1 % fast, 0 stands still.
    """

    __slots__ = ("_pace", "_reading", "_since", "pieces")

    def __init__(self, offset: int = 0, pace: int = PPM) -> None:
        self.pieces = [Piece(0, offset, pace)]
        self._since, self._reading, self._pace = self.pieces[0]

    def __repr__(self) -> str:
        return f"<Clock {(self._pace - PPM) / 1e4:+.3f} %, {len(self.pieces)} pieces>"

    @property
    def pace(self) -> int:
        """The present pace."""
        return self._pace

    def read(self, true: int) -> int:
        """Return the reading at a true instant that is not before the last change."""
        if self._pace == PPM:
            return self._reading + true - self._since
        return self._reading + (true - self._since) * self._pace // PPM

    def when(self, reading: int) -> int | None:
        """Return the first true instant with this reading at the present pace; None if never.

        The result is never before the last change: if a step skipped the reading, it is the
        instant of the step.
        """
        left = reading - self._reading
        if left <= 0:
            return self._since
        if self._pace == 0:
            return None
        return self._since - (-left * PPM // self._pace)

    def run_at(self, pace: int, true: int) -> None:
        """Change the pace from this instant on."""
        self._turn(true, self.read(true), pace)

    def step(self, by: int, true: int) -> None:
        """Jump forward, or back if `by` is negative."""
        self._turn(true, self.read(true) + by, self._pace)

    def _turn(self, true: int, reading: int, pace: int) -> None:
        self._since, self._reading, self._pace = true, reading, pace
        self.pieces.append(Piece(true, reading, pace))

    # --- past readings -----------------------------------------------------------------------

    def read_back(self, true: int) -> int:
        """Return the reading at a past instant."""
        piece = next(piece for piece in reversed(self.pieces) if piece.since <= true)
        return piece.reading + (true - piece.since) * piece.pace // PPM

    def paces(self) -> tuple[int, int]:
        """Return the slowest and the fastest pace that the clock has had."""
        return min(p.pace for p in self.pieces), max(p.pace for p in self.pieces)

    def steps(self) -> tuple[int, int]:
        """Return the longest jumps back and forward (0: none)."""
        back = forward = 0
        for before, after in zip(self.pieces, self.pieces[1:], strict=False):
            by = after.reading - before.reading - (after.since - before.since) * before.pace // PPM
            back, forward = min(back, by), max(forward, by)
        return back, forward
