"""The guard: quiet when nothing got dearer, and says what did, by figure, when something has."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from bench import guard

# A plant: so much more of a cycle's own CPU time. The guard's margins are 3 and 12 %.
PLANTED = 0.18


@pytest.fixture(scope="module", autouse=True)
def no_thousand_tasks() -> Iterator[None]:
    """Leave out the work that takes more time than all others: these tests are about the guard."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(guard.CYCLES, "asyncio_many")
        yield


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Today's figures of this Python on this machine: of one run of pytest, for all its workers."""
    folder = tmp_path_factory.getbasetemp()
    path = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "guard.toml"
    with path.with_suffix(".lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            patch.setattr(guard, "BASELINE", path)
            patch.setattr(guard, "RECORD_SECONDS", 8.0)
            assert guard.main(["--record"]) == 0
    return path


@pytest.fixture
def own_baseline(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BASELINE", baseline)


@pytest.fixture(scope="module")
def cycle_ns() -> dict[str, float]:
    """CPU time of a cycle of each face."""
    with guard.Bench() as bench:
        fastest = guard.Fastest()
        for _ in range(40):
            bench.sweep(fastest)
    return {api: fastest.cycle_ns(api) for api in guard.CYCLES}


def calls_for(work: Callable[[], object], nanoseconds: float) -> int:
    """Return how many calls take this much CPU time."""
    taken: list[int] = []
    for _ in range(50):
        began = time.process_time_ns()
        for _ in range(100):
            work()
        taken.append(time.process_time_ns() - began)
    return max(1, round(nanoseconds / (min(taken) / 100)))


def python_work() -> int:
    total = 0
    for number in (1, 2, 3):
        total += number
    return total


c_work = hashlib.sha256(b"planted").copy  # one call into C, no frame of Python


PLANTS = {"Python": python_work, "C": c_work}


def plant(
    monkeypatch: pytest.MonkeyPatch, face: str, work: Callable[[], object], count: int
) -> None:
    """Make every acquire of that face dearer."""
    owner: Any = quorlock.Lock if face == "blocking" else aio.Lock
    acquire = owner.acquire

    def dearer(self: Any, *args: Any, **kwargs: Any) -> Any:
        for _ in range(count):
            work()
        return acquire(self, *args, **kwargs)

    monkeypatch.setattr(owner, "acquire", dearer)


@pytest.mark.usefixtures("own_baseline")
def test_it_is_quiet_when_nothing_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert guard.main([]) == 0
    reported = capsys.readouterr()
    assert reported.err == ""
    for figure in ("instructions", "c_calls", "system_calls", "units"):
        assert figure in reported.out


def complaints_about(face: str, figures: Iterable[str], seconds: float = 60.0) -> list[str]:
    """Return the complaints about these figures, as soon as the guard has no others.

    A red `guard.main` measures to the end of its time, in case that what it complains of goes away.
    What is planted does not, and all else has become calm by then or is a fault: other tests keep
    the processors busy.
    """
    baseline = tomllib.loads(guard.BASELINE.read_text())
    _, limits = guard.bounds(baseline, guard.this_python())
    others = [b for b in limits if not b.api.startswith(face) or b.figure not in figures]
    costs = guard.measure(others, seconds)
    return guard.complaints(limits, costs)


# Blocking and C is the next test.
@pytest.mark.usefixtures("own_baseline")
@pytest.mark.parametrize(("face", "kind"), [("blocking", "Python"), ("asyncio", "C")])
def test_a_planted_slow_down_is_found(
    monkeypatch: pytest.MonkeyPatch, cycle_ns: dict[str, float], face: str, kind: str
) -> None:
    """The slow-down is a sixth, in the hot path, in Python or inside C functions."""
    work = PLANTS[kind]
    plant(monkeypatch, face, work, calls_for(work, PLANTED * cycle_ns[face]))
    reported = complaints_about(face, ("instructions", "c_calls", "units"))
    assert reported
    assert not [text for text in reported if not text.startswith(face)]
    assert not [text for text in reported if "against the baseline's" not in text]


@pytest.mark.usefixtures("own_baseline")
def test_work_inside_c_functions_is_found_by_its_cpu_time_alone(
    monkeypatch: pytest.MonkeyPatch, cycle_ns: dict[str, float]
) -> None:
    """A single call more, whatever it does, is no news to the counts."""
    data = bytes(1 << 20)
    size = 64
    hashing: Callable[[], object] = lambda: hashlib.sha256(data[:size])  # noqa: E731
    # One call is the rounding of 1.5 calls, and the plant must be well above the margin of 12 %.
    wanted = 2 * PLANTED * cycle_ns["blocking"]
    while calls_for(hashing, wanted) > 1 and size < len(data):
        size *= 2
    plant(monkeypatch, "blocking", hashing, 1)
    # The other API may be reported as well: its CPU time is not waited for.
    reported = complaints_about("blocking", ("units",), seconds=2.0)
    assert all(" units per cycle, +" in complaint for complaint in reported)
    assert any(complaint.startswith("blocking: ") for complaint in reported)


@pytest.mark.usefixtures("own_baseline")
def test_one_more_system_call_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """System calls have no margin. The test also checks the command's output and status."""
    import select

    poll = select.poll()
    plant(monkeypatch, "blocking", lambda: poll.poll(0), 1)
    monkeypatch.setattr(guard, "SECONDS_MAX", 1.0)
    assert guard.main([]) == 1
    reported = capsys.readouterr().err
    assert "bench-guard: blocking: " in reported
    assert "system calls per cycle" in reported
    assert "against the baseline's" in reported


def test_counts_are_the_same_every_time() -> None:
    """The counts agree to the last instruction, except for work that depends on the clock."""
    with guard.Bench() as bench:
        first, second = bench.counts(), bench.counts()
    assert first["blocking"] == second["blocking"]
    assert first["asyncio"] == pytest.approx(second["asyncio"], rel=guard.COUNT_MARGIN / 3)


def test_a_python_without_a_baseline_is_held_to_the_nearest() -> None:
    """Only its CPU time is compared, with a larger margin."""
    figures = {"instructions": 100.0, "c_calls": 10.0, "system_calls": 2.0, "units": 4.0}
    baseline = {name: {"blocking": figures, "asyncio": figures} for name in ("3.11", "3.13")}
    known, limits = guard.bounds(baseline, "3.15t")
    assert known == "3.13"
    assert {(b.api, b.figure) for b in limits} == {("blocking", "units"), ("asyncio", "units")}
    assert all(b.at_most == pytest.approx(4.0 * (1 + guard.STRANGE_MARGIN)) for b in limits)


def test_the_committed_baseline_is_one() -> None:
    """Every figure of every work; what it was recorded from is said in the module."""
    baseline = tomllib.loads(Path(guard.__file__).with_name("guard.toml").read_text())
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in baseline or baseline
    for figures in baseline.values():
        assert figures.keys() == guard.TRACED.keys()
        for found in figures.values():
            assert guard.Cost(**found).units > 0


def test_units_are_too_high_only_if_the_multiple_of_the_limit_is() -> None:
    """The units alone are higher on a machine with dearer system calls."""
    figures = {"instructions": 100.0, "c_calls": 10.0, "system_calls": 2.0, "units": 4.0}
    baseline = {"3.11": {"blocking": figures | {"limits": 2.0}}}
    _, limits = guard.bounds(baseline, "3.11")
    for units, ratio, told in ((5.0, 2.2, 0), (4.4, 2.3, 0), (5.0, 2.3, 1)):
        cost = guard.Cost(100.0, 10.0, 2.0, units, ratio)
        assert len(guard.complaints(limits, {"blocking": cost})) == told


def test_recording_keeps_the_other_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BASELINE", tmp_path / "guard.toml")
    one, two = guard.Cost(1.0, 2.0, 3.0, 4.0, 5.0), guard.Cost(5.0, 6.0, 7.0, 8.5, 9.5)
    guard.record({"blocking": one, "asyncio": two}, "3.11")
    guard.record({"blocking": two, "asyncio": one}, "3.12")
    reported = tomllib.loads(guard.BASELINE.read_text())
    assert guard.Cost(**reported["3.11"]["asyncio"]) == two
    assert guard.Cost(**reported["3.12"]["asyncio"]) == one
