"""The pictures of the pages: small SVG files that are readable in light, in dark and on a phone."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[3]
DRAWN = ("redlock-votes.svg", "lease-timeline.svg")
SVG = "{http://www.w3.org/2000/svg}"
PHONE = 350  # pixels of text on a screen of 390


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_has_words_colours_and_a_size_for_a_phone(name: str) -> None:
    text = (ROOT / "docs/images" / name).read_text(encoding="utf-8")
    drawing = ElementTree.fromstring(text)
    assert drawing.findtext(f"{SVG}title")
    assert drawing.findtext(f"{SVG}desc")
    light, dark = (set(re.findall(r"--([a-z]+):", part)) for part in re.split("@media", text))
    assert light == dark, "each colour has a value for light and for dark"
    # Its own background: readable also if the page is dark and the system is light.
    assert 'fill="var(--panel)"' in text
    width = int(drawing.attrib["width"])
    smallest = min(
        int(size) for size in re.findall(r"(?:font:|font-size:) ?(?:600 )?(\d+)px", text)
    )
    assert smallest * PHONE / width >= 9


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_shown_with_a_text_instead(name: str) -> None:
    page = (ROOT / "docs/explanation/redlock-in-five-minutes.md").read_text(encoding="utf-8")
    found = re.search(rf"!\[([^\]]+)\]\(\.\./images/{name}\)", page)
    assert found
    assert len(found[1].split()) > 10


def test_answers_are_short_and_lead_on() -> None:
    """Each answer of the FAQ has at most six lines, and a link."""
    page = (ROOT / "docs/explanation/faq.md").read_text(encoding="utf-8")
    answers = re.findall(r"^### .*\n\n((?:.+\n)+)", page, re.MULTILINE)
    assert len(answers) == page.count("\n### ")
    assert max(answer.count("\n") for answer in answers) <= 6
    assert [answer for answer in answers if "](" not in answer] == []
