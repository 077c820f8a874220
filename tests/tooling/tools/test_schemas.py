"""The page about JSON output is written from the schemas."""

from __future__ import annotations

import json

from tools import schemas


def test_the_page_is_that_of_the_schemas() -> None:
    """`python -m tools.schemas` would change nothing."""
    assert schemas.PAGE.read_text(encoding="utf-8") == schemas.page()


def test_every_field_is_on_the_page() -> None:
    """Each object has its section, and each field its row."""
    page = schemas.page()
    for name in ("cli", "doctor"):
        schema = json.loads((schemas.FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
        for section, described in schema["$defs"].items():
            rows = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
            for field in described["properties"]:
                assert f"| `{field}`" in rows, (section, field)
