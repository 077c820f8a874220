"""The turns of a client's event loop: what arrives in one is read at its end, and sent together."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from quorlock_sim.network import NetworkProfile
from quorlock_sim.scenarios import plan_of
from tests.sim.small import MS, TRIP, Seen, job, plan, see

if TYPE_CHECKING:
    from quorlock_sim.plan import Plan

TICK = MS // 5


def of_one_loop(tick: int = TICK) -> Plan:
    """Return a plan of three callers in one process, and one in another."""
    jobs = [job(also=(1,), timeout=500 * MS, hold=MS), job(timeout=500 * MS)]
    by_caller = plan(jobs, jobs, resources=2, network_profile=NetworkProfile(TRIP, TRIP, 0, 0))
    workloads = (*by_caller.workloads, *[tuple(jobs)] * 2)
    return replace(by_caller, workloads=workloads, hosts=(0, 0), tick=tick)


@cache
def seen(tick: int = TICK) -> Seen:
    return see(of_one_loop(tick))


def test_replies_and_calls_are_read_at_the_ends_of_turns() -> None:
    for kind in ("reply", "push"):
        lines = seen().all(kind)
        assert len(lines) > 2
        assert {line["at"] % TICK for line in lines} == {0}
    assert max(Counter(line["at"] for line in seen().all("reply")).values()) > 3
    assert any(line["at"] % TICK for line in seen().all("execute")), "nodes have no turns"
    assert seen().rules == set()


def test_each_event_has_a_turn_of_its_own_without_a_tick() -> None:
    replies = seen(0).all("reply")
    assert len({line["at"] for line in replies}) > len(replies) // 2


def test_what_is_read_arrived_in_the_turn_before() -> None:
    """No reply waits for longer, and none is read before the node can have sent it."""
    executed = {line["message"]: line["at"] for line in seen().all("execute")}
    for line in seen().all("reply"):
        since = executed[line["message"]] + TRIP
        assert since < line["at"] <= since + TRIP + TICK


def test_the_replies_of_a_connection_keep_their_order() -> None:
    sent: defaultdict[int, list[int]] = defaultdict(list)
    of: dict[int, int] = {}
    for line in seen().all("send"):
        sent[line["connection"]].append(line["message"])
        of[line["message"]] = line["connection"]
    read: defaultdict[int, list[int]] = defaultdict(list)
    for line in seen().all("reply"):
        read[of[line["message"]]].append(line["message"])
    unknown = {
        line["message"]
        for line in seen().all("execute")
        if str(line["reply"]).startswith("NOSCRIPT")
    }
    for connection, messages in read.items():
        expected = [message for message in sent[connection] if message not in unknown]
        assert messages == expected[: len(messages)]


def test_what_is_sent_in_a_turn_arrives_at_one_instant() -> None:
    executed = {line["message"]: line["at"] for line in seen().all("execute")}
    packets: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for line in seen().all("send"):
        packets[line["connection"], line["at"]].append(executed[line["message"]])
    assert max(map(len, packets.values())) > 1
    assert all(len(set(instants)) == 1 for instants in packets.values())


def test_timers_wait_for_the_end_of_a_turn() -> None:
    """A caller whose time is up returns within a turn, and not before."""
    jobs = [job(hold=50 * MS), job(after=MS, timeout=10 * MS + TICK // 2)]
    one = replace(plan([jobs[0]], [jobs[1]]), tick=TICK)
    (outcome,) = see(one).all("outcome", client=1, outcome="AcquireTimeout")
    assert outcome["at"] % TICK == 0


def test_the_scenario_has_callers_of_one_loop_that_attempt_in_one_turn() -> None:
    crowded = 0
    for seed in range(10):
        one = plan_of("loops", seed)
        assert set(one.hosts) == {0}
        attempts = see(one).before(one.lasts, "send", client=0, node=0, command="acquire")
        crowded += max(Counter(line["at"] for line in attempts).values()) > 1
    assert crowded > 2
