"""The shared counter: a number in a file, read and written in two steps.

It is not atomic on purpose: without a lock, concurrent additions are lost.
"""

from __future__ import annotations

import os
from pathlib import Path

_WIDTH = 12  # a fixed number of digits, so that a reader never reads half a number


class Counter:
    """The file, opened by one process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR)

    @staticmethod
    def create(path: str, value: int = 0) -> None:
        Path(path).write_bytes(_text(value))

    @staticmethod
    def said(path: str) -> int:
        """Return the content of the file, for a process that does not add to it."""
        return int(Path(path).read_bytes())

    def read(self) -> int:
        """Read the value: the first step."""
        return int(os.pread(self._file, _WIDTH, 0))

    def write(self, value: int) -> None:
        """Write the value: the second step."""
        os.pwrite(self._file, _text(value), 0)

    def close(self) -> None:
        os.close(self._file)


def _text(value: int) -> bytes:
    return f"{value:0{_WIDTH}}\n".encode()
