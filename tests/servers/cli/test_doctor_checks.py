"""The doctor's checks on made-up facts: what no server here can be brought to show."""

from __future__ import annotations

from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock import Node
from quorlock._cli.doctor.facts import ClockReading, Facts, NodeFacts, clock_rate
from quorlock._cli.doctor.findings import Finding, findings, worst
from quorlock._cli.doctor.fleet_checks import CHECKS
from quorlock._cli.doctor.report import as_text

INFO = {
    "role": "master",
    "redis_version": "7.2.4",
    "redis_mode": "standalone",
    "tcp_port": "6379",
    "uptime_in_seconds": "1000",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "connected_clients": "1",
    "maxclients": "10000",
}


def node(number: int, info: dict[str, str] | None = None, **changes: Any) -> NodeFacts:
    """Return a healthy node on a separate machine, with these differences."""
    sound = NodeFacts(
        Node(f"n{number}", tls=True),
        peer=f"10.0.0.{number}",
        info=INFO | {"run_id": f"r{number}"} | (info or {}),
        other_run_id=f"r{number}",
        readings=[ClockReading(50.0, 1.0, 1.001), ClockReading(50.501, 1.501, 1.502)],
        latencies=[0.001] * 100,
    )
    return sound._replace(**changes)


def bad(*nodes: NodeFacts, **terms: Any) -> list[Finding]:
    """All that is not ok."""
    return [f for f in findings(CHECKS, Facts(nodes, **terms)) if f.level != "ok"]


def levels(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.check) for finding in found]


ONE, TWO = node(1), node(2)


def test_what_is_sound_is_ok() -> None:
    assert bad(ONE, TWO, node(3)) == []
    assert worst(findings(CHECKS, Facts([ONE, TWO, node(3)]))) == "ok"


def test_when_no_node_replies_only_that_is_reported() -> None:
    found = findings(CHECKS, Facts([n._replace(silent="gone") for n in (ONE, TWO, node(3))]))
    reported = [(f.level, f.check) for f in found]
    assert reported == [*[("error", "reach")] * 4, ("ok", "count")]


def test_fewer_than_a_quorum_is_said_besides() -> None:
    """A minority that is away is that, and no more; so is a node that is the only one."""
    gone = [n._replace(silent="gone") for n in (ONE, TWO)]
    assert levels(bad(gone[0])) == [("error", "reach"), ("warning", "count")]
    assert [f.found for f in bad(gone[0], TWO, node(3))] == ["gone"]
    reported = bad(*gone, node(3))[-1]
    assert (reported.node, reported.found) == (
        "",
        "1 of 3 nodes answer, and a lock needs 2: there is none",
    )


def test_the_last_line_is_the_verdict() -> None:
    """Unknown facts of silent nodes are not reported."""

    def text(*nodes: NodeFacts) -> str:
        return click.unstyle(as_text(findings(CHECKS, Facts(nodes))))

    mute = node(3)._replace(info=None, readings=[], other_run_id="")
    shared = node(3, peer="10.0.0.1")
    gone = node(3, silent="gone")
    blind = f"{len(bad(ONE, TWO, mute))} that could not be looked at"
    last_lines = [
        ((ONE, TWO, node(3)), "fit for locks"),
        ((ONE, TWO, shared), "fit for locks: 1 warning"),
        ((ONE, TWO, mute), f"fit for locks, as far as could be seen: {blind}"),
        ((ONE, TWO, gone), "not fit for locks: 1 error"),
        ((ONE, TWO, shared, gone), "not fit for locks: 1 error, 2 warnings"),
    ]
    for nodes, line in last_lines:
        assert text(*nodes).split("\n\n")[-1] == line
        assert ("\nok, of those that answer\n" in text(*nodes)) is (gone in nodes)


def test_missing_rights_are_reported_and_no_node_is_blamed() -> None:
    mute = node(3)._replace(info=None, readings=[], other_run_id="")
    found = bad(ONE, TWO, mute)
    assert {f.level for f in found} == {"unknown"}
    assert {f.node for f in found} == {"n3:6379"}
    assert worst(found) == "ok"


