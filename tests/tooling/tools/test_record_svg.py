"""The drawings of tools.record_svg show the content of the terminal: a player for SVG and CSS reads
every frame back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

from tools.record_svg import AWAY, BACKGROUND, CELL, FOREGROUND, LINE, Frame, Size, drawn, folded

SVG = "{http://www.w3.org/2000/svg}"
SMALL = Size(20, 4)


class Player:
    """Plays a recording."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        self.style = style = self.root.findtext(f"{SVG}style") or ""
        self.css = dict(re.findall(r"^\.(\w+)\{(.*)\}$", style, re.MULTILINE))
        self.whole = float(re.findall(r"animation:([\d.]+)s step-end infinite", style)[0])
        self.stops = {
            name: [
                (float(share) / 100 * self.whole, float(x))
                for share, x in re.findall(r"([\d.]+)%\{transform:translate\((-?[\d.]+)px", steps)
            ]
            for name, steps in re.findall(r"@keyframes (\w+)\{(.*)\}$", style, re.MULTILINE)
        }
        self.contents = {group.get("id"): group for group in self.root.iter(f"{SVG}g")}
        (self.window,) = self.root.findall(f"{SVG}svg")

    def rows(self, at: float | None) -> list[ElementTree.Element | None]:
        """Return the content of each row at an instant; None: without animation."""
        found: list[ElementTree.Element | None] = [None] * SMALL.rows
        for outer in self.window.findall(f"{SVG}g"):
            row = int(_numbers(outer.get("transform"))[1]) // LINE
            (strip,) = outer
            x = -self._moved(strip, at)
            for use in strip:
                if float(use.get("x", "0")) == x:
                    found[row] = self.contents[str(use.get("href"))[1:]]
        return found

    def text(self, at: float | None) -> list[str]:
        """Return a run as plain text."""
        return [_plain(row) for row in self.rows(at)]

    def cursor(self, at: float | None) -> float:
        """Return the x coordinate of the cursor."""
        (rect,) = self.window.findall(f"{SVG}rect")
        return self._moved(rect, at)

    def _moved(self, what: ElementTree.Element, at: float | None) -> float:
        name = what.get("id")
        if name is None or at is None:
            return _numbers(what.get("transform") or "0")[0]
        return [x for instant, x in self.stops[name] if instant <= at][-1]


def _numbers(steps: str | None) -> list[float]:
    return [float(number) for number in re.findall(r"-?[\d.]+", steps or "")]


def _plain(row: ElementTree.Element | None) -> str:
    cells: dict[int, str] = {}
    for text in [] if row is None else row.iter(f"{SVG}text"):
        column = round(float(text.get("x", "0")) / CELL)
        cells |= dict(enumerate(text.text or "", column))
    return "".join(cells.get(column, " ") for column in range(max(cells, default=-1) + 1))


def played(*screens: str) -> Player:
    """One second each."""
    frames = [Frame(at, screen) for at, screen in enumerate(screens)]
    return Player(drawn(frames, title="t", size=SMALL))


def style_of(screen: str) -> tuple[str, str | None]:
    """The CSS of its only text, and what is behind it."""
    player = played(screen)
    (text,) = [
        text for row in player.rows(None) if row is not None for text in row.iter(f"{SVG}text")
    ]
    behind = [
        rect.get("fill")
        for row in player.rows(None)
        if row is not None
        for rect in row.iter(f"{SVG}rect")
    ]
    return player.css[text.get("class", "")], behind[0] if behind else None


SCREENS = {
    "one that stands still": ["$ ls", "$ ls"],
    "typing": ["$", "$ l", "$ ls"],
    "scrolling": ["a\nb\nc\nd", "b\nc\nd\ne", "c\nd\ne\nf"],
    "what comes back": ["a", "b", "a", "b"],
    "clearing": ["a\nb\nc", "", "\n\nd"],
    "columns": ["one  two   three", "one  two   four"],
    "what XML would read": ["a < b & c > d", 'say "<&>"'],
    "boxes and marks": ["────────┐", "│ p50 … │"],
    "blanks before and between": ["   a b  c", " a  b c"],
    "more rows than there are": ["a\nb\nc\nd\ne\nf"],
}


@pytest.mark.parametrize("screens", SCREENS.values(), ids=list(SCREENS))
def test_every_frame_is_shown_at_its_time(screens: Sequence[str]) -> None:
    player = played(*screens)
    for at, screen in enumerate(screens):
        rows = screen.split("\n")[: SMALL.rows]
        assert player.text(at + 0.5) == rows + [""] * (SMALL.rows - len(rows))
    # Where nothing moves, for want of CSS or by the reader's wish: the last one.
    assert player.text(None) == player.text(len(screens) - 0.5)


def test_it_rests_on_the_last_frame_and_begins_again() -> None:
    frames = [Frame(7.0, "a"), Frame(9.5, "b")]
    player = Player(drawn(frames, title="t", size=SMALL, rest=3.0))
    assert player.whole == pytest.approx(2.5 + 3.0)
    assert (player.text(2.4)[0], player.text(2.6)[0]) == ("a", "b")
    delay = re.search(r"animation-delay:-([\d.]+)s", player.style)
    assert delay is not None
    assert player.text(float(delay[1]))[0] == "b"  # what a still picture of it shows


