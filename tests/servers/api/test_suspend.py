"""The machine is suspended while a lease is held: its loss is reported soon after it wakes.

On Linux neither CLOCK_MONOTONIC nor a timer counts that time, but the lease clock does. A library
in front of libc's clock simulates such a machine, for a child process alone: the nodes are other
machines.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorlock._drivers import clock

if TYPE_CHECKING:
    from quorlock.testing.servers import Servers

SHIM = Path(__file__).parents[2] / "harness" / "support" / "suspended.c"

# Bounds in the programs lie between half a second and the times of some 10 s that it took before.
PRELUDE = """
    import asyncio, mmap, os, struct, sys, time
    import quorlock, quorlock.asyncio
    from quorlock import LeaseLost, Redlock

    SOON = 5.0
    SETTINGS = dict(ttl=20.0, max_ttl=60.0, restart_guard=None, node_timeout=0.5)
    URLS = sys.argv[1:]
    file = mmap.mmap(os.open(os.environ["SUSPENDED_NS"], os.O_RDWR), 8)
    woke_at = 0.0

    def suspend(seconds):
        global woke_at
        before = quorlock.now()
        file[:8] = struct.pack("q", struct.unpack("q", file[:8])[0] + int(seconds * 1e9))
        assert quorlock.now() - before >= seconds, "the clock does not count suspended time"
        woke_at = time.monotonic()

    def soon():
        assert time.monotonic() - woke_at < SOON, time.monotonic() - woke_at
"""

WAITING = """
    import threading
    with Redlock(URLS, **SETTINGS) as redlock:
        lease = redlock.lock("waiting").acquire()
        lost, waited = lease.lost, []
        waiter = threading.Thread(target=lambda: waited.append(lost.wait(60)))
        waiter.start()
        time.sleep(0.2)
        suspend(3600)
        assert not lease.held
        waiter.join()
        soon()
        assert waited == [True]
        lease = redlock.lock("asking").acquire()
        lost = lease.lost
        assert not lost.is_set()
        suspend(3600)
        assert lost.is_set(), "at once for who asks"
"""

RENEWED = """
    with Redlock(URLS, **SETTINGS) as redlock:
        lease = redlock.lock("over", ttl=60.0, renew=True).acquire()
        time.sleep(0.2)
        suspend(3600)
        assert lease.lost.wait(60)
        soon()

        # Asleep for less than its ttl: it is extended at once, not when the timer thinks so.
        lease = redlock.lock("overdue", ttl=60.0, renew=True).acquire()
        first = lease.valid_until
        time.sleep(0.2)
        suspend(30)
        while lease.valid_until == first:
            soon()
            time.sleep(0.01)
        assert lease.held
        lease.release()
"""

SHARED = """
    with Redlock(URLS, **SETTINGS) as redlock, Redlock(URLS, **SETTINGS) as other:
        lease = redlock.lock("doc", shared=True, ttl=60.0, renew=True).acquire()
        beside = other.lock("doc", shared=True, ttl=20.0).acquire()
        first = lease.valid_until
        time.sleep(0.2)
        suspend(30)
        assert not beside.held
        while lease.valid_until == first:  # it is extended, beside a reader whose lease is over
            soon()
            time.sleep(0.01)
        assert lease.held
        assert lease.release()
"""

BLOCK = """
    async def main():
        async with quorlock.asyncio.Redlock(URLS, **SETTINGS) as redlock:
            try:
                async with redlock.lock("block"):
                    await asyncio.sleep(0.2)
                    suspend(3600)
                    while True:
                        await asyncio.sleep(0.01)
                        soon()
            except LeaseLost as lost:
                assert lost.reason == "expired"
            else:
                raise AssertionError("its body ran to its end")
    asyncio.run(main())
"""

RENEWED_IN_ASYNCIO = """
    async def main():
        async with quorlock.asyncio.Redlock(URLS, **SETTINGS) as redlock:
            lease = await redlock.lock("over", ttl=60.0, renew=True).acquire()
            await asyncio.sleep(0.2)
            suspend(3600)
            await asyncio.wait_for(lease.lost.wait(), 60)
            soon()

            lease = await redlock.lock("overdue", ttl=60.0, renew=True).acquire()
            first = lease.valid_until
            await asyncio.sleep(0.2)
            suspend(30)
            while lease.valid_until == first:
                soon()
                await asyncio.sleep(0.01)
            assert lease.held
            await lease.release()
    asyncio.run(main())
"""


QUEUED = """
    import threading
    PATIENT = {**SETTINGS, "retry_delay": (30.0, 40.0)}
    with Redlock(URLS, **PATIENT) as redlock, Redlock(URLS, **PATIENT) as other:
        lease = redlock.lock("queued").acquire()
        errors = []
        def wait():
            try:
                other.lock("queued").acquire(timeout=600.0)
            except quorlock.AcquireTimeout as error:
                errors.append(error)
        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.5)
        suspend(3600)
        waiter.join()
        soon()
        assert errors
"""

QUEUED_IN_ASYNCIO = """
    PATIENT = {**SETTINGS, "retry_delay": (30.0, 40.0)}
    async def main():
        async with (
            quorlock.asyncio.Redlock(URLS, **PATIENT) as redlock,
            quorlock.asyncio.Redlock(URLS, **PATIENT) as other,
        ):
            lease = await redlock.lock("queued").acquire()
            waiting = asyncio.create_task(other.lock("queued").acquire(timeout=600.0))
            await asyncio.sleep(0.5)
            suspend(3600)
            await asyncio.wait([waiting])
            soon()
            assert isinstance(waiting.exception(), quorlock.AcquireTimeout)
    asyncio.run(main())
"""

PROGRAMS = {
    "waiting for a loss": WAITING,
    "renewed": RENEWED,
    "shared": SHARED,
    "a block": BLOCK,
    "renewed in asyncio": RENEWED_IN_ASYNCIO,
    "waiting for a lock": QUEUED,
    "waiting for a lock in asyncio": QUEUED_IN_ASYNCIO,
}


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler (cc), or no Linux")
    library = tmp_path_factory.mktemp("shim") / "suspended.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_loss_is_reported_soon_after_waking(
    nodes: Servers, shim: Path, tmp_path: Path, program: str
) -> None:
    """The loss is reported and the body cancelled; a lease that is not lost is renewed; no timeout
    waits longer.
    """
    file = tmp_path / "suspended"
    file.write_bytes(bytes(8))
    given = {"LD_PRELOAD": str(shim), "SUSPENDED_NS": str(file)}
    source = textwrap.dedent(PRELUDE) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", source, *nodes.urls],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no CLOCK_BOOTTIME here")
def test_the_clock_counts_suspended_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 7: CLOCK_BOOTTIME where there is one."""
    monkeypatch.setattr(time, "clock_gettime_ns", lambda which: which)
    assert clock._best_clock()() == time.CLOCK_BOOTTIME


def test_the_clock_without_boottime(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS uses CLOCK_MONOTONIC, which counts sleep there; other systems the monotonic clock."""
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr(time, "CLOCK_MONOTONIC", 6, raising=False)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda which: which, raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert clock._best_clock()() == 6
    monkeypatch.setattr(sys, "platform", "win32")
    assert clock._best_clock() is time.monotonic_ns
