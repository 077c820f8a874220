"""Failed tests are reported whatever their text is, and also after an internal error of pytest."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.harness.failures import sendable

ROOT = Path(__file__).parents[3]
WAYS = {"one process": (), "workers": ("-p", "xdist", "-n", "1", "--dist", "worksteal")}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())

UNSENDABLE = r"""
    import logging
    def test_assertion():
        assert "lone \udcff" == ""
    def test_exception():
        raise ValueError("lone \udcff")
    def test_log():
        logging.error("lone \udcff")
        assert 0
    def test_property(record_property):
        record_property("a class", object)
        assert 0
    def test_after_them():
        pass
"""


def run_pytest(
    folder: Path, source: str, *way: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a file of tests with only this plugin, in a separate process."""
    (folder / "test_it.py").write_text(dedent(source))
    plugins = ("-p", "tests.harness.failures", "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *way, "test_it.py"],
        cwd=folder,
        env=os.environ
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        | variables,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        check=False,
    )


@ways
def test_a_report_that_cannot_be_sent_ends_nothing(way: tuple[str, ...], tmp_path: Path) -> None:
    run = run_pytest(tmp_path, UNSENDABLE, *way)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "4 failed, 1 passed" in run.stdout
    assert run.stdout.count("lone ") >= 3


def test_what_can_be_sent_is_not_changed() -> None:
    data = {"a": [1, 2.5, None, True, b"\xff"], "b": ("é", {"c": "\n"})}
    assert sendable(data) == data


@ways
def test_an_internal_error_hides_no_failed_test(way: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_runtest_logfinish(nodeid):\n"
        "    if 'test_b' in nodeid:\n"
        "        raise LookupError('the cause')\n"
    )
    source = "def test_a():\n    assert 0\ndef test_b():\n    pass\n"
    kept = tmp_path / "kept"
    run = run_pytest(tmp_path, source, *way, QUORLOCK_FAILURES=str(kept))
    assert run.returncode == pytest.ExitCode.INTERNAL_ERROR, run.stdout + run.stderr
    for text in (run.stderr, kept.read_text()):
        assert "failed: test_it.py::test_a (call)\n" in text
        assert "LookupError: the cause" in text


def test_failures_are_kept_in_the_file_that_the_environment_names(tmp_path: Path) -> None:
    source = """
    import os, pytest
    @pytest.fixture
    def broken():
        raise ValueError
    def test_setup(broken):
        pass
    def test_it_is_no_file_of_other_runs():
        assert "QUORLOCK_FAILURES" not in os.environ
    """
    kept = tmp_path / "kept"
    kept.write_text("of the run before\n")
    run = run_pytest(tmp_path, source, QUORLOCK_FAILURES=str(kept))
    assert kept.read_text() == "of the run before\nfailed: test_it.py::test_setup (setup)\n"
    assert "failed:" not in run.stderr
