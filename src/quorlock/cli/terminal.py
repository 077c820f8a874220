"""Whether there is a terminal to draw on, and how text is fitted to its columns and lines. Draws
nothing: `screen` does, and needs rich for it.
"""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TYPE_CHECKING

from quorlock.cli.exits import EX_UNAVAILABLE, Failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock.cli.screen import Screen


def screen() -> Screen | None:
    """One, where stdout is a terminal that can be drawn on. Raises Failed without rich."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return None
    try:
        from quorlock.cli.screen import Screen
    except ModuleNotFoundError:
        why = "rich is not installed; run: pip install 'quorlock[cli]'"
    else:
        return Screen()
    raise Failed(EX_UNAVAILABLE, why)


def wrapped(text: str, width: int) -> list[str]:
    """Its lines, none longer than that; what goes on is indented a little more."""
    lines: list[str] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        # It would drop those at the beginning too.
        folded = textwrap.wrap(
            line, width, subsequent_indent=indent, drop_whitespace=False, break_on_hyphens=False
        )
        lines += map(str.rstrip, folded)
    return lines


def fitted(blocks: Sequence[Sequence[str]], heads: Sequence[str], height: int) -> list[str]:
    """All lines of all blocks; else a head for each; else those that fit, and how many do not."""
    whole = [line for block in blocks for line in block]
    if len(whole) <= height:
        return whole
    if len(heads) <= height:
        return list(heads)
    shown = max(0, height - 1)
    return [*heads[:shown], f"and {len(heads) - shown:,} more"]
