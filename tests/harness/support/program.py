"""A program in a separate process, which a test starts, lets continue and sees end."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Ended:
    """The result of a program."""

    status: int
    output: str
    noise: str  # on stderr
    seconds: float


class Program:
    """Python with these arguments: it prints "ready" and waits for a line on stdin to continue."""

    def __init__(self, *arguments: str, timeout: float = 60.0) -> None:
        self._timeout = timeout
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line != "ready\n":
            raise AssertionError(line + self.process.communicate(timeout=self._timeout)[1])
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def begin(self) -> None:
        """Let it continue, with stdin open."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> Ended:
        """Close stdin, and wait for the end."""
        return self._communicate("")

    def go_on(self) -> Ended:
        """Let it continue to its end."""
        return self._communicate("go\n")

    def _communicate(self, words: str) -> Ended:
        began = time.monotonic()
        output, noise = self.process.communicate(words, timeout=self._timeout)
        return Ended(self.process.returncode, output, noise, time.monotonic() - began)
