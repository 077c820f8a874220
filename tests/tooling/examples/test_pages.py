"""Every program of examples/ is on a page; `tools.snippets` compares the blocks with the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tooling.examples.programs import EXAMPLES
from tools.snippets import documents, read_blocks

ROOT = EXAMPLES.parent
FILES = sorted(file for file in EXAMPLES.rglob("*.py") if file.stat().st_size)
WITHOUT_A_BLOCK = {
    "examples/paused_client.py",  # docs/how-to/fencing.md only runs it
    "examples/django_shop/manage.py",  # the reader lets Django write these three
    "examples/django_shop/shop/settings.py",
    "examples/django_shop/billing/migrations/0001_initial.py",
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(EXAMPLES)))
def test_it_is_on_a_page(file: Path) -> None:
    """Every line of it, in one block or in several."""
    name = file.relative_to(ROOT).as_posix()
    blocks = [b for page in documents() for b in read_blocks(page) if b.title == name]
    shown = {line for block in blocks for line in block.source.splitlines()}
    if name not in WITHOUT_A_BLOCK:
        assert set(file.read_text().splitlines()) - {""} <= shown
