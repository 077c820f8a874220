"""The sum over many worlds is right, and says when it is worth nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from quorlock_sim.history import Violation
from quorlock_sim.oracle import RULES, Judgement
from quorlock_sim.queues import is_calm
from quorlock_sim.report import FLOORS_FROM, PHASES, Report
from quorlock_sim.runner import run, run_seeds
from quorlock_sim.scenarios import ALL, SCENARIOS, Floors, floors_of, plan_of
from quorlock_sim.world import World
from tests.sim.small import MS, fault, job, plan, see


def worlds(seeds: range, scenario: str = ALL) -> list[tuple[World, Judgement]]:
    return [run(plan_of(scenario, seed)) for seed in seeds]


def test_it_adds_up_what_each_world_came_to() -> None:
    seen = worlds(range(40))
    report = Report()
    for one in seen:
        report.add(*one)
    assert report.worlds == 40
    assert report.intact == sum(judgement.assumptions.intact for _, judgement in seen)
    assert report.disturbed == sum(judgement.disturbed for _, judgement in seen)
    assert report.contested == sum(judgement.winners > 1 for _, judgement in seen)
    assert report.excused == sum(judgement.excused > 0 for _, judgement in seen)
    assert report.leases == sum(len(world.history.leases) for world, _ in seen)
    assert report.messages == sum(world.messages for world, _ in seen)
    assert report.waited == sum(
        world.idle_watch.waited for world, _ in seen if not is_calm(world.plan)
    )
    assert 0 < report.judged < report.waited
    assert report.outcomes.total() == sum(len(world.history.calls) for world, _ in seen)
    assert report.sizes.total() == 40
    assert 0 < report.intact < 40
    assert 0 < report.disturbed < 40


def test_the_shares_are_per_mille_of_the_worlds() -> None:
    report = Report(worlds=2000, intact=1000, disturbed=500, contested=1999)
    assert list(report.shares().values()) == [500, 250, 999.5]
    assert list(Report().shares().values()) == [0, 0, 0]


def test_parts_add_up_to_the_whole() -> None:
    whole, parts = run_seeds(ALL, 0, 30), Report()
    for first in (0, 10, 20):
        parts.merge(run_seeds(ALL, first, 10))
    assert parts == whole


def test_faults_are_counted_by_what_clients_were_at() -> None:
    """One that strikes a client counts its phase, one that strikes a node that of everybody."""
    seen = see(
        plan(
            [job(hold=5 * MS)],
            [job(after=8 * MS)],
            faults=[
                fault("client_wall_step", MS // 10, client=0, amount=MS),
                fault("script_flush", 2 * MS, node=0),
            ],
        )
    )
    assert seen.world.history.phases == {
        ("client_wall_step", "acquiring"): 1,
        ("script_flush", "holding"): 1,
        ("script_flush", "idle"): 1,
    }
    assert seen.judgement.disturbed


# --- floors -----------------------------------------------------------------------------------


def test_worlds_that_are_too_kind_are_worth_nothing() -> None:
    """One client that nothing befalls: sound, and no proof of anything."""
    report = Report()
    for _ in range(FLOORS_FROM):
        report.add(*run(plan([job()])))
    assert report.broken.total() == 0
    misses = report.too_kind(floors_of("sound"))
    assert misses == [
        "only 0.0 % of the worlds had a fault during an attempt, the floor is 20.0 %",
        "only 0.0 % of the worlds had grants to two clients or more, the floor is 85.0 %",
    ]


def test_broken_assumptions_make_a_run_worthless_too() -> None:
    report = Report(worlds=1000, intact=399, disturbed=1000, contested=1000)
    (miss,) = report.too_kind(Floors(400, 200, 850))
    assert miss == "only 39.9 % of the worlds had assumptions intact, the floor is 40.0 %"
    report.intact = 400
    assert report.too_kind(Floors(400, 200, 850)) == []


def test_waiting_that_is_hardly_judged_makes_a_run_worthless() -> None:
    report = Report(worlds=1000, waited=10_000, judged=3_999)
    (miss,) = report.too_kind(Floors(0, 0, 0, judged=400))
    assert miss == "only 40.0 % of the waiting with faults was judged, the floor is 40.0 %"
    report.judged = 4_000
    assert report.too_kind(Floors(0, 0, 0, judged=400)) == []
    assert Report(worlds=1000).too_kind(Floors(0, 0, 0, judged=400)) == [], "none has waited"


def test_what_a_broken_clock_excuses_is_not_judged() -> None:
    report = Report()
    ahead = [fault("client_step", 50 * MS, client=1, amount=-MS)]
    report.add(*run(plan([job(hold=100 * MS)], [job(after=MS, timeout=500 * MS)], faults=ahead)))
    assert report.waited > report.judged == 0


def test_nothing_is_said_of_a_few_worlds() -> None:
    few = Report(worlds=FLOORS_FROM - 1)
    assert few.too_kind(Floors(1000, 1000, 1000)) == []
    enough = Report(worlds=FLOORS_FROM)
    assert len(enough.too_kind(Floors(1000, 1000, 1000))) == 3


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_holds_its_own_floors(scenario: str) -> None:
    """The floors have some margin: 60 worlds stand for the thousands that run elsewhere."""
    report = run_seeds(scenario, 0, 60)
    shares = [*report.shares().values(), report.judged_share]
    for share, floor in zip(shares, floors_of(scenario), strict=True):
        assert share >= 0.8 * floor
    assert report.broken.total() == 0


# --- words ------------------------------------------------------------------------------------


def violated(count: int) -> Report:
    """Return this many worlds with a violation."""
    world, judgement = run(plan([job()]))
    report = Report()
    for number in range(count):
        violation = Violation("overlap", f"number {number}", 0)
        report.add(world, replace(judgement, violations=(violation,)))
    return report


def test_every_violation_is_counted_and_the_words_of_some_are_kept() -> None:
    report = violated(30)
    assert report.broken == {"overlap": 30}
    assert [found.violation.text for found in report.found] == [f"number {n}" for n in range(20)]
    report.merge(violated(30))
    assert report.broken == {"overlap": 60}
    assert len(report.found) == 20
    assert (report.found[0].scenario, report.found[0].seed) == ("by hand", 1)


def test_the_table_names_every_rule_and_the_rate() -> None:
    report = violated(3)
    text = "\n".join(report.lines(seconds=2.0))
    assert re.search(r"worlds +3 +2 a second", text)
    assert re.search(r"overlap +3 ", text)
    assert re.search(r"judged of waiting with faults +100\.0 %", text)
    for rule in RULES:
        assert f"  {rule} " in text


def test_the_coverage_names_every_phase_and_kind() -> None:
    report = run_seeds("mixed", 0, 60)
    head, *rows = report.coverage()
    assert head.split()[3:] == " ".join(PHASES).split()
    assert [row.split()[0] for row in rows] == sorted({kind for kind, _ in report.phases})
    assert {phase for _, phase in report.phases} <= set(PHASES)
    for row in rows:
        kind, *counts = row.split()
        assert [int(count.replace(",", "")) for count in counts] == [
            report.phases[kind, phase] for phase in PHASES
        ]


def test_calm_worlds_have_no_coverage() -> None:
    assert list(run_seeds("calm", 0, 3).coverage()) == []


def test_the_calls_and_what_became_of_them() -> None:
    lines = list(run_seeds("calm", 0, 20).calls())
    assert any(re.match(r"acquire +.*granted \d+", line) for line in lines)
    assert any(line.startswith("release ") for line in lines)
