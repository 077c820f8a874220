"""The tiers of the suite: which tests `make quick`, `make test` and `make test-all` run.

A pytest plugin (loaded by conftest.py). Tests get their markers here, from the tables below, and
`servers` also from their fixtures and code. `--tier` takes what its tier runs and leaves the rest
uncollected. A path or `-m` on the command line selects instead: then no tier applies.

    quick    the tests of PURE: no process, no server, no sleep
    test     every unmarked test, and SMOKE whatever its markers
    all      everything

An unmarked test stays under LIMIT seconds. What counts is the CPU time of this process during the
call: unlike wall time, it does not grow while other programs hold the processors. It still depends
on the processor's speed, and no test may assert how fast a machine is. Therefore a test above the
limit only gets a line in the summary, unless QUORLOCK_LIMIT=1 makes it an error. A test that sleeps
spends no CPU time; its wall time gets a line, never an error.
"""

from __future__ import annotations

import inspect
import os
import re
import time
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _pytest.terminal import TerminalReporter

ROOT = Path(__file__).parents[2]
LIMIT = 0.25  # seconds, of an unmarked test
STRICT = os.environ.get("QUORLOCK_LIMIT") == "1"

MARKERS = {"slow", "servers", "exhaustive", "tooling"}  # pyproject.toml declares them

# A folder, a file or a test below tests/, and the markers of all that is in it.
TABLE = {
    "exhaustive": "exhaustive",
    "exhaustive/mutants": "tooling",
    "harness": "tooling servers",
    "servers/api/test_election.py": "slow",
    "servers/api/test_exit.py": "exhaustive",
    "servers/api/test_family.py": "slow",
    "servers/api/test_interleavings.py": "exhaustive",
    "servers/api/test_many_waits.py::test_ten_thousand_waits": "exhaustive",
    "servers/api/test_no_threads.py": "exhaustive",
    "servers/api/test_not_asked.py": "slow",
    "servers/api/test_restart_guard.py"
    "::test_a_node_that_keeps_out_does_not_count_for_extensions": "slow",
    "servers/api/test_once.py": "slow",
    "servers/api/test_rlock.py": "slow",
    "servers/api/test_secrets.py::test_a_lease_that_is_lost": "slow",
    "servers/api/test_uvloop.py": "exhaustive",
    "servers/api/test_waiting_tasks.py::test_a_crowd_of_tasks": "slow",
    "servers/api/test_waiting_tasks.py::test_processes_take_turns": "slow",
    "servers/api/test_waiting_tasks.py::test_processes_that_lose_connections": "slow",
    "servers/api/test_waiting_tasks.py::test_processes_with_a_stopped_node": "slow",
    "servers/cli/run": "slow",
    "servers/cli/test_background.py": "slow",
    "servers/cli/test_exit_status.py": "slow",
    "servers/cli/test_local.py": "slow servers",
    "servers/demo": "slow",
    "servers/drivers/test_ask.py": "slow",
    "servers/drivers/test_resolve.py::test_the_interpreter_exits": "slow",
    "servers/drivers/test_shared_pipeline.py": "slow",
    "servers/fencing/test_files.py::test_a_writer_that_stops_half_way_keeps_its_place": "slow",
    "servers/fencing/test_files.py::test_writers_that_race_leave_the_last_fence": "slow",
    "servers/fencing/test_sql.py::test_writers_that_race_leave_fences_in_order": "slow",
    "servers/scenarios": "tooling servers",
    "servers/test_features.py": "tooling servers",
    "servers/testing/test_fake_node.py": "tooling",
    "servers/testing/test_fake_node_twin.py": "tooling servers",
    "servers/testing/test_impostors.py": "tooling",
    "servers/testing/test_memory.py": "slow",
    "servers/testing/test_plugin.py": "tooling",
    "servers/testing/test_servers.py": "tooling servers",
    "sim": "tooling",
    "sim/spec": "exhaustive tooling",
    "sim/test_mutations.py": "exhaustive",
    "tooling": "tooling",
    "tooling/bench": "servers",
    "tooling/package": "slow",
    "tooling/project/test_circles.py": "slow",
    "tooling/project/test_imports.py": "slow",
    "tooling/project/test_layers.py::test_import_brings_no_more_than_it_needs": "slow",
    "tooling/project/test_layers.py::test_imports_run_one_way": "slow",
    "tooling/project/test_layers.py::test_the_simulator_runs_no_driver": "slow",
    "tooling/project/test_prose.py": "slow",
    "tooling/project/test_shape.py": "slow",
    "tooling/project/test_signals.py": "slow",
    "tooling/project/test_sleeps.py": "slow",
    "tooling/project/test_types.py": "slow",
    "unit/core/test_acquire.py"
    "::test_every_combination_of_replies_is_classified_and_released": "slow",
    "unit/core/test_extend.py::test_every_combination_of_answers": "slow",
    "unit/core/test_inspect.py::test_every_combination_of_holders": "slow",
    "unit/core/test_pending_releases.py::TestPendingReleases": "slow",
    "unit/core/test_quorum.py": "slow",
    "unit/core/test_release.py::test_every_combination_of_answers": "slow",
    "unit/protocol/test_answers.py::test_no_shape_is_granted_by_accident": "slow",
    "unit/protocol/test_nodes.py::test_neither_ssl_nor_a_client_library_is_imported": "slow",
    "unit/protocol/test_nodes.py::test_password_never_shows": "slow",
    "unit/protocol/test_nodes.py::test_what_is_quoted_comes_back": "slow",
    "unit/protocol/test_peer.py::test_a_grant_that_is_not_parsed_counts_as_one_that_is": "slow",
    "unit/protocol/test_pipeline.py": "slow",
}

