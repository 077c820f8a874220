"""`bench` measures what is there, names what is not, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from quorlock._cli.exit_status import EX_NOPERM, EX_SIGNAL, EX_UNAVAILABLE, EX_USAGE
from quorlock.testing.servers import Server, Servers
from tests.harness.support.wait import until
from tests.servers.cli import schema
from tests.servers.cli.command import COMMAND, Shell

SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "docs" / "reference" / "cli.schema.json").read_text()
)
ACL = Path(__file__).parents[3] / "docs" / "how-to" / "acl.md"
SHORT = ("--seconds", "1", "--tasks", "1,8")


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """A busy machine is no hung node: a second to answer, and so a ttl of ten."""
    settings = shell.home / "settings.toml"
    settings.write_text("node_timeout = 1.0\n")
    shell.variables["QUORLOCK_CONFIG"] = str(settings)
    return shell


def measured(shell: Shell, *words: str, status: int = 0) -> dict[str, Any]:
    """Return the output of `--json`, validated by its schema."""
    done = shell.run("bench", *SHORT, "--json", *words)
    assert done.returncode == status, done
    answer: dict[str, Any] = json.loads(done.stdout)
    assert schema.problems(answer, SCHEMA["$defs"]["bench"], SCHEMA) == []
    return answer


def keys_of(nodes: Iterable[Server]) -> list[bytes]:
    return [key for node in nodes for key in node.keys()]  # noqa: SIM118 (a server is no dict)


def emptied(nodes: Iterable[Server]) -> bool:
    """No key is left, before any could have run out: a node that woke up reads what it was sent."""
    return until(lambda: keys_of(nodes) == [])


def test_it_measures(shell: Shell, nodes: Servers) -> None:
    """Every part has figures that go together; the time is what was asked for."""
    facts = measured(shell, "--seconds", "3")
    assert facts["seconds"] > 2.5
    assert facts["quorum"] == 3
    assert [node["node"] for node in facts["nodes"]] == [node.path for node in nodes]
    times = [
        *(node["round_trip"] for node in facts["nodes"]),
        *(facts["one_caller"][verb] for verb in ("acquire", "extend", "release")),
        facts["contention"]["wait"],
    ]
    for each in times:
        assert each["number"] > 0
        assert 0 < each["p50"] <= each["p90"] <= each["p99"] <= each["max"]
    # Each acquire waits for three of five.
    shares = [node["in_quorum"] for node in facts["nodes"]]
    assert 2.99 < sum(shares) <= 5
    assert [(rate["face"], rate["callers"]) for rate in facts["many_callers"]] == [
        *(("threads", 1), ("threads", 8), ("tasks", 1), ("tasks", 8))
    ]
    assert all(rate["per_second"] > 0 < rate["cpu"] for rate in facts["many_callers"])
    contention = facts["contention"]
    assert contention["fewest"] <= contention["most"]
    assert 0 < contention["busy"] <= 1
    assert (facts["errors"], facts["lost"], facts["overlaps"]) == ([], 0, 0)
    assert emptied(nodes)


def test_what_people_read(shell: Shell, nodes: Servers) -> None:
    """Piped output is ASCII without colour, at most 80 columns; stderr says that it loads the
    nodes.
    """
    done = shell.run("bench", *SHORT)
    assert done.returncode == 0, done
    assert done.stdout.isascii()
    assert re.search(r"[^\n -~]", done.stdout) is None
    assert all(len(line) <= 80 and line == line.rstrip() for line in done.stdout.splitlines())
    for part in ("each node alone", "one caller", "many callers", "8 callers want one lock"):
        assert f"\n{part}" in f"\n{done.stdout}"
    for node in nodes:
        name = re.escape(node.path[-20:])
        assert len(re.findall(rf"^  \S*{name} .* ms .* ms .*%$", done.stdout, re.MULTILINE)) == 1
    assert "One caller: a round waits for 3 of 5 nodes" in done.stdout
    assert "Many callers: " in done.stdout
    head, keys = done.stderr.splitlines()
    assert head == "quorlock bench: loads 5 nodes for about 1 s, under its own keys:"
    assert re.fullmatch(r"  quorlock-bench:\w{8}:\.\.\. \(ttl 10 s\)", keys)


def test_one_node(shell: Shell, nodes: Servers) -> None:
    facts = measured(shell, "--nodes", nodes[0].url)
    assert [node["in_quorum"] for node in facts["nodes"]] == [1]


def test_more_callers_than_threads_are_tasks(shell: Shell) -> None:
    facts = measured(shell, "--tasks", "65")
    assert [(rate["face"], rate["callers"]) for rate in facts["many_callers"]] == [("tasks", 65)]


# --- nodes that fail -------------------------------------------------------------------------


def test_a_dead_and_a_hung_node_are_named(shell: Shell, mortal_nodes: Servers) -> None:
    """The others do, and what the hung one was sent it undoes when it wakes."""
    mortal_nodes[1].kill()
    mortal_nodes[3].stop()
    done = shell.run("bench", *SHORT)
    assert done.returncode == 0, done
    flat = " ".join(done.stdout.split())
    dead, hung = (mortal_nodes[number].path[-20:] for number in (1, 3))
    assert f"{dead}: Connection refused" in flat
    assert f"{hung}: no answer within 0.5 s" in flat
    assert "2 of 5 nodes did not vote: none of the others may fail" in flat
    mortal_nodes[3].cont()
    assert emptied([node for node in mortal_nodes if node.alive])


def test_a_node_that_is_kept_out_is_named(shell: Shell, mortal_nodes: Servers) -> None:
    """The node answers, and does not vote yet."""
    mortal_nodes[2].kill()
    mortal_nodes[2].restart()
    facts = measured(shell)
    assert "started" in facts["nodes"][2]["error"]
    assert facts["nodes"][2]["round_trip"]["number"] > 0
    assert facts["nodes"][2]["in_quorum"] == 0


def test_without_a_quorum_there_is_nothing_to_measure(shell: Shell, used_nodes: Servers) -> None:
    for node in used_nodes[:3]:
        node.kill()
    said = shell.complaint(EX_UNAVAILABLE, "bench", *SHORT)
    assert "2 of 5 nodes answered, 3 are needed" in said


def test_leases_that_are_lost_are_counted(shell: Shell, nodes: Servers) -> None:
    """The nodes are emptied during the run: status 1."""
    with shell.start("bench", "--seconds", "2", "--tasks", "1") as bench:
        while bench.poll() is None:
            for node in nodes:
                if keys := node.keys():
                    node.execute("DEL", *keys)
        printed, said = bench.communicate()
    assert bench.returncode == 1, said
    assert re.search(
        r"^leases lost, over before they were released: [\d,]+$", printed, re.MULTILINE
    )


# --- rights ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Servers]:
    """Three with a user of docs/how-to/acl.md, who may touch no keys but `app:*`."""
    lines = re.findall(r"^ACL SETUSER quorlock (.+)$", ACL.read_text(), re.MULTILINE)
    assert len(lines) == 2, "to lock, and to wait in line"
    with Servers(3) as servers:
        for server in servers:
            for line in lines:
                server.execute("ACL", "SETUSER", *f"quorlock {line}".split())
            server.execute("ACL", "SETUSER", "idle", "on", ">PASSWORD", "~*", "+info")
        yield servers


def by_file(shell: Shell, nodes: Servers, username: str, **settings: str) -> None:
    lines = {"username": username, "password": "PASSWORD", **settings}
    text = "".join(f"{name} = '{value}'\n" for name, value in lines.items())
    text += f"nodes = {nodes.urls}\nnode_timeout = 1.0\n"
    (shell.home / "quorlock.toml").write_text(text)


def test_it_touches_no_keys_but_its_own(bare_shell: Shell, guarded: Servers) -> None:
    """The user of the ACL page may do all of it, below the prefix; nothing was denied."""
    by_file(bare_shell, guarded, "quorlock", prefix="app:")
    for server in guarded:
        server.execute("ACL", "LOG", "RESET")
    assert measured(bare_shell)["errors"] == []
    for server in guarded:
        denied = [
            dict(zip(entry[::2], entry[1::2], strict=True))
            for entry in server.execute("ACL", "LOG")
        ]
        # Renewal and waiters may track keys, releases may be sent together, and every diagnostic
        # connection begins with a PING.
        optional = {b"ping", b"client|tracking", b"client|caching", b"mget"}
        assert {entry[b"object"] for entry in denied} <= optional
    assert emptied(guarded)


def test_refused_rights_are_reported(bare_shell: Shell, guarded: Servers) -> None:
    by_file(bare_shell, guarded, "idle")
    said = bare_shell.complaint(EX_NOPERM, "bench", *SHORT)
    assert "PASSWORD" not in said


@pytest.mark.parametrize(
    "words",
    [
        *("--seconds 0", "--seconds nan", "--seconds 601", "--tasks 0", "--tasks 1001"),
        *("--tasks x", "--tasks ,", "--tasks 1,2,3,4,5,6,7,8,9", "--tasks ²"),
    ],
)
def test_wrong_usage(words: str, shell: Shell) -> None:
    assert shell.complaint(EX_USAGE, "bench", *words.split()).startswith("quorlock bench: ")


def test_an_error_in_the_file_is_reported_before_anything_else(bare_shell: Shell) -> None:
    (bare_shell.home / "quorlock.toml").write_text("nodes = ['redis://a']\nttl = 'x'\n")
    assert "ttl" in bare_shell.complaint(78, "bench", *SHORT)


# --- ends ------------------------------------------------------------------------------------


class Terminal:
    """A terminal to which a bench speaks on stderr: its progress is there."""

    def __init__(self, shell: Shell, *words: str, **given: str) -> None:
        self._end, other = pty.openpty()
        self.said = ""
        self.bench = subprocess.Popen(
            [*COMMAND, "bench", *words],
            env=shell.environment({"TERM": "xterm", **given}),
            cwd=shell.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=other,
            text=True,
        )
        os.close(other)

    def close(self) -> None:
        os.close(self._end)

    def receive(self, enough: Callable[[str], bool]) -> None:
        """Read until it has printed enough."""
        while not enough(self.said):
            try:
                data = os.read(self._end, 4096)
            except OSError:  # on Linux the end raises
                return
            self.said += data.decode()


@pytest.mark.parametrize("part", ["one caller", "8 threads", "8 tasks", "contention"])
def test_ctrl_c_leaves_nothing(part: str, shell: Shell, nodes: Servers) -> None:
    """The interrupt hits each of its parts, with many left: it is silent, and no key is left."""
    # The last part must continue until the signal arrives.
    seconds = "6" if part == "contention" else "3"
    terminal = Terminal(shell, "--seconds", seconds, "--tasks", "8")
    with closing(terminal), terminal.bench as bench:
        terminal.receive(lambda said: part in said)
        bench.send_signal(signal.SIGINT)
        printed, _ = bench.communicate(timeout=20)
        terminal.receive(lambda _: False)
    assert (bench.returncode, printed) == (EX_SIGNAL + signal.SIGINT, "")
    assert terminal.said.endswith("\r\x1b[K")
    assert "Traceback" not in terminal.said
    assert emptied(nodes)


def test_two_signals_at_once(shell: Shell, mortal_nodes: Servers) -> None:
    """Linux delivers one of them to a measuring thread, and both are handled. A node hangs: its
    clean-up is done when it resumes.

    It hangs before the one caller acquires. A node that stops between executing an acquire and
    replying keeps the key, as the guarantees say.
    """
    terminal = Terminal(shell, "--seconds", "10", "--tasks", "8")
    with closing(terminal), terminal.bench as bench:
        terminal.receive(lambda said: "each node" in said)
        assert emptied(mortal_nodes[:1])
        mortal_nodes[0].stop()
        terminal.receive(lambda said: "one caller" in said)
        for number in (signal.SIGTERM, signal.SIGINT):
            bench.send_signal(number)
        printed, _ = bench.communicate(timeout=20)
    assert printed == ""
    assert bench.returncode - EX_SIGNAL in (signal.SIGTERM, signal.SIGINT)
    mortal_nodes[0].cont()
    assert emptied(mortal_nodes)


def test_a_reader_that_goes_away(shell: Shell) -> None:
    """`quorlock bench | head -1`: quietly."""
    reader, writer = os.pipe()
    os.close(reader)
    done = shell.run("bench", *SHORT, capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == EX_SIGNAL + signal.SIGPIPE
    assert done.stderr.count("\n") == 2


def test_a_dumb_terminal_is_not_drawn_on(shell: Shell) -> None:
    terminal = Terminal(shell, *SHORT, TERM="dumb")
    with closing(terminal), terminal.bench as bench:
        terminal.receive(lambda _: False)
        bench.communicate(timeout=20)
    assert "\x1b" not in terminal.said
    assert terminal.said.count("\n") == 2


@pytest.mark.parametrize("full", ["2>/dev/full", "2>&-"])
def test_a_progress_that_cannot_be_written_changes_nothing(full: str, shell: Shell) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$@" {full}', "sh", *COMMAND, "bench", *SHORT],
        env=shell.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "each node alone" in done.stdout
