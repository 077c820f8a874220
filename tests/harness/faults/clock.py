"""The fault of a node's wall clock: it jumps, while elapsed time continues. `shim` implements
it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.harness.faults import shim
from tests.harness.faults.fault import PROBE_TTL_MS, SiteFault, await_that, check, probe_key
from tests.harness.faults.site import Site

TOLERANCE = 1.0  # seconds that an answer may take on a busy machine


@dataclass
class Watched:
    """A key whose ttl shows the jump, and the ttl that it had before."""

    probe: str
    pttl: int = 0


class ClockJump(SiteFault[Watched]):
    """The node's wall clock goes wrong by `seconds`, and jumps back to the true time at the end.

    A jump forward lets keys expire early; keys that are set during it live longer after its end.
    A jump backward lets keys live longer, and keys that are set during it expire early at its end.
    """

    loses_memory = True

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self.name = f"clock{seconds:+g}s"

    def _before(self, site: Site) -> Watched:
        if not shim.available():
            raise RuntimeError("no C compiler: clocks cannot be moved here")
        return Watched(probe_key())

    def _begin(self, site: Site, state: Watched) -> None:
        site.server.execute("SET", state.probe, "1", "PX", PROBE_TTL_MS)
        state.pttl = site.server.execute("PTTL", state.probe)
        self._move(site, self._seconds)

    def _end(self, site: Site, state: Watched) -> None:
        self._move(site, 0.0)
        site.server.execute("DEL", state.probe)

    def _proof(self, site: Site, state: Watched) -> str:
        ahead = clock_error(site)
        check(abs(ahead - self._seconds) < TOLERANCE, f"TIME is {ahead:+.3f} s from ours")
        pttl = site.server.execute("PTTL", state.probe)
        return f"TIME is {ahead:+.3f} s from ours; a key's PTTL went from {state.pttl} to {pttl} ms"

    def _move(self, site: Site, seconds: float) -> None:
        shim.move(site.clock, seconds)
        # Valkey derives the time from the processor's counter and compares ten times a second.
        goal = f"the clock of {site.server!r} is {seconds:+} s from ours"
        await_that(lambda: abs(clock_error(site) - seconds) < TOLERANCE, goal)


def clock_error(site: Site) -> float:
    """Return the seconds by which the node's clock leads ours, minus the duration of its reply."""
    seconds, microseconds = (int(part) for part in site.server.execute("TIME"))
    return seconds + microseconds / 1e6 - time.time()