# In `make test` whatever their markers: style, the algorithm, both faces on memory nodes and on
# real servers, every script there, and 500 simulated worlds.
SMOKE = (
    "servers/api/test_blocks.py",
    "servers/api/test_fencing.py",
    "servers/api/test_inspect.py",
    "servers/api/test_lock.py",
    "unit/core",
    "tooling/project/test_circles.py",
    "tooling/project/test_guarantees.py",
    "tooling/project/test_imports.py",
    "tooling/project/test_layers.py",
    "tooling/project/test_prose.py",
    "tooling/project/test_shape.py",
    "tooling/project/test_signals.py",
    "tooling/project/test_sleeps.py",
    "servers/scripts",
    "sim/test_sim.py::test_no_promise_is_broken_in_all_these_worlds[0]",
    "servers/testing/test_memory.py",
    "unit/protocol",
)

# Of these, `make quick` runs what `make test` does; and no test that starts a process.
PURE = (
    "unit/core",
    "tooling/project/test_circles.py",
    "tooling/project/test_guarantees.py",
    "tooling/project/test_layers.py",
    "tooling/project/test_prose.py",
    "tooling/project/test_shape.py",
    "tooling/project/test_signals.py",
    "tooling/project/test_sleeps.py",
    "unit/protocol",
)
IMPURE = (
    "tooling/project/test_layers.py::test_import_brings_no_more_than_it_needs",
    "unit/protocol/test_nodes.py::test_neither_ssl_nor_a_client_library_is_imported",
)

STARTERS = {"Servers", "Fleet", "sites"}  # a call of one of these starts real servers


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=["quick", "test", "all"],
        default="all",
        help="which tests, where neither a path nor -m chooses [default: all]",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Apply no tier where a path or `-m` chooses."""
    if config.args_source == pytest.Config.ArgsSource.ARGS or config.option.markexpr:
        config.option.tier = "all"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a file unread of which the tier runs nothing, by its folder or name."""
    place = place_of(collection_path)
    if not collection_path.name.startswith("test_") or not place:
        return None
    if any(begins(entry, place) for entry in SMOKE):
        return None
    return None if is_chosen(place, listed_markers(place), config.option.tier) else True


