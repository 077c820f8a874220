"""Connections are TCP streams: in order or broken, never with a hole. Between them, no order."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock_sim.network import NetworkProfile
from quorlock_sim.runner import run
from quorlock_sim.scenarios import NETWORK_TROUBLE, Scenario
from quorlock_sim.trace import Trace
from tests.sim.small import MS, TRIP, Seen, fault, job, plan, see

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock_sim.plan import Plan

Line = dict[str, Any]

SEEDS = 80
# Bad weather, two connections, and all that can befall them.
BAD = Scenario("bad", "", NETWORK_TROUBLE, nodes=(2, 3), calm=0, faults=9, late_tail=500)


@cache
def traces() -> tuple[tuple[Line, ...], ...]:
    found = []
    for seed in range(SEEDS):
        trace = Trace()
        run(BAD.plan(seed), trace)
        found.append(tuple(trace.lines))
    return tuple(found)


def by_connection(lines: Sequence[Line]) -> dict[int, dict[str, list[int]]]:
    """Return for each connection the messages sent, executed (not as copies) and received.

    unknown: answered by NOSCRIPT, which the sender gets only if the command is not sent again in
    full.
    """
    of: dict[int, int] = {}
    found: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line["kind"] == "send":
            of[line["message"]] = line["connection"]
        if line["kind"] in ("send", "execute", "reply") and not line.get("copy", False):
            found[of[line["message"]]][line["kind"]].append(line["message"])
        if str(line.get("reply")).startswith("NOSCRIPT") and not line["copy"]:
            found[of[line["message"]]]["unknown"].append(line["message"])
    return found


def is_prefix(short: list[int], long: list[int]) -> bool:
    return short == long[: len(short)]


# --- order ------------------------------------------------------------------------------------


def test_a_connection_keeps_its_order_and_has_no_holes() -> None:
    """Executed messages are a prefix of the sent ones, and received replies a prefix of those."""
    cut = 0
    for lines in traces():
        for streams in by_connection(lines).values():
            assert is_prefix(streams["execute"], streams["send"])
            executed, received = (
                [one for one in streams[what] if one not in streams["unknown"]]
                for what in ("execute", "reply")
            )
            assert is_prefix(received, executed)
            cut += len(streams["execute"]) < len(streams["send"])
    assert cut > 20, "and many were cut off"


def test_there_is_no_order_between_connections() -> None:
    """Commands of one client to one node over two connections may arrive in the other order."""
    overtaken = 0
    for lines in traces():
        last: dict[tuple[int, int], int] = defaultdict(int)
        for line in lines:
            if line["kind"] == "execute" and not line["copy"]:
                way = line["client"], line["node"]
                overtaken += line["message"] < last[way]
                last[way] = max(last[way], line["message"])
    assert overtaken > 20


def test_a_request_is_carried_out_once_unless_it_was_duplicated() -> None:
    copies = 0
    for lines in traces():
        executed = [line for line in lines if line["kind"] == "execute"]
        firsts = [line["message"] for line in executed if not line["copy"]]
        assert len(set(firsts)) == len(firsts)
        doubled = [line["message"] for line in executed if line["copy"]]
        assert len(set(doubled)) == len(doubled)
        copies += len(doubled)
    assert copies > 10


def test_every_request_has_one_fate() -> None:
    """Each is executed or lost, and each executed one is answered, or its reply is lost, or its
    client is gone.
    """
    for lines in traces():
        lost = defaultdict(list)
        for line in lines:
            if line["kind"] == "lose":
                lost[line["message"]].append(line["what"])
        executed = {one["message"] for one in lines if one["kind"] == "execute" and not one["copy"]}
        received = {one["message"] for one in lines if one["kind"] == "reply"}
        for line in lines:
            if line["kind"] == "send":
                number = line["message"]
                fates = [number in executed, "request" in lost[number]]
                # A copy of it may be lost beside.
                assert sum(fates) == 1 or (all(fates) and len(lost[number]) >= 1)
        assert not {number for number in received if "reply" in lost[number]}


# --- weather ----------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), tail=st.integers(0, 1000))
@settings(max_examples=50)
def test_delays_are_within_the_network_profile(seed: int, tail: int) -> None:
    network_profile = NetworkProfile(shortest=5, spread=100, tail=tail, tail_until=1000)
    dice = Random(seed)
    delays = [network_profile.delay(dice) for _ in range(50)]
    assert all(type(delay) is int and 5 <= delay <= 1005 for delay in delays)
    if tail == 0:
        assert max(delays) <= 105


def test_a_tail_is_as_frequent_as_it_says() -> None:
    network_profile, dice = NetworkProfile(0, 100, 200, 100_000), Random(1)
    late = sum(network_profile.delay(dice) > 100 for _ in range(10_000))
    assert 1800 < late < 2200


def test_on_a_good_day_every_answer_is_in_time() -> None:
    bad = NetworkProfile(shortest=15 * MS, spread=40 * MS, tail=500, tail_until=900 * MS)
    good = bad.calmed(20 * MS)
    dice = Random(1)
    assert max(2 * good.delay(dice) for _ in range(1000)) < 20 * MS


# --- what breaks ------------------------------------------------------------------------------


def burst(*struck: Any, connection_sets: int = 1) -> Plan:
    """Acquire and release in one go while node 1 is slow: both are under way at once."""
    slow = fault("slow", 0, node=1, amount=10 * MS, lasts=MS)
    return plan([job()], faults=[slow, *struck], connection_sets=connection_sets)


def executed(seen: Seen, node: int = 1) -> list[tuple[str, int]]:
    lines = seen.before(50 * MS, "execute", node=node, copy=False)
    return [(line["command"], line["at"]) for line in lines]


def test_both_are_under_way() -> None:
    assert executed(see(burst())) == [
        ("acquire", 10 * MS + TRIP),
        ("release", 10 * MS + 3 * TRIP),
    ]


@pytest.mark.parametrize(
    ("survivors", "arrives"),
    [(0, []), (499, []), (500, ["acquire"]), (999, ["acquire"]), (1000, ["acquire", "release"])],
)
def test_a_break_lets_the_oldest_through(survivors: int, arrives: list[str]) -> None:
    """Two requests are in flight: at the given rate the first arrives, or both, never only the
    second.
    """
    seen = see(burst(fault("break", 5 * MS, client=0, node=1, amount=survivors)))
    connection = seen.all("connect", node=1)[0]["connection"]
    messages = {line["message"] for line in seen.all("send", connection=connection)}
    lines = [line for line in seen.all("execute", node=1) if line["message"] in messages]
    assert [line["command"] for line in lines] == arrives
    assert seen.rules == set()


def test_what_survives_a_break_may_come_much_later() -> None:
    torn = fault("break", 5 * MS, client=0, node=1, amount=1000, lasts=40 * MS)
    seen = see(burst(torn))
    assert executed(seen)[:2] == [("acquire", 45 * MS), ("release", 45 * MS)]
    assert not seen.before(50 * MS, "reply", node=1), "nobody is there to hear it"


def test_nothing_comes_later_than_pending_releases_cover_it() -> None:
    """Nine tenths of max_ttl after the break: what would come later never comes."""
    torn = fault("break", 5 * MS, client=0, node=1, amount=1000, lasts=3_000 * MS)
    slow = fault("slow", 0, node=1, amount=2_000 * MS, lasts=MS)
    late = see(plan([job()], faults=[torn, fault("slow", 0, node=1, amount=10 * MS, lasts=MS)]))
    never = see(plan([job()], faults=[torn, slow]))
    (set_,) = late.all("execute", node=1, command="acquire", client=0)[:1]
    assert set_["at"] == 905 * MS
    assert late.rules == never.rules == set()
    connection = never.all("connect", node=1)[0]["connection"]
    old = {line["message"] for line in never.all("send", connection=connection)}
    assert old <= {line["message"] for line in never.all("lose", what="request")}


def test_what_a_node_that_hangs_has_got_is_never_too_late() -> None:
    """Commands in the node's own memory have no further delay in the network."""
    torn = fault("break", 5 * MS, client=0, node=1, amount=1000)
    hung = fault("hang", 0, node=1, lasts=2_000 * MS)
    seen = see(plan([job()], faults=[torn, hung], lasts=2_100 * MS))
    assert seen.all("execute", node=1, command="acquire")[0]["at"] == 2_000 * MS
    assert seen.rules == set()