def test_too_few_nodes_that_can_call_waiters() -> None:
    """Fewer than a quorum: waiters poll. A node that is unfit anyway is not reported twice."""
    old = {"hello": "ERR unknown command 'HELLO'"}
    unable = [node(number, unqueued=old) for number in (1, 2)]
    (finding,) = bad(*unable, node(3))
    assert (finding.level, finding.check, finding.node) == ("warning", "waiting", "")
    assert finding.found == (
        "2 of 3 nodes cannot call waiters (n1:6379, n2:6379: ERR unknown command 'HELLO');"
        " waiters poll, and get the lock in no order"
    )
    assert finding.fix == "Redis 6 or newer, or Valkey; or give waiting='poll'"
    assert bad(*unable, node(3), waiting="poll") == []
    unfit = node(1, unqueued=old, refused={"set": "READONLY"})
    assert [f.check for f in bad(unfit, TWO, node(3))] == ["commands"]


def test_when_no_node_may_be_asked_only_that_is_reported() -> None:
    """Then the uptime of a quorum is unknown, and no quarantine is reported."""
    mute = [n._replace(info=None, readings=[], other_run_id="") for n in (ONE, TWO, node(3))]
    assert {f.level for f in bad(*mute)} == {"unknown"}
    late = node(3, {"uptime_in_seconds": "5"})
    assert [
        f.found for f in bad(*mute[:2], late) if f.check == "uptime" and f.node == "n3:6379"
    ] == ["it came up lately, or was emptied: it votes again in 27 s"]
    assert {f.level for f in bad(*mute[:2], late)} == {"unknown", "warning"}


def test_nodes_that_are_kept_out() -> None:
    """Each is reported, and that no lock is possible if they are too many; a single node only
    once.
    """
    late = [node(number, {"uptime_in_seconds": f"{number}0"}) for number in (1, 2)]
    reported = bad(*late, node(3))
    assert levels(reported) == [("error", "uptime"), ("warning", "uptime"), ("warning", "uptime")]
    assert reported[0].found == "2 of 3 nodes are kept out: no lock for 12 s"
    assert levels(bad(late[0])) == [("error", "uptime"), ("warning", "count")]


def test_a_load_balancer() -> None:
    found = bad(ONE, TWO, node(3, other_run_id="another"))
    assert levels(found) == [("error", "between")]


def test_a_sentinel() -> None:
    assert levels(bad(ONE, TWO, node(3, {"redis_mode": "sentinel"}))) == [("error", "mode")]


def test_an_old_server() -> None:
    assert levels(bad(ONE, TWO, node(3, {"redis_version": "5.0.14"}))) == [("warning", "version")]


def test_two_nodes_on_one_machine() -> None:
    found = bad(ONE, TWO, node(3, peer="10.0.0.1"))
    assert levels(found) == [("warning", "hosts")]
    assert found[0].found == "n1:6379, n3:6379 are on one machine, 10.0.0.1"
    mixed = bad(ONE, node(2, peer="127.0.0.1"), node(3, peer="::1"))
    assert "n2:6379, n3:6379 are on one machine, this machine" in mixed[0].found


def test_a_zone_with_a_quorum() -> None:
    zoned = [node(i, {"availability_zone": zone}) for i, zone in enumerate("abc", 1)]
    assert bad(*zoned) == []
    assert levels(bad(*zoned[:2], node(3, {"availability_zone": "a"}))) == [("warning", "zones")]


def test_in_clear_on_a_network() -> None:
    assert levels(bad(ONE, TWO, node(3, node=Node("n3")))) == [("warning", "tls")]


def test_access_from_here_without_a_password() -> None:
    found = bad(ONE, TWO, node(3, open_to_all=True))
    assert levels(found) == [("error", "access")]


