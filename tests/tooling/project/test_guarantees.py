"""docs/explanation/guarantees.md names the proof of what it says, and the proofs are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = "docs/explanation/guarantees.md"
PROOF = re.compile(r"`((?:tests|docs|spec|examples|src|sim)/[\w/.-]+)(?:::(\w+))?`")
NAMED = re.compile(r"`(model|rule): ([^`]+)`")
# Where cases of the model and rules of the simulator have their names, as strings.
NAMES = {"model": "spec/check.py", "rule": "sim/quorlock_sim/*.py"}


def problems(text: str, root: Path = ROOT) -> list[str]:
    """Proofs that do not exist, and lines of tables that should have one and have none."""
    found: list[str] = []
    proved = False
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if cells and cells[-1] == "shown by":
            proved = True
        elif not cells:
            proved = False
        elif proved and not cells[-1]:
            found.append(f"{number}: no proof: {cells[0]}")
        for kind, name in NAMED.findall(line):
            if name != "…" and not any(
                f'"{name}"' in path.read_text() for path in root.glob(NAMES[kind])
            ):
                found.append(f"{number}: there is no {kind}: {name}")
        for path, name in PROOF.findall(line):
            if not (root / path).exists():
                found.append(f"{number}: there is no {path}")
            elif name and not re.search(rf"\bdef {name}\b", (root / path).read_text()):
                found.append(f"{number}: {path} has no {name}")
    return found


def test_every_guarantee_has_a_proof_that_exists() -> None:
    assert problems((ROOT / PAGE).read_text()) == []


TABLE = "| promise | shown by |\n|---|---|\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"{TABLE}| it flies |  |", "3: no proof: it flies"),
        (f"{TABLE}| it flies | `tests/test_wings.py` |", "3: there is no tests/test_wings.py"),
        (
            f"{TABLE}| it flies | `tests/tooling/project/test_guarantees.py::test_wings` |",
            "3: tests/tooling/project/test_guarantees.py has no test_wings",
        ),
        (f"{TABLE}| it flies | `model: wings` |", "3: there is no model: wings"),
        (f"{TABLE}| it flies | `rule: wings` |", "3: there is no rule: wings"),
    ],
)
def test_the_check_catches(text: str, named: str) -> None:
    """The check can fail."""
    assert problems(text) == [named]
    assert problems("| a | b |\n|---|---|\n| 1 |  |") == []
