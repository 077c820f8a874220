"""The time in which one part of the bench is measured."""

from __future__ import annotations

import threading
import time

_WARM_UP = 0.3  # share of each part that is not counted


class Window:
    """The time in which one part is measured. It begins with a warm-up."""

    def __init__(self, seconds: float, stop: threading.Event) -> None:
        self._stop = stop
        began = time.perf_counter()
        self._counted_from = began + seconds * _WARM_UP
        self._until = began + seconds

    @property
    def warm_up_left(self) -> float:
        return max(0.0, self._counted_from - time.perf_counter())

    @property
    def left(self) -> float:
        return max(0.0, self._until - time.perf_counter())

    @property
    def over(self) -> bool:
        """Return whether no further cycle may begin."""
        return time.perf_counter() >= self._until or self.stopped

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def warm_up(self) -> None:
        self._stop.wait(self.warm_up_left)

    @property
    def counted(self) -> float:
        """Return the seconds since the end of the warm-up.

        They are read from the clock, because a thread that slept through the warm-up may wake up
        late.
        """
        return time.perf_counter() - self._counted_from

    def counts(self, began: float) -> bool:
        return began >= self._counted_from
