"""The list of mutants fits the library, and the runner distinguishes killed from surviving ones."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from tests.exhaustive.mutants import MUTANTS
from tests.exhaustive.mutants.mutant import ROOT, Mutant
from tests.exhaustive.mutants.run import run

THOROUGH = os.environ.get("QUORLOCK_THOROUGH") == "1"


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_its_old_text_is_there_once(mutant: Mutant) -> None:
    """Otherwise the mutant has changed or vanished: the list must follow the code."""
    assert mutant.occurrences() == 1
    assert mutant.old != mutant.new
    if mutant.path.endswith(".py"):  # any test would find an error of syntax
        ast.parse((ROOT / mutant.path).read_text().replace(mutant.old, mutant.new))
    for argument in mutant.tests:
        file = argument.partition("::")[0]
        assert (ROOT / file).exists() or argument == "-k" or " " not in file, argument


def test_a_defect_that_no_test_looks_for_survives() -> None:
    """And one that a test looks for is killed."""
    quorum = "tests/unit/core/test_quorum.py::test_quorum_is_the_smallest_majority"
    file, old = "_core/tally.py", "return n // 2 + 1"
    assert run(Mutant("half", file, old, "return n // 2", (quorum,))) == "killed"
    assert run(Mutant("same", file, old, "return 1 + n // 2", (quorum,))) == "survived"


def test_the_command_names_what_it_does_not_know() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.exhaustive.mutants", "no-such-mutant"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "unknown: no-such-mutant" in done.stdout


@pytest.mark.skipif(not THOROUGH, reason="QUORLOCK_THOROUGH=1 runs them all, an hour")
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_it_is_killed(mutant: Mutant) -> None:
    assert run(mutant) == "killed"
