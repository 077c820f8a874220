"""Failures that reach the end of the output, whatever they contain and however the run ends.

A pytest plugin (loaded by conftest.py).

A worker of pytest-xdist sends its reports as UTF-8. One that cannot be sent ends the worker, and
with it the run, by an internal error: a lone surrogate in the text of a failed assertion is enough.
So what cannot be sent is escaped.

After an internal error pytest prints no summary. This plugin then prints a line for each failed
test, and the end of the first internal error. With QUORLOCK_FAILURES=FILE the same lines are
appended to the file as soon as they are known, for the summary of `.ci/run`; pytest prints the
rest.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.guards import is_worker

if TYPE_CHECKING:
    from collections.abc import Generator

    from _pytest._code.code import ExceptionRepr

LINES = 12  # of an internal error; its cause is in the last ones
VARIABLE = "QUORLOCK_FAILURES"


def pytest_configure(config: pytest.Config) -> None:
    """Send reports from workers; collect failures in the process that has them all."""
    if is_worker(config):
        config.pluginmanager.register(Sender())
    else:
        # Taken out of the environment: a test may run pytest itself, on tests that fail.
        file = os.environ.pop(VARIABLE, None)
        config.pluginmanager.register(Collector(Path(file) if file else None))


class Sender:
    """The hook of a worker."""

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self) -> Generator[None, Any, Any]:
        return sendable((yield))


def sendable(data: Any) -> Any:
    """Return data that execnet can send, equal to the given one where that can be sent."""
    if data is None or isinstance(data, (bool, int, float, bytes)):
        return data
    if isinstance(data, dict):
        return {sendable(key): sendable(value) for key, value in data.items()}
    if isinstance(data, list):
        return list(map(sendable, data))
    if isinstance(data, tuple):
        return tuple(map(sendable, data))
    text = data if isinstance(data, str) else repr(data)
    return text.encode(errors="backslashreplace").decode()


class Collector:
    """The failed tests of a run and its first internal error."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._failed: list[str] = []
        self._internal_error: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._add(report)

    def pytest_internalerror(self, excrepr: ExceptionRepr) -> None:
        if not self._internal_error:
            last = str(excrepr).splitlines()[-LINES:]
            self._internal_error = ["internal error of pytest, its last lines:", *last]
            self._keep(self._internal_error)

    def pytest_unconfigure(self) -> None:
        if self._internal_error:
            print(*self._failed, *self._internal_error, sep="\n", file=sys.stderr)

    def _add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self._failed.append(f"failed: {report.nodeid} ({report.when})")
            self._keep(self._failed[-1:])

    def _keep(self, lines: list[str]) -> None:
        if self._file:
            with self._file.open("a", errors="backslashreplace") as file:
                print(*lines, sep="\n", file=file)
