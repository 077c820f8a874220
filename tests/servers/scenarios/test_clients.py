"""The client itself is at fault: paused beyond its ttl, killed, forked. The nodes are well.

Assumed: what Redlock does of nodes and clocks.  Nothing is assumed of the client's speed: a holder
that sleeps beyond its validity must know so at its first look on waking, and others must not wait
for it longer than its ttl.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.faults import clients, sites
from tests.harness.traffic.processes import Process
from tests.harness.traffic.records import instant
from tests.harness.traffic.settings import ASYNCIO, BLOCKING, Settings
from tests.harness.validate.history import Stay
from tests.servers.scenarios.scenario import Scenario, is_holding, started

# Sections so long that a process holds a lock at nearly every moment.
HOLDERS = Settings((), "", BLOCKING, 4, 0, section=0.3, kinds={"hold": 3, "block": 2, "fork": 0})
FORKERS = Settings((), "", BLOCKING, 4, 0, kinds={"fork": 1, "hold": 2})
FACES = [BLOCKING, ASYNCIO]


def caught_holding(scenario: Scenario, face: str) -> tuple[Process, list[Stay]]:
    """A process of that face, paused while it holds locks, and these."""
    process = next(p for p in scenario.processes.all if p.settings.face == face)
    for _ in range(20):
        assert scenario.until(lambda history: is_holding(history, process))
        print(clients.pause(process.popen))
        if held := open_stays(scenario, process):  # what it has written is final now
            return process, held
        clients.resume(process.popen)
    raise AssertionError("it never holds a lock when it is paused")


def open_stays(scenario: Scenario, process: Process) -> list[Stay]:
    """Return the stays that it has recorded so far."""
    stays = scenario.history.follow().stays.values()
    return [stay for stay in stays if stay.pid == process.pid and stay.ended is None]


def successors(scenario: Scenario, stay: Stay) -> list[Stay]:
    """Others that had the same resource later."""
    stays = scenario.history.follow().stays.values()
    return [s for s in stays if s.resource == stay.resource and s.began > stay.until]


@pytest.mark.parametrize("face", FACES)
def test_paused_beyond_its_ttl(face: str, tmp_path: Path, seed: int) -> None:
    """SIGSTOP: another client gets the lock; after resuming, the first check says that the lease is
    over.
    """
    with sites(5) as five, started(five, tmp_path, seed, HOLDERS) as scenario:
        process, slept = caught_holding(scenario, face)
        began = instant()
        assert scenario.until(lambda _: all(successors(scenario, stay) for stay in slept))
        woke = instant()
        print(clients.resume(process.popen))
        assert scenario.until(lambda _: all(stay.ended is not None for stay in slept))
        verdict = scenario.finish()
    print(f"slept {(woke - began) / 1e9:.2f} s with {len(slept)} locks")
    for stay in slept:
        print(stay, "; next:", min(s.began for s in successors(scenario, stay)))
        assert stay.ended is not None
        assert stay.ended >= woke
        assert stay.last_still <= stay.until
        assert any(other.began < woke for other in successors(scenario, stay))
    assert {stay.how for stay in slept} <= {"lost"}
    assert verdict.content, str(verdict)


@pytest.mark.parametrize("face", FACES)
def test_killed_while_holding(face: str, tmp_path: Path, seed: int) -> None:
    """kill -9: its locks are others' once their ttl is over, not before; no key stays."""
    with sites(5) as five, started(five, tmp_path, seed, HOLDERS) as scenario:
        process, died_with = caught_holding(scenario, face)
        process.killed = True
        print(clients.kill(process.popen))
        assert scenario.until(lambda _: all(successors(scenario, stay) for stay in died_with))
        verdict = scenario.finish()
    for stay in died_with:
        waited = min(s.began for s in successors(scenario, stay)) - stay.until
        print(f"{stay}; free {waited / 1e6:.0f} ms after its validity ended")
    assert verdict.content, str(verdict)


def test_forked_while_holding(tmp_path: Path, seed: int) -> None:
    """The child holds nothing, releases nothing and cannot acquire what its parent holds."""
    with sites(5) as five, started(five, tmp_path, seed, FORKERS) as scenario:
        assert scenario.until(
            lambda history: forks(scenario)[BLOCKING] > 5 < forks(scenario)[ASYNCIO]
        )
        verdict = scenario.finish()
    print(forks(scenario))
    assert verdict.content, str(verdict)


def forks(scenario: Scenario) -> dict[str, int]:
    """Children that were born under a lock and ended well, by face."""
    history = scenario.history
    return {
        face: sum(
            call.verb == "fork" and call.outcome == "0" and history.processes[call.pid].face == face
            for call in history.calls.values()
        )
        for face in FACES
    }
