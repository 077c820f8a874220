"""Text fitted to the columns and lines of a terminal. `full_screen` draws it, and needs rich."""

from __future__ import annotations

import os
import sys
import textwrap
from importlib.util import find_spec
from typing import TYPE_CHECKING

from quorlock._cli.exit_status import EX_UNAVAILABLE, Failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._cli.full_screen import Screen


def screen() -> Screen | None:
    """Return a screen if stdout is a terminal that can be drawn on. Raise Failed without rich."""
    if not is_drawable():
        return None
    from quorlock._cli.full_screen import Screen

    return Screen()


def is_drawable() -> bool:
    """Return whether stdout is a terminal that can be drawn on. Raise Failed without rich."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return False
    if find_spec("rich") is None:
        raise Failed(EX_UNAVAILABLE, "rich is not installed; run: pip install 'quorlock[cli]'")
    return True


def colour() -> bool | None:
    """Return the `color` of click.echo: None, for a terminal alone, or False if it is unwanted."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return False if plain else None


def wrapped(text: str, width: int) -> list[str]:
    """Return the text's lines, none wider than this; continuation lines are indented further."""
    lines: list[str] = []
    width = max(width, 1)  # COLUMNS=0
    for line in text.splitlines():
        # Narrower than the line: textwrap would never end.
        indent = " " * min(len(line) - len(line.lstrip()) + 4, width - 1)
        # textwrap would drop leading blanks too.
        folded = textwrap.wrap(
            line, width, subsequent_indent=indent, drop_whitespace=False, break_on_hyphens=False
        )
        lines += map(str.rstrip, folded)
    return lines


def fitted(blocks: Sequence[Sequence[str]], heads: Sequence[str], height: int) -> list[str]:
    """Return the lines that fit: all lines, else the heads, else some heads and a count."""
    whole = [line for block in blocks for line in block]
    if len(whole) <= height:
        return whole
    if len(heads) <= height:
        return list(heads)
    shown = max(0, height - 1)
    return [*heads[:shown], f"and {len(heads) - shown:,} more"]
