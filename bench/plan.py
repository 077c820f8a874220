"""Cases: situations in which several contestants are measured in turn, and their tables.

Data only: the works list their cases and `bench.__main__` runs them. The module of a work has
`run` and PLAN. It may have AIMS (`bench.aims`) and `columns(found)`, the columns of its tables
(default: STANDARD).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from bench.fleet import FULL, Fleet, Site, shared_site

# In the order of the report.
WORKS = (
    *("uncontended", "processes", "arrivals", "sick"),
    *("contended", "handover", "growth", "extension"),
)

Arrange = Callable[[Fleet, int], AbstractContextManager[Site]]


@dataclass(frozen=True)
class Case:
    """One situation to measure.

    Args:
        work: a module of bench.works.
        name: the heading of the table, unique in the whole plan.
        params: sent to the child as JSON, with `seconds`, `warm_up` and `quick`.
        site: prepares the servers of each slice, from the run's fleet and `nodes`.
        deadline: seconds after which the child is killed; the row says so.
        rounds: the largest number of rounds (None: that of the run).
        quick: the contestants of `--quick`.
    """

    work: str
    name: str
    contestants: tuple[str, ...]
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    nodes: int = FULL
    site: Arrange = shared_site
    deadline: float = 20.0
    rounds: int | None = None
    quick: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """One figure of a row: its heading, its key in the child's result and its format.

    If `ratio_to` names a contestant of the same case, the column is the ratio of the figure to that
    contestant's (with `inverse` the reverse), round by round. Otherwise it is the median of the
    rounds, or with `worst` the largest.
    """

    title: str
    key: str
    form: str = "{:,.0f}"
    ratio_to: str = ""
    inverse: bool = False
    worst: bool = False


STANDARD = (
    Column("cycles/s", "per_s"),
    Column("p50 µs", "p50_us"),
    Column("p99 µs", "p99_us"),
    Column("CPU µs", "cpu_us"),
    Column("errors", "errors"),
)


def works(only: tuple[str, ...] = WORKS) -> dict[str, Any]:
    """Return the modules of the works, by name."""
    return {name: import_module(f"bench.works.{name}") for name in WORKS if name in only}
