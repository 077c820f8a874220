"""Sick nodes, contention and growth: each work runs, in small, and sees what it is to see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.child import run_child
from bench.contestants import CONTESTANTS
from bench.meter import Meter
from bench.plan import Case, works
from bench.works import contended, growth, sick

if TYPE_CHECKING:
    from bench.fleet import Fleet

BRIEF = {"seconds": 0.15, "warm_up": 0.05, "quick": True}


def case_of(work: str, name: str) -> Case:
    plan: list[Case] = works()[work].PLAN
    (found,) = (case for case in plan if case.name == name)
    return found


def measured(fleet: Fleet, case: Case, who: str, **params: Any) -> dict[str, Any]:
    """One slice, as `bench.__main__` does it."""
    if missing := CONTESTANTS[who].missing:
        pytest.skip(f"{missing} is not installed here; bench/setup installs all peers")
    settings = {**BRIEF, **case.params, **params}
    with case.site(fleet, case.nodes) as site:
        row = run_child(who, case.work, settings, site.urls, deadline=60.0, on_word=site.on_word)
        row |= site.after()
    assert "failed" not in row, row
    return row


# --- sick ------------------------------------------------------------------------------------


# Every fault with one of the two; one of them with the other as well, whose child has a loop.
@pytest.mark.parametrize(
    ("fault", "who"),
    [*((fault, "quorlock") for fault in sick.FAULTS), ("two hung", "quorlock.asyncio")],
)
def test_sick_nodes_cost_no_lock_and_leave_no_key(fleet: Fleet, fault: str, who: str) -> None:
    """And all of the figures are there that the table shows."""
    row = measured(fleet, sick.PLAN[list(sick.FAULTS).index(fault)], who)
    assert row["cycles"] > 0
    assert (row["no_lock"], row["orphans"]) == (0, 0), row
    assert row.keys() >= {column.key for column in sick.columns(None)}  # type: ignore[arg-type]
    assert None not in {row["p50_to_healthy"], row["p99_to_healthy"], row["threads_more"]}


def test_who_waits_for_a_hung_node_is_broken_off(fleet: Fleet) -> None:
    """The abort is its result, and its leftovers are counted once the nodes are awake."""
    case = case_of("sick", f"{sick._name('hung')}: the others")
    row = measured(fleet, case, "redlock-py", patience=0.3)
    assert (row["no_lock"], row["cycles"], row["first_ms"]) == (1, 0, None)
    assert row["orphans"] >= 3


def test_each_fault_is_what_it_says(fleet: Fleet) -> None:
    """And ends when the child says so; the dead stay dead."""
    wanted = {"none": 0, "delayed": 0, "hung": 1, "two hung": 2, "killed": 2}
    for fault, ill in wanted.items():
        with sick.sick_site(fleet, 5, fault=fault) as site:
            site.on_word("fault")
            servers = site.fleet.servers
            assert sum(server.stopped or not server.alive for server in servers) == ill
            site.on_word("wake")
            assert not any(server.stopped for server in servers)
            servers[0].execute("SET", "left behind", "1")
            assert site.after() == {}
            site.on_word("count")
            assert site.after() == {"orphans": 1}


# --- contended -------------------------------------------------------------------------------


@pytest.mark.parametrize("pause", [None, 0.005])
@pytest.mark.parametrize("who", ["quorlock", "quorlock.asyncio"])
def test_waiters_get_the_lock_one_at_a_time(fleet: Fleet, who: str, pause: float | None) -> None:
    case = case_of("contended", "one lock, 10 waiters, each in its own way")
    row = measured(fleet, case, who, workers=3, seconds=0.5, pause=pause)
    assert row["cycles"] > 0
    assert (row["overlaps"], row["left_waiting"]) == (0, 0), row
    assert row["most"] >= row["fewest"]


def test_what_the_notes_of_waiters_come_to() -> None:
    """Hand-offs, to itself and to another; two at once are seen; who got nothing counts."""
    ms = 1_000_000
    notes = [
        contended.Note(10 * ms, 11 * ms, 12 * ms, 0),
        contended.Note(14 * ms, 15 * ms, 16 * ms, 0),  # 2 ms, again
        contended.Note(22 * ms, 23 * ms, 24 * ms, 1),  # 6 ms, another
        contended.Note(22 * ms + 1, 25 * ms, 26 * ms, 0),  # while the one before has it
    ]
    row = contended.figures(notes, Meter(seconds=2.0, cpu_ns=4000), 3)
    assert (row["cycles"], row["per_s"], row["cpu_us"]) == (4, 2.0, 1.0)
    assert (row["most"], row["fewest"], row["most_to_mean"]) == (3, 0, 3 / (4 / 3))
    assert row["overlaps"] == 1
    assert row["p50_ms"] == 2.0
    assert row["again"] == pytest.approx(1 / 3)


def test_no_contestant_got_the_lock() -> None:
    """A library may manage that; the row says so with zeros, not with an error."""
    row = contended.figures([], Meter(seconds=1.0), 2)
    assert (row["cycles"], row["per_s"], row["most"], row["p50_ms"]) == (0, 0.0, 0, None)


# --- growth ----------------------------------------------------------------------------------


@pytest.mark.parametrize("who", growth.OURS)
def test_memory_of_held_leases(fleet: Fleet, who: str) -> None:
    """A lease is some hundreds of bytes, on both scales; a token alone is 65."""
    row = measured(fleet, case_of("growth", "1,000 leases held, N = 5"), who, deadline=50.0)
    assert row["cycles"] == 1000
    assert 65 < row["bytes_per_lease"] < 5000
    assert 0 < row["rss_per_lease"] < 20_000
    assert row["cycle_p50_us"] > 0


@pytest.mark.parametrize("name", ["N = 2", "N = 6", "names of 512 bytes"])
@pytest.mark.parametrize("who", growth.OURS)
def test_more_nodes_and_longer_names(fleet: Fleet, name: str, who: str) -> None:
    row = measured(fleet, case_of("growth", name), who)
    assert row["cycles"] > 0


def test_names_are_as_long_as_they_say() -> None:
    for length in growth.LENGTHS:
        resources = growth.names(length)
        some = [next(resources) for _ in range(5)]
        assert len(set(some)) == 5
        assert {len(name) for name in some} == {length}


def test_import_time_is_reported_with_its_causes() -> None:
    found = growth.import_time("import json", runs=1)
    assert {"json", "json.decoder"} <= set(found["imported"])
    assert found["pass_ms"] > 0
    assert found["modules"] == len(found["imported"])
    assert set(found["dearest"]) <= set(found["imported"])


def test_importing_quorlock_imports_no_event_loop_and_no_tls() -> None:
    """Unused modules are not imported; asyncio alone takes longer than all of quorlock."""
    imported = growth.imported("import quorlock")
    assert "quorlock" in imported
    assert not imported.keys() & {"asyncio", "ssl", "logging", "redis", "valkey", "subprocess"}
