"""A live picture on a terminal, of lines that their maker has fitted to it. Loads rich, so it is
loaded when there is a terminal to draw on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable


class Line(NamedTuple):
    """One line of the picture, and how it looks."""

    text: str
    style: str = ""


class Screen:
    """Where it is drawn. A context manager; the last picture stays."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    @property
    def width(self) -> int:
        """Columns."""
        return self._console.width

    @property
    def height(self) -> int:
        """Lines that fit; the cursor has one of its own."""
        return self._console.height - 1

    def draw(self, lines: Iterable[Line]) -> None:
        """Show these, in place of those before."""
        text = Text("\n", no_wrap=True, overflow="crop").join(Text(*line) for line in lines)
        self._live.update(text, refresh=True)
