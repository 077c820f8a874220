"""The tables of harness/tiers.py name what exists, a tier runs what it says, the limit holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import tiers

ROOT = Path(__file__).parents[3]
ENTRIES = sorted({*tiers.TABLE, *tiers.SMOKE, *tiers.PURE, *tiers.IMPURE})


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_names_what_exists(entry: str) -> None:
    file, _, test = entry.partition("::")
    path = ROOT / "tests" / file
    assert path.exists()
    assert test.partition("[")[0] in (path.read_text() if test else "")


def test_the_tables_have_only_declared_markers() -> None:
    assert {name for names in tiers.TABLE.values() for name in names.split()} <= tiers.MARKERS
    declared = (ROOT / "pyproject.toml").read_text()
    assert all(f'    "{name}: ' in declared for name in tiers.MARKERS)


@pytest.mark.parametrize(
    ("place", "markers", "runs_in"),
    [
        ("api/test_x.py::test_it", set(), {"test", "all"}),
        ("api/test_x.py::test_it", {"servers"}, {"all"}),
        ("servers/api/test_lock.py::test_it", {"servers"}, {"test", "all"}),
        ("unit/core/test_x.py::test_it", {"slow"}, {"quick", "test", "all"}),
        ("unit/protocol/test_x.py::test_it", {"servers"}, {"test", "all"}),
        (f"{tiers.IMPURE[0]}[case]", {"slow"}, {"test", "all"}),
        ("unit/corporate/test_x.py::test_it", set(), {"test", "all"}),
    ],
)
def test_a_tier_runs_what_it_says(place: str, markers: set[str], runs_in: set[str]) -> None:
    chosen = {t for t in ("quick", "test", "all") if tiers.is_chosen(place, markers, t)}
    assert chosen == runs_in


def run_pytest(folder: Path, *arguments: str, limit: str = "0") -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder with only the tiers, in a separate process."""
    environment = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "QUORLOCK_LIMIT": limit,
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.harness.tiers",
        "-p",
        "no:cacheprovider",
    ]
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


SOURCE = """
import time
import pytest

def test_it():
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass
"""


@pytest.mark.parametrize(
    ("limit", "source", "status", "expected"),
    [
        ("1", SOURCE, 1, "this unmarked test took 0.4"),
        ("0", SOURCE, 0, "unmarked tests over 0.25 s"),
        ("1", SOURCE.replace("def test", "@pytest.mark.slow\ndef test"), 0, "1 passed"),
        ("1", "import time\ndef test_it(): time.sleep(0.3)", 0, "0.00 s of them CPU time"),
    ],
    ids=["strict", "not strict", "marked", "asleep"],
)
def test_an_unmarked_test_spends_little_cpu_time(
    limit: str, source: str, status: int, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    run = run_pytest(tmp_path, limit=limit)
    assert run.returncode == status, run.stdout
    assert expected in run.stdout


IN_WORKERS = ("-p", "xdist", "-n", "1")


@pytest.mark.parametrize(
    ("way", "arguments", "chosen"),
    [
        ((), ("--tier", "test"), "1 passed"),
        ((), ("--tier", "test", "-m", "slow"), "1 passed"),
        ((), ("--tier", "test", "tests"), "2 passed"),
        ((), ("--tier", "test", "tests/test_it.py::test_slow"), "1 passed"),
        ((), (), "2 passed"),
        # A worker has its arguments from the process that started it.
        (IN_WORKERS, ("--tier", "test"), "1 passed"),
        (IN_WORKERS, ("--tier", "test", "tests"), "2 passed"),
    ],
)
def test_a_path_or_a_marker_chooses_among_all(
    way: tuple[str, ...], arguments: tuple[str, ...], chosen: str, tmp_path: Path
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        "import pytest\ndef test_fast(): ...\n@pytest.mark.slow\ndef test_slow(): ...\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\ntestpaths = tests\n")
    run = run_pytest(tmp_path, *way, *arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    assert chosen in run.stdout
