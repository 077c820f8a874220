"""The traffic does what it says, on healthy nodes: every kind of turn, in both faces; and its
processes are seen to end, well or badly.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from quorlock.testing.servers import Servers
from tests.harness.support.wait import until
from tests.harness.traffic.processes import Processes
from tests.harness.traffic.records import Record
from tests.harness.traffic.settings import ASYNCIO, BLOCKING, MIXED, Settings
from tests.harness.validate.history import History
from tests.harness.validate.judge import judge

FACES = [BLOCKING, ASYNCIO]
PATIENCE = 30.0
# A turn of the kind "look" holds no lock; one that is cancelled may go as a block.
STAYS = set(MIXED) - {"look"}
WAYS = {"released", "expired", "forgotten", "handed over", "closed"}
VERBS = {"inspect", "locked", "adopt", "fork", "extend", "extend by token", "leave", "close"}


def settings(nodes: Servers, folder: Path, face: str) -> Settings:
    kinds = dict.fromkeys(MIXED, 1)
    return Settings(tuple(nodes.urls), str(folder), face, 4, 7, kinds=kinds, ttls=(0.4, 0.7))


def follow_until(history: History, reached: Callable[[], bool]) -> bool:
    def is_reached() -> bool:
        history.follow()
        return reached()

    return until(is_reached, PATIENCE)


def seen(history: History) -> set[str]:
    """Kinds of stays that ended, how they did, what was asked and what it came to."""
    stays = [stay for stay in history.stays.values() if stay.ended is not None]
    kinds = {word for stay in stays for word in (stay.kind, stay.how)}
    return kinds | {word for pair in history.outcomes for word in pair}


@pytest.mark.parametrize("face", FACES)
def test_every_kind_of_turn_on_healthy_nodes(face: str, nodes: Servers, tmp_path: Path) -> None:
    """Each comes up, each ends, nothing is wrong with any."""
    history = History(tmp_path)
    wanted = STAYS | VERBS | WAYS | ({"CancelledError"} if face == ASYNCIO else set())
    with Processes([settings(nodes, tmp_path, face)]) as processes:
        (process,) = processes.all
        assert follow_until(history, lambda: seen(history) >= wanted), wanted - seen(history)
        assert processes.stop(PATIENCE) == []
    judgement = judge(history.follow())
    print(history.outcomes)
    assert judgement.content, str(judgement)
    assert judgement.turns == {process.pid: len(history.stays)}
    assert ("CancelledError" in seen(history)) == (face == ASYNCIO)
    assert history.processes[process.pid].memory_kb > 0 or sys.platform != "linux"


def test_records_survive_kill_9(nodes: Servers, tmp_path: Path) -> None:
    """The records are complete; only the last line may be truncated. The parent reports unexpected
    deaths.
    """
    with Processes([settings(nodes, tmp_path, face) for face in FACES]) as processes:
        history = History(tmp_path)
        assert follow_until(history, lambda: len(history.turns()) == 2)
        killed, died = processes.all
        killed.kill()
        os.kill(died.pid, signal.SIGKILL)
        words = processes.stop(PATIENCE)
    assert len(words) == 1
    assert f"process {died.pid} ended with -9" in words[0]
    judgement = judge(history.follow(), processes.killed)
    assert processes.killed == {killed.pid}
    assert judgement.overlaps == []
    assert not history.unreadable
    assert f"process {died.pid} never said bye" in judgement.wrongs
    assert not [wrong for wrong in judgement.wrongs if str(killed.pid) in wrong]


def test_a_process_that_does_not_begin_is_reported(tmp_path: Path) -> None:
    """The error has its output; the parent does not wait for the other process."""
    broken = Settings(("nonsense://",), str(tmp_path), BLOCKING, 1, 1)
    with pytest.raises(RuntimeError, match="ConfigError"), Processes([broken]):
        raise AssertionError("it began")


def test_a_pause_is_no_lateness(nodes: Servers, tmp_path: Path) -> None:
    """A process that stood still notes for how long, so that its calls are not called stuck."""
    strict = dataclasses.replace(
        settings(nodes, tmp_path, BLOCKING), slack=0.5, kinds={"hold": 1}, timeouts=(0.3,)
    )
    with Processes([strict]) as processes:
        history = History(tmp_path)
        assert follow_until(history, lambda: len(history.stays) > 10)
        (process,) = processes.all
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(process.pid, signal.SIGCONT)
        assert processes.stop(PATIENCE) == []
    judgement = judge(history.follow())
    stalled = max(call.stalled for call in history.calls.values())
    print(f"the longest stand-still that a call has noted: {stalled / 1e9:.2f} s")
    assert judgement.content, str(judgement)


def test_the_clock_of_the_records_is_translated_exactly(tmp_path: Path) -> None:
    """`valid_until` comes on another clock; the difference is found to a microsecond."""
    record = Record(str(tmp_path), "clock")
    try:
        before = time.monotonic_ns()
        boot = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else None
        after = time.monotonic_ns()
        if boot is None:
            pytest.skip("no CLOCK_BOOTTIME on this platform")
        assert before - 1_000 <= record.until(SimpleNamespace(valid_until=boot)) <= after + 1_000
    finally:
        record.close()


def test_settings_travel_as_json() -> None:
    one = Settings(("unix:///a", "redis://b"), "folder", ASYNCIO, 3, 5, timeouts=(0.0, 1.5))
    assert Settings.from_json(one.to_json()) == one
