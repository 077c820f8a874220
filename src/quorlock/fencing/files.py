"""Files that refuse an old fence: replaced as a whole, or not at all.

This module orders the writes of fence and data to the disk.  For one machine; on a network file
system it is as reliable as that system's locks (flock) and renames.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

from quorlock.errors import ConfigError, QuorlockError, StaleFence
from quorlock.fencing.fences import as_fence


class FencedFile:
    """A file that is written under one fence, which is kept beside it in `NAME.fence`.

    Each call locks `NAME.lock` beside both (flock), from accepting the fence until the data is on
    the disk.  A writer that is stopped in between keeps the others waiting until it continues or
    ends. Reading needs no lock: `open` shows the old data or the new.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        # Resolved: a file with two names (links, a relative path) has one fence.
        self.path: Path = Path(path).resolve()
        if self.path.name.endswith((".fence", ".lock", ".new")):
            # A write would replace the record or the lock of another file, or be replaced itself.
            fix = "FencedFile keeps files of such names beside others; give another name"
            raise ConfigError(argument="path", value=str(self.path), fix=fix)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def claim(self, fence: int | None) -> None:
        """Accept the fence, or raise StaleFence; call it before reading what later writes need."""
        with self._claimed(as_fence(fence)):
            pass

    def write(self, data: bytes, fence: int | None) -> None:
        """Replace the file's content, or raise StaleFence. On the disk when this returns."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            # Before the fence is accepted, and NAME.new is made.
            raise ConfigError("data", type(data).__name__, "give bytes: the file is binary")
        with self._claimed(as_fence(fence)):
            _replace(self.path, data)

    @contextmanager
    def _claimed(self, fence: int) -> Generator[None]:
        try:
            from fcntl import LOCK_EX, LOCK_UN, flock  # here: tables and keys are fenced without it
        except ImportError:
            raise QuorlockError("this platform has no flock, which FencedFile needs") from None
        with Path(f"{self.path}.lock").open("ab") as lock:
            try:
                flock(lock, LOCK_EX)
                self._accept(fence)
                yield
            finally:
                # A process that another thread has forked has the file open too: closing is not
                # enough.
                flock(lock, LOCK_UN)

    def _accept(self, fence: int) -> None:
        record = Path(f"{self.path}.fence")
        seen = _seen(record)
        if seen > fence:
            raise StaleFence(str(self.path), fence, seen)
        if seen < fence:
            # Before the data: a crash in between leaves old data that its old writer cannot touch.
            _replace(record, b"%d\n" % fence)


def _seen(record: Path) -> int:
    """Return the largest fence that was accepted; 0 if none was."""
    try:
        return int(record.read_bytes())
    except FileNotFoundError:
        return 0
    except ValueError:
        # Refuse every writer rather than none.
        raise QuorlockError(f"{record} holds no fence: something else wrote it") from None


def _replace(path: Path, data: bytes) -> None:
    """Replace the file entirely or not at all, even if the power fails."""
    temporary = Path(f"{path}.new")  # may be left by a crash; the lock makes it ours to overwrite
    kept = _permissions(path)

    def created(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 if kept is None else kept)

    with open(temporary, "wb", opener=created) as file:
        if kept is not None:
            os.fchmod(file.fileno(), kept)  # before there is data in it that others may not read
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _permissions(path: Path) -> int | None:
    """Return the permissions of a file; None if there is none."""
    with suppress(FileNotFoundError):
        return stat.S_IMODE(path.stat().st_mode)
    return None
