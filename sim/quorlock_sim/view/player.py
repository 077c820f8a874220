"""The replays (`replays`) as a part of a page: lists of captions, and a player for browsers.

Without scripts the lists can be read. player.js draws the runs; it needs no library and no network.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorlock_sim import replays
from quorlock_sim.view.page import embedded

if TYPE_CHECKING:
    from collections.abc import Sequence


def player() -> str:
    """Return the HTML, in one element without an empty line, which Markdown copies as it is."""
    runs = [replays.data(replays.live(replay())) for replay in replays.ALL]
    return fragment(runs)


def fragment(runs: Sequence[dict[str, Any]]) -> str:
    """Return the HTML for these runs."""
    parts = (
        f"<style>{_file('player.css')}</style>",
        *map(_captions, runs),
        f'<script type="application/json" class="ql-data">{embedded(runs)}</script>',
        f"<script>{_file('player.js')}</script>",
    )
    text = '<div class="ql-player">' + "\n".join(parts) + "</div>"
    return "\n".join(line for line in text.splitlines() if line.strip())


def _file(name: str) -> str:
    return "\n" + Path(__file__).with_name(name).read_text(encoding="utf-8")


def _captions(run: dict[str, Any]) -> str:
    items = "\n".join(
        f"<li><b>{at:,} ms</b> {escape(text, quote=False)}</li>" for at, text in run["captions"]
    )
    return (
        f'<details open class="ql-steps"><summary>{escape(run["title"])}</summary>\n'
        f'<ol>\n{items}\n</ol>\n<p class="ql-verdict">{escape(run["verdict"])}</p></details>'
    )
