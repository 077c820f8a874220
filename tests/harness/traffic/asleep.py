"""Lets one process of the traffic find that its machine was suspended: a jump of its lease clock.

On Linux CLOCK_BOOTTIME counts that time, and neither CLOCK_MONOTONIC nor a timer does.  A library
that is loaded before libc makes such a machine for one process (`harness/support/suspended.c`).
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
from pathlib import Path

from tests.harness.faults import clients, shim
from tests.harness.traffic.records import instant

_SOURCE = Path(__file__).parents[1] / "support" / "suspended.c"
_FILE = "SUSPENDED_NS"


def environment(folder: Path, name: str) -> dict[str, str]:
    """Return the environment in which a process can be suspended; empty if that is impossible."""
    if not shim.available():
        return {}
    library, file = folder / "suspended.so", folder / f"{name}.suspended"
    if not library.exists():
        compiler = shim.compiler()
        assert compiler is not None
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
    file.write_bytes(bytes(8))
    return {"LD_PRELOAD": str(library), _FILE: str(file)}


def suspend(process: subprocess.Popen[bytes], file: Path, seconds: float) -> str:
    """Stop a process, let its machine sleep, and continue it; record this for the validator."""
    proof = clients.pause(process)
    try:
        with file.open("r+b", buffering=0) as bytes_of:
            (so_far,) = struct.unpack("q", bytes_of.read(8))
            bytes_of.seek(0)
            bytes_of.write(struct.pack("q", so_far + round(seconds * 1e9)))
        line = json.dumps({"what": "slept", "at": instant(), "pid": process.pid})
        with (file.parent / f"{os.getpid()}-sleeps.jsonl").open("a") as records:
            records.write(line + "\n")
    finally:
        clients.resume(process)
    return proof


class Asleep:
    """The total time for which the machine of this process was suspended, in ns."""

    def __init__(self) -> None:
        path = os.environ.get(_FILE)
        self._page: mmap.mmap | None = None
        if path is not None:
            with Path(path).open("rb") as file:
                self._page = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)

    @property
    def total(self) -> int:
        """The total so far."""
        return 0 if self._page is None else int(struct.unpack("q", self._page[:8])[0])
