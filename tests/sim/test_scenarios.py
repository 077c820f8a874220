"""The set of worlds: functions of scenario and seed alone, within bounds, and not too lenient."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from quorlock._core.time import NS_PER_MS, NS_PER_S
from quorlock_sim import faults
from quorlock_sim.plan import Plan
from quorlock_sim.scenarios import (
    ALL,
    CLIENT_TROUBLE,
    CLOCK_TROUBLE,
    MEMORY_TROUBLE,
    NETWORK_TROUBLE,
    NODE_TROUBLE,
    SCENARIOS,
    Scenario,
    floors_of,
    plan_of,
)

SEEDS = 500
NAMES = [ALL, *SCENARIOS]


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_a_function_of_scenario_and_seed(name: str) -> None:
    plans = [plan_of(name, seed) for seed in range(20)]
    again = [plan_of(name, seed) for seed in reversed(range(20))]
    assert plans == again[::-1]
    assert len(set(map(repr, plans))) == 20, "and of the seed it is"


def test_scenarios_differ_where_the_seed_is_the_same() -> None:
    assert len({repr(replace(plan_of(n, 7), scenario="")) for n in SCENARIOS}) > 4


@pytest.mark.parametrize("name", NAMES)
def test_every_plan_is_within_the_stated_bounds(name: str) -> None:
    for seed in range(SEEDS):
        within_bounds(plan_of(name, seed))


# Of "queues" alone, as "unlock" is of "fences".
QUEUES = ("mute", "echo", "lose_calls", "delay_calls", "foreign")


def within_bounds(plan: Plan) -> None:
    n, clients = plan.settings.n, plan.clients
    assert len(plan.workloads) == clients + len(plan.hosts) <= clients + 5
    assert {*plan.hosts, *plan.pollers} <= set(range(clients))
    assert set(plan.deaf) <= set(range(n))
    assert 1 <= n <= 5
    assert 2 <= clients <= 5
    assert (
        len(plan.connection_sets) == len(plan.client_paces) == len(plan.client_offsets) == clients
    )
    assert len(plan.node_paces) == len(plan.node_offsets) == n
    assert set(plan.connection_sets) <= {1, 2, 3}
    assert 0 < plan.lasts <= 6 * NS_PER_S
    # A call may take a few turns of its loop beyond its deadlines, which have a slack of 1 ms.
    assert (0 < plan.tick <= NS_PER_MS // 5) if plan.scenario == "loops" else plan.tick == 0
    assert plan.settings.policy().n == n, "the library takes these settings"
    jobs = [job for workload in plan.workloads for job in workload]
    assert 0 < len(jobs) <= 4 * len(plan.workloads)
    for job in jobs:
        most = {"several": 3, "permits": 4, "loops": 3}.get(plan.scenario, 2)
        assert all(0 <= one < len(plan.resources) <= most for one in (job.resource, *job.also))
        assert job.after >= 0 <= job.hold
        for ttl_ms in (job.ttl_ms, *(ttl_ms for _, ttl_ms in job.extensions)):
            assert 2 * plan.settings.node_timeout <= ttl_ms * NS_PER_MS
            assert ttl_ms <= plan.settings.max_ttl_ms
    weights = SCENARIOS[plan.scenario].weights
    assert len(plan.faults) <= SCENARIOS[plan.scenario].faults <= 12
    assert list(plan.faults) == sorted(plan.faults, key=lambda fault: fault.at)
    for fault in plan.faults:
        # `restarts` flushes nodes in place of some crashes, where the guard is the marker.
        flushed = fault.kind == "flush" and plan.settings.restart_guard == "marker"
        assert weights["crash_saved" if flushed else fault.kind] > 0
        assert 0 <= fault.at < plan.lasts
        assert fault.at + fault.lasts <= plan.lasts
        assert -1 <= fault.client < clients
        assert 0 <= fault.node < n
    assert all(type(number) is int for number in numbers(plan)), "whole numbers only"


def numbers(plan: Plan) -> list[object]:
    network_profile, settings = plan.network_profile, plan.settings
    return [
        *(plan.seed, plan.lasts, plan.tick, *plan.client_paces, *plan.node_paces),
        *(*plan.client_offsets, *plan.node_offsets, *settings.retry_delay),
        *(settings.max_ttl_ms, settings.node_timeout, settings.outage_timeout),
        *(
            network_profile.shortest,
            network_profile.spread,
            network_profile.tail,
            network_profile.tail_until,
        ),
        *(number for f in plan.faults for number in (f.at, f.lasts, f.amount, f.client, f.node)),
        *(number for c in plan.workloads for j in c for number in (j.after, j.hold, j.timeout)),
        *(n for c in plan.workloads for j in c for pair in j.extensions for n in pair),
    ]


def test_every_size_and_every_fault_occurs() -> None:
    plans = [plan_of(ALL, seed) for seed in range(SEEDS)]
    assert {plan.settings.n for plan in plans} == {1, 2, 3, 4, 5}
    assert {plan.clients for plan in plans} == {2, 3, 4, 5}
    assert {fault.kind for plan in plans for fault in plan.faults} == set(faults.KINDS)
    endings = Counter(job.ending for p in plans for workload in p.workloads for job in workload)
    assert set(endings) == {"release", "abandon", "by_token", "hand_over", "keep"}
    assert any(job.cancel_after is not None for p in plans for c in p.workloads for job in c)
    assert any(990_000 in plan.client_paces for plan in plans), "at the very bound of the drift"
    assert any(not plan.faults for plan in plans)
    assert any(len(plan.resources) == 2 for plan in plans)


def test_all_of_them_have_their_turn() -> None:
    turns = Counter(plan_of(ALL, seed).scenario for seed in range(1800))
    assert set(turns) == set(SCENARIOS)
    assert turns["sound"] > turns["mixed"] > turns["calm"] > 0


def test_kinds_of_trouble_do_not_overlap() -> None:
    kinds = [CLIENT_TROUBLE, NODE_TROUBLE, NETWORK_TROUBLE, MEMORY_TROUBLE, CLOCK_TROUBLE]
    names = [*(name for trouble in kinds for name in trouble), "unlock", "failover", *QUEUES]
    assert len(names) == len(set(names)) == len(faults.KINDS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fault_of_a_client_names_one_and_a_fault_of_a_node_none(name: str) -> None:
    of_nodes = {
        *NODE_TROUBLE,
        *MEMORY_TROUBLE,
        *QUEUES,
        "wall_step",
        "wall_drift",
        "unlock",
        "failover",
    }
    for seed in range(100):
        for fault in plan_of(name, seed).faults:
            if fault.kind in of_nodes:
                assert fault.client == -1
            elif fault.kind not in NETWORK_TROUBLE:
                assert fault.client >= 0


def test_a_scenario_of_ones_own() -> None:
    """Weights decide what goes wrong, and how often each thing does."""
    mine = Scenario("mine", "clients that stop", {"pause": 9, "cancel": 1}, nodes=(5,), calm=0)
    drawn = Counter(fault.kind for seed in range(300) for fault in mine.plan(seed).faults)
    assert set(drawn) == {"pause", "cancel"}
    assert drawn["pause"] > drawn["cancel"]
    assert all(mine.plan(seed).settings.n == 5 for seed in range(20))


def test_a_scenario_may_have_the_last_word_on_its_plans() -> None:
    mine = Scenario("mine", "", {}, shaped=lambda plan, _: replace(plan, lasts=NS_PER_S))
    assert {mine.plan(seed).lasts for seed in range(20)} == {NS_PER_S}


@pytest.mark.parametrize("name", NAMES)
def test_floors_are_shares(name: str) -> None:
    assert all(0 <= floor <= 1000 for floor in floors_of(name))
