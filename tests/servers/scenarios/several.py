"""Contention for sets of resources on five real nodes, of which one at a time is stopped or killed.

    python -m tests.servers.scenarios.several [--seconds 60] [--control]

Four processes with three threads each take one, two or three of five resources.  The witness needs
no node: every process writes down when it held which resources, by a clock that all processes of a
machine share, and no two such times of one resource may overlap.

With --control a lock on several resources is replaced by one on the first of them.  The witness
must report overlaps then.
"""

from __future__ import annotations

import itertools
import random
import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tests.servers.scenarios.witness import PATIENCE, Held, observe, parser, turns, work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock import Lease, Redlock

RESOURCES = tuple(f"r{number}" for number in range(5))


class Report(NamedTuple):
    """The result of a run."""

    held: list[Held]
    overlaps: list[tuple[Held, Held]]
    stops: int
    kills: int
    left: dict[str, list[bytes]]

    def __str__(self) -> str:
        sizes = [sum(len(held.resources) == size for held in self.held) for size in (1, 2, 3)]
        return (
            f"{len(self.held):,} grants (of 1, 2, 3 resources: {sizes}), {len(self.overlaps)}"
            f" overlaps, {self.stops} stops, {self.kills} kills, {len(self.left)} nodes with keys"
        )


def run(seconds: float, *, control: bool = False, faults: bool = True) -> Report:
    """Run the processes and the faults; return what the witness has seen."""
    seen = observe("several", seconds, control=control, faults=faults)
    return Report(seen.held, overlapping(seen.held), seen.stops, seen.kills, seen.left)


def overlapping(held: list[Held]) -> list[tuple[Held, Held]]:
    """Return the pairs of times in which two threads held one resource."""
    found: list[tuple[Held, Held]] = []
    for resource in RESOURCES:
        times = sorted([one for one in held if resource in one.resources])
        latest: Held | None = None
        for one in times:
            if latest is not None and one.begin < latest.end:
                found.append((latest, one))
            if latest is None or one.end > latest.end:
                latest = one
    return found


# --- a process ------------------------------------------------------------------------------------


def take_sets(redlock: Redlock, _: list[str], until: float, *, control: bool) -> Iterator[Held]:
    """Take sets of resources until the time is up; yield when they were held."""

    def acquire() -> tuple[Lease, tuple[str, ...]]:
        names = random.sample(RESOURCES, random.choice((1, 2, 3)))
        taken = sorted(names)[: 1 if control else None]
        return redlock.lock(*taken, timeout=PATIENCE).acquire(), tuple(names)

    return turns(acquire, until)


def main() -> int:
    """Run as a program: the whole, or one process of it."""
    given = parser().parse_args()
    if given.worker:
        work(given, partial(take_sets, control=given.control))
        return 0
    report = run(given.seconds, control=given.control)
    print(report)
    for pair in itertools.islice(report.overlaps, 5):
        print(*pair, sep="\n  ")
    return bool(report.overlaps or report.left)


if __name__ == "__main__":
    sys.exit(main())
