"""`top` shows how the nodes are and what is held, while they die, hang and come back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from quorlock import Inspection, NodeStatus, NodeView, Redlock, VoteCode
from quorlock._cli.exit_status import EX_UNAVAILABLE
from quorlock._cli.inspection_view import FREE, HELD
from quorlock._cli.node_pollers import PollReport
from quorlock._cli.top import facts as top_facts
from quorlock._cli.top.facts import (
    DOWN,
    HUNG,
    KEPT_OUT,
    UP,
    LockFacts,
    LockHistory,
    NodeColumns,
    TopNodeFacts,
)
from quorlock._cli.top.live import node_facts
from quorlock._cli.top.node_probe import NodeSample
from quorlock._cli.top.report import as_facts, as_lines
from quorlock.testing.servers import Servers
from tests.servers.api.faces import steal
from tests.servers.cli import schema
from tests.servers.cli.command import COMMAND, Shell
from tests.servers.cli.live import Terminal, going_on
from tests.servers.cli.test_scan import enter
from tests.servers.cli.test_status import SCHEMA

OFTEN = ("--interval", "0.1s")


def checked(line: str) -> dict[str, Any]:
    """Return a line of JSON, validated by the schema."""
    facts: dict[str, Any] = json.loads(line)
    assert schema.problems(facts, SCHEMA["$defs"]["top"], SCHEMA) == []
    assert facts["time"].endswith("Z")
    return facts


def until(
    process: subprocess.Popen[str], wanted: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The first line that is as wanted."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        facts = checked(line)
        if wanted(facts):
            return facts
    raise AssertionError("it ended")


def states(facts: dict[str, Any]) -> list[str]:
    return [node["state"] for node in facts["nodes"]]


def test_once(shell: Shell, nodes: Servers) -> None:
    """The nodes, what they count, and what is held: one line, and the end."""
    with Redlock(nodes.urls, ttl=30) as redlock, redlock.lock("job:1") as lease:
        steal(nodes[:2], "job:0")
        printed = shell.answer("top", "--once", "--json", *OFTEN)
        assert lease.token not in printed
    facts = checked(printed)
    assert states(facts) == ["up"] * 5
    for node in facts["nodes"]:
        assert 0 < node["latency_p50"] <= node["latency_max"]
        assert node["connections"] >= 1, "the one that holds"
        assert node["keys"] >= 1
        assert node["ops"] >= 0
        assert (node["why"], node["lacks"]) == (None, [])
    assert [(lock["resource"], lock["verdict"]) for lock in facts["locks"]] == [
        ("job:0", "leftover"),
        ("job:1", "held"),
    ]
    assert all(lock["seen_for"] > 0 for lock in facts["locks"])
    assert (facts["more"], facts["notes"]) == (0, [])


@pytest.mark.parametrize(("dead", "status"), [(2, 0), (3, EX_UNAVAILABLE), (5, EX_UNAVAILABLE)])
def test_the_status_of_a_snapshot_says_whether_a_quorum_is_up(
    dead: int, status: int, shell: Shell, used_nodes: Servers
) -> None:
    for node in used_nodes[:dead]:
        node.kill()
    done = shell.run("top", "--once", "--json", *OFTEN)
    assert (done.returncode, done.stderr) == (status, "")
    assert states(checked(done.stdout)).count("up") == 5 - dead


def test_on_a_pipe_it_is_a_picture_and_no_more(shell: Shell, nodes: Servers) -> None:
    """Plain text, of 80 columns."""
    steal(nodes[:], "a" * 100)
    picture = shell.answer("top", *OFTEN, "--match", "a*")
    assert "5 nodes, 5 up, quorum 3   1 held" in picture
    assert "\x1b" not in picture
    rows = picture.splitlines()
    assert max(map(len, rows)) <= 80
    (row,) = [row for row in rows if row.startswith("aaaa")]
    assert " held " in row
    assert " 5/5 " in row


def test_while_nodes_fail(shell: Shell, mortal_nodes: Servers) -> None:
    """Dead, hung, back and kept out; what is held is seen all the while."""
    steal(mortal_nodes[:], "a")
    with going_on(shell, "top", "--json", *OFTEN) as process:
        until(process, lambda facts: states(facts) == ["up"] * 5 and bool(facts["locks"]))
        mortal_nodes[0].kill()
        mortal_nodes[1].stop()
        facts = until(process, lambda facts: states(facts) == ["down", "hung", "up", "up", "up"])
        assert facts["nodes"][0]["why"]
        assert facts["nodes"][1]["why"].startswith("no answer")
        assert [node["latency_p50"] for node in facts["nodes"][:2]] == [None, None]
        (lock,) = facts["locks"]
        assert (lock["resource"], lock["verdict"], lock["changes"]) == ("a", "held", 0)
        mortal_nodes[0].restart()
        mortal_nodes[1].cont()
        facts = until(process, lambda facts: states(facts) == ["kept out", *["up"] * 4])
        assert "votes in" in facts["nodes"][0]["why"]
        # It answers, though it does not vote.
        facts = until(process, lambda facts: facts["nodes"][0]["latency_p50"] is not None)
        for node in mortal_nodes[2:]:
            node.kill()
        until(process, lambda facts: facts["locks"][0]["verdict"] == "unreachable")


def test_who_changes_hands(shell: Shell, nodes: Servers) -> None:
    """Another holder is a change; the time of the current one restarts."""
    with going_on(shell, "top", "--json", *OFTEN) as process:
        for number in range(3):
            for node in nodes:
                node.execute("SET", "a", f"token {number}", "PX", "20000")

            def shown(facts: dict[str, Any], number: int = number) -> bool:
                (lock,) = facts["locks"] or [None]
                return lock is not None and lock["verdict"] == HELD and lock["changes"] == number

            until(process, shown)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Servers]:
    """Three whose users are this module's business."""
    with Servers(3) as servers:
        yield servers


def test_what_is_not_permitted_is_a_dash_and_a_word(bare_shell: Shell, guarded: Servers) -> None:
    """The rule of docs/how-to/acl.md alone leaves dashes; two more words fill them."""
    at = ("--nodes", ",".join(enter(guarded, "poor")))
    facts = checked(bare_shell.answer("top", "--once", "--json", *OFTEN, *at))
    assert states(facts) == ["up"] * 3
    for node in facts["nodes"]:
        assert (node["connections"], node["lacks"]) == (None, ["+client|list"])
        assert node["ops"] is not None
    (note,) = facts["notes"]
    assert "grant +scan (docs/how-to/acl.md)" in note
    picture = bare_shell.answer("top", *OFTEN, *at)
    assert "a dash: unknown without +client|list (docs/how-to/acl.md)" in picture
    at = ("--nodes", ",".join(enter(guarded, "rich", "+scan", "+client|list")))
    facts = checked(bare_shell.answer("top", "--once", "--json", *OFTEN, *at))
    assert all(node["connections"] is not None for node in facts["nodes"])
    assert not any(node["lacks"] for node in facts["nodes"])
    assert facts["notes"] == []


def test_it_ends_when_its_reader_is_gone(shell: Shell, nodes: Servers) -> None:
    script = '"$@" | head -n 1; echo "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *COMMAND, "top", "--json", "--interval", "1h"],
        env=shell.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    line, status = done.stdout.splitlines()
    assert checked(line)
    assert (status, done.stderr) == ("141", "")


# --- on a terminal ---------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_the_picture_fits(
    given: dict[str, Any], coloured: bool, shell: Shell, mortal_nodes: Servers
) -> None:
    """80 columns; a node that is dead or hung does not freeze it; Ctrl-C ends it at once."""
    for number in range(30):
        steal(mortal_nodes[:], f"job:{number:02}")
    with Terminal(shell, "top", *OFTEN, **given) as terminal:
        terminal.until("5 up, quorum 3   30 held", "job:00", "and 18 more")
        mortal_nodes[0].kill()
        mortal_nodes[1].stop()
        terminal.until("3 up, quorum 3   30 held", " hung ", " down ", "and 20 more")
        mortal_nodes[0].restart()
        mortal_nodes[1].cont()
        terminal.until("4 up, quorum 3", " kept out ", "votes in")
        assert "Traceback" not in terminal.interrupt()
        assert [row for row in terminal.rows if len(row) > 80] == []
        assert ("\x1b[31m" in terminal.shown) is coloured


def test_a_dumb_terminal_gets_the_plain_picture(shell: Shell, nodes: Servers) -> None:
    with Terminal(shell, "top", *OFTEN, TERM="dumb") as terminal:
        shown = terminal.until("nothing is held")
        assert terminal.process.wait(20) == 0
        assert "\x1b" not in shown


# --- the parts -------------------------------------------------------------------------------


def shown_as(resource: str, *holders: str | None, verdict: Any = HELD) -> Inspection:
    views = tuple(NodeView(str(n), one, 1.0, "") for n, one in enumerate(holders))
    return Inspection(resource, verdict, 1.0, views)


def test_since_when_and_how_often() -> None:
    """A silence is no change, nor is what the same holder leaves; a new holder is."""
    past = LockHistory()

    def note(at: float, *holders: str | None, verdict: str = HELD) -> list[tuple[float, int]]:
        locks = past.note([shown_as("a", *holders, verdict=verdict)], at)
        return [(lock.seen_for, lock.changes) for lock in locks]

    assert note(10, "x", "x", "x") == [(0, 0)]
    assert note(12, "x", "x", None) == [(2, 0)]
    assert note(13, None, None, None, verdict="unreachable") == [(3, 0)]
    assert note(14, "x", "x", "x") == [(4, 0)]
    assert note(15, "y", "y", "x") == [(5, 0)], "x may be giving it back"
    assert note(16, "y", "y", "y") == [(0, 1)]
    assert note(17, None, None, None, verdict=FREE) == []
    assert note(18, "z", "z", "z") == [(0, 2)]


def test_those_seen_longest_come_first() -> None:
    past = LockHistory()
    past.note([shown_as("b", "x"), shown_as("c", "y")], 0)
    locks = past.note([shown_as("a", "z"), shown_as("b", "x"), shown_as("c", "new")], 1)
    assert [lock.inspection.resource for lock in locks] == ["b", "a", "c"]


