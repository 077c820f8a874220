"""One time of holding a lock, as its holder lives it; and how long a process stood still.

A holder trusts its lease by `held` alone, and does real work meanwhile: it writes its turn's name
into the resource's file and looks whether somebody else's appears there.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from tests.servers.traffic.records import Record, digest, instant

_NAME_BYTES = 32


class Stalls:
    """How long this process stood still in all, as a thread of it sees that sleeps all the time."""

    _EVERY = 0.05

    def __init__(self) -> None:
        self._known = 0, instant()  # so much until then; one object, so that nobody sees half of it
        threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    @property
    def total(self) -> int:
        """In ns; what our thread has not woken up to see is part of it."""
        so_far, looked_at = self._known
        return so_far + max(0, instant() - looked_at - round(self._EVERY * 1e9))

    def _watch(self) -> None:
        while True:
            time.sleep(self._EVERY)
            self._known = self.total, instant()


class Stay:
    """One time of holding a lock: what is noted of it, and the work done meanwhile."""

    def __init__(self, record: Record, folder: str, lease: Any, kind: str = "") -> None:
        self.lease = lease
        self._record = record
        self._turn = record.number()
        self._name = f"{os.getpid()}.{self._turn}"
        self._over = False
        self._path = f"{folder}/{lease.resource}.work"
        # `begin` is dated here: the call that granted it has returned.
        self._note(
            "begin",
            resource=lease.resource,
            token=digest(lease.token),
            kind=kind,
            until=record.until(lease.valid_until),
        )
        self._write()

    def _note(self, what: str, at: int | None = None, **facts: object) -> None:
        self._record.note(what, at, turn=self._turn, **facts)

    def _write(self) -> None:
        if not self.lease.held:
            return
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, self._name.encode().ljust(_NAME_BYTES), 0)
        finally:
            os.close(file)
        self._note("wrote", late=not self.lease.held)

    def look(self) -> bool:
        """Is it still held? And is the resource as we left it?"""
        at = instant()
        if not self.lease.held:
            return False
        self._note("still", at)
        found = Path(self._path).read_bytes().decode().strip()
        if found != self._name and self.lease.held:
            self._note("met", found=found)
        return True

    def extended(self) -> None:
        """The library says that it lives longer now."""
        self._note("extended", until=self._record.until(self.lease.valid_until))

    def end(self, how: str) -> None:
        """Trust it no more; noted before anything is sent about it."""
        if not self._over:
            self._over = True
            self._note("end", how=how)
