"""Arrivals, sick nodes, contention, growth: each work runs, in small, and sees what it has to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from bench import child
from bench.__main__ import complaints
from bench.contestants import CONTESTANTS
from bench.plan import Case, works
from bench.works import contended, growth, handover, sick

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
        row = child.run_child(
            who, case.work, settings, site.urls, deadline=60.0, on_word=site.on_word
        )
        row |= site.after(row)
    assert "failed" not in row, row
    return row


# --- processes -------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["blocking", "asyncio"])
def test_processes_share_the_nodes(fleet: Fleet, api: str) -> None:
    """The result has no error, and the cycles and the CPU of all processes."""
    who = "quorlock" if api == "blocking" else "quorlock.asyncio"
    params = {"processes": 3, "workers": 2, "deadline": 20.0, "seconds": 0.3, "warm_up": 0.05}
    row = child.run_child(who, "processes", params, fleet.urls(), deadline=20.0)
    assert row["errors"] == 0, row
    assert row["cycles"] > 10
    assert 0 < row["cpu_us"] * row["cycles"] / 1e6 < 3 * 2 * (row["seconds"] + 1)
    assert row["p50_us"] <= row["p99_us"]


# --- arrivals --------------------------------------------------------------------------------


def test_arrivals_keep_their_rate(fleet: Fleet) -> None:
    """All that was due has begun, and has been served or counts until the end."""
    row = measured(
        fleet,
        case_of("arrivals", "asyncio, N = 5, 500 cycles due in a second"),
        "quorlock.asyncio+with",
        seconds=0.4,
    )
    assert row["errors"] == 0
    assert row["cycles"] + row["unserved"] == 200


def test_a_backlog_counts_from_when_each_was_due(fleet: Fleet) -> None:
    """More are due than a process can begin: the last ones are late by as much."""
    case = case_of("arrivals", "asyncio, N = 5, 500 cycles due in a second")
    row = measured(fleet, case, "quorlock.asyncio", rate=50_000, seconds=0.02)
    # A cycle fails if so many wait that the nodes answer it too late; the row counts it then.
    assert row["cycles"] + row["unserved"] + row["errors"] == 1_000, row
    assert row["worst_us"] > 1e6 * (row["seconds"] - 0.02) / 2


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
            assert site.after({}) == {}
            site.on_word("count")
            assert site.after({}) == {"orphans": 1}


# --- contended -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "name", "params"),
    [
        ("quorlock", contended.TIGHT, {"processes": 3}),
        ("quorlock.asyncio", contended.THINK, {"processes": 3}),
        ("quorlock", contended.THREADS, {"waiters": 3}),
        ("quorlock.asyncio", contended.TASKS, {"waiters": 3}),
        ("quorlock", contended.HUNG, {"processes": 3}),
    ],
)
def test_waiters_get_the_lock_one_at_a_time(
    fleet: Fleet, who: str, name: str, params: dict[str, int]
) -> None:
    """And all of the figures are there that the table shows."""
    row = measured(fleet, case_of("contended", name), who, **params, seconds=0.5)
    assert row["cycles"] > 0
    assert (row["lost"], row["left_waiting"], row["errors"]) == (0, 0, 0), row
    assert row.keys() >= {column.key for column in contended.columns(None)}  # type: ignore[arg-type]
    assert 0 < row["jain"] <= 1
    nodes = 4 if name == contended.HUNG else 5
    # A request and a release; in one process an exchange for both; the edges of the slice.
    assert row["commands"] > (0.9 if "waiters" in params else 1.9) * nodes
    assert row["cpu_us"] > 0
    assert row["server_cpu_us"] > 0


WITHOUT_EXCLUSION = """
from bench.contestants import CONTESTANTS, Contestant
from bench.one import main

class Unlocked:
    def __init__(self, urls, ttl): pass
    def wait(self, resource): pass
    def release(self, handle): pass

