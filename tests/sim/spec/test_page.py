"""The page about the model: the code that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from spec import check

ROOT = Path(__file__).parents[3]
SRC = ROOT / "src" / "quorlock"


def rows() -> list[tuple[str, str]]:
    """Return the rows of the table of actions: the model's name, and the code."""
    page = check.README.read_text().split("## Which code is which action")[1].split("\n## ")[0]
    cells = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| `")]
    return [(left, right) for left, right in cells]


def test_every_action_of_the_model_is_in_the_table() -> None:
    actions: set[str] = set()
    models = (
        check.MODEL,
        check.FENCE_MODEL,
        check.PERMITS_MODEL,
        check.KEEP_MODEL,
        check.SHARED_MODEL,
    )
    for model in models:
        world = model.read_text().split("active proctype world")[1]
        actions |= set(re.findall(r"EACH_[A-Z]+\((\w+)[,)]", world))
    listed = {name for left, _ in rows() for name in re.findall(r"`(\w+)`", left)}
    for model in (check.WAIT_MODEL, check.EXCHANGE_MODEL):
        text = model.read_text()
        actions |= set(re.findall(r"(?:EACH_[A-Z]+|ON_EACH)\(([a-z_]+)", text)) - {"action"}
        actions |= set(re.findall(r":: ([a-z_]+)\([wABX]?\)", text))
    # Faults that break an assumption, and messages that never arrive, have no code.
    assert actions - listed == {"jumps", "set_lost"}
    assert listed <= actions


def test_every_name_of_the_code_exists() -> None:
    for _, right in rows():
        files = [SRC / name for name in re.findall(r"`([\w/]+\.(?:py|lua))`", right)]
        texts = "\n".join(path.read_text() for path in files)
        for name in re.findall(r"`([a-zA-Z_]+)`", right):
            assert re.search(rf"\b(def|class) {name}\b", texts), f"{name} is not in {files}"
