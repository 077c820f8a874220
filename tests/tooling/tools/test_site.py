"""The documentation as a site: links follow their pages, nothing is loaded from other hosts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from quorlock_sim.replays import ReplayError
from quorlock_sim.view.player import player
from tests.sim.chromium import Chromium
from tools import site

VENV = site.ROOT / ".venv-docs" / "bin" / "zensical"
BLOCK = "```md\n[a](../CHANGELOG.md)\n```"


@pytest.mark.parametrize(
    ("link", "source", "target", "expected"),
    [
        ("[a](../CHANGELOG.md)", "docs/README.md", "README.md", "[a](reference/changelog.md)"),
        ("[a](../../spec/README.md#x)", "docs/how-to/a.md", "how-to/a.md", None),
        ("[a](docs/how-to/acl.md)", "CONTRIBUTING.md", "contributing/CONTRIBUTING.md", None),
        (
            "text\nb](https://a.example/b.md)",
            "docs/a.md",
            "a.md",
            "text\nb](https://a.example/b.md)",
        ),
        ("[a](#here)", "docs/a.md", "a.md", "[a](#here)"),
        (
            "```md\n[a](../CHANGELOG.md)\n```",
            "docs/a.md",
            "a.md",
            "```md\n[a](../CHANGELOG.md)\n```",
        ),
    ],
    ids=["outside", "anchor", "into docs", "absolute", "same page", "in a block"],
)
def test_a_link_leads_to_the_same_page(
    link: str, source: str, target: str, expected: str | None
) -> None:
    others = {
        "docs/how-to/a.md": "[a](../contributing/model.md#x)",
        "CONTRIBUTING.md": "[a](../how-to/acl.md)",
    }
    assert site.relinked(link, source, target).strip() == (expected or others[source])


def test_a_link_to_a_file_that_is_not_in_the_site_stays_dead() -> None:
    """Zensical reports it then."""
    link = "[a](../tests/conftest.py)"
    assert site.relinked(link, "docs/README.md", "README.md").strip() == link


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/a.js"></script>',
        "<link rel=stylesheet href=//cdn.example/a.css>",
        '<img alt="" src="http://cdn.example/a.png">',
        "@import 'https://cdn.example/a.css';",
        "body { background: url(https://cdn.example/a.png) }",
    ],
)
def test_a_request_to_another_host_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.html").write_text(text)
    assert len(site.external_requests(tmp_path)) == 1


@pytest.mark.parametrize(
    "text",
    [
        '<a href="https://a.example/">a link</a>',
        '<link rel="canonical" href="https://a.example/">',
        '<img src="../images/a.png">',
        "body { background: url(data:image/png;base64,AA==) }",
    ],
)
def test_links_and_own_files_are_no_requests(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.html").write_text(text)
    assert site.external_requests(tmp_path) == []


def test_versions_stay_beside_each_other_and_the_newest_is_first(tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0rc1", "0.10.0", "0.10.0"):
        built = tmp_path / "built"
        built.mkdir()
        (built / "index.html").write_text(name)
        assert (site.publish(built, tmp_path / "site", name) / "index.html").read_text() == name
    listed = json.loads((tmp_path / "site" / "versions.json").read_text())
    assert [one["version"] for one in listed] == ["0.10.0", "0.10.0rc1", "0.9.0"]
    assert "url=0.10.0/" in (tmp_path / "site" / "index.html").read_text()


def test_the_version_is_that_of_the_library() -> None:
    import quorlock

    assert site.version() == quorlock.__version__


def test_every_page_is_in_the_navigation() -> None:
    """And every entry of the navigation is a page."""
    settings = (site.ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"([\w./-]+\.md)$", settings, re.MULTILINE)
    own = [p.relative_to(site.ROOT / "docs").as_posix() for p in (site.ROOT / "docs").rglob("*.md")]
    others = [page for source, page in site.PAGES.items() if source.endswith(".md")]
    assert sorted(listed) == sorted({*own, *others})


def test_the_player_takes_the_place_of_its_description(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text((site.ROOT / "docs" / "README.md").read_text())
    site.add_player(page)
    text = page.read_text()
    assert player() in text
    assert "<!-- player" not in text
    assert "docs-serve` plays" not in text


@pytest.mark.parametrize("places", [0, 2])
def test_a_first_page_has_one_place_for_the_player(tmp_path: Path, places: int) -> None:
    page = tmp_path / "README.md"
    page.write_text("<!-- player -->\n<!-- /player -->\n" * places)
    with pytest.raises(site.BuildError, match=f"README.md has {places} places"):
        site.add_player(page)


def test_a_run_that_differs_from_its_captions_ends_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise ReplayError("paused: no write")

    monkeypatch.setattr(site, "player", fail)
    with pytest.raises(site.BuildError, match="paused: no write"):
        site.add_player(tmp_path / "README.md")


PAGES = (
    "",
    "tutorial/three-nodes",
    "reference/api/quorlock",
    "reference/cli",
    "explanation/guarantees",
    "explanation/benchmark-results",
    "migration",
)


@pytest.mark.slow
@pytest.mark.skipif(not VENV.exists(), reason="no .venv-docs: make docs")
def test_the_site_builds_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And has the player, all docstrings, and no page that is wider than a phone."""
    monkeypatch.setattr(site, "SITE", tmp_path / "site")
    target = site.build()
    assert player() in (target / "index.html").read_text()
    page = (target / "reference" / "api" / "quorlock" / "index.html").read_text()
    for name in ("Redlock", "Lock", "Lease", "Node", "now"):
        assert f'id="quorlock.{name}"' in page
    for api in ("quorlock", "asyncio"):  # a class that takes its docstring from another
        page = (target / "reference" / "api" / api / "index.html").read_text()
        assert "<p>Distributed locks over N independent Redis or Valkey masters.</p>" in page
    with Chromium() as browser:  # last: without Chromium, the test is skipped here
        for name in PAGES:
            tab = browser.open(target / name / "index.html")
            tab.size(390, 900)
            assert tab.run("document.documentElement.scrollWidth") <= 390, name
            tab.close()
