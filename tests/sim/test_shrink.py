"""Cutting down keeps the violation, never adds anything, and stops where nothing can go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from quorlock_sim import shrink as shrink_module
from quorlock_sim.network import NetworkProfile
from quorlock_sim.runner import run, smallest
from quorlock_sim.scenarios import plan_of
from quorlock_sim.shrink import _smaller, shrink
from tests.sim.corpus import SEEDS
from tests.sim.mutations import MUTATIONS
from tests.sim.small import MS, fault, job, plan

if TYPE_CHECKING:
    from quorlock_sim.plan import Plan

QUICK = ("release by plain DEL", "quorum of N/2", "give-back only on nodes that said yes")


def large() -> Plan:
    """Two clients, four jobs, three faults, two extensions: a size of nine."""
    workloads = (
        [job(extensions=((MS, 1000), (MS, 500))), job(ending="abandon", cancel_after=MS)],
        [job(), job()],
    )
    faults = [fault("hang", MS, node=0, lasts=MS), fault("flush", MS), fault("vanish", MS)]
    return plan(
        *workloads, faults=faults, connection_sets=2, network_profile=NetworkProfile(0, 0, 100, MS)
    )


def test_the_size_counts_what_can_be_taken_away() -> None:
    assert large().size == 9
    assert plan([], []).size == 0


def test_without_any_need_nothing_is_left() -> None:
    small = shrink(large(), lambda _: True)
    assert small.size == 0
    assert small.workloads == ((), ())
    assert (small.network_profile.tail, small.connection_sets) == (0, (1, 1))


def test_what_is_needed_stays() -> None:
    def fails(candidate: Plan) -> bool:
        kinds = [one.kind for one in candidate.faults]
        extended = any(one.extensions for workload in candidate.workloads for one in workload)
        return "flush" in kinds and extended and candidate.network_profile.tail > 0

    small = shrink(large(), fails)
    assert [one.kind for one in small.faults] == ["flush"]
    assert [[len(one.extensions) for one in workload] for workload in small.workloads] == [[1], []]
    assert small.network_profile.tail == 100


def test_where_nothing_can_go_it_is_the_same() -> None:
    before = large()
    assert shrink(before, lambda candidate: candidate == before) == before


def test_clients_keep_their_places() -> None:
    """A career may become empty; another client never gets its name, its clock or its chance."""
    small = shrink(large(), lambda candidate: len(candidate.workloads[1]) == 2)
    assert [len(workload) for workload in small.workloads] == [0, 2]
    assert small.client_paces == large().client_paces


def test_every_step_takes_something_away_and_none_adds() -> None:
    before = large()
    for candidate in _smaller(before):
        assert candidate != before
        assert candidate.size <= before.size
        assert set(candidate.faults) <= set(before.faults)
        assert candidate.settings == before.settings
        assert candidate.seed == before.seed


def test_it_ends_when_it_has_tried_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink_module, "TRIES_MAX", 5)
    tried: list[Plan] = []

    def fails(candidate: Plan) -> bool:
        tried.append(candidate)
        return True

    small = shrink(large(), fails)
    assert len(tried) == 5
    assert small == tried[-1], "and what it had by then is not lost"


# --- real violations ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUICK)
def test_what_comes_out_still_fails_and_needs_all_that_it_has(name: str) -> None:
    mutation = next(one for one in MUTATIONS if one.name == name)
    before = plan_of(mutation.scenario, SEEDS[name])

    def rules(candidate: Plan) -> set[str]:
        return {violation.rule for violation in run(candidate)[1].violations}

    with mutation.applied():
        small = smallest(before, mutation.rule)
        assert mutation.rule in rules(small)
        for smaller in _smaller(small):
            assert mutation.rule not in rules(smaller), "that could have gone too"
    assert small.size <= before.size
    assert rules(small) == set(), "what ships is sound in the small world as well"


def test_taking_a_client_away_leaves_the_others_as_they_were() -> None:
    """Each client draws from its own random numbers, independently of the others."""
    alone = replace(plan_of("calm", 3), resources=("r0", "r1", "r2"))
    workloads = tuple(
        tuple(replace(one, resource=number % 3) for one in workload)
        for number, workload in enumerate(alone.workloads[:2])
    )
    both = replace(alone, workloads=workloads + ((),) * (len(alone.workloads) - 2))
    first = replace(both, workloads=(workloads[0], *[()] * (len(alone.workloads) - 1)))

    def leases(candidate: Plan) -> list[tuple[bytes, int]]:
        history = run(candidate)[0].history
        mine = (lease for lease in history.leases if lease.client == 0)
        return [(lease.token, lease.since) for lease in mine if lease.since < candidate.lasts]

    assert leases(first) != []
    assert leases(first) == leases(both)
