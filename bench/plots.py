"""Draw two SVG plots: the peers side by side, and throughput against concurrency.

No plotting library is used: the files are small and readable. The greys of text and lines are
legible on white and on black. If the viewer supports the media query, they are darker or lighter.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from bench.contestants import CONTESTANTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.results import Found, Results

WIDTH = 800
BAR, GAP = 20, 8
# Colours of equal weight that colour-blind readers can distinguish (after Okabe and Ito).
LIMIT, OURS = "#8a8f98", "#0a84c4"
OTHERS = ("#d55e00", "#009e73", "#cc79a7", "#b58900", "#7a5fd0", "#5b6470")

_STYLE = """<style>
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#7d8590}
.title{font-size:15px;font-weight:600}
.grid{stroke:#7d8590;stroke-opacity:.28}
path,circle{fill:none;stroke-width:2.2}
@media (prefers-color-scheme:light){text{fill:#424a53}}
@media (prefers-color-scheme:dark){text{fill:#c9d1d9}}
</style>"""


class Line(NamedTuple):
    """One contestant's line: (x, y) pairs, x ascending."""

    name: str
    look: str  # attributes of the stroke
    points: Sequence[tuple[float, float]]

    @property
    def end(self) -> float:
        """The value at the highest count."""
        return self.points[-1][1]


class Scale(NamedTuple):
    """A logarithmic mapping of values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * share

    @property
    def decades(self) -> list[int]:
        """The powers of ten in the range."""
        return [10**n for n in range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)]


def peers_plot(results: Results) -> str:
    """Return two bar charts on logarithmic scales, or "" without data."""
    one = results.cases.get("blocking, N = 5, 1 thread")
    many = results.cases.get("asyncio, N = 5, 100 tasks")
    if one is None or many is None:
        return ""
    title = "Blocking, five nodes, one thread: acquire + release, p50 in µs (less is better)"
    upper, height = _bars(one, "p50_us", title, 0)
    title = "asyncio, five nodes, 100 tasks: acquire + release per second (more is better)"
    lower, height = _bars(many, "per_s", title, height + 24)
    return _svg(height, [*upper, *lower])


def concurrency_plot(results: Results) -> str:
    """Return cycles per second against threads and against tasks, or "" without data."""
    threads = _lines(results, "blocking, N = 5, {:,} thread{}", (1, 4, 16, 64), "quorlock")
    tasks = _lines(results, "asyncio, N = 5, {:,} task{}", (1, 10, 40, 100, 1000), "quorlock")
    if not threads and not tasks:
        return ""
    title = "Blocking, five nodes: acquire + release per second against threads"
    upper, height = _line_chart(threads, title, 0)
    title = "asyncio, five nodes: acquire + release per second against tasks"
    lower, height = _line_chart(tasks, title, height + 24 if upper else 0)
    return _svg(height, [*upper, *lower])


def _bars(case: Found, key: str, title: str, top: int) -> tuple[list[str], int]:
    """Return one bar for each contestant that has a figure, and the bottom of the chart."""
    found = [(who, value) for who in case.rows if (value := case.middle(who, key)) is not None]
    left, first = 240, top + 40
    bottom = first + len(found) * (BAR + GAP)
    scale = Scale(*_decades(value for _, value in found), left, WIDTH - 90)
    parts = [_text(8, top + 22, title, 'class="title"')]
    for decade in scale.decades:
        x = scale(decade)
        parts += [_grid(x, first - 4, x, bottom), _text(x, bottom + 14, f"{decade:,}", _MIDDLE)]
    for index, (who, value) in enumerate(found):
        y = first + index * (BAR + GAP)
        parts += [
            _text(left - 8, y + 15, who, _END),
            _bar(left, y, scale(value) - left, _colour(who)),
            _text(scale(value) + 6, y + 15, f"{value:,.0f}"),
        ]
    return parts, bottom + 24


def _lines(results: Results, names: str, counts: Sequence[int], ours: str) -> list[Line]:
    """Return our line, the limit's, and each library's with its best settings at high counts."""
    named = {count: names.format(count, "s" * (count > 1)) for count in counts}
    cases = {n: results.cases[name] for n, name in named.items() if name in results.cases}
    fastest: dict[str, str] = {}
    for case in cases.values():
        for who in case.rows:
            kin = CONTESTANTS[who].kin
            fastest[kin] = case.best(kin, "per_s")
    colours = iter(OTHERS * 3)
    lines: list[Line] = []
    for who in fastest.values():
        points = [(float(n), y) for n, case in cases.items() if (y := case.middle(who, "per_s"))]
        if len(points) > 1:
            known = who.startswith((ours, "limit"))
            look = f'stroke="{_colour(who) if known else next(colours)}"'
            look += ' stroke-dasharray="6 4"' if CONTESTANTS[who].uvloop else ""
            lines.append(Line(who, look, points))
    return sorted(lines, key=lambda line: -line.end)


def _line_chart(lines: Sequence[Line], title: str, top: int) -> tuple[list[str], int]:
    """Return a chart with spread labels at its right end, and the bottom of the chart."""
    if not lines:
        return [], top
    left, right, above, below = 72, WIDTH - 260, top + 44, top + 300
    counts = sorted({x for line in lines for x, _ in line.points})
    across = Scale(counts[0], counts[-1], left, right)
    up = Scale(*_decades(y for line in lines for _, y in line.points), below, above)
    parts = [_text(8, top + 22, title, 'class="title"')]
    for decade in up.decades:
        y = up(decade)
        parts += [_grid(left, y, right, y), _text(left - 8, y + 4, f"{decade:,}", _END)]
    parts += [_text(across(count), below + 20, f"{count:,.0f}", _MIDDLE) for count in counts]
    label = 0.0
    for line in lines:
        corners = [(across(x), up(y)) for x, y in line.points]
        (end_x, end_y), label = corners[-1], max(up(line.end), label + 17)
        way = " L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
        parts += [
            _grid(end_x + 6, end_y, right + 18, label),
            f'<path d="M{way}" {line.look}/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" {line.look}/>' for x, y in corners),
            _text(right + 24, label + 4, line.name),
            f'<path d="M{right + 16} {label:.1f} h6" {line.look}/>',
        ]
    return parts, int(max(below + 32, label + 16))


_MIDDLE, _END = 'text-anchor="middle"', 'text-anchor="end"'


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


def _bar(x: float, y: float, width: float, colour: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR}"'
    return f'<rect {place} rx="3" fill="{colour}"/>'


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _decades(values: Iterable[float]) -> tuple[int, int]:
    """Return the powers of ten that enclose the values."""
    logarithms = [math.log10(value) for value in values if value > 0]
    low = math.floor(min(logarithms))
    return 10**low, 10 ** max(low + 1, math.ceil(max(logarithms)))


def _colour(who: str) -> str:
    if who.startswith("limit"):
        return LIMIT
    return OURS if who.startswith("quorlock") else OTHERS[0]


def _svg(height: int, parts: Iterable[str]) -> str:
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" role="img">'
    )
    return "\n".join([opening, _STYLE, *parts, "</svg>"]) + "\n"
