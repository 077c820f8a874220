"""The frame: every contestant does cycles in a child process, and no child holds up its parent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import child
from bench.__main__ import Options
from bench.contestants import CONTESTANTS
from bench.fleet import Fleet
from bench.plan import WORKS, works
from bench.results import Results
from tests.harness.support.wait import until

BRIEF = {"workers": 2, "warm_up": 0.02, "seconds": 0.05}
KEYS = {"cycles", "seconds", "per_s", "p50_us", "p99_us", "cpu_us", "errors"}


def require(name: str) -> None:
    if missing := CONTESTANTS[name].missing:
        pytest.skip(f"{missing} is not installed here; bench/setup installs all peers")


@pytest.mark.parametrize("name", list(CONTESTANTS))
def test_a_contestant_does_cycles(fleet: Fleet, name: str) -> None:
    """The cycles have no error, and a figure for everything that the tables show."""
    require(name)
    one_thread = name in {"limit.all", "limit.quorum"}
    params = {**BRIEF, "workers": 1} if one_thread else BRIEF
    row = child.run_child(name, "uncontended", params, fleet.urls(), deadline=20.0)
    assert "failed" not in row, row
    assert row["errors"] == 0, row
    assert row["cycles"] > 0
    assert row.keys() >= KEYS


@pytest.mark.parametrize("name", [c.name for c in CONTESTANTS.values() if c.extends])
def test_a_contestant_extends(fleet: Fleet, name: str) -> None:
    require(name)
    row = child.run_child(name, "extension", BRIEF, fleet.urls(), deadline=20.0)
    assert "failed" not in row, row
    assert row["cycles"] > 0


def test_a_number_of_cycles_can_be_asked_for(fleet: Fleet) -> None:
    """Each worker runs this many."""
    params = {"workers": 3, "warm_up": 0.02, "seconds": 30.0, "cycles": 40}
    row = child.run_child("quorlock", "uncontended", params, fleet.urls(), deadline=30.0)
    assert row["cycles"] + row["errors"] == 120


def test_what_goes_wrong_in_a_child_is_its_result(fleet: Fleet) -> None:
    row = child.run_child("quorlock", "nothing", {}, fleet.urls(), deadline=20.0)
    assert "No module named 'bench.works.nothing'" in row["failed"]


def test_a_child_that_is_not_done_is_killed(fleet: Fleet) -> None:
    params = {**BRIEF, "seconds": 60.0}
    row = child.run_child("quorlock", "uncontended", params, fleet.urls(), deadline=1.0)
    assert row == {"failed": "no result before the deadline", "late": True}


def test_what_a_child_forked_is_killed_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forked = tmp_path / "pid"
    code(
        monkeypatch,
        "import os, pathlib, time\n"
        f"if not os.fork(): pathlib.Path({str(forked)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(60)",
    )
    row = child.run_child("quorlock", "", {}, [], deadline=1.0)
    assert row["late"]
    assert until(lambda: not is_running(int(forked.read_text())), 10)


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def code(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Run this instead of bench.one."""
    monkeypatch.setattr(child, "command", lambda *_: [sys.executable, "-c", text])


def test_a_child_that_cannot_exit_is_killed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's result counts nevertheless."""
    code(
        monkeypatch,
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('{\"cycles\": 7}', flush=True)",
    )
    monkeypatch.setattr(child, "EXIT_GRACE", 0.1)
    row = child.run_child("quorlock", "", {}, [], deadline=20.0)
    assert row == {"cycles": 7, "could_not_exit": True}


def test_a_child_that_dies_is_reported_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    code(monkeypatch, "raise SystemExit('of thirst')")
    row = child.run_child("quorlock", "", {}, [], deadline=20.0)
    assert row == {"failed": "exit code 1 of thirst"}


def test_a_word_is_answered_when_it_was_acted_upon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are answered in order, and the child continues only then."""
    code(
        monkeypatch,
        "from bench.one import notify_parent\n"
        "notify_parent('one')\n"
        "notify_parent('two')\n"
        "print('{}'.replace('}', '\"done\": 1}'))",
    )
    words: list[str] = []
    row = child.run_child("quorlock", "", {}, [], deadline=20.0, on_word=words.append)
    assert (row, words) == ({"done": 1}, ["one", "two"])


def test_every_case_has_its_own_name_and_can_be_run() -> None:
    """Names are unique, contestants exist, and parameters can be sent to a child."""
    cases = [case for module in works().values() for case in module.PLAN]
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.work in WORKS
        assert set(case.contestants) <= set(CONTESTANTS), case.name
        assert set(case.quick) <= set(case.contestants), case.name
        assert json.loads(json.dumps(case.params)) == dict(case.params)


def test_rounds_are_interleaved() -> None:
    """A B C, C B A, and not A A B B C C; those that miss something are left out."""
    options = Options.read(["--only", "uncontended", "--contestants", "quorlock,limit.all"])
    slices = [(number, name) for number, case, name in options.slices() if case.nodes == 3]
    order = ("limit.all", "quorlock")
    assert slices == [(n, name) for n in range(5) for name in (order[::-1] if n % 2 else order)]


@pytest.mark.parametrize("argument", ["--only=nothing", "--contestants=nobody"])
def test_an_unknown_name_is_reported(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Options.read([argument])
    assert "unknown name" in capsys.readouterr().err


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "bench", "--quick", "--results", str(folder), *arguments]
    return subprocess.Popen(
        line, cwd=child.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_run_writes_what_it_found(tmp_path: Path) -> None:
    """JSON, tables; and prints the aims."""
    only = ("--only", "extension", "--contestants", "quorlock,quorlock.asyncio", "--rounds", "2")
    with start(tmp_path, *only) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "| what | aim |" in out
    (case,) = Results.load(tmp_path, WORKS).cases.values()
    assert [len(case.rows[name]) for name in ("quorlock", "quorlock.asyncio")] == [2, 2]
    assert f"### {case.name}" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_ctrl_c_ends_a_run_cleanly(tmp_path: Path) -> None:
    """The interrupt hits the middle of a slice: nothing is written, nothing is left (checked by the
    guards).
    """
    with start(tmp_path, "--only", "uncontended", "--contestants", "quorlock") as process:
        assert until(lambda: children_of(process.pid), 30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "stopped; nothing was written" in err
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


def children_of(pid: int) -> list[str]:
    """Return the measuring child processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_text().split("\0")
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if "bench.one" in line and parent == str(pid):
            found.append(path.name)
    return found
