"""Draw the frames of a terminal session as one SVG that plays them in a loop.

Pure: the same frames give the same bytes. The SVG works in an `<img>`: it has no script, no font
and no external resource. The loop begins with the last frame: it is what programs show that draw a
still picture. It is also what readers see who prefer reduced motion.

Each row of the screen is a film strip: its contents lie side by side and CSS moves them under the
window. Contents that several rows show, as text scrolls, are drawn once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from xml.sax.saxutils import escape

from rich.ansi import AnsiDecoder
from rich.cells import cell_len
from rich.color import ColorType
from rich.console import Console
from rich.terminal_theme import TerminalTheme

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.color import Color
    from rich.style import Style

FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
FONT_SIZE, CELL, LINE, BASE = 14, 8.4, 18, 13.5  # BASE: the base line, from the top of the row
MARGIN, BAR, GAP = 14, 34, 28
AWAY = -100  # position of a hidden cursor, left of the window

BACKGROUND, BORDER, BAR_FILL, BAR_TEXT = "#0d1117", "#3d444d", "#161b22", "#9198a1"
FOREGROUND = "#e6edf3"
BUTTONS = ("#ff5f57", "#febc2e", "#28c840")
THEME = TerminalTheme(
    (13, 17, 23),
    (230, 237, 243),
    [
        (72, 79, 88),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
        (177, 186, 196),
    ],
    [
        (110, 118, 129),
        (255, 161, 152),
        (86, 211, 100),
        (227, 179, 65),
        (121, 192, 255),
        (210, 168, 255),
        (86, 212, 221),
        (255, 255, 255),
    ],
)
# Characters that XML 1.0 cannot hold, not even escaped.
_UNFIT = re.compile("[^\t -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WORDS = re.compile("[^ ]+(?: [^ ]+)*")


class Frame(NamedTuple):
    """The screen from one instant on.

    The rows have SGR sequences, as `tmux capture-pane -e -p` prints them. `cursor` is its column
    and row, from 0, or None if it is hidden.
    """

    at: float  # seconds
    screen: str
    cursor: tuple[int, int] | None = None


class Size(NamedTuple):
    """The size of a terminal in cells."""

    columns: int = 80
    rows: int = 24


class Run(NamedTuple):
    """Part of a row in one style: its text, the text's CSS and the background colour."""

    column: int
    text: str
    css: str
    behind: str | None


def drawn(
    frames: Sequence[Frame], *, title: str, size: Size | None = None, rest: float = 4.0
) -> str:
    """Return an SVG that loops over the frames, from the last one, which stays `rest` seconds."""
    size = size or Size()
    frames = folded(frames)
    began = frames[0].at
    instants = [frame.at - began for frame in frames]
    whole = instants[-1] + rest
    screens = list(zip(*(rows_of(frame.screen, size.rows) for frame in frames), strict=True))
    film = Film(size, whole, rest)
    strips = [film.strip(number, instants, history) for number, history in enumerate(screens)]
    cursor = film.cursor(instants, [frame.cursor for frame in frames])
    return _document(size, title, film, [*strips, cursor])


def folded(frames: Iterable[Frame]) -> list[Frame]:
    """Return the frames that differ from the frame before."""
    kept: list[Frame] = []
    for frame in frames:
        if not kept or kept[-1][1:] != frame[1:]:
            kept.append(frame)
    return kept


# --- reading -----------------------------------------------------------------------------------


def rows_of(screen: str, count: int) -> list[tuple[Run, ...]]:
    """Return the first `count` rows of a screen."""
    console = Console(force_terminal=True, width=10_000)
    rows: list[tuple[Run, ...]] = []
    # A style may continue past the end of a line: one decoder for all rows.
    for text in AnsiDecoder().decode(screen.rstrip("\n")):
        runs: list[Run] = []
        column = 0
        for segment in text.render(console):
            runs += _runs(column, segment.text, *_looks(segment.style))
            column += cell_len(segment.text)
        rows.append(tuple(runs))
    return [*rows, *[()] * (count - len(rows))][:count]


def _runs(column: int, text: str, css: str, behind: str | None) -> Iterator[Run]:
    """Yield the runs of a styled text.

    Words that are two or more blanks apart become separate runs: columns are then aligned in every
    font. Blanks are drawn only if they are visible.
    """
    if behind is not None or "decoration" in css:
        yield Run(column, text, css, behind)
        return
    for words in _WORDS.finditer(text):
        yield Run(column + cell_len(text[: words.start()]), words[0], css, None)


def _looks(style: Style | None) -> tuple[str, str | None]:
    """Return the CSS of a text and its background colour."""
    if style is None:
        return f"fill:{FOREGROUND}", None
    front, behind = _hex(style.color, front=True), _hex(style.bgcolor, front=False)
    if style.reverse:
        front, behind = behind or BACKGROUND, front or FOREGROUND
    marks = {
        "font-weight:bold": style.bold,
        "font-style:italic": style.italic,
        "text-decoration:underline": style.underline,
        "text-decoration:line-through": style.strike,
        "fill-opacity:.6": style.dim,
    }
    said = (mark for mark, is_on in marks.items() if is_on)
    return ";".join([f"fill:{front or FOREGROUND}", *said]), behind


def _hex(color: Color | None, *, front: bool) -> str | None:
    if color is None or color.type is ColorType.DEFAULT:
        return None
    return color.get_truecolor(THEME, foreground=front).hex


# --- drawing -----------------------------------------------------------------------------------


