"""The value of "no violation": every planted defect is found, and so are our own old ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorlock_sim.runner import run
from quorlock_sim.scenarios import plan_of
from spec.check import CASES
from tests.sim.corpus import DEFECTS, NOT_CONTINUOUS, SEEDS, Kept
from tests.sim.mutation import WORLDS_MAX, Mutation, applied, search
from tests.sim.mutations import MUTATIONS, table
from tests.sim.small import MS, see

ROOT = Path(__file__).parents[2]
NAMES = [mutation.name for mutation in MUTATIONS]

# The sixteen that had to be found, as they were asked for.
ASKED_FOR = (
    "replies not tied to rounds",
    "token reused between attempts",
    "quorum of N/2",
    "elapsed time not subtracted",
    "drift left out",
    "validity measured from the reply",
    "release by plain DEL",
    "give-back only on nodes that said yes",
    "release overtaking acquire",
    "pending releases not sent after a reconnect",
    "extend that re-creates",
    "extend counted after the old validity",
    "extension that may shorten",
    "restarted empty inside the ttl, votes at once",
    "even-N tie waits for ever",
    "wall clock in place of elapsed time",
)


def state(mutation: Mutation) -> list[object]:
    return [getattr(where, name) for where, name, _ in mutation.pieces]


def by_name(name: str) -> Mutation:
    return next(mutation for mutation in MUTATIONS if mutation.name == name)


# --- breaks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_break_is_seen_at_its_kept_seed(name: str) -> None:
    """A break that is not found may mean that the planner has changed: search with `python -m
    tests.sim.mutations`.
    """
    mutation = by_name(name)
    found = {violation.rule for violation in mutation.violations(SEEDS[name])}
    assert mutation.rule in found, f"{mutation.scenario}, seed {SEEDS[name]}"


@pytest.mark.parametrize("name", NAMES)
def test_what_ships_is_sound_in_that_world(name: str) -> None:
    """The shipped code is correct there, so the violation is that of the defect."""
    _, judgement = run(plan_of(by_name(name).scenario, SEEDS[name]))
    assert judgement.violations == ()


@pytest.mark.parametrize("name", NAMES)
def test_a_break_is_in_place_only_while_it_is_applied(name: str) -> None:
    mutation = by_name(name)
    before = state(mutation)
    with mutation.applied():
        broken = state(mutation)
    assert all(old is not new for old, new in zip(before, broken, strict=True))
    assert state(mutation) == before
    with pytest.raises(KeyboardInterrupt), mutation.applied():
        raise KeyboardInterrupt
    assert state(mutation) == before


def test_the_sixteen_that_were_asked_for_are_there() -> None:
    assert len(ASKED_FOR) == 16
    assert set(ASKED_FOR) - set(NAMES) == set()


def test_all_have_a_seed_and_none_took_too_long() -> None:
    assert set(SEEDS) == set(NAMES)
    assert len(NAMES) == len(set(NAMES))
    assert max(SEEDS.values()) < WORLDS_MAX == 20_000


def test_what_the_guard_catches_excuses_nothing() -> None:
    """Nodes forgot in that world, and its assumptions held: the guard is there for that."""
    world, judgement = run(plan_of("restarts", SEEDS["quarantine shorter than the ttl"]))
    assert {how for _, _, how in world.history.forgotten} == {"restart (lost)"}
    assert judgement.assumptions.intact
    assert judgement.excused == 0


def test_a_search_ends() -> None:
    nothing = Mutation("nothing", "overlap", ())
    assert search(nothing, most=3) is None
    plain = by_name("release by plain DEL")
    assert search(plain, first=SEEDS[plain.name], most=1) == SEEDS[plain.name]


def test_the_command_prints_the_table_as_it_is_kept() -> None:
    """The quickest of them are searched; QUORLOCK_THOROUGH=1 searches for all."""
    name = min(NAMES, key=lambda name: SEEDS[name])
    command = [sys.executable, "-m", "tests.sim.mutations", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"found after {SEEDS[name] + 1:,} worlds" in done.stdout
    assert done.stdout.endswith(table({name: SEEDS[name]}) + "\n")


def test_the_table_reads_as_python() -> None:
    names: dict[str, object] = {}
    exec(table(SEEDS), names)
    assert names["SEEDS"] == SEEDS


def test_the_table_of_the_docs_says_what_was_found() -> None:
    """Every break with its scenario and its worlds, and cases of the model that must fail."""
    must = {case.name: case.must for case in CASES}
    page = (ROOT / "docs" / "contributing" / "simulation.md").read_text()
    table = page.split("| break in the simulator |")[1].split("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.split("\n")[2:]]
    assert len(rows) == 30
    for _, name, scenario, worlds, *model in [[cell.strip() for cell in row] for row in rows]:
        assert worlds == f"{SEEDS[name] + 1:,}", name
        assert scenario == f"`{by_name(name).scenario}`"
        assert {must[case] for cell in model for case in cell.split("; ") if case} <= {"fails"}


@pytest.mark.skipif("QUORLOCK_THOROUGH" not in os.environ, reason="QUORLOCK_THOROUGH=1 searches")
@pytest.mark.parametrize("name", NAMES)
def test_the_whole_search_finds_the_kept_seed(name: str) -> None:
    assert search(by_name(name)) == SEEDS[name]


# --- our own defects --------------------------------------------------------------------------


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_that_we_had_is_gone(defect: Kept) -> None:
    assert see(defect.plan).rules == set()


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_its_world_shows_it_with_the_code_of_then(defect: Kept) -> None:
    """Or else the plan would have gone stale, and kept nothing out."""
    with applied(defect.old):
        assert see(defect.plan).rules == {defect.rule}
    assert see(defect.plan).rules == set()


def test_an_extension_by_token_does_not_exclude_a_holder_in_between() -> None:
    """A documented limit: after the True no other client is inside, but one may have been
    before.
    """
    seen = see(NOT_CONTINUOUS)
    assert seen.rules == set()
    assert seen.judgement.assumptions.intact
    first, other, again = seen.judgement.intervals[:3]
    assert [one.lease.token for one in (first, other, again)] == [b"c0.1", b"c1.1", b"c0.1"]
    assert seen.one("outcome", what="extend_by_token")["outcome"] == "yes"
    assert first.until < other.since < other.until < again.since
    assert other.until - other.since > MS