CONTESTANTS["quorlock"] = Contestant("quorlock", "blocking", "__main__:Unlocked", (), "")
main()
"""


def test_two_holders_at_once_are_noticed(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that does not exclude loses additions, and the run says so."""
    case = case_of("contended", contended.TIGHT)
    line = child.command("quorlock", case.work, {**BRIEF, **case.params, "deadline": 20}, ["none"])
    monkeypatch.setattr(child, "command", lambda *_: [line[0], "-c", WITHOUT_EXCLUSION, *line[3:]])
    row = measured(fleet, case, "quorlock")
    assert row["lost"] > 0
    assert list(complaints(row)) == [f"mutual exclusion was violated: {row['lost']} additions lost"]
    assert list(complaints({"lost": 0})) == []


MS = 1_000_000


def note(asked: int, got: int, giving: int, waiter: int) -> contended.Note:
    return contended.Note(got * MS, asked * MS, giving * MS, (0, waiter))


def test_what_the_notes_of_waiters_come_to() -> None:
    """A waiter that asks late and is served first delays the hand-over; a wait cut off counts."""
    notes = [
        note(0, 10, 11, 0),
        note(12, 14, 15, 0),  # asked after the release and passed the waiter: no hand-over
        note(5, 22, 23, 1),  # waited at 11 and at 15
    ]
    told = [
        contended.Told(notes, [0, 0], Counter(), 0),
        contended.Told([], [20 * MS], Counter(), 1),
    ]
    row = contended.figures(told, 0, 100 * MS)
    assert (row["cycles"], row["per_s"], row["left_waiting"]) == (3, 30.0, 1)
    assert row["again"] == 0.5
    # 11 to 22, 15 to 22, and 23 to the end, because the waiter of 20 still waits.
    assert (row["handover_p50_ms"], row["handover_p99_ms"]) == (11, 77)
    # 2, 10, 17 and, without an end, 80.
    assert (row["wait_p50_ms"], row["wait_max_ms"]) == (17, 80)
    assert row["jain"] == pytest.approx(9 / (3 * 5))


def test_only_the_measured_part_counts() -> None:
    """An acquire that returns after the end is a wait until the end, and no acquisition."""
    notes = [note(0, 10, 11, 0), note(0, 20, 95, 1), note(30, 110, 111, 0)]
    row = contended.figures([contended.Told(notes, [0, 0], Counter(), 0)], 15 * MS, 100 * MS)
    assert (row["cycles"], row["wait_p50_ms"], row["wait_max_ms"]) == (1, 70, 70)
    assert (row["handover_p50_ms"], row["again"]) == (5, None)


def test_no_contestant_got_the_lock() -> None:
    """A library may manage that; the row says so with zeros, not with an error."""
    row = contended.figures([contended.Told([], [MS], Counter(), 1)], 0, 100 * MS)
    assert (row["cycles"], row["per_s"], row["jain"]) == (0, 0.0, None)
    assert (row["wait_max_ms"], row["handover_p50_ms"]) == (99, None)


# --- hand-overs ------------------------------------------------------------------------------


@pytest.mark.parametrize("event", list(handover.EVENTS))
@pytest.mark.parametrize("who", handover.OURS)
def test_the_next_waiter_gets_the_lock(fleet: Fleet, who: str, event: str) -> None:
    """The holder is of another library or dies; waiters ahead die or are frozen."""
    if event == "foreign" and CONTESTANTS[handover.REDLOCK_PY].missing:
        pytest.skip("redlock-py is not installed here; bench/setup installs all peers")
    row = measured(fleet, case_of("handover", handover._name(event)), who)
    assert row["late"] == 0, row
    assert 0 < row["event_ms"] <= row["worst_ms"]
    assert (row["to_none"] is None) == (event == "expiry")


def test_a_waiter_that_gets_no_lock_counts_with_the_patience() -> None:
    row = handover.figures([2.0, 4.0], [6.0, 5000.0])
    assert (row["none_ms"], row["worst_ms"], row["late"]) == (3.0, 5000.0, 1)
    assert row["to_none"] == pytest.approx(2503 / 3)


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
