"""The command line of the simulated world, and the runs that count: no violation in any."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from quorlock_sim import __main__ as sim
from quorlock_sim import report, runner
from quorlock_sim.report import Report
from quorlock_sim.scenarios import ALL, SCENARIOS, Floors, floors_of, plan_of
from tests.harness.support.wait import until
from tests.sim.corpus import SEEDS
from tests.sim.mutations import MUTATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIM = [sys.executable, "-m", "quorlock_sim"]
# Most of the breaks in mutations.py show in these worlds; each has a kept seed in its own scenario
# (test_mutations.py).
WORLDS = int(os.environ.get("QUORLOCK_WORLDS", "1000"))
PART = 500  # in each test: short enough for the time limit of a test, whatever else runs
FRESH = 1_500  # from new seeds
# All processors are ours, but for those on which other tests run at the same time (pytest -n).
PROCESSES = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SIM, *arguments], capture_output=True, text=True, check=False)


# --- the run that counts ------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, WORLDS, PART))
def test_no_promise_is_broken_in_all_these_worlds(
    first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """All processors are used, as by `make sim`: exit status 0 means no violation, floors held."""
    count = min(PART, WORLDS - first)
    status = sim.main(["--seed", str(first), "--runs", str(count), "--jobs", str(PROCESSES)])
    output = capsys.readouterr()
    assert status == 0, output.out
    assert re.search(rf"worlds +{count:,} ", output.out)


@pytest.mark.parametrize("part", range(FRESH // PART))
def test_nor_in_some_worlds_never_run_before(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    seed = secrets.randbelow(10**9)
    status = sim.main(["--seed", str(seed), "--runs", str(PART), "--jobs", str(PROCESSES)])
    text = capsys.readouterr().out
    with capsys.disabled():
        print(f"\n{PART:,} worlds more: make sim SEED={seed} RUNS={PART}")
    assert status == 0, text


# --- one world --------------------------------------------------------------------------------


def test_one_world_is_drawn() -> None:
    done = command("--seed", "7")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "seed 7, scenario" in done.stdout
    assert re.search(r"ms +c0 +c1", done.stdout)
    assert "no violation" in done.stdout


def test_one_world_is_written_as_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "world.jsonl"
    done = command("--seed", "7", "--scenario", "network", "--trace", str(path))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert (lines[0]["seed"], lines[0]["scenario"]) == (7, "network")
    assert done.stdout == f"{len(lines):,} lines in {path}\n"


def test_one_world_is_written_as_a_page(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    done = command("--seed", "7", "--html", str(path))
    assert done.returncode == 0, done.stderr
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert "open it in a browser" in done.stdout


def test_both_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, trace = tmp_path / "a.html", tmp_path / "a.jsonl"
    assert sim.main(["--seed", "3", "--html", str(page), "--trace", str(trace)]) == 0
    assert page.stat().st_size > 1000 < trace.stat().st_size
    assert len(capsys.readouterr().out.splitlines()) == 2


# --- many worlds ------------------------------------------------------------------------------


def test_many_worlds_are_added_up() -> None:
    done = command("--seed", "5", "--runs", "40", "--jobs", "1", "--scenario", "mixed")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("scenario mixed, seeds 5 to 44, ")
    assert re.search(r"worlds +40 ", done.stdout)
    assert "fault x phase" in done.stdout
    assert "INCONCLUSIVE" not in done.stdout


def figures(text: str) -> str:
    """A report without what depends on how quick the machine is."""
    return re.sub(r"[\d.,]+ (s|a second)$", "", text, flags=re.MULTILINE)


def test_two_processes_report_what_one_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three chunks, so that one of the two has more than one."""
    monkeypatch.setattr(runner, "CHUNK", 20)
    reports = []
    for jobs in ("1", "2"):
        assert sim.main(["--seed", "0", "--runs", "60", "--jobs", jobs]) == 0
        reports.append(figures(capsys.readouterr().out))
    assert reports[0] == reports[1]


def test_a_seed_at_random_is_said() -> None:
    done = command("--runs", "2", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"seeds \d+ to \d+", done.stdout)


