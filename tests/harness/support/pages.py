"""The files that a page of the documentation shows: its blocks with a title."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
_BLOCK = re.compile(
    r'^```\w+ title="(?P<title>[^"]+)"\n(?P<source>.*?)^```$', re.MULTILINE | re.DOTALL
)


def titled(page: str) -> dict[str, str]:
    """Return the titled blocks of a page below docs/, by their titles."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = {block["title"]: block["source"] for block in _BLOCK.finditer(text)}
    assert len(found) == len(_BLOCK.findall(text)), f"{page} has a title twice"
    return found
