"""The project's URLs and its README as the package index shows it.

A metadata hook of hatchling (pyproject.toml, [tool.hatch.metadata.hooks.custom]). The index knows
no files beside the README, so relative links become absolute ones, to the tag of the version. This
needs the address of the repository: without one, the README stays as it is and there are no URLs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\]\((?!\w+:|#)(?P<target>[^)\s]+)\)")
PICTURES = (".png", ".svg")


class Hook(MetadataHookInterface):
    """The hook that hatchling calls when it builds a package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `readme` and `urls`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        settings = cast("dict[str, str]", self.config)  # pyright: ignore[reportUnknownMemberType]
        repository = settings["repository"].rstrip("/")
        tag = f"v{metadata['version']}"
        if repository:
            text = absolute(text, repository, tag)
            metadata["urls"] = urls(repository, tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, repository: str, tag: str) -> str:
    """Return a page whose relative links lead to the repository at this tag."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found["target"].endswith(PICTURES) else "blob"
        return f"]({repository}/{kind}/{tag}/{found['target']})"

    return LINK.sub(link, text)


def urls(repository: str, tag: str) -> dict[str, str]:
    """Return the URLs that the package index lists."""
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/README.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
