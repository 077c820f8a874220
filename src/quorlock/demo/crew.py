"""The worker processes as their parent sees them: starts, hears and ends them.

They hang by their standard input (see `worker`), so they end when this process does, however it
does. Each is in a process group of its own: Ctrl-C reaches the parent alone, which ends them.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# In two steps, a turn and the closing of connections, either of which may meet a stopped node.
_END_TIMEOUT = 8.0


class Member:
    """One worker process."""

    def __init__(self, number: int, folder: str, urls: Sequence[str]) -> None:
        self.number = number
        self.ready = False
        self.ended = False
        self.turns: list[tuple[float, float, float]] = []
        self._said = b""
        self._complaints = Path(folder, f"worker-{number}.err")
        command = [sys.executable, "-m", "quorlock.demo.worker", str(number), folder, *urls]
        with self._complaints.open("wb") as complaints:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                bufsize=0,
                process_group=0,
            )

    @property
    def voice(self) -> int:
        """Where it is heard."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def hear(self) -> list[Any]:
        """What it has said meanwhile, line by line."""
        data = os.read(self.voice, 1 << 20)
        self.ended = not data
        *lines, self._said = (self._said + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def go(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(b"go\n")

    def stop(self) -> None:
        """Let it finish its turn and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        """End it, whatever it does, and forget it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def status(self) -> int:
        """How it has ended; 0 is as told."""
        return self.process.wait()

    def last_words(self) -> str:
        """The end of what it complained of."""
        lines = self._complaints.read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""


class Crew:
    """All workers, and the sum of what they have reported."""

    def __init__(self, count: int, nodes: int, folder: str, urls: Sequence[str]) -> None:
        self.votes = [[0, 0, 0, 0] for _ in range(nodes)]
        self.troubles: list[str] = []
        self.died = 0
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self.members: list[Member] = []
        try:
            for number in range(1, count + 1):
                self._hire(Member(number, folder, urls))
        except BaseException:
            self.close()
            raise

    def _hire(self, member: Member) -> None:
        self.members.append(member)
        self._selector.register(member.voice, selectors.EVENT_READ, member)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ready(self) -> int:
        """How many are waiting for the start."""
        return sum(member.ready for member in self.members)

    @property
    def ended(self) -> bool:
        """None is left."""
        return all(member.ended for member in self.members)

    @property
    def complete(self) -> bool:
        """All are left."""
        return not any(member.ended for member in self.members)

    @property
    def turns(self) -> list[int]:
        """How many turns each has had."""
        return [len(member.turns) for member in self.members]

    def go(self) -> None:
        """Let them begin."""
        for member in self.members:
            member.go()

    def listen(self, seconds: float) -> None:
        """Take in what is said within so many seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                self._hear(key.data)
            if self.ended:
                return

    def stop(self, progress: Callable[[], None]) -> None:
        """Let them finish their turns and end; those that do not are killed and reported."""
        self._stopping = True
        for member in self.members:
            member.stop()
        deadline = time.monotonic() + _END_TIMEOUT
        while not self.ended and time.monotonic() < deadline:
            self.listen(0.1)
            progress()
        for member in self.members:
            if not member.ended:
                self._mourn(member, "it did not end when told, and was killed")

    def close(self) -> None:
        """Kill those that live, and forget all."""
        for member in self.members:
            member.kill()
        self._selector.close()

    def _hear(self, member: Member) -> None:
        for message in member.hear():
            if message == "ready":
                member.ready = True
            else:
                self._add(member, message)
        if member.ended:
            self._selector.unregister(member.voice)
            self._bury(member)

    def _bury(self, member: Member) -> None:
        status, words = member.status(), member.last_words()
        if status or not self._stopping:
            self._mourn(member, words or f"it ended with status {status}")
        elif words:
            self.troubles.append(f"worker {member.number}: {words}")

    def _mourn(self, member: Member, why: str) -> None:
        self.died += 1
        self.troubles.append(f"worker {member.number} died: {why}")

    def _add(self, member: Member, report: dict[str, Any]) -> None:
        member.turns += report["turns"]
        self.troubles += [f"worker {member.number}: {text}" for text in report["troubles"]]
        for sums, votes in zip(self.votes, report["votes"], strict=True):
            sums[:] = map(int.__add__, sums, votes)
