"""Build the documentation as a site: `make docs`, `make docs-serve`.

1. The pages of `docs/`, and those of `PAGES` that are elsewhere in the repository, are copied to
   `build/docs`. Links between them follow. A link to any other file is an error.
2. Zensical builds `build/site` by `mkdocs.yml`. Every warning is an error: dead links, missing
   anchors, pages that are not in `nav`. mkdocs-material builds the same `mkdocs.yml`.
3. The site is searched for requests to other hosts. None is allowed.
4. It becomes `site/VERSION`. `site/versions.json` lists the versions that are there, and
   `site/index.html` leads to the newest.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

from quorlock_sim.replays import ReplayError
from quorlock_sim.view.player import player
from tools.snippets import FENCE, LINK

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
SITE = ROOT / "site"
PORT = 8000
# Pages and pictures outside docs/, and where the site has them.
PAGES = {
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "contributing/CONTRIBUTING.md",
    "README.md": "README.md",
    "SECURITY.md": "reference/security.md",
    "bench/README.md": "contributing/benchmark.md",
    "bench/results/README.md": "explanation/benchmark-results.md",
    "bench/results/concurrency.svg": "explanation/concurrency.svg",
    "bench/results/peers.svg": "explanation/peers.svg",
    "spec/README.md": "contributing/model.md",
}
# What a browser loads with a page: scripts, style sheets, pictures, frames, fonts.
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b(?![^>]*\brel=[\"']?(?:canonical|prev|next)\b)[^>]*?\bhref=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|(?:@import\s*[\"']?|url\(\s*[\"']?)((?:https?:)?//[^\"')\s]+)",
    re.IGNORECASE,
)
# What the site replaces by the player of simulated runs; other readers of the page see it.
WITHOUT_PLAYER = re.compile(r"<!-- player -->\n.*?<!-- /player -->", re.DOTALL)
COLOUR = re.compile(r"\x1b\[[\d;]*m")
REDIRECT = """\
<!DOCTYPE html>
<meta charset="utf-8">
<title>quorlock</title>
<meta http-equiv="refresh" content="0; url={0}/">
<a href="{0}/">The documentation of quorlock {0}</a>
"""


class BuildError(Exception):
    """The site cannot be built; the text says why."""


def build() -> Path:
    """Build the site of this version; return its folder.

    Raises:
        BuildError: a warning, a dead link, a request to another host, or a simulated run that
            is not what its captions say.
    """
    stage(BUILD / "docs")
    add_player(BUILD / "docs" / "README.md")
    run_zensical()
    if found := external_requests(BUILD / "site"):
        raise BuildError("\n".join(["the site loads from other hosts:", *found]))
    return publish(BUILD / "site", SITE, version())


def version() -> str:
    """Return the version of the library, from its source."""
    text = (ROOT / "src" / "quorlock" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    assert found, "quorlock has no __version__"
    return found[1]


# --- the pages -------------------------------------------------------------------------------


def stage(folder: Path) -> None:
    """Copy all pages to this folder; make their links fit."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    for source, target in PAGES.items():
        if source != "README.md":
            shutil.copy(ROOT / source, folder / target)
    sources = {target: source for source, target in PAGES.items() if source != "README.md"}
    for page in sorted(folder.rglob("*.md")):
        name = page.relative_to(folder).as_posix()
        text = page.read_text(encoding="utf-8")
        page.write_text(relinked(text, sources.get(name, f"docs/{name}"), name), encoding="utf-8")


def add_player(page: Path) -> None:
    """Put the player of simulated runs into the first page."""
    try:
        runs = player()
    except ReplayError as error:
        raise BuildError(str(error)) from error
    text, count = WITHOUT_PLAYER.subn(lambda _: runs, page.read_text(encoding="utf-8"))
    if count != 1:
        raise BuildError(f"{page.name} has {count} places for the player, not 1")
    page.write_text(text, encoding="utf-8")


def relinked(text: str, source: str, target: str) -> str:
    """Return a page with the links that it needs at its place in the site."""

    def link(found: re.Match[str]) -> str:
        path, mark, anchor = found["target"].partition("#")
        if not path or re.match(r"\w+:", path):
            return found[0]
        place = in_site(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        if place is None:
            return found[0]  # Zensical reports it
        there = posixpath.relpath(place, posixpath.dirname(target) or ".")
        return f"]({there}{mark}{anchor})"

    lines: list[str] = []
    fenced: str | None = None
    for line in text.splitlines():
        fence = FENCE.match(line)
        if fenced is not None:
            fenced = None if line.strip() == fenced else fenced
        elif fence:
            fenced = fence["marks"]
        lines.append(LINK.sub(link, line) if fenced is None else line)
    return "\n".join([*lines, ""])


def in_site(path: str) -> str | None:
    """Return the place of a file of the repository in the site, or None if it is not there."""
    return path.removeprefix("docs/") if path.startswith("docs/") else PAGES.get(path)


# --- the site --------------------------------------------------------------------------------


def run_zensical() -> None:
    """Build `build/site`; raise a BuildError if there is a warning."""
    done = subprocess.run(
        [ROOT / ".venv-docs" / "bin" / "zensical", "build", "--strict", "--clean"],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{ROOT / '.venv-docs' / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = COLOUR.sub("", done.stdout + done.stderr)
    if done.returncode or "Warning:" in said or "Error:" in said:
        raise BuildError(said.partition("Traceback")[0])


def external_requests(site: Path) -> list[str]:
    """Return what the pages and style sheets load from other hosts, as `file: URL`."""
    found: set[str] = set()
    for file in [*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg")]:
        for groups in LOADED.findall(file.read_text(encoding="utf-8")):
            found.add(f"{file.relative_to(site)}: {''.join(groups)}")
    return sorted(found)


def publish(built: Path, site: Path, name: str) -> Path:
    """Move a built site to the folder of its version; list all versions."""
    target = site / name
    shutil.rmtree(target, ignore_errors=True)
    site.mkdir(exist_ok=True)
    built.rename(target)
    names = sorted((p.name for p in site.iterdir() if p.is_dir()), key=by_number, reverse=True)
    listed = [{"version": one, "title": one, "aliases": list[str]()} for one in names]
    (site / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    (site / "index.html").write_text(REDIRECT.format(names[0]), encoding="utf-8")
    return target


def by_number(name: str) -> tuple[list[int], bool]:
    """Return what sorts versions: 0.10.0 after 0.9.0, and a release after its candidates."""
    final = re.fullmatch(r"[\d.]+", name) is not None
    return [int(number) for number in re.findall(r"\d+", name)[:3]], final


def serve() -> None:
    """Serve `site/` on this machine until interrupted."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", PORT), handler) as server:
        print(f"http://127.0.0.1:{PORT}/ (^C ends it; make docs builds again)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def main(arguments: list[str]) -> int:
    """Build the site, and serve it if asked to; return the exit status."""
    try:
        target = build()
    except BuildError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    pages = sum(1 for _ in target.rglob("*.html"))
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    print(f"docs: {pages} pages, {size / 1e6:.1f} MB in {target.relative_to(ROOT)}/")
    if arguments == ["serve"]:
        serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
