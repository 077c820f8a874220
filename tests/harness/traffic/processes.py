"""The traffic's processes as seen by their parent, which starts them, waits for them and ends them.

They depend on their standard input (see `worker`), so they end with this process in any case. Each
is in a separate process group: Ctrl-C at the terminal reaches only the parent.
"""

from __future__ import annotations

import dataclasses
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from tests.harness.traffic import asleep
from tests.harness.traffic.settings import Settings

WORKER = "tests.harness.traffic.worker"
ROOT = Path(__file__).parents[3]
_READY_TIMEOUT = 30.0


class Process:
    """One process of the traffic."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.killed = False
        command = [sys.executable, "-W", "error", "-W", "ignore:This process", "-m", WORKER]
        name, folder = str(time.monotonic_ns()), Path(settings.folder)
        self._complaints = folder / f"{name}.err"
        own = asleep.environment(folder, name)
        self.suspended = folder / f"{name}.suspended" if own else None
        with self._complaints.open("wb") as complaints:
            self.popen = subprocess.Popen(
                [*command, settings.to_json()],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                process_group=0,
                env=os.environ | own,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self.popen.pid

    @property
    def alive(self) -> bool:
        """True if it has not ended."""
        return self.popen.poll() is None

    def await_ready(self, deadline: float) -> None:
        """Wait until its workers are about to begin."""
        assert self.popen.stdout is not None
        ready, _, _ = select.select([self.popen.stdout], [], [], deadline - time.monotonic())
        if not ready or self.popen.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{self.settings.face} process did not begin: {self.complaints()}")

    def kill(self) -> None:
        """Kill it by SIGKILL; the locks that it held are excused."""
        self.killed = True
        self.popen.kill()
        self.popen.wait()

    def suspend(self, seconds: float) -> None:
        """Let its machine sleep for a while; do nothing if that is impossible."""
        if self.suspended is not None:
            asleep.suspend(self.popen, self.suspended, seconds)

    def request_stop(self) -> None:
        """Ask it to stop, by closing its standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()

    def wait(self, deadline: float) -> list[str]:
        """Wait for its end; return what was wrong with it."""
        try:
            status = self.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            return [f"process {self.pid} ({self.settings.face}) did not end when asked"]
        if self.killed:
            return []
        words = self.complaints()
        return [f"process {self.pid} ended with {status}: {words}"] if status or words else []

    def complaints(self) -> str:
        """Return its standard error."""
        return self._complaints.read_text(errors="replace").strip()[-3000:]

    def close(self) -> None:
        """Whatever it does, it is gone after this."""
        self.popen.kill()
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()


class Processes:
    """All processes of a run."""

    def __init__(self, plans: Iterable[Settings]) -> None:
        self.all: list[Process] = []
        self._plans = tuple(plans)

    def __enter__(self) -> Self:
        try:
            for settings in self._plans:
                Path(settings.folder, "tickets").mkdir(exist_ok=True, parents=True)
                self.all.append(Process(settings))
            self._await(self.all)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def replace(self, process: Process) -> Process:
        """Start another process in place of a killed one, which is still to be waited for."""
        seed = process.settings.seed + 1000
        fresh = Process(dataclasses.replace(process.settings, seed=seed))
        self.all.append(fresh)
        self._await([fresh])
        return fresh

    @property
    def killed(self) -> set[int]:
        """The processes that were killed on purpose."""
        return {process.pid for process in self.all if process.killed}

    @property
    def alive(self) -> list[Process]:
        """The processes that have not ended."""
        return [process for process in self.all if process.alive]

    def stop(self, seconds: float) -> list[str]:
        """Stop all and wait for them; return their errors."""
        for process in self.all:
            process.request_stop()
        deadline = time.monotonic() + seconds
        return [word for process in self.all for word in process.wait(deadline)]

    def close(self) -> None:
        """Kill those that live, forget all."""
        for process in self.all:
            process.close()

    @staticmethod
    def _await(processes: Sequence[Process]) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT
        for process in processes:
            process.await_ready(deadline)
