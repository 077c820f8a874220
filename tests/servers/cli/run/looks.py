"""Look at processes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

PATIENCE = 30.0  # a bound for what must happen at once; nothing is measured by it


def runs(pid: int) -> bool:
    """Is it there, and not only as a zombie."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return status.rpartition(")")[2].split()[0] not in "ZX"
    return False