def test_who_wants_no_motion_has_none() -> None:
    style = drawn([Frame(0, "a"), Frame(1, "b")], title="t")
    assert "@media (prefers-reduced-motion:reduce){.m{animation:none!important}}" in style


STYLES = {
    "plain": ("a", (f"fill:{FOREGROUND}", None)),
    "bold": ("\x1b[1ma", (f"fill:{FOREGROUND};font-weight:bold", None)),
    "dim": ("\x1b[2ma", (f"fill:{FOREGROUND};fill-opacity:.6", None)),
    "underlined": ("\x1b[4ma", (f"fill:{FOREGROUND};text-decoration:underline", None)),
    "a colour by name": ("\x1b[32ma", ("fill:#3fb950", None)),
    "one of 256": ("\x1b[38;5;196ma", ("fill:#ff0000", None)),
    "one by its parts": ("\x1b[38;2;1;2;3ma", ("fill:#010203", None)),
    "one behind": ("\x1b[41ma", (f"fill:{FOREGROUND}", "#ff7b72")),
    "reversed": ("\x1b[7ma", (f"fill:{BACKGROUND}", FOREGROUND)),
    "a colour reversed": ("\x1b[7;32ma", (f"fill:{BACKGROUND}", "#3fb950")),
    "several": ("\x1b[1;31ma", ("fill:#ff7b72;font-weight:bold", None)),
    "ended": ("\x1b[1;31m\x1b[0ma", (f"fill:{FOREGROUND}", None)),
    "of the row before": ("\x1b[31m\na", ("fill:#ff7b72", None)),
}


@pytest.mark.parametrize(("screen", "wanted"), STYLES.values(), ids=list(STYLES))
def test_a_text_looks_as_it_did(screen: str, wanted: tuple[str, str | None]) -> None:
    assert style_of(screen) == wanted


def test_wide_characters_take_two_cells() -> None:
    svg = drawn([Frame(0, "\x1b[31m日本\x1b[0mx")], title="t", size=SMALL)
    wide, narrow = ElementTree.fromstring(svg).findall(f".//{SVG}defs//{SVG}text")
    assert (wide.text, wide.get("textLength")) == ("日本", f"{4 * CELL:g}")
    assert (narrow.text, narrow.get("x")) == ("x", f"{4 * CELL:g}")


def test_blanks_are_seen_where_they_have_a_colour() -> None:
    player = played("\x1b[44m  a  \x1b[0m")
    (row,) = [row for row in player.rows(None) if row is not None]
    (rect,) = row.iter(f"{SVG}rect")
    assert (rect.get("x"), rect.get("width")) == ("0", f"{5 * CELL:g}")
    assert player.text(None)[0] == "  a  "


def test_the_cursor_is_where_it_was_or_out_of_sight() -> None:
    frames = [Frame(0, "a", (1, 0)), Frame(1, "a", (5, 2)), Frame(2, "a", None)]
    player = Player(drawn(frames, title="t", size=SMALL))
    assert [player.cursor(at) for at in (0.5, 1.5, 2.5, None)] == [CELL, 5 * CELL, AWAY, AWAY]


def test_it_is_small_and_the_same_every_time() -> None:
    """A row that comes again, there or elsewhere, is drawn once."""
    lines = [f"line {number}" for number in range(50)]
    frames = [Frame(at / 10, "\n".join(lines[at % 40 : at % 40 + 4])) for at in range(200)]
    svg = drawn(frames, title="t", size=SMALL)
    assert svg == drawn(list(frames), title="t", size=SMALL)
    assert [svg.count(f">{line}<") for line in lines] == [1] * 43 + [0] * 7


def test_only_what_changes_moves() -> None:
    """A row that stands still has no motion, another as many stops as it has changes."""
    frames = [
        Frame(0, "a\nx"),
        Frame(1, "b\nx"),
        Frame(2, "b\nx", (0, 0)),
        Frame(3, "a\nx", (0, 0)),
    ]
    stops = Player(drawn(frames, title="t", size=SMALL)).stops
    assert {name: len(steps) for name, steps in stops.items()} == {"r0": 3, "c": 2}


def test_frames_that_show_the_same_are_one() -> None:
    frames = [Frame(0, "a"), Frame(1, "a"), Frame(2, "a", (0, 0)), Frame(3, "b"), Frame(4, "a")]
    assert [frame.at for frame in folded(frames)] == [0, 2, 3, 4]


def test_it_needs_nothing_from_elsewhere() -> None:
    svg = drawn([Frame(0, "\x1b]8;;https://example.org\x07a\x1b]8;;\x07 \x0e\x01b")], title="<&>")
    root = ElementTree.fromstring(svg)
    assert root.findtext(f"{SVG}title") == "<&>"
    names = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert names <= {"svg", "title", "style", "defs", "g", "use", "text", "rect", "path", "circle"}
    links = [value for element in root.iter() for name, value in element.items() if "href" in name]
    assert all(link.startswith("#") for link in links)
    assert "url(" not in svg
    assert "@import" not in svg
