"""Looking at processes, and waiting for what is to be seen."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 30.0  # a bound for what must happen at once; nothing is measured by it


def await_that(is_so: Callable[[], object]) -> None:
    """Return when it is so; fail if it never is."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "it never was so"
        time.sleep(0.005)


def runs(pid: int) -> bool:
    """Is it there, and not only as a zombie."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return status.rpartition(")")[2].split()[0] not in "ZX"
    return False
