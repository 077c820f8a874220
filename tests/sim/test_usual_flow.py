"""Calls that run without a flow until one is needed, in simulated worlds."""

from __future__ import annotations

from typing import Any

import pytest

from quorlock._core.usual import UsualAcquire, UsualRelease, usual_acquire
from quorlock_sim import workload
from quorlock_sim.scenarios import SCENARIOS
from tests.sim.hashes import trace_of

WORLDS = 10  # of each scenario


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_worlds_are_the_same_with_flows_for_all_calls(
    scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traces are equal to the byte: what is sent, what callers get, and when."""
    traces = [trace_of(scenario, seed) for seed in range(WORLDS)]

    def no_usual_case(*call: Any) -> None:
        if usual_acquire(*call):
            call[2]._count -= 1  # the token is the flow's

    monkeypatch.setattr(workload, "usual_acquire", no_usual_case)
    monkeypatch.setattr(workload, "usual_release", lambda *_: None)
    assert [trace_of(scenario, seed) for seed in range(WORLDS)] == traces


def test_calls_end_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls end without a flow, by the flow that continues, and cancelled."""
    ways: dict[str, int] = dict.fromkeys(("acquire", "release", "flow", "cancelled"), 0)

    def count(usual: type[UsualAcquire | UsualRelease], name: str, way: str) -> None:
        real = getattr(usual, name)

        def counted(self: object, *arguments: object) -> object:
            result = real(self, *arguments)
            ways[way] += result is not None
            return result

        monkeypatch.setattr(usual, name, counted)

    count(UsualAcquire, "outcome", "acquire")
    count(UsualRelease, "outcome", "release")
    for usual in (UsualAcquire, UsualRelease):
        count(usual, "flow", "flow")
        count(usual, "cancelled", "cancelled")
    for seed in range(100):
        trace_of("sound", seed)
    assert min(ways.values()) >= 3, ways
