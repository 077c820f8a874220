"""Live displays on a terminal, of lines that the caller has fitted to it.

This module imports rich, so it is loaded only where there is a terminal to draw on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Self, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.text import Text

Line: TypeAlias = tuple[str, str]  # a text and its style

_CLOSED = (OSError, termios.error)  # of a terminal that is closed
_ESCAPE = b"\x1b"  # begins the bytes of an arrow key: not a key that ends the display


class Screen:
    """A display below earlier output, as a context manager. Its last content stays there."""

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

    def draw(self, lines: Iterable[Line]) -> None:
        """Replace the lines on display, each a text and its style."""
        self._live.update(_text(lines), refresh=True)


class FullScreen:
    """A display on the alternate screen; a context manager that restores the terminal.

    It is drawn again when the terminal is resized, and when the process continues after a stop.
    Keys are not echoed. `q` ends the display.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live: Live | None = None
        self._attributes: list[Any] | None = None  # of the terminal, before
        self._keyboard = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._lines: Callable[[int, int], Iterable[Line]] = lambda _width, _height: ()

    def __enter__(self) -> Self:
        try:
            self._take()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the terminal was closed
            self._restore()

    def draw(self, lines: Callable[[int, int], Iterable[Line]]) -> None:
        """Show these lines, each a text and its style.

        Args:
            lines: Returns the lines for a width and a height; called again after a resize.
        """
        self._lines = lines
        self._redraw()

    @contextmanager
    def listening(
        self, end: Callable[[], object], at_once: Callable[[], AbstractContextManager[None]]
    ) -> Generator[None]:
        """Handle keys and the terminal's signals in the running event loop.

        Args:
            end: Called when the user ends the display.
            at_once: The context for output, which may block.
        """
        loop = asyncio.get_running_loop()

        def redraw() -> None:
            self._draw_again(at_once)

        def suspend() -> None:
            with at_once(), suppress(*_CLOSED):
                self._restore()
                loop.remove_signal_handler(signal.SIGTSTP)
                signal.raise_signal(signal.SIGTSTP)  # it continues here
                loop.add_signal_handler(signal.SIGTSTP, suspend)
            self._draw_again(at_once)

        handlers = {signal.SIGWINCH: redraw, signal.SIGCONT: redraw}
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            handlers[signal.SIGTSTP] = suspend
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        if self._keyboard is not None:
            loop.add_reader(self._keyboard, self._on_key, end, self._keyboard)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
            if self._keyboard is not None:
                loop.remove_reader(self._keyboard)

    def _draw_again(self, at_once: Callable[[], AbstractContextManager[None]]) -> None:
        is_closed = False
        with at_once():
            try:
                self._take()  # a stop that was not announced has changed the terminal
                self._redraw()
            except _CLOSED:
                is_closed = True
        if is_closed:
            # Again: the exception of the first SIGHUP may have been replaced by this one.
            signal.raise_signal(signal.SIGHUP)

    def _on_key(self, end: Callable[[], object], keyboard: int) -> None:
        keys = b""
        with suppress(OSError):  # the terminal was closed
            keys = os.read(keyboard, 1024)
        if not keys:
            asyncio.get_running_loop().remove_reader(keyboard)
        elif not keys.startswith(_ESCAPE) and b"q" in keys.lower():
            end()

    def _take(self) -> None:
        if self._keyboard is not None:
            if self._attributes is None:
                self._attributes = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard, termios.TCSANOW)
        if self._live is None:
            self._live = Live(console=self._console, screen=True, auto_refresh=False)
            self._live.start()

    def _restore(self) -> None:
        live, self._live = self._live, None
        attributes, self._attributes = self._attributes, None
        try:
            if live is not None:
                live.stop()
        finally:
            if attributes is not None and self._keyboard is not None:
                with suppress(termios.error):
                    termios.tcsetattr(self._keyboard, termios.TCSANOW, attributes)

    def _redraw(self) -> None:
        lines = self._lines(self._console.width, self._console.height - 1)
        if self._live is not None:
            self._live.update(_text(lines), refresh=True)


def _text(lines: Iterable[Line]) -> Text:
    return Text("\n", no_wrap=True, overflow="crop").join(Text(*line) for line in lines)
