"""Files that refuse an old fence: replaced as a whole, or not at all.

Owns the order in which fence and data reach the disk.  For one machine; on a network file system
it is as good as that system's locks (flock) and renames are.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from quorlock.errors import QuorlockError, StaleFence
from quorlock.fencing.fences import as_fence

if TYPE_CHECKING:
    from collections.abc import Generator
    from os import PathLike


class FencedFile:
    """A file that is written under one fence, which is kept beside it in `NAME.fence`.

    `NAME.lock` beside both is locked (flock) for each call: from accepting the fence until the
    data is on the disk nobody else gets in. A writer that is stopped in between keeps the others
    waiting until it goes on or ends. Reading needs none of this: `open` shows the old data or the
    new.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        # Resolved: a file with two names (links, a relative path) has one fence.
        self.path = Path(path).resolve()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def claim(self, fence: int | None) -> None:
        """Accept the fence, or raise StaleFence: before reading what later writes depend on."""
        with self._claimed(as_fence(fence)):
            pass

    def write(self, data: bytes, fence: int | None) -> None:
        """Replace what the file holds, or raise StaleFence. On the disk when this returns."""
        with self._claimed(as_fence(fence)):
            _replace(self.path, data)

    @contextmanager
    def _claimed(self, fence: int) -> Generator[None]:
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._accept(fence)
            yield
        finally:
            os.close(lock)

    def _accept(self, fence: int) -> None:
        record = Path(f"{self.path}.fence")
        seen = _seen(record)
        if seen > fence:
            raise StaleFence(str(self.path), fence, seen)
        if seen < fence:
            # Before the data: a crash in between leaves old data that its old writer cannot touch.
            _replace(record, b"%d\n" % fence)


def _seen(record: Path) -> int:
    """The largest fence that was accepted; 0 if none was."""
    try:
        return int(record.read_bytes())
    except FileNotFoundError:
        return 0
    except ValueError:
        # It refuses everybody rather than nobody.
        raise QuorlockError(f"{record} holds no fence: something else wrote it") from None


def _replace(path: Path, data: bytes) -> None:
    """All of it or nothing, also when the power fails."""
    temporary = Path(f"{path}.new")  # one left by a crash is written anew: the lock is ours
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        with suppress(FileNotFoundError):
            os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