def test_a_hole_swallows_all_behind_it() -> None:
    """Earlier messages arrive; no other does, until the connection breaks."""
    seen = see(burst(fault("lose_requests", TRIP, client=0, node=1, lasts=30 * MS)))
    assert executed(seen) == [("acquire", 10 * MS + TRIP)]
    assert seen.one("disconnect")["at"] == TRIP + 30 * MS


def test_a_half_open_connection_is_believed_in_until_it_breaks() -> None:
    """The client continues to send, receives nothing, and counts the silence as a vote against."""
    half_open = [fault("lose_requests", 0, client=0, node=node, lasts=60 * MS) for node in (1, 2)]
    seen = see(plan([job(after=MS), job(after=90 * MS)], faults=half_open, lasts=200 * MS))
    outcomes = seen.before(200 * MS, "outcome", client=0, what="acquire")
    assert [line["outcome"] for line in outcomes] == ["QuorumUnreachable", "granted"]
    assert len(seen.all("disconnect")) == 2
    assert seen.rules == set()


def test_a_connection_comes_back_after_a_pause_that_grows() -> None:
    """Attempts to connect to a dead node are 50, 100, 200, ... ms apart."""
    away = fault("crash_kept", MS, node=1, lasts=500 * MS)
    seen = see(plan([job(after=900 * MS)], faults=[away], lasts=1_000 * MS))
    lost, found = seen.one("disconnect"), seen.all("connect", node=1)[1]
    waited = found["at"] - lost["at"]
    # 50 + 100 + 200 + 400 ms, and one round trip.
    assert waited == 750 * MS + 2 * TRIP


