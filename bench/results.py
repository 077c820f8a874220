"""Results of a run: stored as JSON, one file per work, and queried for figures.

`report` and `plots` show them and `aims` judges them. A figure is a list with one number per round,
in order. The slices of one round were measured next to each other, so ratios are taken round by
round, and then their median.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.contestants import CONTESTANTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Row = dict[str, Any]
Figure = list[float]

# Of these, more is better; of all others, less.
_MORE_IS_BETTER = frozenset({"per_s", "cycles"})


@dataclass
class Found:
    """The results of one case: for each contestant the output of its child in each round."""

    work: str
    name: str
    nodes: int
    params: dict[str, Any]
    rows: dict[str, list[Row]] = field(default_factory=dict[str, list[Row]])

    def figure(self, who: str, key: str) -> Figure:
        """Return one number per round, NaN for a round without one, so that rounds stay paired."""
        values = (row.get(key) for row in self.rows.get(who, ()))
        return [float("nan") if value is None else float(value) for value in values]

    def middle(self, who: str, key: str) -> float | None:
        """Return the median over the rounds, or None if nothing was measured."""
        return middle(self.figure(who, key))

    def best(self, kin: str, key: str) -> str:
        """Return a library's fastest settings by that key, or `kin` if none was measured."""
        rated = [
            (value, who)
            for who in self.rows
            if CONTESTANTS[who].kin == kin and (value := self.middle(who, key)) is not None
        ]
        choose: Callable[..., tuple[float, str]] = max if key in _MORE_IS_BETTER else min
        return choose(rated)[1] if rated else kin

    def failure(self, who: str) -> str:
        """Return the reason if all rounds failed, or ""."""
        rows = self.rows.get(who, [])
        failed = [str(row["failed"]) for row in rows if "failed" in row]
        return failed[0] if failed and len(failed) == len(rows) else ""


@dataclass
class Results:
    """The results of all cases by name, and the description of the run."""

    cases: dict[str, Found] = field(default_factory=dict[str, Found])
    about: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])  # by work

    def ratio(self, above: tuple[str, str], below: tuple[str, str], key: str) -> Figure:
        """Return the ratio of one (case, contestant) to another, round by round."""
        return ratio(self.figure(*above, key), self.figure(*below, key))

    def figure(self, case: str, who: str, key: str) -> Figure:
        """Return a figure, empty if the case or the contestant was not measured."""
        return self.cases[case].figure(who, key) if case in self.cases else []

    def best(self, case: str, kin: str, key: str) -> tuple[str, str]:
        """Return (case, contestant) with a library's fastest settings in that case."""
        return case, self.cases[case].best(kin, key) if case in self.cases else kin

    def save(self, folder: Path) -> None:
        """Write one file for each work of this run; the files of other works stay."""
        folder.mkdir(parents=True, exist_ok=True)
        for work, about in self.about.items():
            found = [asdict(case) for case in self.cases.values() if case.work == work]
            content = {"about": about, "cases": found}
            text = json.dumps(json.loads(json.dumps(content), parse_float=_short), indent=1)
            (folder / f"{work}.json").write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, order: tuple[str, ...]) -> Results:
        """Load all files of a folder, in the order of the works."""
        results = cls()
        for work in order:
            path = folder / f"{work}.json"
            if path.exists():
                content = json.loads(path.read_text(encoding="utf-8"))
                results.about[work] = content["about"]
                results.cases |= {case["name"]: Found(**case) for case in content["cases"]}
        return results


def ratio(above: Figure, below: Figure) -> Figure:
    """Return the ratio round by round, NaN if a number is missing or the divisor is 0."""
    pairs = zip(above, below, strict=False)
    return [a / b if b else float("nan") for a, b in pairs]


def present(figure: Figure) -> Figure:
    """Return the figure without rounds that have no number."""
    return [value for value in figure if value == value]  # noqa: PLR0124 (NaN is not itself)


def middle(figure: Figure) -> float | None:
    """Return the median of the present numbers."""
    values = present(figure)
    return median(values) if values else None


def _short(number: str) -> float:
    """Round to four digits or two decimals: the files are committed and read by people."""
    value = float(number)
    return round(value, 2) if abs(value) >= 100 else float(f"{value:.4g}")  # noqa: PLR2004
