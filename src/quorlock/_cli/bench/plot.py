"""Bars of text in ASCII, for every terminal and every file."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from quorlock._cli.bench.facts import percentile

_ROWS_MAX = 10
# Steps of about 1.2: a customary division of a decade.
_STEPS = (1.0, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9, 4.7, 5.6, 6.8, 8.2)


def bar(value: float, most: float, width: int) -> str:
    """Return a bar in proportion to the longest; a value above 0 is always visible."""
    return "#" * max(round(width * value / most), 1) if value > 0 else ""


def histogram(taken: Sequence[float], width: int) -> list[str]:
    """Yield a logarithmic histogram of the durations; one row holds the slowest hundredth."""
    ordered = sorted(taken)
    edges = _edges(ordered[0], percentile(ordered, 99))
    counts = [0] * (len(edges) + 1)
    for one in ordered:
        counts[bisect_left(edges, one)] += 1
    labels = [f"to {edge * 1e3:g} ms" for edge in edges] + [f"to {ms(ordered[-1])}"]
    if not counts[-1]:
        del counts[-1], labels[-1]
    most = max(counts)
    room = width - 26
    return [
        f"  {label:>12}  {count:>7,}  {bar(count, most, room)}".rstrip()
        for label, count in zip(labels, counts, strict=True)
    ]


def _edges(least: float, most: float) -> list[float]:
    """Return round numbers of seconds from just above the least to the first that reaches most."""
    decade = math.floor(math.log10(least))
    steps = [step * 10.0**power for power in range(decade, decade + 12) for step in _STEPS]
    first = bisect_left(steps, least)
    edges = steps[first : bisect_left(steps, most) + 1] or steps[first : first + 1]
    coarser = math.ceil(len(edges) / _ROWS_MAX)
    return edges[::-1][::coarser][::-1]


def ms(seconds: float | None) -> str:
    """Return milliseconds, to about three digits."""
    if seconds is None:
        return "-"
    value = seconds * 1e3
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0  # noqa: PLR2004
    return f"{value:,.{digits}f} ms"
