"""`quorlock run` as started by users: a separate process, real servers, no terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

import quorlock
from quorlock import Redlock
from tests.harness.support.wait import until
from tests.servers.cli.command import PATIENCE, keys_stay, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock.testing.servers import Servers

SRC = Path(quorlock.__file__).parents[1]
PATIENT = Path(__file__).with_name("patient.py")
TIMEOUT = 30.0


class Run:
    """One run that continues."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> subprocess.CompletedProcess[str]:
        """Wait for it."""
        said, complained = self.process.communicate(timeout=TIMEOUT)
        return subprocess.CompletedProcess(
            self.process.args, self.process.returncode, said, complained
        )


class Runner:
    """Starts them, with these nodes."""

    def __init__(self, nodes: Servers, folder: Path) -> None:
        self.nodes = nodes
        self.folder = folder
        self.environment = {
            **{name: it for name, it in os.environ.items() if not name.startswith("QUORLOCK_NO")},
            "PYTHONPATH": str(SRC),
            **named(nodes.urls),
        }
        self._runs: list[Run] = []

    def start(
        self,
        *arguments: str,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        program: str | None = None,
        **more: Any,
    ) -> Run:
        """Start `quorlock run`, or a program that is a changed `quorlock`."""
        quorlock = ["-m", "quorlock"] if program is None else ["-c", program]
        process = subprocess.Popen(
            [sys.executable, *quorlock, "run", *arguments],
            env=self.environment,
            cwd=self.folder,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **{"start_new_session": True, **more},
        )
        self._runs.append(Run(process))
        return self._runs[-1]

    def __call__(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return self.start(*arguments, **more).end()

    def patient(self, *arguments: str, does: str = "", **more: Any) -> Run:
        """Run `patient.py` under the lock; returns once that has begun."""
        run = self.start(*arguments, "--", sys.executable, str(PATIENT), does, **more)
        assert until(lambda: self.log("begun") or run.process.poll() is not None, PATIENCE)
        return run

    def log(self, word: str) -> list[list[float]]:
        """The lines of patient.py's log that begin with this word: the numbers in them."""
        with suppress(FileNotFoundError):
            # Its last line may be cut short: it is killed at any time.
            lines = (self.folder / "log").read_text().split("\n")[:-1]
            return [[float(n) for n in line.split()[1:]] for line in lines if line.startswith(word)]
        return []

    def pids(self) -> list[int]:
        """Return the pids of patient.py and of its children."""
        return [int(pid) for begun in self.log("begun") for pid in begun]

    def keys_stay(self) -> bool:
        """Return whether a node keeps a key."""
        return keys_stay(self.nodes)

    def close(self) -> None:
        for run in self._runs:
            run.process.kill()
            run.process.wait()
            for pipe in (run.process.stdout, run.process.stderr):
                assert pipe is not None
                pipe.close()
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def events(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """Return the events of --json, by name."""
    reported = [json.loads(line) for line in done.stderr.splitlines()]
    return {event["event"]: event for event in reported}


@pytest.fixture
def run(nodes: Servers, tmp_path: Path) -> Iterator[Runner]:
    """Yield nodes that may be stopped: they continue afterwards."""
    runner = Runner(nodes, tmp_path)
    try:
        yield runner
    finally:
        for node in nodes:
            if node.stopped:
                node.cont()
        runner.close()


@pytest.fixture
def redlock(nodes: Servers) -> Iterator[Redlock]:
    """Another client of the same nodes."""
    with Redlock(nodes.urls) as it:
        yield it
