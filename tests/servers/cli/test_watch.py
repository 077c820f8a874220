"""`status --watch` prints changes when piped, redraws on a terminal, and ends at once."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import termios
from array import array
from typing import Any

import pytest

from quorlock import Inspection, NodeView, Redlock
from quorlock._cli.text_layout import fitted, wrapped
from quorlock._cli.watch import sight
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until
from tests.servers.api.faces import steal
from tests.servers.cli import schema
from tests.servers.cli.command import COMMAND, Shell
from tests.servers.cli.live import Terminal, going_on, lines
from tests.servers.cli.test_status import SCHEMA

OFTEN = ("--interval", "0.1s")


def test_on_a_pipe_it_prints_changes(shell: Shell, mortal_nodes: Servers) -> None:
    """Once, with the time: held, nodes that die and come back, free; not that time passes."""
    first, second = mortal_nodes[:2]
    with (
        Redlock(mortal_nodes.urls, ttl=30) as redlock,
        going_on(shell, "status", "a", "--watch", *OFTEN) as process,
    ):
        (head, *_) = lines(process, lambda line: "4.sock" in line)
        assert head[:4].isdecimal()
        assert head.endswith(" 'a': free")
        while not all(node.up for node in redlock.nodes):  # so that each of them has the key
            redlock.lock("b").acquire().release()
        lease = redlock.lock("a").acquire()
        lines(process, lambda line: "'a': held by " in line)
        first.kill()
        lines(process, lambda line: "0.sock" in line and "left" not in line)
        second.stop()
        printed = lines(process, lambda line: "no answer in time" in line)
        assert "1.sock" in printed[-1]
        second.cont()
        printed = lines(process, lambda line: "1.sock" in line and line.endswith(" left"))
        first.restart()
        lines(process, lambda line: "0.sock" in line and line.endswith("  free"))
        lease.release()
        printed = lines(process, lambda line: line.endswith("'a': free"))
        assert [line for line in printed if "held by" in line] == []


def change(process: subprocess.Popen[str], name: str, verdict: str) -> list[str | None]:
    """Return the previous verdicts of this resource's changes up to the one to that verdict.

    Every line is validated by the schema. There may be others: on a busy machine nodes time out.
    """
    assert process.stdout is not None
    before: list[str | None] = []
    while line := process.stdout.readline():
        facts: dict[str, Any] = json.loads(line)
        assert schema.problems(facts, SCHEMA["$defs"]["change"], SCHEMA) == []
        assert facts["time"].endswith("Z")
        if facts["now"]["resource"] == name:
            before.append(facts["was"])
            if facts["now"]["verdict"] == verdict:
                return before
    raise AssertionError("it ended")


def test_as_json_a_line_for_each_change(shell: Shell, nodes: Servers) -> None:
    """Changes of all matching names: a new one appears, one that is released is free, and appears
    again.
    """
    watch = ("status", "--match", "j*", "--watch", "--json", *OFTEN)
    steal(nodes[:], "j1")
    with going_on(shell, *watch) as process:
        assert change(process, "j1", "held")[0] is None
        steal(nodes[:1], "j2")
        assert change(process, "j2", "leftover")[0] is None
        for node in nodes:
            node.execute("DEL", "j1")
        assert None not in change(process, "j1", "free")
        nodes[1].execute("SET", "j1", "x")
        first = change(process, "j1", "leftover")[0]
        assert first in {"free", None}, "what is free is looked at no longer"


def test_one_set_of_connections_for_all_of_it(shell: Shell, nodes: Servers) -> None:
    """However often it looks: one that is named quorlock, and one that lists."""
    with going_on(shell, "status", "--match", "*", "--watch", *OFTEN) as process:
        for number in range(5):
            steal(nodes[:], f"a{number}")
            lines(process, lambda line, number=number: f"'a{number}': held" in line)  # type: ignore[misc]
        for node in nodes:
            clients = node.execute("CLIENT", "LIST").splitlines()
            assert len([c for c in clients if b"cmd=client" not in c]) == 2, clients


def test_no_quorum_is_no_end_of_it(shell: Shell, used_nodes: Servers) -> None:
    """The output says so, and continues when they are back."""
    steal(used_nodes[:], "a")
    for node in used_nodes[:3]:
        node.kill()
    with going_on(shell, "status", "--match", "*", "--watch", *OFTEN) as process:
        printed = lines(process, lambda line: "'a': unreachable: 3 of 5" in line)
        assert len(printed) == 1
        for node in used_nodes[:3]:
            node.restart()
        lines(process, lambda line: "'a': leftover: " in line)


@pytest.mark.parametrize(
    "watch", [["status", "--match", "*", "--watch"], ["status", "a", "--watch"]]
)
def test_it_ends_when_its_reader_is_gone(watch: list[str], shell: Shell, nodes: Servers) -> None:
    """`watch` ends as soon as the reader is gone, even without a change to print."""
    steal(nodes[:], "a")
    script = '"$@" | head -n 1; echo "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *COMMAND, *watch],
        env=shell.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    head, status = done.stdout.splitlines()
    assert "'a': held by " in head
    assert (status, done.stderr) == ("141", "")


# --- on a terminal ---------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_the_picture_fits(
    given: dict[str, Any], coloured: bool, shell: Shell, mortal_nodes: Servers
) -> None:
    """80 columns and so many lines; nodes that die are in it; Ctrl-C ends it at once."""
    steal(mortal_nodes[:], "a")
    with Terminal(shell, "status", "--match", "*", "--watch", *OFTEN, **given) as terminal:
        terminal.until("'a': held by ", "on 5 of 5 nodes")
        mortal_nodes[0].kill()
        mortal_nodes[1].stop()
        terminal.until("connection refused", "no answer in time", "2 of 5 nodes did not list")
        mortal_nodes[1].cont()
        terminal.until("on 4 of 5 nodes")
        assert "Traceback" not in terminal.interrupt()
        assert [row for row in terminal.rows if len(row) > 80] == []
        assert ("\x1b[33m" in terminal.shown) is coloured


def test_a_low_terminal_has_a_line_for_each_that_fits(shell: Shell, nodes: Servers) -> None:
    for number in range(30):
        steal(nodes[:], f"job:{number:02}")
    watch = ("status", "--match", "*", "--watch", "--limit", "20", *OFTEN)
    with Terminal(shell, *watch, rows=10) as terminal:
        shown = terminal.until("and 14 more", "and 10 more match")
        assert "'job:00': held by " in shown
        assert "'job:06'" not in shown


def test_on_a_dumb_terminal_it_prints_changes(shell: Shell, nodes: Servers) -> None:
    """Line by line, as a pipe is."""
    with Terminal(shell, "status", "a", "--watch", *OFTEN, TERM="dumb") as terminal:
        terminal.until("'a': free", "4.sock")
        steal(nodes[:], "a")
        terminal.until("'a': held by ")
        assert "\x1b" not in terminal.interrupt() + terminal.shown


# --- the parts -------------------------------------------------------------------------------


def seen(verdict: Any, *holders: str | None, error: str = "", left: float = 1.0) -> Inspection:
    views = [NodeView(str(n), one, left, "") for n, one in enumerate(holders)]
    views += [NodeView("x", None, None, error)] * bool(error)
    return Inspection("a", verdict, left, tuple(views))


def test_what_a_change_is() -> None:
    """Verdict, holders, which nodes are silent; not the time that is left, nor in which words."""
    before = sight(seen("held", "h", "h", "h"))
    assert sight(seen("held", "h", "h", None, left=0.5)) == before
    assert sight(seen("held", "i", "i", "i")) != before
    assert sight(seen("held", "h", "h", "i")) != before
    assert sight(seen("split", "h", None, None)) != before
    silent = sight(seen("held", "h", "h", error="no answer in time"))
    assert silent != before
    assert sight(seen("held", "h", "h", error="connection refused")) == silent


def test_lines_are_folded() -> None:
    """Continuation lines are indented."""
    text = "a head of words\n  a node that says much\n"
    folded = ["a head of", "    words", "  a node that", "      says", "      much"]
    assert wrapped(text, 14) == folded


def test_lines_are_folded_at_any_width() -> None:
    """Also where the indentation is wider than the line, as in a terminal that is being resized."""
    for width in range(9):
        folded = wrapped("  3 more match", width)
        assert max(map(len, folded)) <= max(width, 1)
        assert "".join(folded).replace(" ", "") == "3morematch"


def test_what_does_not_fit_is_counted() -> None:
    blocks = [["a", " 1"], ["b", " 1"], ["c", " 1"]]
    assert fitted(blocks, ["a.", "b.", "c."], 6) == ["a", " 1", "b", " 1", "c", " 1"]
    assert fitted(blocks, ["a.", "b.", "c."], 5) == ["a.", "b.", "c."]
    assert fitted(blocks, ["a.", "b.", "c."], 2) == ["a.", "and 2 more"]
    assert fitted(blocks, ["a.", "b.", "c."], 0) == ["and 3 more"]


SWALLOWED = """
import asyncio, os, signal, sys, weakref
from quorlock._cli import exit_status, poll_loop

