"""Write the results as Markdown and SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.aims import Judgement, judged
from bench.contestants import CONTESTANTS
from bench.plan import STANDARD, Column, works
from bench.plots import concurrency_plot, peers_plot
from bench.results import Figure, Found, Results, middle, present, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

HEADINGS = {
    "uncontended": "Acquire and release, uncontended",
    "processes": "Several processes",
    "arrivals": "Cycles that come at a fixed rate",
    "sick": "Nodes that are slow, hang or are dead",
    "contended": "One contended lock",
    "handover": "Single hand-overs",
    "growth": "What grows with the work",
    "extension": "Extension",
}
_WAITING = (
    "Waiters of quorlock queue on every node, and a release passes the lock on to the first of"
    " them. Those of python-redis-lock wait for a message from its one node. All others sleep"
    " between attempts, and a waiter that asks again at once usually wins."
)
INTRODUCTIONS = {"contended": _WAITING, "handover": _WAITING}


def write_report(results: Results, folder: Path) -> list[Path]:
    """Write README.md and the plots; return their paths."""
    files = {
        "README.md": report(results),
        "peers.svg": peers_plot(results),
        "concurrency.svg": concurrency_plot(results),
    }
    written = {folder / name: text for name, text in files.items() if text}
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return list(written)


def report(results: Results) -> str:
    """Return the page with all tables."""
    parts = [
        "# Results\n\nWritten by `make bench`; how to read them: [the benchmark](../README.md).",
        *_about(results),
        "## What must hold\n\n" + aims_table(judged(results)),
    ]
    if peers_plot(results):
        parts.append("![Latency and throughput against the peers](peers.svg)")
    if concurrency_plot(results):
        parts.append("![Cycles per second against concurrency](concurrency.svg)")
    for work, module in works().items():
        cases = [case for case in results.cases.values() if case.work == work]
        if cases:
            parts.append(f"## {HEADINGS[work]}")
            parts += [INTRODUCTIONS[work]] if work in INTRODUCTIONS else []
            parts += _foreign(cases)
        for case in cases:
            columns = module.columns(case) if hasattr(module, "columns") else STANDARD
            parts.append(f"### {case.name}\n\n{case_table(case, columns)}")
    return "\n\n".join(parts) + "\n"


def _about(results: Results) -> Iterable[str]:
    """Return one line for each run that contributed: usually one."""
    works_of: dict[str, list[str]] = {}
    for work, about in results.about.items():
        peers = ", ".join(f"{name} {found}" for name, found in about.get("peers", {}).items())
        missing = ", ".join(f"{name} ({why})" for name, why in about.get("missing", {}).items())
        text = (
            f"quorlock {about['quorlock']}, {about['Python']}, {about['server']} on TCP loopback,"
            f" {about['machine']}, load {about['load before']} before, {about['date']},"
            f" {about['rounds']} round{'s' * (about['rounds'] != 1)}"
            f"{' of a quick run' if about['quick'] else ''}, {about['minutes']} minutes. {peers}."
        )
        text += f" Missing: {missing}." if missing else ""
        text += f" Again: `{about['command']}`." if "command" in about else ""
        works_of.setdefault(text, []).append(work)
    if len(works_of) == 1:
        return works_of
    return [f"{', '.join(works)}: {text}" for text, works in works_of.items()]


def _foreign(cases: Iterable[Found]) -> list[str]:
    """Return a sentence about the use of the machine by others, if it was measured."""
    cores = [core for case in cases for who in case.rows for core in case.figure(who, "foreign")]
    used = middle(cores)
    if used is None:
        return []
    text = f"Other programs used {used:.1f} cores of this machine during the run (median of the"
    text += (
        f" slices, {_spread(cores)}): with more than 0.5, rely on ratios and orders of magnitude."
    )
    return [text]


def aims_table(judgements: Sequence[Judgement]) -> str:
    """Return the table of the aims, their figures and whether they are reached."""
    words = {True: "yes", False: "**no**", None: "not measured"}
    rows = [
        (
            judgement.aim.what,
            judgement.aim.aim,
            _number(judgement.found),
            _spread(judgement.rounds),
            words[judgement.reached],
        )
        for judgement in judgements
    ]
    return table(("what", "aim", "median", "min – max", "reached"), rows)


def case_table(case: Found, columns: Sequence[Column]) -> str:
    """Return a row for each contestant: medians over the rounds, ratios with their spread."""
    rows = [(who, *_cells(case, who, columns), settings(who)) for who in case.rows]
    return table(("", *(column.title for column in columns), "settings"), rows)


def settings(who: str) -> str:
    """Return a summary of a contestant's settings."""
    return CONTESTANTS[who].settings


def _cells(case: Found, who: str, columns: Sequence[Column]) -> list[str]:
    if failure := case.failure(who):
        return [f"failed: {failure}", *[""] * (len(columns) - 1)]
    cells = [_cell(case, who, column) for column in columns]
    if any(row.get("could_not_exit") for row in case.rows[who]):
        cells[-1] += " (its process could not exit)"
    return cells


def _cell(case: Found, who: str, column: Column) -> str:
    own = case.figure(who, column.key)
    if not column.ratio_to:
        found = max(present(own), default=None) if column.worst else middle(own)
        return "–" if found is None else column.form.format(found)
    other = case.figure(column.ratio_to, column.key)
    figure = ratio(other, own) if column.inverse else ratio(own, other)
    found = middle(figure)
    if found is None or who == column.ratio_to:
        return "–" if found is None else "1"
    several = len(present(figure)) > 1
    return column.form.format(found) + (f" ({_spread(figure)})" if several else "")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2f}"  # noqa: PLR2004


def _spread(figure: Figure) -> str:
    values = present(figure)
    return f"{_number(min(values))} – {_number(max(values))}" if values else "–"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, with figures aligned to the right."""
    lines = [heading, ["---", *["--:"] * (len(heading) - 2), "---"], *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )
