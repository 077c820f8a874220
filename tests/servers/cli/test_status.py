"""`status` is correct while nodes are killed; `break` breaks exactly what it has shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest

from quorlock import Inspection, NodeView, Redlock
from quorlock._cli import inspection_view as shown
from quorlock._cli.exit_status import EX_UNAVAILABLE, EX_USAGE
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until
from tests.servers.api.faces import steal
from tests.servers.cli import schema
from tests.servers.cli.command import PATIENCE, Shell, at_last
from tests.servers.cli.live import Terminal

RESERVED = "quorlock:next:00f1e2d3c4b5a697:12:100"

SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "docs" / "reference" / "cli.schema.json").read_text()
)
OWNER = f"{socket.gethostname()}:{os.getpid()}"


def status_of(shell: Shell, resource: str = "a", status: int = 0) -> dict[str, Any]:
    """Return the output of `--json` for one resource, validated by its schema."""
    done = shell.run("status", resource, "--json")
    assert (done.returncode, done.stderr) == (status, ""), done
    answer = json.loads(done.stdout)
    assert schema.problems(answer, SCHEMA["$defs"]["status"], SCHEMA) == []
    (only,) = answer["resources"]
    assert only["resource"] == resource
    return dict(only)


def test_free_and_held(shell: Shell, nodes: Servers) -> None:
    """One holder on all nodes, by a digest; both in one call, in the order that was asked."""
    assert status_of(shell)["verdict"] == "free"
    with Redlock(nodes.urls) as redlock, redlock.lock("a", ttl=20) as lease:
        assert at_last(nodes, "a", lease.token)
        facts = status_of(shell)
        assert facts["verdict"] == "held"
        assert 10 < facts["ttl_left"] <= 20
        assert facts["owner"] == OWNER
        assert {node["owner"] for node in facts["nodes"]} == {OWNER}
        assert lease.token not in json.dumps(facts)
        (digest,) = {node["holder"] for node in facts["nodes"]}
        text = shell.answer("status", "a", "b")
    held = f"'a': held by {OWNER} ({digest}) on 5 of 5 nodes; a quorum is free in 1"
    assert text.startswith(held)
    assert text.count(f"  {digest}, 1") == 5
    assert text.partition("\n'b': free\n")[2].count("  free") == 5


def test_while_nodes_are_killed(shell: Shell, mortal_nodes: Servers) -> None:
    """Held while a quorum confirms it; then split, since dead nodes may have the key; then
    unreachable.
    """
    steal(mortal_nodes[:3], "a")
    assert status_of(shell)["verdict"] == "held"
    mortal_nodes[0].kill()
    facts = status_of(shell)
    assert facts["verdict"] == "split", "two have it, two are free: the fifth could decide"
    assert facts["nodes"][0] == {
        "node": mortal_nodes[0].path,
        "holder": None,
        "owner": None,
        "ttl_left": None,
        "error": facts["nodes"][0]["error"],
        "code": "not_connected",
        "reserved": False,
        "done": False,
        "readers": [],
    }
    assert facts["nodes"][0]["error"]
    assert "split: no holder has a quorum" in shell.answer("status", "a")
    mortal_nodes[3].kill()
    mortal_nodes[4].kill()
    assert status_of(shell, status=EX_UNAVAILABLE)["verdict"] == "unreachable"
    done = shell.run("status", "a")
    assert (done.returncode, done.stderr) == (EX_UNAVAILABLE, "")
    assert done.stdout.startswith("'a': unreachable: 3 of 5 nodes did not reply; ")


def test_a_hung_node_costs_little(shell: Shell, mortal_nodes: Servers) -> None:
    """The node is reported as hung; the others decide."""
    steal(mortal_nodes[1:], "a")
    mortal_nodes[0].stop()
    facts = status_of(shell)
    assert facts["verdict"] == "held"
    assert facts["nodes"][0]["error"]


def test_leftovers(shell: Shell, nodes: Servers) -> None:
    """A quorum is free, so the lock is not held; a minority still has a key, with or without a
    ttl.
    """
    steal(nodes[:1], "a")
    nodes[1].execute("SET", "a", "for ever")
    facts = status_of(shell)
    assert (facts["verdict"], facts["ttl_left"]) == ("leftover", None)
    text = shell.answer("status", "a")
    assert "leftover: it is not held, but there is a key of " in text
    assert "without end" in text
    assert shell.answer("acquire", "a", "-w", "0")


def test_a_name_cannot_draw_on_the_screen(shell: Shell) -> None:
    """Neither control characters nor bytes that are no text come through."""
    text = shell.answer("status", "a\x1b[2Jb", "\udcff")
    assert "\x1b" not in text
    assert r"'a\x1b[2Jb': free" in text
    assert r"'\udcff': free" in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8:strict"])
def test_a_name_that_stdout_cannot_show(shell: Shell, nodes: Servers, encoding: str) -> None:
    """The letters that it lacks are escaped, as on stderr: another client chose the name."""
    names = ["\u65e5\u672c", os.fsdecode(b"\xfe")]
    given = {"PYTHONIOENCODING": encoding}
    with Redlock(nodes.urls) as redlock, redlock.lock(*names):
        for asked in ([], names):
            done: Any = shell.run("status", *asked, given=given, text=False)
            assert (done.returncode, done.stderr) == (0, b""), done
            assert b": held by " in done.stdout


def test_without_a_name_it_lists_what_is_held(shell: Shell) -> None:
    """List every held lock; a note on stderr replaces an empty list."""
    done = shell.run("status", "--exit-code")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "quorlock status: nothing is held\n"
    for name in ("b", "a"):
        shell.answer("acquire", name)
    assert re.findall("^'(.)': held", shell.answer("status"), re.MULTILINE) == ["a", "b"]
    facts = json.loads(shell.answer("status", "--json", "--limit", "2"))
    assert [one["resource"] for one in facts["resources"]] == ["a", "b"]


def test_the_exit_code_says_whether_it_is_held(shell: Shell, nodes: Servers) -> None:
    """The status is 75 if one of several is held or split, 0 if all can be acquired."""
    shell.answer("acquire", "a")
    steal(nodes[:1], "left", "one")
    steal(nodes[:2], "split", "one")
    steal(nodes[2:4], "split", "two")
    for words, status in (
        (["a"], 75),
        (["free"], 0),
        (["free", "a"], 75),
        (["left"], 0),
        (["split"], 75),
        ([], 75),
        (["--match", "f*"], 0),
    ):
        assert shell.run("status", "--exit-code", *words).returncode == status, words
        assert shell.run("status", *words).returncode == 0
    said = shell.complaint(EX_USAGE, "status", "a", "--exit-code", "--watch")
    assert "--exit-code excludes --watch" in said


def test_a_verdict_has_a_colour_on_a_terminal_alone(shell: Shell) -> None:
    """NO_COLOR is obeyed, and a pipe gets plain text."""
    assert "\x1b" not in shell.answer("status", "a")
    with Terminal(shell, "status", "a") as terminal:
        assert "'a': \x1b[32mfree\x1b[0m\r\n" in terminal.until("free", "\r\n")
    with Terminal(shell, "status", "a", NO_COLOR="1") as terminal:
        assert "'a': free\r\n" in terminal.until("free", "\r\n")


def test_what_is_acquired_keeps_to_the_schema(shell: Shell) -> None:
    facts = json.loads(shell.answer("acquire", "a", "--format", "json"))
    assert schema.problems(facts, SCHEMA["$defs"]["acquired"], SCHEMA) == []


def test_every_word_of_the_schema_is_checked() -> None:
    """Also in the parts that other tests hold answers against."""
    for name, part in SCHEMA["$defs"].items():
        found = schema.problems({}, part, SCHEMA, name)
        assert found == [f"{name}: {needed} is missing" for needed in sorted(part["required"])]


def view(node: str, holder: str | None = None, *, reserved: bool = False) -> NodeView:
    left = None if holder is None and not reserved else 0.5
    return NodeView(node, holder, left, "", reserved=reserved)


@pytest.mark.parametrize(
    ("verdict", "views", "waiters", "words"),
    [
        ("held", [view("a", "f1"), view("b", "f1")], 0, "held by f1 on 2 of 2 nodes; a quorum"),
        ("held", [view("a", "f1"), view("b", "f1")], 1, "held by f1 on 2 of 2 nodes, 1 waits; a "),
        ("held", [view("a", "f1"), view("b", "f1")], 12, "held by f1 on 2 of 2 nodes, 12 wait; "),
        (
            "passing",
            [view("a", reserved=True), view("b", reserved=True), view("c", "f1")],
            3,
            (
                "passing: 2 of 3 nodes have called the next waiter, and there is a key of f1 on"
                " 1 of 3 nodes, 3 wait\n"
            ),
        ),
        ("free", [view("a"), view("b"), view("c", reserved=True)], 0, "free\n"),
    ],
)
def test_the_sentence_says_how_many_wait(
    verdict: Any, views: list[NodeView], waiters: int, words: str
) -> None:
    """A node that keeps the lock for a waiter has no holder, and is not called free."""
    inspection = Inspection("a", verdict, 0.5, tuple(views), None, waiters)
    text = shown.as_text(inspection)
    assert text.startswith(f"'a': {words}")
    kept = "kept for the waiter that it has called, 0.5 s left"
    assert text.count(kept) == sum(one.reserved for one in views)
    facts = shown.as_facts(inspection)
    assert schema.problems(facts, SCHEMA["$defs"]["resource"], SCHEMA) == []
    assert facts["waiters"] == waiters


def test_work_that_is_done_is_named_with_its_end(shell: Shell, nodes: Servers) -> None:
    """`status` and `top` show it, in text and JSON; a key on a minority is a leftover, and done."""
    with Redlock(nodes.urls, owner="web-3") as redlock:
        redlock.lock("a").acquire().keep(3_600.0)
        text = shell.answer("status", "a")
        assert text.startswith("'a': held: the work was done by web-3 (")
        assert re.search(r"on 5 of 5 nodes; it counts as done for 3[56]\d\d\.\d s more\n", text)
        assert text.count("  done, ") == 5
        facts = json.loads(shell.answer("status", "a", "--json"))["resources"][0]
        assert (facts["done"], facts["verdict"], facts["owner"]) == (True, "held", "web-3")
        assert all(node["done"] for node in facts["nodes"])
        assert schema.problems(facts, SCHEMA["$defs"]["resource"], SCHEMA) == []
        lock = json.loads(shell.answer("top", "--json", "--once"))["locks"][0]
        assert (lock["done"], lock["owner"]) == (True, "web-3")
        assert schema.problems(lock, SCHEMA["$defs"]["top_lock"], SCHEMA) == []
        assert re.search(r"\ba +done +web-3 +5/5", shell.answer("top", "--once"))
        for node in nodes[:3]:
            node.execute("DEL", "a")
        assert "'a': leftover: " in shell.answer("status", "a")
        assert not redlock.inspect("a").done


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"verdict": "taken"}, "$.verdict: 'taken' is none of"),
        ({"ttl_left": -1}, "$.ttl_left: -1 is less"),
        ({"nodes": None}, "$.nodes: None is no array"),
        ({"more": 1}, "$: more is not in the schema"),
    ],
)
def test_the_schema_can_refuse(change: dict[str, Any], words: str) -> None:
    """And so do the sentences of a verdict with it."""
    facts = shown.as_facts(Inspection("a", "free", None, (NodeView("n", None, None, ""),)))
    assert schema.problems(facts, SCHEMA["$defs"]["resource"], SCHEMA) == []
    (found,) = schema.problems(facts | change, SCHEMA["$defs"]["resource"], SCHEMA)
    assert found.startswith(words)


def test_it_says_how_many_wait(shell: Shell, nodes: Servers) -> None:
    """Also `top`, and `run` while it waits; a client that polls is not counted."""
    with Redlock(nodes.urls, ttl=30) as redlock, redlock.lock("a"):
        assert "wait" not in shell.answer("status", "a")
        with (
            shell.start("run", "a", "--", "true") as first,
            shell.start("run", "a", "--", "true", given={"QUORLOCK_WAITING": "poll"}) as polling,
        ):
            try:
                assert until(lambda: redlock.inspect("a").waiters == 1, PATIENCE)
                told = shell.start("run", "a", "--json", "--wait", "30s", "--", "true")
                with told as second:
                    assert until(lambda: redlock.inspect("a").waiters == 2, PATIENCE)
                    assert " on 5 of 5 nodes, 2 wait; a quorum is free in " in shell.answer(
                        "status", "a"
                    )
                    assert status_of(shell)["waiters"] == 2
                    (lock,) = json.loads(shell.answer("top", "--once", "--json"))["locks"]
                    assert (lock["resource"], lock["waiters"]) == ("a", 2)
                    assert second.stderr is not None
                    event = json.loads(second.stderr.readline())
                    assert (event["event"], event["waiters"] in (1, 2)) == ("waiting", True)
                    second.kill()
            finally:
                first.kill()
                polling.kill()


# --- break -----------------------------------------------------------------------------------


def test_it_shows_first_and_breaks_with_yes(shell: Shell, nodes: Servers) -> None:
    """The holder is shown and stays without --yes; with it the lock is free."""
    token = shell.answer("acquire", "a")
    said = shell.complaint(75, "break", "a")
    assert said.startswith("'a': held by ")
    end = "quorlock break: 'a' is not released\nhint: to release it: quorlock break --yes a\n"
    assert said.endswith(end)
    assert at_last(nodes, "a", token)
    done = shell.run("break", "a", "--yes")
    assert done.returncode == 0
    assert done.stderr.startswith("'a': held by ")
    assert done.stdout.startswith("'a': free\n")
    assert token not in done.stdout + done.stderr
    assert at_last(nodes, "a", None)


def test_leftovers_of_several_are_broken(shell: Shell, nodes: Servers) -> None:
    """All that was shown, whosever it is, with or without an end."""
    steal(nodes[:2], "a", "one")
    nodes[2].execute("SET", "a", "for ever")
    steal(nodes[3:4], "a", "two")
    done = shell.run("break", "a", "--yes")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "'a': free")
    assert at_last(nodes, "a", None)


def test_the_hint_of_breaking_is_a_command(shell: Shell) -> None:
    """Also for a name that looks like an option, or that a shell would split."""
    for name in ("-x", "a b"):
        shell.answer("acquire", "--", name)
        hint = shell.complaint(75, "break", "--", name).rpartition("to release it: quorlock ")[2]
        assert shell.run(*shlex.split(hint)).stdout.startswith(f"{name!r}: free\n")


def test_what_is_free_needs_no_breaking(shell: Shell) -> None:
    """The command succeeds even without --yes."""
    done = shell.run("break", "a")
    assert (done.returncode, done.stdout) == (0, "'a': nothing to break\n")


def test_what_is_kept_for_a_waiter_is_not_broken(shell: Shell, nodes: Servers) -> None:
    """A lock that is passed on belongs to no holder, and `status` says that it is not free."""
    steal(nodes[:], "a", RESERVED)
    done = shell.run("break", "a", "--yes")
    assert (done.returncode, done.stdout) == (0, "'a': nothing to break\n")
    assert at_last(nodes, "a", RESERVED)
    assert status_of(shell)["verdict"] == "passing"
    assert shell.run("status", "a", "--exit-code").returncode == 75


def test_queues_are_not_listed(shell: Shell, nodes: Servers) -> None:
    """Only the lock is."""
    steal(nodes[:], "a", RESERVED)
    for node in nodes:
        node.execute("ZADD", "quorlock:queue:a", 1, "00f1e2d3c4b5a697:12:100")
    text = shell.answer("status")
    assert text.startswith("'a': passing: 5 of 5 nodes have called the next waiter")
    assert "queue" not in text


def test_without_a_quorum_it_says_so(shell: Shell, used_nodes: Servers) -> None:
    """The nodes that answer obey; the output does not claim that the lock is free."""
    steal(used_nodes[:], "a")
    for node in used_nodes[:3]:
        node.kill()
    done = shell.run("break", "a", "--yes")
    assert (done.returncode, done.stdout) == (EX_UNAVAILABLE, "")
    assert "refused), after 1 attempt" in done.stderr
    assert at_last(used_nodes[3:], "a", None)


def test_a_lock_without_replies_is_not_called_free(shell: Shell, used_nodes: Servers) -> None:
    """The output does not say "nothing to break" either, since that is unknown."""
    for node in used_nodes[:3]:
        node.kill()
    done = shell.run("break", "a")
    assert (done.returncode, done.stdout) == (EX_UNAVAILABLE, "")
    assert "unreachable: 3 of 5 nodes did not reply" in done.stderr
