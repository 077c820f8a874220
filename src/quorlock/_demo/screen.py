"""The display: lines for events, a live table where there is a terminal, tables at the end.

All text is ASCII, so that every terminal and pipe can show it.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from quorlock._demo.checker import CheckResult
from quorlock._demo.scenario import DemoSettings, FaultHistory
from quorlock._demo.workers import Workers

_STYLES = {"up": "green", "killed": "bold red", "stopped": "bold yellow"}
_REFRESH = 0.12  # seconds
_ROW_MAX = 8  # workers in one row
_SINGLY_MAX = 16  # workers that are listed one by one: more would not fit into 24 lines
_ROOMY = 72  # columns that the widest table needs
_TROUBLES_MAX = 3
_NAME_WIDTH = 16
_WHOLE_MS = 10


class DemoScreen:
    """The output of the demo."""

    def __init__(self, settings: DemoSettings) -> None:
        self._console = Console(highlight=False)
        if not self._console.width:  # COLUMNS=0: rich prints nothing
            self._console.width = shutil.get_terminal_size().columns
        self._settings = settings
        live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = (
            Live(console=self._console, auto_refresh=False, transient=True) if live else None
        )
        self._shown_at = 0.0
        self._rate = WorkRate()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        self._print(Text(text, style))

    def report(self, seconds: float, text: str, style: str = "") -> None:
        """Print an event with its time since the start."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(justify="right", style="dim", min_width=6, no_wrap=True)
        grid.add_column()
        grid.add_row(f"{seconds:.1f} s", Text(text, style))
        self._print(grid)

    def gather(self, ready: int) -> None:
        """Show the number of workers that are ready; with many workers this takes a while."""
        if self._live is not None:
            text = f"{ready} of {self._settings.workers} workers are ready"
            self._live.update(Text(text), refresh=True)

    def show(self, seconds: float, workers: Workers, faults: FaultHistory) -> None:
        """Refresh the live table, at a limited rate."""
        now = time.monotonic()
        if self._live is None or now - self._shown_at < _REFRESH:
            return
        self._shown_at = now
        turns = workers.turns
        rate = self._rate.of(sum(turns), now)
        whole = self._settings.seconds
        head = f"{min(seconds, whole):.1f} of {whole:g} s   {sum(turns):,} turns"
        pace = f"{rate:,.0f} per second" if seconds < whole else "the workers end"
        parts: list[RenderableType] = [Text(f"\n{head}   {pace}", "bold")]
        if self._settings.locking:
            states = [faults.state(node) for node in range(self._settings.nodes)]
            texts = [Text(state, _STYLES[state]) for state in states]
            parts.append(nodes_table(workers, "state", texts, self._console.width))
        parts.append(workers_table(turns, self._console.width))
        self._live.update(Group(*parts), refresh=True)

    def conclude(
        self, seconds: float, workers: Workers, faults: FaultHistory, result: CheckResult
    ) -> None:
        """Print the tables of the results."""
        for text in workers.troubles[:_TROUBLES_MAX]:
            self.say(text, "yellow")
        if len(workers.troubles) > _TROUBLES_MAX:
            self.say(f"and {len(workers.troubles) - _TROUBLES_MAX:,} more of that kind", "yellow")
        self._print(Text())
        if self._settings.locking:
            self.say("What the nodes replied when they were asked for the lock:")
            stories = [Text(faults.history(node)) for node in range(self._settings.nodes)]
            self._print(nodes_table(workers, "what happened to it", stories, self._console.width))
            self._print(Text())
            self._print(times_table(workers, self._console.width))
            self._print(Text())
        self._print(summary(seconds, workers, result))
        self._print(Text())

    def _print(self, what: RenderableType) -> None:
        if self._console.is_terminal:
            self._console.print(what)
            return
        # Tables pad their lines with blanks, which are useless in a file.
        with self._console.capture() as captured:
            self._console.print(what)
        for line in captured.get().splitlines():
            self._console.out(line.rstrip(), highlight=False)


