"""Clocks of a simulated world: each a line of straight pieces over true time.

Whole numbers only, so that every machine reads the same instants.  Leaves to the world when a
clock changes its pace or steps; keeps every piece, so that a judge can look back.
"""

from __future__ import annotations

from typing import NamedTuple

PPM = 1_000_000


class Piece(NamedTuple):
    """From a true instant on: what the clock read there, and how fast it goes.

    pace: parts per million of true time; 1,000,000 is ideal, 0 stands still.
    """

    since: int
    reading: int
    pace: int


class Clock:
    """Reads an instant of its own for every instant of true time, in nanoseconds.

    Args:
        offset: what it reads when the world begins.
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
        """Its present pace."""
        return self._pace

    def read(self, true: int) -> int:
        """What it shows at this true instant, which is not before its last change."""
        if self._pace == PPM:
            return self._reading + true - self._since
        return self._reading + (true - self._since) * self._pace // PPM

    def when(self, reading: int) -> int | None:
        """The first true instant at which it shows as much, if nothing changes; None: never.

        Never before its last change: where a step went over the reading, that is the instant.
        """
        left = reading - self._reading
        if left <= 0:
            return self._since
        if self._pace == 0:
            return None
        return self._since - (-left * PPM // self._pace)

    def run_at(self, pace: int, true: int) -> None:
        """Go at another pace from now on."""
        self._turn(true, self.read(true), pace)

    def step(self, by: int, true: int) -> None:
        """Jump forward, or back where `by` is negative."""
        self._turn(true, self.read(true) + by, self._pace)

    def _turn(self, true: int, reading: int, pace: int) -> None:
        self._since, self._reading, self._pace = true, reading, pace
        self.pieces.append(Piece(true, reading, pace))

    # --- looking back ------------------------------------------------------------------------

    def passed(self, since: int, until: int) -> int:
        """How much went by on it between two true instants of the past, steps included."""
        return self.read_back(until) - self.read_back(since)

    def read_back(self, true: int) -> int:
        """What it showed at a true instant of the past."""
        piece = next(piece for piece in reversed(self.pieces) if piece.since <= true)
        return piece.reading + (true - piece.since) * piece.pace // PPM

    def paces(self) -> tuple[int, int]:
        """The slowest and the fastest that it ever went."""
        return min(p.pace for p in self.pieces), max(p.pace for p in self.pieces)

    def steps(self) -> tuple[int, int]:
        """Its longest jumps back and forward (0: none)."""
        back = forward = 0
        for before, after in zip(self.pieces, self.pieces[1:], strict=False):
            by = after.reading - before.reading - (after.since - before.since) * before.pace // PPM
            back, forward = min(back, by), max(forward, by)
        return back, forward
