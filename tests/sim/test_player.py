"""The player of replays: readable without scripts, and tried in a real browser."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest

from quorlock_sim.view.player import fragment, player
from tests.sim.chromium import Chromium, Tab
from tests.sim.test_page import Outline
from tests.sim.test_replays import NAMES, data
from tools.site import external_requests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCE = "document.querySelector('.ql-player {}')"
PLAY, SCRUB, NOW = (SOURCE.format(s) for s in (".ql-play", "input", ".ql-now"))
# Frames that come at once and say that 200 ms have passed.
QUICK_FRAMES = """
    let stamp = 0;
    window.requestAnimationFrame = (draw) => setTimeout(() => draw(stamp += 200), 0);
    window.cancelAnimationFrame = clearTimeout;
"""


def until(condition: str) -> str:
    """A promise that this condition holds."""
    look = f"const look = () => {condition} ? done(true) : setTimeout(look, 1); look();"
    return f"new Promise((done) => {{ {look} }})"


ENDED = until(f"{PLAY}.textContent === 'Play again'")
TEXTS = "[...document.querySelectorAll('.ql-player svg text')].map((t) => t.textContent)"


def runs() -> list[dict[str, Any]]:
    return [data(name) for name in NAMES]


# --- without a browser -------------------------------------------------------------------------


def test_the_player_shows_all_runs() -> None:
    outline = Outline(player())
    assert json.loads(outline.scripts[0]) == json.loads(json.dumps(runs()))


def test_the_player_needs_nothing_but_itself(tmp_path: Path) -> None:
    text = player()
    assert Outline(text).references == []
    (tmp_path / "a.html").write_text(text)
    assert external_requests(tmp_path) == []
    assert re.findall(r"https?://[^\"']*", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"fetch\(|XMLHttp|import\(|localStorage|cookie", text)


def test_markdown_copies_the_player_as_it_is() -> None:
    """A block of HTML ends at an empty line."""
    assert "\n\n" not in player()


def test_without_scripts_all_captions_can_be_read() -> None:
    text = unescape(re.sub(r"<(style|script).*?</\1>", "", player(), flags=re.DOTALL))
    for run in runs():
        for at, caption in run["captions"]:
            assert f"<li><b>{at:,} ms</b> {caption}</li>" in text
        assert run["verdict"] in text
    assert text.count("<details open") == len(NAMES)


def test_words_of_a_run_cannot_end_the_script() -> None:
    run = runs()[0] | {"title": "</script><b>", "verdict": "a & b < c"}
    outline = Outline(fragment([run]))
    assert json.loads(outline.scripts[0])[0]["title"] == "</script><b>"


# --- in a browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as one:
        yield one


@pytest.fixture
def tab(browser: Chromium, tmp_path: Path) -> Iterator[Tab]:
    path = tmp_path / "player.html"
    head = '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>t</title>'
    path.write_text(f"{head}<body>{player()}</body></html>", encoding="utf-8")
    tab = browser.open(path)
    try:
        yield tab
        assert tab.complaints == []
    finally:
        tab.close()


def choose(tab: Tab, index: int) -> None:
    tab.run(SOURCE.format(f".ql-picks button:nth-child({index + 1})") + ".click()")


def click(tab: Tab, element: str) -> None:
    """Click with the mouse, where the element is."""
    box = tab.run(f"{element}.scrollIntoView(), {element}.getBoundingClientRect().toJSON()")
    tab.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def value(tab: Tab) -> int:
    return int(tab.run(f"{SCRUB}.value"))


@pytest.mark.parametrize("index", range(len(NAMES)), ids=NAMES)
def test_play_shows_every_caption_and_ends_with_the_verdict(tab: Tab, index: int) -> None:
    run = runs()[index]
    tab.run(QUICK_FRAMES)
    choose(tab, index)
    tab.run(f"""window.seen = [{NOW}.textContent];
        new MutationObserver(() => seen.push({NOW}.textContent))
            .observe({NOW}, {{childList: true}})""")
    click(tab, PLAY)
    assert tab.run(ENDED)
    assert tab.run("seen") == [*(text for _, text in run["captions"]), run["verdict"]]
    assert value(tab) == run["end"]
    assert tab.run(f"{NOW}.classList.contains('ql-bad')") is bool(run["overlaps"])


def test_nothing_plays_before_it_is_asked_to(tab: Tab) -> None:
    tab.run(QUICK_FRAMES)
    for _ in range(20):
        tab.settle()
    assert value(tab) == 0
    assert tab.run(f"{PLAY}.textContent") == "Play"


def test_pause_stops_and_play_goes_on(tab: Tab) -> None:
    tab.run(QUICK_FRAMES)
    click(tab, PLAY)
    assert tab.run(f"{PLAY}.textContent") == "Pause"
    tab.run(until(f"{SCRUB}.value > 0"))
    click(tab, PLAY)
    stopped = value(tab)
    for _ in range(20):
        tab.settle()
    assert 0 < value(tab) == stopped < runs()[0]["end"]
    assert tab.run(f"{PLAY}.textContent") == "Play"
    click(tab, PLAY)
    assert tab.run(ENDED)
    click(tab, PLAY)  # again, from the start
    assert value(tab) < stopped


def test_next_and_back_go_from_caption_to_caption(tab: Tab) -> None:
    run = runs()[0]
    instants = [*(at for at, _ in run["captions"]), run["end"]]
    forward, back = (SOURCE.format(f".ql-controls button:nth-child({n})") for n in (3, 2))
    for instant in instants[1:]:
        click(tab, forward)
        assert value(tab) == instant
    click(tab, forward)
    assert value(tab) == run["end"]
    for instant in instants[-2::-1]:
        click(tab, back)
        assert value(tab) == instant
    click(tab, back)
    assert value(tab) == 0


def test_the_keyboard_reaches_every_control(tab: Tab) -> None:
    def key(name: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            tab.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                code=name,
                windowsVirtualKeyCode=code,
                **more,
            )

    reached: list[str] = []
    for _ in range(10):
        key("Tab", 9)
        reached.append(tab.run("document.activeElement.textContent || document.activeElement.type"))
    titles = [run["title"] for run in runs()]
    assert reached == [
        *titles,
        "range",
        "Play",
        "Back",
        "Next",
        "0.5×1×2×4×",
        "All steps of this run",
    ]
    tab.run(f"{SCRUB}.focus()")
    key("ArrowRight", 39)
    assert value(tab) == 1
    tab.run(f"{PLAY}.focus()")
    key("Enter", 13, "\r")
    assert tab.run(f"{PLAY}.textContent") == "Pause"


def test_a_reader_who_wants_no_motion_sees_none(tab: Tab) -> None:
    wish = {"name": "prefers-reduced-motion", "value": "reduce"}
    tab.call("Emulation.setEmulatedMedia", features=[wish])
    tab.run(QUICK_FRAMES)
    tab.run(f"""window.instants = new Set();
        new MutationObserver(() => instants.add(Number({SCRUB}.value))).observe(
            {SOURCE.format("svg")}, {{childList: true}})""")
    click(tab, PLAY)
    assert tab.run(ENDED)
    run = runs()[0]
    assert tab.run("[...instants]") == [*(at for at, _ in run["captions"][1:]), run["end"]]


def test_two_holders_are_drawn_and_told(tab: Tab) -> None:
    choose(tab, NAMES.index("two_holders"))
    ((begin, end),) = runs()[-1]["overlaps"]
    for at, shown in ((begin - 1, False), (begin, True), (end - 1, True), (end, False)):
        tab.run(f"{SCRUB}.value = {at}; {SCRUB}.dispatchEvent(new Event('input'))")
        texts = tab.run(TEXTS)
        assert ("two holders" in texts) is shown
        assert texts.count("holds the lock") == 1 + shown
    label = tab.run("document.querySelector('.ql-player svg').getAttribute('aria-label')")
    assert label.startswith("No guard: two holders: ")


def test_the_storage_shows_what_it_refused(tab: Tab) -> None:
    choose(tab, NAMES.index("paused"))
    tab.run(f"{SCRUB}.value = 2860; {SCRUB}.dispatchEvent(new Event('input'))")
    texts = tab.run(TEXTS)
    assert {"refused: 500,000", "fence 2,500,000"} <= set(texts)


@pytest.mark.parametrize("width", [390, 1_280])
def test_words_stay_within_their_boxes(tab: Tab, width: int) -> None:
    tab.size(width, 900)
    wider = """[...document.querySelectorAll('.ql-player .box')].flatMap((box) => {
        const edge = box.getBBox(), words = [box.nextSibling, box.nextSibling.nextSibling];
        return words.filter((text) => text.getBBox().width > edge.width - 4)
            .map((text) => text.textContent);
    })"""
    for index, run in enumerate(runs()):
        choose(tab, index)
        for at in range(0, run["end"], 250):
            tab.run(f"{SCRUB}.value = {at}; {SCRUB}.dispatchEvent(new Event('input'))")
            assert tab.run(wider) == []


@pytest.mark.parametrize("width", [320, 390, 1_280])
def test_the_player_fits_the_window(tab: Tab, width: int) -> None:
    tab.size(width, 900)
    for index in range(len(NAMES)):
        choose(tab, index)
        assert tab.run("document.documentElement.scrollWidth") <= width


def test_the_caption_is_announced_and_marked_in_the_list(tab: Tab) -> None:
    assert tab.run(f"{NOW}.getAttribute('aria-live')") == "polite"
    click(tab, SOURCE.format(".ql-controls button:nth-child(3)"))
    marked = tab.run("[...document.querySelectorAll('[aria-current]')].map((i) => i.textContent)")
    at, text = runs()[0]["captions"][1]
    assert marked == [f"{at} ms {text}"]


def test_dark_pages_have_a_dark_player(tab: Tab) -> None:
    colour = "getComputedStyle(document.querySelector('.ql-player .c0')).fill"
    light = tab.run(colour)
    tab.run("document.body.setAttribute('data-md-color-scheme', 'slate')")
    assert tab.run(colour) != light
