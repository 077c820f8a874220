"""What a case is: one situation in which several contestants are measured in turn, and how its
table reads. Data only; the works list their cases, `bench.__main__` goes through them.

A work's module has `run`, PLAN, and where it wants to AIMS (`bench.aims`) and `columns(found)`, the
columns of its tables (else STANDARD).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from bench.fleet import FULL, Fleet, Site, shared_site

# In the order of the report.
WORKS = ("uncontended", "sick", "contended", "growth", "extension")

Arrange = Callable[[Fleet, int], AbstractContextManager[Site]]


@dataclass(frozen=True)
class Case:
    """`work` is a module of bench.works, `name` the table's heading, unique in the whole plan.

    `params` go to the child as JSON, beside `seconds`, `warm_up` and `quick`; `site` arranges the
    servers for each single slice, given the run's fleet and `nodes`. A child that takes longer than
    `deadline` seconds is killed, and the row says so. `rounds` caps how often it is repeated (None:
    as often as the run says). `quick` names the contestants that `--quick` measures too.
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
    """One figure of a row: its heading, its key in the child's result, how it is written.

    `ratio_to` names a contestant of the same case: the figure is then divided by that one's (or, if
    `inverse`, that one's by the figure), round by round.
    """

    title: str
    key: str
    form: str = "{:,.0f}"
    ratio_to: str = ""
    inverse: bool = False


STANDARD = (
    Column("cycles/s", "per_s"),
    Column("p50 µs", "p50_us"),
    Column("p99 µs", "p99_us"),
    Column("CPU µs", "cpu_us"),
    Column("errors", "errors"),
)


def works(only: tuple[str, ...] = WORKS) -> dict[str, Any]:
    """The modules of the works, by name."""
    return {name: import_module(f"bench.works.{name}") for name in WORKS if name in only}