def test_clocks_apart() -> None:
    ahead = [ClockReading(r.server + 5, r.before, r.after) for r in ONE.readings]
    assert levels(bad(ONE, TWO, node(3, readings=ahead))) == [("warning", "clocks")]


def test_a_clock_that_runs_fast_or_stands() -> None:
    for elapsed in (0.0, 0.45, 0.6, -1.0):
        readings = [ClockReading(50.0, 1.0, 1.001), ClockReading(50.0 + elapsed, 1.501, 1.502)]
        assert levels(bad(ONE, TWO, node(3, readings=readings))) == [("error", "elapsed")]
    slow_answers = [ClockReading(50.0, 1.0, 1.4), ClockReading(50.2, 1.5, 1.9)]
    found = bad(ONE, TWO, node(3, readings=slow_answers))
    assert levels(found) == [("unknown", "elapsed")], "nothing follows from these"


def readings(rate: float, taken: float = 0.001, seconds: float = 2.0) -> list[ClockReading]:
    """A clock of that rate, read ten times, by replies that take so long."""
    asked = [seconds * i / 9 for i in range(10)]
    return [ClockReading(50 + rate * (at + taken / 3), 1 + at, 1 + at + taken) for at in asked]


@pytest.mark.parametrize(
    ("rate", "level"),
    [
        (1.0, "ok"),
        (1.004, "ok"),
        (1.0005, "ok"),
        (1.007, "warning"),
        (0.993, "warning"),
        (1.0833, "error"),
        (0.98, "error"),
    ],
)
def test_the_rate_of_a_clock(rate: float, level: str) -> None:
    """A share of drift_factor is worth a word, more than that is an error."""
    found = bad(ONE, TWO, node(3, readings=readings(rate)))
    assert levels(found) == ([] if level == "ok" else [(level, "elapsed")])
    if level == "error":
        assert ("fast" if rate > 1 else "slow") in found[0].found
        assert f"{abs(rate - 1):.2%}" in found[0].found


@settings(deadline=None)
@given(
    st.floats(0.9, 1.1),
    st.lists(st.tuples(st.floats(0, 0.05), st.floats(0, 1)), min_size=2, max_size=8),
    st.floats(0.1, 5),
)
def test_the_bound_of_a_rate_is_honest(
    rate: float, replies: list[tuple[float, float]], pause: float
) -> None:
    """Wherever within a question and its reply a node reads its clock."""
    at, reported = 1_000.0, list[ClockReading]()
    for taken, part in replies:
        reported.append(ClockReading(1.7e9 + rate * (at + taken * part), at, at + taken))
        at += taken + pause
    found = clock_rate(reported)
    assert found is not None
    assert found.least <= rate <= found.most
    assert found.surely_off <= abs(rate - 1) + 1e-9


def test_a_clock_that_is_set_while_it_is_measured() -> None:
    """Two rates at once are no constant rate: it is said, not averaged away."""
    stepped = [r._replace(server=r.server + (i > 6) / 10) for i, r in enumerate(readings(1.0))]
    assert levels(bad(ONE, TWO, node(3, readings=stepped))) == [("error", "elapsed")]


def test_latencies_against_the_timeout() -> None:
    now_and_then = [0.001] * 97 + [0.06] * 3
    assert levels(bad(ONE, TWO, node(3, latencies=now_and_then))) == [("warning", "latency")]
    assert levels(bad(ONE, TWO, node(3, latencies=[0.06] * 3))) == [("error", "latency")]
    assert bad(ONE, TWO, node(3, latencies=[0.06]), node_timeout=0.1) == []


def test_an_uptime_that_is_just_enough() -> None:
    young = [node(i, {"uptime_in_seconds": "31"}) for i in (1, 2, 3)]
    found = bad(*young)
    assert levels(found) == [("error", "uptime"), *[("warning", "uptime")] * 3]
    assert bad(*[node(i, {"uptime_in_seconds": "32"}) for i in (1, 2, 3)]) == []
    assert levels(bad(young[0], TWO, node(3))) == [("warning", "uptime")]