def test_what_is_remembered_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest."""
    monkeypatch.setattr(top_facts, "_REMEMBERED_MAX", 3)
    past = LockHistory()
    for number in range(9):
        past.note([shown_as(f"a{number}", "x")], number)
    assert list(past._past) == ["a6", "a7", "a8"]


SAMPLE = NodeSample(latencies=(0.002, 0.001, 0.01), connections=2, keys=7, ops=9)


@pytest.mark.parametrize(
    ("why", "code", "silent", "state"),
    [
        ("", None, "", UP),
        ("no answer for 3.0 s", VoteCode.TIMED_OUT, "", HUNG),
        ("", VoteCode.TIMED_OUT, "no answer within 1 s", HUNG),
        ("connection refused", VoteCode.NOT_CONNECTED, "Connection refused", DOWN),
        ("connection lost: closed by the server", VoteCode.NOT_CONNECTED, "", DOWN),
        ("no such file or directory", VoteCode.NOT_CONNECTED, "", DOWN),
        ("No route to host", VoteCode.NOT_CONNECTED, "No route to host", DOWN),
        ("started 3 s ago, votes in 9 s; remedy", VoteCode.QUARANTINED, "", KEPT_OUT),
        ("is not a master (role slave)", VoteCode.PERMANENT_ERROR, "", KEPT_OUT),
        ("connection to too few of the others", VoteCode.NOT_ADMITTED, "", KEPT_OUT),
    ],
)
def test_the_state_of_a_node(why: str, code: VoteCode | None, silent: str, state: str) -> None:
    """The code decides, not the words; of these the first part is shown."""
    if silent:
        report = PollReport[NodeSample](None, silent, None if why else code)
    else:
        report = PollReport(SAMPLE)
    facts = node_facts(NodeStatus("a:1", not why, why, None, "9", code if why else None), report)
    assert facts.state == state
    assert facts.why == (why or silent).partition(";")[0]
    answers = state in {UP, KEPT_OUT}
    assert (facts.latency_p50, facts.latency_max) == ((0.002, 0.01) if answers else (None, None))


def picture(width: int, height: int | None, locks: int = 0) -> list[str]:
    nodes = [
        TopNodeFacts("node", UP, "", 0.0001, 12.0, 3, 12_345_678, 250_000),
        TopNodeFacts("n", DOWN, "w"),
    ]
    held = [
        LockFacts(shown_as(f"a{n:03}", "f" * 12, "f" * 12), n * 1000.0, 3) for n in range(locks)
    ]
    facts = NodeColumns(datetime(2026, 1, 1, tzinfo=UTC), nodes, held, 5, ["a note of some words"])
    assert schema.problems(as_facts(facts), SCHEMA["$defs"]["top"], SCHEMA) == []
    return [text for text, _ in as_lines(facts, width, height)]


def test_long_names_are_cut_where_they_are_alike() -> None:
    """The differing ends of the names stay."""
    names = [
        f"deploy:production:{region}:{part}" for region in ("eu", "us") for part in ("web", "db")
    ]
    held = [LockFacts(shown_as(name, "f" * 12), 0.0, 0) for name in names]
    lines = as_lines(NodeColumns(datetime(2026, 1, 1, tzinfo=UTC), [], held, 0, []), 80, None)
    shown = [text.split()[0] for text, _ in lines if text.startswith("deplo")]
    assert len(set(shown)) == 4
    assert all(".." in name for name in shown)


def test_numbers_are_short() -> None:
    lines = picture(80, None, 200)
    assert lines[3].split() == ["node", "up", "0.10", "12000", "3", "12M", "250k"]
    assert lines[4].split() == ["n", "down", "-", "-", "-", "-", "-"]
    assert lines[8].split() == ["a000", "held", "f" * 12, "2/2", "1.0", "s", "0", "s", "0", "3"]
    assert [line.split()[-4:-2] for line in lines[9:13]] == [
        ["17", "min"],
        ["33", "min"],
        ["50", "min"],
        ["1.1", "h"],
    ]
    assert lines[8 + 172].split()[-4:-2] == ["47.8", "h"]
    assert lines[8 + 173].split()[-4:-2] == ["2", "d"]


@pytest.mark.parametrize(
    ("width", "node", "lock"),
    [
        (80, "p50 ms max ms conns keys ops/s", "verdict holder nodes left seen wait changes"),
        (72, "p50 ms max ms conns keys ops/s", "verdict holder nodes left seen wait"),
        (60, "p50 ms max ms conns keys ops/s", "verdict holder left seen wait"),
        (40, "p50 ms max ms", "verdict left wait"),
        (20, "", "left"),
    ],
)
def test_a_narrow_terminal_shows_fewer_columns(width: int, node: str, lock: str) -> None:
    """The columns that are left are whole."""
    lines = [" ".join(line.split()) for line in picture(width, None, 2)]
    assert f"node state {node}".strip() in lines
    assert f"resource {lock}" in lines


@pytest.mark.parametrize("width", [20, 60, 80, 200])
@pytest.mark.parametrize("height", [1, 8, 12, 24, 40])
@pytest.mark.parametrize("locks", [0, 1, 20])
def test_it_fits_everywhere(width: int, height: int, locks: int) -> None:
    lines = picture(width, height, locks)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    if width >= 80 and height >= 24 and locks == 20:
        shown = [line for line in lines if line.startswith("a0")]
        assert (f"and {20 - len(shown)} more" in lines) is (len(shown) < 20)