class Film:
    """The contents of all rows, by name, and their animations."""

    def __init__(self, size: Size, whole: float, rest: float) -> None:
        # Glyphs may be a little wider than their cells; the gap keeps them out of the window.
        self._pitch = _width(size) + GAP
        self._whole = whole
        self._rest = rest
        self._names: dict[tuple[Run, ...], str] = {}
        self._classes: dict[str, str] = {}
        self._motions: dict[str, str] = {}

    def strip(
        self, number: int, instants: Sequence[float], history: Sequence[tuple[Run, ...]]
    ) -> str:
        """Return one row of the screen in all frames."""
        places = {row: index * self._pitch for index, row in enumerate(dict.fromkeys(history))}
        uses = "".join(
            f'<use href="#{self._name(row)}" x="{place}"/>' for row, place in places.items() if row
        )
        if not uses:
            return ""
        stops = [f"translate({-places[row]}px)" for row in history]
        motion = self._motion(f"r{number}", instants, stops)
        last = f' transform="translate({-places[history[-1]]})"' if motion else ""
        return f'<g transform="translate(0,{number * LINE})"><g{motion}{last}>{uses}</g></g>\n'

    def cursor(self, instants: Sequence[float], places: Sequence[tuple[int, int] | None]) -> str:
        """Return the cursor; while it is hidden it is outside the window."""
        points = [
            (AWAY, 0) if place is None else (round(place[0] * CELL, 1), place[1] * LINE)
            for place in places
        ]
        motion = self._motion("c", instants, [f"translate({x:g}px,{y}px)" for x, y in points])
        x, y = points[-1]
        return (
            f'<rect{motion} transform="translate({x:g},{y})" width="{CELL}" height="{LINE}"'
            f' fill="{FOREGROUND}" fill-opacity=".5"/>\n'
        )

    def style(self) -> str:
        """Return the CSS."""
        whole = f"{self._whole:.2f}s"
        to_the_last = f"{0.98 * self._rest - self._whole:.2f}s"  # not on the border of two frames
        return "\n".join(
            [
                f"text{{font:{FONT_SIZE}px {FONT}}}",
                *(f".{name}{{{css}}}" for css, name in self._classes.items()),
                f".m{{animation:{whole} step-end infinite;animation-delay:{to_the_last}}}",
                *self._motions.values(),
                "@media (prefers-reduced-motion:reduce){.m{animation:none!important}}",
            ]
        )

    def contents(self) -> str:
        """Return the definitions that the strips refer to."""
        return "".join(
            f'<g id="{name}">{self._runs(row)}</g>\n' for row, name in self._names.items()
        )

    def _name(self, row: tuple[Run, ...]) -> str:
        for run in row:
            self._classes.setdefault(run.css, f"s{len(self._classes)}")
        return self._names.setdefault(row, f"t{len(self._names)}")

    def _runs(self, row: tuple[Run, ...]) -> str:
        return "".join(map(self._run, row))

    def _run(self, run: Run) -> str:
        cells = cell_len(run.text)
        x, width = f"{run.column * CELL:.6g}", f"{cells * CELL:.6g}"
        behind = ""
        if run.behind is not None:
            behind = f'<rect x="{x}" width="{width}" height="{LINE}" fill="{run.behind}"/>'
        text = escape(_UNFIT.sub("", run.text))
        if not text.strip() and "decoration" not in run.css:
            return behind
        kept = ' xml:space="preserve"' if "  " in f" {text} " else ""
        # An explicit width keeps what follows in place in every font.
        fit = f' textLength="{width}" lengthAdjust="spacingAndGlyphs"' if cells > 1 else ""
        name = self._classes[run.css]
        return f'{behind}<text class="{name}" x="{x}" y="{BASE}"{fit}{kept}>{text}</text>'

    def _motion(self, name: str, instants: Sequence[float], stops: Sequence[str]) -> str:
        """Add a keyframe for each change and return the attributes of the moving element."""
        changes: dict[float, str] = {}
        shown = None
        for instant, stop in zip(instants, stops, strict=True):
            if stop != shown:
                changes[instant] = shown = stop
        if len(changes) == 1:
            return ""
        keyframes = "".join(
            f"{100 * instant / self._whole:.3f}%{{transform:{stop}}}"
            for instant, stop in changes.items()
        )
        self._motions[name] = f"#{name}{{animation-name:{name}}}@keyframes {name}{{{keyframes}}}"
        return f' class="m" id="{name}"'


def _width(size: Size) -> int:
    return round(size.columns * CELL)


def _document(size: Size, title: str, film: Film, parts: Iterable[str]) -> str:
    inner = {"x": MARGIN, "y": BAR + 4, "width": _width(size), "height": size.rows * LINE}
    width, height = inner["width"] + 2 * MARGIN, inner["y"] + inner["height"] + MARGIN // 2
    buttons = "".join(
        f'<circle cx="{20 + 20 * index}" cy="{BAR // 2}" r="6" fill="{fill}"/>'
        for index, fill in enumerate(BUTTONS)
    )
    title = escape(title)
    body = "".join(parts)  # evaluated before `contents()`: it collects what is used
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" role="img">
<title>{title}</title>
<style>
{film.style()}
</style>
<defs>
{film.contents()}</defs>
<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="{BACKGROUND}" \
stroke="{BORDER}"/>
<path d="M1 {BAR}V8.5A7.5 7.5 0 0 1 8.5 1H{width - 8.5}A7.5 7.5 0 0 1 {width - 1} 8.5V{BAR}z" \
fill="{BAR_FILL}"/>
{buttons}<text x="{width // 2}" y="{BAR // 2 + 5}" text-anchor="middle" fill="{BAR_TEXT}">\
{title}</text>
<svg {_attributes(inner)}>
{body}</svg>
</svg>
"""


def _attributes(numbers: Mapping[str, int]) -> str:
    return " ".join(f'{name}="{number}"' for name, number in numbers.items())
