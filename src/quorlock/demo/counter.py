"""The shared counter: a number in a file, read and written in two steps. Not atomic on purpose:
who adds without a lock loses what another adds in between.
"""

from __future__ import annotations

import os
from pathlib import Path

_WIDTH = 12  # always as many digits, so that a reader never meets half a number


class Counter:
    """The file, as one process has it open."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR)

    @staticmethod
    def create(path: str) -> None:
        """A new file that says 0."""
        Path(path).write_bytes(_text(0))

    def read(self) -> int:
        """The first step."""
        return int(os.pread(self._file, _WIDTH, 0))

    def write(self, value: int) -> None:
        """The second step."""
        os.pwrite(self._file, _text(value), 0)


def _text(value: int) -> bytes:
    return f"{value:0{_WIDTH}}\n".encode()
