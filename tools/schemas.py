"""Write docs/reference/json.md from the JSON schemas: `python -m tools.schemas`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PAGE = FOLDER / "json.md"
HEAD = """\
# JSON output

Commands with `--json` print one object on one line: on stdout, and those of `quorlock run` on
stderr. Durations are seconds. Fields may be added; those that are here keep their names and
meanings.

The JSON Schemas of this page, for validators: [cli.schema.json](cli.schema.json) and
[doctor.schema.json](doctor.schema.json). `python -m tools.schemas` writes the page from them.
"""


def page() -> str:
    """Return the page: a table for each object."""
    doctor, cli = (
        json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
        for name in ("doctor", "cli")
    )
    objects: dict[str, Any] = {"doctor": doctor, **doctor["$defs"], **cli["$defs"]}
    return "\n".join([HEAD, *(_section(name, schema) for name, schema in objects.items())])


def _section(name: str, schema: dict[str, Any]) -> str:
    lines = [f"## {name}", ""]
    if title := schema.get("title"):
        command, _, text = title.partition(": ")
        lines += [f"`{command}`" + (f": {text}." if text else "."), ""]
    if (text := schema.get("description")) and name != "doctor":
        lines += [text, ""]
    lines += ["| field | value | meaning |", "|---|---|---|"]
    required = schema.get("required", [])
    for field, value in schema["properties"].items():
        optional = "" if field in required else " (optional)"
        meaning = value.get("description", "").replace("|", "\\|")
        lines.append(f"| `{field}`{optional} | {_value(value)} | {meaning} |")
    return "\n".join([*lines, ""])


def _value(schema: dict[str, Any]) -> str:
    """Return the type of a field in words."""
    if target := schema.get("$ref"):
        name = target.rpartition("/")[2]
        return f"[{name}](#{name})"
    if choices := schema.get("enum"):
        return ", ".join(f"`{json.dumps(choice)}`" for choice in choices)
    kind: Any = schema["type"]
    kinds: list[str] = [kind] if isinstance(kind, str) else kind
    if "array" in kinds:
        return f"array of {_value(schema['items'])}" + (" or null" if "null" in kinds else "")
    return " or ".join(kinds)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