class Thing:
    pass

async def work():
    thing = Thing()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), int(sys.argv[1])))
    del thing
    print("not ended there", flush=True)
    await asyncio.sleep(60)

try:
    with exit_status.interruptible():
        poll_loop._Run().run(work())
except exit_status.Interrupted as error:
    sys.exit(exit_status.status_of(error))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_signal_is_lost(number: signal.Signals, bare_shell: Shell) -> None:
    """A signal in the callback of a weak reference counts, too, although exceptions are lost
    there.
    """
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWED, str(int(number))],
        env=bare_shell.environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (128 + number, "")
    assert done.stdout == "not ended there\n"


def test_a_writer_without_a_reader_can_be_ended(shell: Shell, nodes: Servers) -> None:
    """The pipe is full, and the signal is handled nevertheless."""
    for number in range(100):
        steal(nodes[:1], f"{'x' * 70}{number}")  # a page of the pipe holds five lines
    watch = ("status", "--match", "*", "--watch", "--json", *OFTEN)
    with shell.start(*watch) as process:
        assert process.stdout is not None
        unread = array("i", [0])
        output = process.stdout

        def is_nearly_full() -> bool:
            assert process.poll() is None
            fcntl.ioctl(output, termios.FIONREAD, unread)
            # Of the 65,536 that a pipe holds: a line that does not fit into a page begins another.
            return unread[0] >= 50_000

        assert until(is_nearly_full, 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
        assert process.stdout.read().count("\n") < 100
