"""Print the section of CHANGELOG.md for a tag: `python -m tools.release v0.1.0`.

Fails if the tag is not the version of the package, if the changelog has no section for it, or if
the section still says "unreleased". A release candidate has the section of its version.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import quorlock

ROOT = Path(__file__).parents[1]


def problem(tag: str, version: str, section: str) -> str | None:
    """Return what prevents a release, or None."""
    if tag != f"v{version}":
        return f"the tag is {tag} and __version__ is {version}: they must be the same"
    if not section:
        return f"CHANGELOG.md has no section for {version}"
    if "unreleased" in section.splitlines()[0] and "rc" not in version:
        return f"the section for {version} in CHANGELOG.md says unreleased: give it a date"
    return None


def section_of(changelog: str, version: str) -> str:
    """Return the section of a version, with its heading; nothing if there is none."""
    base = re.escape(re.sub(r"rc\d+$", "", version))
    found = re.search(rf"^## {base}(?![\w.]).*?(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[0].strip() if found else ""


def main(tag: str) -> int:
    """Print the section, or what is wrong; return the exit status."""
    version = quorlock.__version__
    section = section_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if (wrong := problem(tag, version, section)) is not None:
        print(f"release: {wrong}", file=sys.stderr)
        return 1
    print(section.partition("\n")[2].strip())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