def place_of(path: Path) -> str:
    """Return the path below tests/; nothing for another."""
    tests = ROOT / "tests"
    return path.relative_to(tests).as_posix() if path.is_relative_to(tests) else ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every test its markers, then keep those of the tier."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        place = item.nodeid.removeprefix("tests/")
        markers = listed_markers(place) | {mark.name for mark in item.iter_markers()}
        if needs_servers(item):
            markers |= {"servers"}
        for name in sorted(markers & MARKERS):
            item.add_marker(name)
        (kept if is_chosen(place, markers, config.option.tier) else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def listed_markers(place: str) -> set[str]:
    """Return the markers that the table has for a place."""
    return {name for entry in places_of(place) for name in TABLE.get(entry, "").split()}


def places_of(place: str) -> Iterator[str]:
    """Yield a place and all that it is below: of 9,000 tests none is compared with every entry."""
    yield place
    for end in re.finditer(r"/|::|\[", place):
        yield place[: end.start()]


def is_in(place: str, entries: Iterable[str]) -> bool:
    """Return whether a place is one of these entries, or below one."""
    return any(begins(place, entry) for entry in entries)


def begins(place: str, entry: str) -> bool:
    """Return whether a place is an entry's, or below it."""
    return place == entry or place.startswith((entry + "/", entry + "::", entry + "["))


def is_chosen(place: str, markers: set[str], tier: str) -> bool:
    """Return whether a tier runs a test with these markers."""
    if tier == "all":
        return True
    chosen = not markers & MARKERS or is_in(place, SMOKE)
    if tier == "quick":
        return (
            chosen and is_in(place, PURE) and not is_in(place, IMPURE) and "servers" not in markers
        )
    return chosen


def needs_servers(item: pytest.Item) -> bool:
    """Return whether a test uses the session's servers, or starts others."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = (known[-1].func for known in item._fixtureinfo.name2fixturedefs.values())
    return "servers" in item.fixturenames or any(
        isinstance(function, FunctionType) and starts_servers(function)
        for function in (inspect.unwrap(item.function), *map(inspect.unwrap, fixtures))
    )


@cache
def starts_servers(function: FunctionType) -> bool:
    """Return whether a function, or a function of the tests that it names, calls one of
    STARTERS.
    """
    seen: set[FunctionType] = set()
    ahead = [function]
    while ahead:
        this = ahead.pop()
        if this in seen or not this.__module__.startswith("tests."):
            continue
        seen.add(this)
        names = names_in(this)
        if names & STARTERS:
            return True
        found = (this.__globals__.get(name) for name in names)
        ahead += [inspect.unwrap(one) for one in found if isinstance(one, FunctionType)]
    return False


def names_in(function: FunctionType) -> set[str]:
    """Return the globals and attributes that a function names, with the functions inside it."""
    names: set[str] = set()
    ahead = [function.__code__]
    while ahead:
        code = ahead.pop()
        names.update(code.co_names)
        ahead += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return names


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure the CPU time of a test, and hold an unmarked one to the limit."""
    before = time.process_time()
    yield
    spent = time.process_time() - before
    item.user_properties.append(("cpu", spent))
    if STRICT and spent > LIMIT and not set(item.keywords) & MARKERS:
        pytest.fail(
            f"this unmarked test took {spent:.2f} s of CPU time, and {LIMIT} s are allowed: "
            "make it faster, or give it a marker in tests/harness/tiers.py",
            pytrace=False,
        )


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print the unmarked tests that took longer than the limit."""
    reports = [r for r in terminalreporter.getreports("passed") if r.when == "call"]
    lines = list(over_the_limit(reports))
    if lines:
        terminalreporter.section(f"unmarked tests over {LIMIT} s (tests/harness/tiers.py)")
        terminalreporter.write("\n".join(lines) + "\n")


def over_the_limit(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """Yield a line for each unmarked test that took longer than the limit, the slowest first."""
    for report in sorted(reports, key=lambda one: -one.duration):
        if report.duration > LIMIT and not set(report.keywords) & MARKERS:
            spent = dict(report.user_properties).get("cpu", 0.0)
            yield f"{report.duration:6.2f} s, {spent:5.2f} s of them CPU time: {report.nodeid}"