def test_too_kind_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calm worlds, held to the floors of all."""
    monkeypatch.setattr(sim, "floors_of", lambda _: floors_of(ALL))
    monkeypatch.setattr(report, "FLOORS_FROM", 50)
    assert sim.main(["--scenario", "calm", "--seed", "0", "--runs", "50", "--jobs", "1"]) == 1
    assert "INCONCLUSIVE: only 0.0 % of the worlds had a fault during an attempt" in (
        capsys.readouterr().out
    )


# --- a violation ------------------------------------------------------------------------------


@pytest.fixture
def broken() -> Iterator[None]:
    """A quorum of N/2."""
    with next(one for one in MUTATIONS if one.name == "quorum of N/2").applied():
        yield


@pytest.mark.usefixtures("broken")
def test_a_violation_is_reported_minimised_and_can_be_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = SEEDS["quorum of N/2"]
    arguments = ["--scenario", "sound", "--seed", str(seed), "--runs", "3", "--jobs", "1"]
    assert sim.main(arguments) == 1
    text = capsys.readouterr().out
    output = re.search(r"VIOLATION \((\w+)\) in make sim SCENARIO=sound SEED=(\d+): (.+)", text)
    assert output is not None
    assert int(output[2]) == seed
    sizes = re.search(r"minimised from (\d+) to (\d+) jobs, faults and extensions", text)
    assert sizes is not None
    assert int(sizes[2]) <= int(sizes[1])
    assert re.search(r"ms +c0 +c1", text), "the diagram of what is left"
    assert text.rstrip().endswith(f"to replay it: make sim SCENARIO=sound SEED={seed}")
    # And so it is, with what that command runs.
    assert sim.main(["--scenario", "sound", "--seed", str(seed)]) == 1
    assert f"VIOLATION ({output[1]}): " in capsys.readouterr().out


@pytest.mark.usefixtures("broken")
def test_a_violation_in_one_world_is_reported_beside_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "out.html"
    seed = str(SEEDS["quorum of N/2"])
    assert sim.main(["--scenario", "sound", "--seed", seed, "--html", str(page)]) == 1
    assert page.exists()
    assert "VIOLATION (" in capsys.readouterr().out


def test_the_worlds_of_all_are_replayed_under_their_own_scenario() -> None:
    """The printed command is complete, and stays valid when turns change."""
    plan = plan_of(ALL, 1)
    assert plan.scenario in SCENARIOS
    assert plan_of(plan.scenario, 1) == plan


# --- what one may say -------------------------------------------------------------------------


def test_the_scenarios_are_listed() -> None:
    done = command("--list")
    assert done.returncode == 0
    listed = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert listed == [[one.name, one.summary] for one in SCENARIOS.values()]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scenario", "rainy"],
        ["--runs", "0"],
        ["--seed", "-1"],
        ["--seed", "x"],
        ["--jobs", "0"],
        ["--runs", "5", "--html", "x.html"],
        ["--trace", "x.jsonl"],
        ["--surprise"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        sim.main(arguments)
    assert stopped.value.code == 2
    assert "usage: make sim" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    """`make sim SEED=7 | head -3`"""
    with subprocess.Popen(
        [*SIM, "--seed", "7"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_it_with_the_table_so_far(jobs: str) -> None:
    """The whole group gets the signal, as from a terminal."""
    # Small chunks: the first line of progress comes when the first one is done.
    main = "import sys; from quorlock_sim import __main__ as main, runner; runner.CHUNK = 25"
    options = ["--seed", "0", "--runs", "1000000", "--jobs", jobs]
    arguments = [sys.executable, "-c", f"{main}; sys.exit(main._main())", *options]
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stderr is not None
            first = process.stderr.readline()
            assert "of 1,000,000 worlds" in first
            os.killpg(process.pid, signal.SIGINT)
            out, errors = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert "interrupted; the result so far:" in errors
    assert "Traceback" not in errors, errors
    assert re.search(r"worlds +[\d,]+ ", out)
    assert process.returncode in (0, 1)
    assert until(lambda: none_left(process.pid))


def none_left(group: int) -> bool:
    """Every process of that group has gone."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_floors_of_one_world_are_not_asked_for() -> None:
    assert Report(worlds=1).too_kind(Floors(1000, 1000, 1000)) == []