class WorkRate:
    """The rate of turns per second, over about the last second."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def of(self, turns: int, now: float) -> float:
        """Return the rate, given the number of turns so far."""
        self._seen = [(at, count) for at, count in self._seen if at > now - 1.0]
        self._seen.append((now, turns))
        at, count = self._seen[0]
        return (turns - count) / (now - at) if now > at else 0.0


def headed_table(width: int) -> Table:
    return Table(box=SIMPLE_HEAD, padding=(0, int(width >= _ROOMY)), show_edge=False)


def nodes_table(workers: Workers, header: str, last: Sequence[Text], width: int) -> Table:
    """Return a table of the votes in successful attempts, and a note for each node."""
    table = headed_table(width)
    # On a narrow terminal the last column breaks its lines, and no number is cut.
    table.add_column("node", justify="right", no_wrap=True)
    for name in ("granted", "refused", "unknown"):
        table.add_column(name, justify="right", no_wrap=True, min_width=7)
    table.add_column("not waited for", justify="right", min_width=6)
    table.add_column(header, min_width=12)
    for number, (votes, text) in enumerate(zip(workers.votes, last, strict=True), 1):
        table.add_row(str(number), *(f"{count:,}" for count in votes), text)
    return table


def times_table(workers: Workers, width: int) -> Table:
    """Return a table of the durations of acquires and releases."""
    table = headed_table(width)
    table.add_column("", min_width=_NAME_WIDTH)
    for name in ("p50", "p99"):
        table.add_column(name, justify="right", min_width=10)
    table.add_column("")
    turns = [turn for member in workers.members for turn in member.turns]
    for index, (name, note) in enumerate(_TIMES):
        times = sorted(turn[index] for turn in turns)
        table.add_row(name, _ms(percentile(times, 50)), _ms(percentile(times, 99)), note)
    return table


_TIMES = (
    ("acquire", "waiting for the others included"),
    ("its last attempt", "the one that won"),
    ("release", ""),
)


def summary(seconds: float, workers: Workers, result: CheckResult) -> Table:
    """Return a table of the additions, losses and overlaps."""
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_column(min_width=_NAME_WIDTH)
    table.add_column(justify="right", style="bold", min_width=10)
    table.add_column()
    turns = workers.turns
    row = table.add_row
    row(
        "acquisitions" if workers.votes else "turns",
        f"{sum(turns):,}",
        f"{sum(turns) / seconds:,.0f} per second",
    )
    row("turns per worker", f"{min(turns):,}", f"the fewest; the most: {max(turns):,}")
    row("longest pause", _ms(result.longest_pause), "with no worker inside")
    made = f"{result.additions:,} made, the counter says {result.counter:,}"
    row("additions lost", _fault(result.lost), made)
    row("overlaps seen", _fault(result.overlaps), "in the independent log")
    return table


def workers_table(turns: Sequence[int], width: int) -> Table:
    """Return a table of the turns of every worker, or of the fewest and the most."""
    table = Table.grid(padding=(0, 1))
    if len(turns) > _SINGLY_MAX:
        table.add_row(f" turns per worker: {min(turns):,} the fewest, {max(turns):,} the most")
        return table
    in_row = max(1, min(_ROW_MAX, (width - 8) // 7))
    table.add_column(min_width=7)
    for _ in turns[:in_row]:
        table.add_column(justify="right", min_width=6)
    for first in range(0, len(turns), in_row):
        row = turns[first : first + in_row]
        numbers = (str(number) for number in range(first + 1, first + len(row) + 1))
        table.add_row(" worker", *numbers, style="dim")
        table.add_row(" turns", *(f"{count:,}" for count in row))
    return table


def percentile(ordered: Sequence[float], share: int) -> float:
    """Return the percentile by nearest rank; 0 if there are no values."""
    return ordered[math.ceil(len(ordered) * share / 100) - 1] if ordered else 0.0


def _fault(count: int) -> Text:
    return Text(f"{count:,}", "red" if count else "green")


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= _WHOLE_MS else f"{ms:.2f} ms"
