"""A live display on a terminal, of lines that the caller has fitted to it.

It imports rich, so it is loaded only where there is a terminal to draw on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable


class Screen:
    """The display, as a context manager. Its last content stays on the terminal."""

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
        return self._console.width

    @property
    def height(self) -> int:
        """Return the number of usable lines: one is left for the cursor."""
        return self._console.height - 1

    def draw(self, lines: Iterable[tuple[str, str]]) -> None:
        """Replace the lines on display, each a text and its style."""
        text = Text("\n", no_wrap=True, overflow="crop").join(Text(*line) for line in lines)
        self._live.update(text, refresh=True)
