"""Holds JSON against a JSON Schema: the few words of it that docs/reference/cli.schema.json uses.

An unknown word is an error, so that the schema cannot say more than is checked.
"""

from __future__ import annotations

from typing import Any

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
WORDS = {
    *("$schema", "$id", "$defs", "$ref", "title", "description"),
    *("type", "enum", "minimum", "required", "properties", "additionalProperties", "items"),
}


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> list[str]:
    """All that is wrong with the value, as `place: what`."""
    if unknown := schema.keys() - WORDS:
        return [f"{at}: the schema says {unknown}, which is not checked"]
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return problems(value, root["$defs"][name], root, at)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    # A bool is an int to Python, and no number to JSON.
    fits = [kind for kind in kinds if isinstance(value, bool) <= (kind == "boolean")]
    if not any(isinstance(value, TYPES[kind]) for kind in fits):
        return [f"{at}: {value!r} is no {' or '.join(kinds)}"]
    found = []
    if value not in schema.get("enum", [value]):
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    if isinstance(value, (int, float)) and value < schema.get("minimum", value):
        found.append(f"{at}: {value} is less than {schema['minimum']}")
    if isinstance(value, list):
        for number, one in enumerate(value):
            found += problems(one, schema["items"], root, f"{at}[{number}]")
    if isinstance(value, dict):
        found += in_object(value, schema, root, at)
    return found


def in_object(
    value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str
) -> list[str]:
    known = schema["properties"]
    missing = set(schema["required"]) - value.keys()
    extra = value.keys() - known.keys() if schema["additionalProperties"] is False else set()
    found = [f"{at}: {name} is missing" for name in sorted(missing)]
    found += [f"{at}: {name} is not in the schema" for name in sorted(extra)]
    for name in value.keys() & known.keys():
        found += problems(value[name], known[name], root, f"{at}.{name}")
    return found
