"""The client itself is at fault: paused beyond its ttl, killed, forked. The nodes are well.

Assumed: what Redlock does of nodes and clocks.  Nothing is assumed of the client's speed: a holder
that sleeps beyond its validity must know so at its first look on waking, and others must not wait
for it longer than its ttl.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.faults import clients, sites
from tests.harness.traffic.crew import Process
from tests.harness.traffic.records import instant
from tests.harness.traffic.settings import ASYNCIO, BLOCKING, Settings
from tests.harness.validate.history import Stay
from tests.servers.scenarios.stage import Stage, holding, staged

# Sections so long that a process holds a lock at nearly every moment.
HOLDERS = Settings((), "", BLOCKING, 4, 0, section=0.3, kinds={"hold": 3, "block": 2, "fork": 0})
FORKERS = Settings((), "", BLOCKING, 4, 0, kinds={"fork": 1, "hold": 2})
FACES = [BLOCKING, ASYNCIO]


def caught_holding(stage: Stage, face: str) -> tuple[Process, list[Stay]]:
    """A process of that face, paused while it holds locks, and these."""
    process = next(p for p in stage.crew.processes if p.settings.face == face)
    for _ in range(20):
        assert stage.until(lambda history: holding(history, process))
        print(clients.pause(process.popen))
        if held := open_stays(stage, process):  # what it has written is final now
            return process, held
        clients.resume(process.popen)
    raise AssertionError("it never holds a lock when it is paused")


def open_stays(stage: Stage, process: Process) -> list[Stay]:
    """Return the stays that it has recorded so far."""
    stays = stage.history.follow().stays.values()
    return [stay for stay in stays if stay.pid == process.pid and stay.ended is None]


def successors(stage: Stage, stay: Stay) -> list[Stay]:
    """Others that had the same resource later."""
    stays = stage.history.follow().stays.values()
    return [s for s in stays if s.resource == stay.resource and s.began > stay.until]


@pytest.mark.parametrize("face", FACES)
def test_paused_beyond_its_ttl(face: str, tmp_path: Path, seed: int) -> None:
    """SIGSTOP: another client gets the lock; after resuming, the first check says that the lease is
    over.
    """
    with sites(5) as five, staged(five, tmp_path, seed, HOLDERS) as stage:
        process, slept = caught_holding(stage, face)
        began = instant()
        assert stage.until(lambda _: all(successors(stage, stay) for stay in slept))
        woke = instant()
        print(clients.resume(process.popen))
        assert stage.until(lambda _: all(stay.ended is not None for stay in slept))
        verdict = stage.finish()
    print(f"slept {(woke - began) / 1e9:.2f} s with {len(slept)} locks")
    for stay in slept:
        print(stay, "; next:", min(s.began for s in successors(stage, stay)))
        assert stay.ended is not None
        assert stay.ended >= woke
        assert stay.last_still <= stay.until
        assert any(other.began < woke for other in successors(stage, stay))
    assert {stay.how for stay in slept} <= {"lost"}
    assert verdict.content, str(verdict)


@pytest.mark.parametrize("face", FACES)
def test_killed_while_holding(face: str, tmp_path: Path, seed: int) -> None:
    """kill -9: its locks are others' once their ttl is over, not before; no key stays."""
    with sites(5) as five, staged(five, tmp_path, seed, HOLDERS) as stage:
        process, died_with = caught_holding(stage, face)
        process.murdered = True
        print(clients.kill(process.popen))
        assert stage.until(lambda _: all(successors(stage, stay) for stay in died_with))
        verdict = stage.finish()
    for stay in died_with:
        waited = min(s.began for s in successors(stage, stay)) - stay.until
        print(f"{stay}; free {waited / 1e6:.0f} ms after its validity ended")
    assert verdict.content, str(verdict)


def test_forked_while_holding(tmp_path: Path, seed: int) -> None:
    """The child holds nothing, releases nothing and cannot acquire what its parent holds."""
    with sites(5) as five, staged(five, tmp_path, seed, FORKERS) as stage:
        assert stage.until(lambda history: forks(stage)[BLOCKING] > 5 < forks(stage)[ASYNCIO])
        verdict = stage.finish()
    print(forks(stage))
    assert verdict.content, str(verdict)


def forks(stage: Stage) -> dict[str, int]:
    """Children that were born under a lock and ended well, by face."""
    history = stage.history
    return {
        face: sum(
            call.verb == "fork" and call.outcome == "0" and history.processes[call.pid].face == face
            for call in history.calls.values()
        )
        for face in FACES
    }
