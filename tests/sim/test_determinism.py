"""Equal seeds give equal traces, to the byte, everywhere and with any hash seed.

QUORLOCK_SEEDS=1000 sets the number of worlds. QUORLOCK_PYTHONS names more Pythons with hiredis (for
instance venvs), separated by colons.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from quorlock_sim.runner import run
from quorlock_sim.scenarios import ALL, SCENARIOS, plan_of
from quorlock_sim.trace import Trace
from tests.sim.hashes import hash_of, trace_of

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("QUORLOCK_SEEDS", "20"))
OTHERS = ("3.11", "3.12", "3.13", "3.14")
GIVEN = os.environ.get("QUORLOCK_PYTHONS", "").split(":")
PYENV = Path.home() / ".pyenv" / "versions"


@cache
def expected() -> str:
    """Return the hashes from this process."""
    return hash_of(0, SEEDS)


def elsewhere(python: str, **environment: str) -> str:
    """Return the hashes from another process, or the text of its error."""
    places = (ROOT / "src", ROOT / "sim", ROOT)
    settings = {"PYTHONPATH": os.pathsep.join(map(str, places)), **environment}
    done = subprocess.run(
        [python, "-m", "tests.sim.hashes", "0", str(SEEDS)],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_twice_in_one_process(scenario: str) -> None:
    for seed in range(5):
        assert trace_of(scenario, seed) == trace_of(scenario, seed)


def test_a_world_does_not_depend_on_those_before_it() -> None:
    alone = trace_of(ALL, 4)
    assert [trace_of(ALL, seed) for seed in (9, 2, 4)][-1] == alone


def test_a_trace_changes_nothing() -> None:
    """Events are the same with and without a trace."""
    for seed in range(10):
        plan = plan_of(ALL, seed)
        written, bare = run(plan, Trace())[0].history, run(plan)[0].history
        assert written.calls == bare.calls
        assert written.leases == bare.leases
        assert (written.events, written.messages) == (bare.events, bare.messages)


def test_another_seed_is_another_world() -> None:
    assert len({hash_of(seed, 1) for seed in range(10)}) == 10


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242", "random"])
def test_whatever_the_hashes_of_strings(hash_seed: str) -> None:
    assert elsewhere(sys.executable, PYTHONHASHSEED=hash_seed) == expected()


def test_without_asserts() -> None:
    """`python -O` runs the same worlds: no work is done inside an assert."""
    assert elsewhere(sys.executable, PYTHONOPTIMIZE="1") == expected()


def pythons(version: str) -> list[str]:
    """Return possible paths of that version."""
    ours = [*GIVEN, sys.executable, shutil.which(f"python{version}") or ""]
    return [path for path in ours if path] + sorted(map(str, PYENV.glob(f"{version}*/bin/python")))


def can_run(python: str, version: str) -> bool:
    """Return whether it is that version and has hiredis."""
    probe = "import hiredis, sys; print('.'.join(map(str, sys.version_info[:2])))"
    done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


@pytest.mark.parametrize("version", OTHERS)
def test_under_every_python_that_is_here(version: str) -> None:
    python = next((python for python in pythons(version) if can_run(python, version)), None)
    if python is None:
        pytest.skip(f"no Python {version} with hiredis here")
    assert elsewhere(python) == expected(), python
