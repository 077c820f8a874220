"""A client's process is paused, forked and killed, and the evidence can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from quorlock import Redlock
from quorlock.testing.servers import Servers
from tests.harness.faults import clients
from tests.harness.faults.fault import await_that
from tests.harness.support.pids import is_paused, states

ROOT = Path(__file__).parents[3]

# Says every 2 ms that it is there.
LIVELY = """
import time
while True:
    print(time.monotonic_ns(), flush=True)
    time.sleep(0.002)
"""

# Holds a lease; its child says what it thinks of it, then the parent what it thinks.
HOLDER = """
import sys, time
from quorlock import Redlock
from tests.harness.faults import clients
from tests.harness.faults.fault import await_that
with Redlock(sys.argv[1:], ttl=30.0, node_timeout=1.0) as redlock:
    with redlock.lock("a") as lease:
        clients.fork_on_command(lambda: print("child held", lease.held, flush=True))
        print("parent held", lease.held, flush=True)
        sys.stdin.readline()
        print("parent held", lease.held, flush=True)
        sys.stdin.readline()
"""


@contextmanager
def running(script: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", script, *args],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def command(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.fixture
def lively() -> Iterator[subprocess.Popen[str]]:
    with running(LIVELY) as process:
        says(process)
        yield process


def test_a_paused_process_stands_still(lively: subprocess.Popen[str]) -> None:
    moments = [int(says(lively))]
    print("\n" + clients.pause_for(lively, 0.4))
    resumed = time.monotonic_ns()
    # It speaks of every moment but those of its pause.
    while moments[-1] < resumed:
        moments.append(int(says(lively)))
    assert max(later - earlier for earlier, later in pairwise(moments)) >= 400_000_000
    assert states(lively.pid)


def test_pause_and_resume(lively: subprocess.Popen[str]) -> None:
    assert not is_paused(lively.pid)
    assert "state T" in clients.pause(lively)
    assert is_paused(lively.pid)
    assert "runs again" in clients.resume(lively.pid)
    assert not is_paused(lively.pid)
    with pytest.raises(AssertionError, match="was not paused"):
        clients.resume(lively)


def test_a_pause_that_another_process_ended_is_no_proof(lively: subprocess.Popen[str]) -> None:
    def interfere() -> None:
        await_that(lambda: is_paused(lively.pid), "it is paused")
        time.sleep(0.3)
        lively.send_signal(signal.SIGCONT)

    another = threading.Thread(target=interfere)
    another.start()
    try:
        with pytest.raises(AssertionError, match="resumed by another process"):
            clients.pause_for(lively, 1.0)
    finally:
        another.join()


def test_killing(lively: subprocess.Popen[str]) -> None:
    assert "by SIGKILL" in clients.kill(lively)
    assert lively.returncode == -signal.SIGKILL


def test_killing_by_pid(lively: subprocess.Popen[str]) -> None:
    """The parent of the process has to reap it."""
    assert "is gone" in clients.kill(lively.pid)
    assert lively.wait(5) == -signal.SIGKILL


def test_one_that_had_ended_was_not_killed() -> None:
    with running("") as process:
        process.wait(10)
        with pytest.raises((AssertionError, ProcessLookupError)):
            clients.kill(process)


def test_a_child_of_a_holder_does_not_hold() -> None:
    with Servers(1) as servers, running(HOLDER, *servers.urls) as holder:
        assert says(holder) == "parent held True"
        for _ in range(2):
            child, evidence = clients.fork(holder)
            assert evidence == f"process {child} is a child of {holder.pid}"
            assert says(holder) == "child held False"
        command(holder)
        assert says(holder) == "parent held True"
        command(holder)
        assert holder.wait(10) == 0
        assert servers[0].keys() == []


def test_one_that_cannot_fork_dies_of_it(lively: subprocess.Popen[str]) -> None:
    with pytest.raises(AssertionError, match="did it call fork_on_command"):
        clients.fork(lively)


def test_a_child_that_fails_ends_all_the_same() -> None:
    script = """
import sys
from tests.harness.faults import clients
from tests.harness.faults.fault import await_that
clients.fork_on_command(lambda: 1 / 0)
sys.stderr = sys.stdout
print("ready", flush=True)
while True:
    sys.stdin.readline()
"""
    with running(script) as process:
        assert says(process) == "ready"
        clients.fork(process)
        printed = [says(process)]
        while printed[-1] != "ZeroDivisionError: division by zero":
            printed.append(says(process))
        assert printed[0] == "Traceback (most recent call last):"


def test_a_holder_that_was_killed_keeps_the_lock_until_its_ttl() -> None:
    with Servers(1) as servers, running(HOLDER, *servers.urls) as holder:
        assert says(holder) == "parent held True"
        clients.kill(holder)
        with Redlock(servers.urls, node_timeout=1.0) as redlock:
            assert redlock.lock("a").try_acquire() is None
        assert servers[0].keys() == [b"a"]
