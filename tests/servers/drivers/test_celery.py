"""Celery's soft time limits, in prefork workers: no task hangs, no key is left a second later.

These tests run if celery is installed; it is not a dependency.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from quorlock.testing.servers import Servers

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("celery")

APP = """
    import asyncio, os, time
    from celery import Celery
    from quorlock import Redlock
    import quorlock.asyncio as aio

    broker, *urls = os.environ["NODES"].split(",")
    app = Celery("app", broker=broker, backend=broker)

    @app.task
    def body(name):
        end = time.monotonic() + 2
        with Redlock(urls) as redlock:
            while time.monotonic() < end:
                with redlock.lock(name, ttl=5, timeout=5) as lease:
                    lease.extend()

    @app.task
    def waits(name):
        with Redlock(urls) as redlock:
            redlock.lock("held", timeout=2).acquire()

    async def _body(name):
        end = time.monotonic() + 2
        async with aio.Redlock(urls) as redlock:
            while time.monotonic() < end:
                async with redlock.lock(name, ttl=5, timeout=5) as lease:
                    await lease.extend()

    async def _waits(name):
        async with aio.Redlock(urls) as redlock:
            await redlock.lock("held", timeout=2).acquire()

    @app.task
    def asyncio_body(name):
        asyncio.run(_body(name))

    @app.task
    def asyncio_waits(name):
        asyncio.run(_waits(name))
"""


# In a separate process: Celery's client leaves sockets open.
DRIVE = """
    import random, sys, time
    import quorlock_app as app
    from quorlock import Redlock
    from quorlock.testing.servers import Servers

    kinds = ["body", "waits", "asyncio_body", "asyncio_waits"]
    faults = []
    with Redlock(app.urls) as redlock, redlock.lock("held", ttl=30, renew=True):
        for number in range(20):
            kind, name = kinds[number % 4], f"task-{number}"
            limits = {"soft_time_limit": random.uniform(0.05, 0.3), "time_limit": 10}
            result = getattr(app, kind).apply_async((name,), **limits)
            result.get(timeout=20, propagate=False)
            outcome = type(result.result).__name__
            allowed = {"SoftTimeLimitExceeded"}
            if kind.startswith("asyncio"):  # which swallows what is raised in its own callbacks
                allowed |= {"NoneType", "AcquireTimeout"}
            if outcome not in allowed:
                faults.append(f"{kind}: {result.result!r}")
            end = time.monotonic() + 1
            while redlock.inspect(name).verdict != "free":
                if time.monotonic() > end:
                    faults.append(f"{kind}: keys left: {redlock.inspect(name)}")
                    break
                time.sleep(0.002)
    print(*faults)
    sys.exit(bool(faults))
"""


def test_soft_time_limits(nodes: Servers, tmp_path: Path) -> None:
    """The limit hits the body and the waiting call, in both APIs."""
    (tmp_path / "quorlock_app.py").write_text(textwrap.dedent(APP))
    (tmp_path / "drive.py").write_text(textwrap.dedent(DRIVE))
    with Servers(1, tcp=True) as broker, (tmp_path / "log").open("wb") as log:
        address = broker.tcp_urls[0].rstrip("/") + "/0"
        known = {"NODES": ",".join([address, *nodes.urls]), "PYTHONPATH": str(tmp_path)}
        settings: dict[str, Any] = {"cwd": tmp_path, "env": os.environ | known}
        options = ["-P", "prefork", "-c", "2", "--without-gossip", "--without-mingle"]
        command = [sys.executable, "-m", "celery", "-A", "quorlock_app", "worker", *options]
        worker = subprocess.Popen(command, stdout=log, stderr=log, **settings)
        try:
            drive = [sys.executable, "drive.py"]
            done = subprocess.run(
                drive, capture_output=True, text=True, timeout=100, check=False, **settings
            )
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(30)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "log").read_text()
