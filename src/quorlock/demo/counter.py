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
    def create(path: str, value: int = 0) -> None:
        """A new file."""
        Path(path).write_bytes(_text(value))

    @staticmethod
    def said(path: str) -> int:
        """What the file says, for who does not add to it."""
        return int(Path(path).read_bytes())

    def read(self) -> int:
        """The first step."""
        return int(os.pread(self._file, _WIDTH, 0))

    def write(self, value: int) -> None:
        """The second step."""
        os.pwrite(self._file, _text(value), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _text(value: int) -> bytes:
    return f"{value:0{_WIDTH}}\n".encode()