def test_an_old_life_of_a_node_gets_nothing() -> None:
    """Requests that were under way to a process that died do not reach the next one."""
    crash = fault("crash_kept", 5 * MS, node=1, lasts=MS)
    seen = see(burst(crash))
    connection = seen.all("connect", node=1)[0]["connection"]
    old = {line["message"] for line in seen.all("send", connection=connection)}
    assert len(old) == 2
    assert {line["message"] for line in seen.all("lose", what="request")} == old


def test_a_partition_that_ends_in_a_break_delivers_what_it_held() -> None:
    parted = fault("one_way_to", 0, client=0, node=1, lasts=40 * MS)
    torn = fault("break", 20 * MS, client=0, node=1, amount=1000, lasts=10 * MS)
    seen = see(plan([job()], faults=[parted, torn]))
    assert executed(seen)[:2] == [("acquire", 30 * MS), ("release", 30 * MS)]


def test_a_duplicate_on_one_connection_does_not_touch_the_other() -> None:
    doubled = fault("duplicate", 0, client=0, node=1, lasts=3 * MS)
    seen = see(plan([job()], [job(after=30 * MS)], faults=[doubled]))
    (copy,) = seen.all("execute", copy=True)
    assert (copy["client"], copy["node"], copy["command"]) == (0, 1, "acquire")


def test_the_second_copy_of_an_acquire_may_set_the_key_again() -> None:
    """The copy arrives after the release: no client can know it, and the oracle does not require
    it.
    """
    doubled = fault("duplicate", 0, client=0, node=1, lasts=30 * MS)
    seen = see(plan([job()], faults=[doubled]))
    (copy,) = seen.all("execute", copy=True)
    assert copy["vote"] == "granted"
    assert (b"c0.1", 1) in seen.world.unowed
    assert seen.rules == set()
