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


EVENT = re.compile(r"#### ([^\n]+)\n\n(.*?)(?=\n###|\n## |\Z)", re.DOTALL)
PROMISE = re.compile(r"^- (.+(?:\n  .+)*)$", re.MULTILINE)
COLUMNS_MAX = 3  # more are not readable on a phone


def problems(text: str, root: Path = ROOT) -> list[str]:
    """Return proofs that do not exist, promises and events without a proof, and wide tables."""
    promised = text.partition("## What is promised\n")[2].partition("\n## ")[0]
    unproved = [it for it in PROMISE.findall(promised) if not re.search(r"\*Shown by\* \S", it)]
    unproved += [
        event for event, body in EVENT.findall(text) if not re.search(r"\*\*Shown by\*\*: \S", body)
    ]
    found = [f"no proof: {it}" for it in unproved]
    flat = " ".join(text.split())
    for kind, name in NAMED.findall(flat):
        if name != "…" and not any(
            f'"{name}"' in path.read_text() for path in root.glob(NAMES[kind])
        ):
            found.append(f"there is no {kind}: {name}")
    for path, name in PROOF.findall(flat):
        if not (root / path).exists():
            found.append(f"there is no {path}")
        elif name and not re.search(rf"\bdef {name}\b", (root / path).read_text()):
            found.append(f"{path} has no {name}")
    rows = [line for line in text.splitlines() if line.startswith("|---")]
    return found + [f"too wide: {row}" for row in rows if row.count("|") - 1 > COLUMNS_MAX]


def test_every_guarantee_has_a_proof_that_exists() -> None:
    assert problems((ROOT / PAGE).read_text()) == []


PROMISED = "## What is promised\n\n- it flies\n  *Shown by* {}\n"
EVENTS = "#### It flies\n\n- **Consequence**: it is away.\n- **Shown by**: {}\n"


@pytest.mark.parametrize("form", [PROMISED, EVENTS], ids=["promise", "event"])
@pytest.mark.parametrize(
    ("proof", "named"),
    [
        ("`tests/test_wings.py`", "there is no tests/test_wings.py"),
        (
            "`tests/tooling/project/test_guarantees.py::test_wings`",
            "tests/tooling/project/test_guarantees.py has no test_wings",
        ),
        ("`model: wings`", "there is no model: wings"),
        ("`rule:\n  wings`", "there is no rule: wings"),
    ],
)
def test_the_check_catches(form: str, proof: str, named: str) -> None:
    """The check can fail."""
    assert problems(form.format(proof)) == [named]
    assert problems(form.format("nothing: a limit")) == []


def test_the_check_catches_what_has_no_proof_or_is_too_wide() -> None:
    assert problems("## What is promised\n\n- it flies\n") == ["no proof: it flies"]
    assert problems("#### It flies\n\n- **Consequence**: away.\n") == ["no proof: It flies"]
    two = EVENTS.replace("- **Shown by**: {}\n", "") + "\n" + EVENTS.format("`tests/conftest.py`")
    assert problems(two) == ["no proof: It flies"]
    assert problems("| a | b | c | d |\n|---|---|---|---|\n") == ["too wide: |---|---|---|---|"]


def test_the_page_has_promises_and_events() -> None:
    text = (ROOT / PAGE).read_text()
    promised = text.partition("## What is promised\n")[2].partition("\n## ")[0]
    assert len(PROMISE.findall(promised)) > 20
    assert len(EVENT.findall(text)) > 30
