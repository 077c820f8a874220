"""Tests of the asyncio API on uvloop: the same cases as on the loop of the standard library.

Left out: KeyboardInterrupt in the middle of our code.  uvloop stops its loop then, and asyncio's
does not, so the test would have to be another one. And cancellation before the k-th callback: those
tests bring a loop that counts (`CountingLoop`), whatever the policy says, and uvloop's callbacks
cannot be counted.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from quorlock.testing.servers import Servers

ROOT = Path(__file__).parents[3]
CASES = (
    "tests/servers/api/test_lease.py",
    "tests/servers/api/test_semaphore.py",
    "tests/servers/api/test_waiting.py",
    "tests/servers/api/test_waiting_tasks.py",
    "tests/servers/drivers/test_waiting_in_loop.py",
    # The tests of that file whose loops are the policy's.
    "tests/exhaustive/test_cancellation.py::test_main_task_cancelled_with_everything_under_way",
    "tests/exhaustive/test_cancellation.py::test_an_interrupt_that_cuts_our_own_code",
)


def test_the_asyncio_cases_on_uvloop() -> None:
    """Run them in another process, since a policy for loops is for a whole process."""
    if find_spec("uvloop") is None:  # not imported: this process keeps its own loops
        pytest.skip("uvloop is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "tests.harness.on_uvloop"]
    done = subprocess.run(
        [*command, "-m", "not slow", "-k", "asyncio or test_waiting_ or test_cancellation", *CASES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > len(CASES)


# Blocks the event loop until the time for connecting is up, after so many ticks: in some of them a
# connection has just been made.  Prints how long the slowest `close` took.
BLOCKED = """
import asyncio, sys, time
import uvloop
from quorlock import QuorlockError
from quorlock.asyncio import Redlock

async def close_after(ticks):
    redlock = Redlock(sys.argv[1:], connect_timeout=0.1)
    call = asyncio.ensure_future(redlock.lock("a").acquire(timeout=0))
    for _ in range(ticks):
        await asyncio.sleep(0)
    time.sleep(0.2)
    try:
        await (await call).release()
    except QuorlockError:
        pass
    began = time.monotonic()
    await redlock.close()
    return time.monotonic() - began

async def main():
    print(max([await close_after(ticks) for ticks in range(8)]))

uvloop.run(main())
"""


def test_connections_that_uvloop_drops_in_silence_are_not_waited_for(nodes: Servers) -> None:
    """Each was kept for ever, and `close` waited for its end: a second longer than here."""
    if find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    command = [sys.executable, "-c", BLOCKED, *nodes.urls[:3]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.0
    assert done.stderr == ""
