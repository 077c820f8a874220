"""The worker processes as their parent sees them: started, read from and ended.

They end when their standard input closes (see `worker`), so they end with this process in any case.
Each has its own process group: Ctrl-C reaches only the parent, which ends them.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

# A turn and the closing of connections, either of which may wait for a stopped node.
_END_TIMEOUT = 8.0


class WorkerProcess:
    """One worker process."""

    def __init__(self, number: int, folder: str, urls: Sequence[str]) -> None:
        self.number = number
        self.ready = False
        self.ended: bool = False
        self.turns: list[tuple[float, float, float]] = []
        self._said = b""
        self._stderr_path = Path(folder, f"worker-{number}.err")
        command = [sys.executable, "-m", "quorlock._demo.worker", str(number), folder, *urls]
        with self._stderr_path.open("wb") as stderr:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                process_group=0,
            )

    @property
    def output(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def receive(self) -> list[Any]:
        """Return the messages that have arrived, one for each line."""
        data = os.read(self.output, 1 << 20)
        self.ended = not data
        *lines, self._said = (self._said + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def start(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(b"start\n")

    def stop(self) -> None:
        """Let it finish its turn and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def last_error_line(self) -> str:
        lines = self._stderr_path.read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""


class Workers:
    """All workers, and the sums of their reports."""

    def __init__(self, count: int, nodes: int, folder: str, urls: Sequence[str]) -> None:
        # For each node: granted, refused, unknown, not waited for.
        self.votes: list[list[int]] = [[0, 0, 0, 0] for _ in range(nodes)]
        self.troubles: list[str] = []
        self.died: int = 0
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self.members: list[WorkerProcess] = []
        try:
            for number in range(1, count + 1):
                member = WorkerProcess(number, folder, urls)
                self.members.append(member)
                self._selector.register(member.output, selectors.EVENT_READ, member)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ready(self) -> int:
        return sum(member.ready for member in self.members)

    @property
    def ended(self) -> bool:
        return all(member.ended for member in self.members)

    @property
    def complete(self) -> bool:
        return not any(member.ended for member in self.members)

    @property
    def turns(self) -> list[int]:
        return [len(member.turns) for member in self.members]

    def start(self) -> None:
        for member in self.members:
            member.start()

    def listen(self, seconds: float) -> None:
        """Receive messages for this many seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                self._receive(key.data)
            if self.ended:
                return

    def stop(self, progress: Callable[[], None]) -> None:
        """Let the workers finish their turns and end. Kill and report those that do not."""
        self._stopping = True
        for member in self.members:
            member.stop()
        deadline = time.monotonic() + _END_TIMEOUT
        while not self.ended and time.monotonic() < deadline:
            self.listen(0.1)
            progress()
        for member in self.members:
            if not member.ended:
                self._report_death(member, "it did not end in time, and was killed")

    def close(self) -> None:
        """Kill the workers that are alive, and close their pipes."""
        for member in self.members:
            member.kill()
        self._selector.close()

    def _receive(self, member: WorkerProcess) -> None:
        for message in member.receive():
            if message == "ready":
                member.ready = True
            else:
                self._add(member, message)
        if member.ended:
            self._selector.unregister(member.output)
            self._reap(member)

    def _reap(self, member: WorkerProcess) -> None:
        status, words = member.process.wait(), member.last_error_line()
        if status or not self._stopping:
            self._report_death(member, words or f"it ended with status {status}")
        elif words:
            self.troubles.append(f"worker {member.number}: {words}")

    def _report_death(self, member: WorkerProcess, why: str) -> None:
        self.died += 1
        self.troubles.append(f"worker {member.number} died: {why}")

    def _add(self, member: WorkerProcess, turn: dict[str, Any]) -> None:
        if "times" in turn:
            member.turns.append(turn["times"])
        if "trouble" in turn:
            self.troubles.append(f"worker {member.number}: {turn['trouble']}")
        for sums, kind in zip(self.votes, turn.get("votes", ()), strict=False):
            sums[kind] += 1
