"""One period of holding a lock, as seen by its holder; and how long a process was stopped.

A holder trusts its lease by `held` alone and does real work: it writes its turn's name into the
resource's file and checks whether another one appears there.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from quorlock import LeaseLost
from tests.harness.traffic.records import Record, digest, instant

_NAME_BYTES = 32
# The ways in which a holder ends its lease; in all others it loses it.
GIVEN_UP = ("released", "forgotten", "handed over", "closed", "dropped")


class Stalls:
    """The total time for which this process was stopped, as seen by a thread that sleeps all the
    time.
    """

    _EVERY = 0.05

    def __init__(self) -> None:
        self._known = (
            0,
            instant(),
        )  # the total until then; one object, so that readers never see half of it
        threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    @property
    def total(self) -> int:
        """The total in ns, including the time for which the thread should have woken up."""
        so_far, looked_at = self._known
        return so_far + max(0, instant() - looked_at - round(self._EVERY * 1e9))

    def _watch(self) -> None:
        while True:
            time.sleep(self._EVERY)
            self._known = self.total, instant()


class Stay:
    """One period of holding a lock: its records, and the work during it."""

    def __init__(self, record: Record, folder: str, lease: Any, kind: str = "") -> None:
        self.lease = lease
        self._record = record
        self._turn = record.number()
        self._name = f"{os.getpid()}.{self._turn}"
        self._over = self.given_up = False
        self._path = f"{folder}/{lease.resource}.work"
        # `begin` is dated here: the call that granted it has returned.
        self._note(
            "begin",
            resource=lease.resource,
            token=digest(lease.token),
            kind=kind,
            until=record.until(lease),
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
        if promised := self._promised_until():
            self._note("still", at, until=promised)
        found = Path(self._path).read_bytes().decode().strip()
        if found != self._name and self.lease.held:
            self._note("met", found=found)
        return True

    def _promised_until(self) -> int:
        """Return the instant up to which the library says that the lease may be trusted; 0: it is
        over.

        A margin of `ensure` counts from before the call.
        """
        at = instant()
        margin: float = max(0.0, self.lease.validity) / 2
        try:
            self.lease.ensure(margin)
        except LeaseLost:
            return 0
        return max(at + round(margin * 1e9), self._record.until(self.lease))

    def extended(self) -> None:
        """The library says that it lives longer now."""
        self._note("extended", until=self._record.until(self.lease))

    def end(self, how: str) -> None:
        """Trust it no more; noted before anything is sent about it."""
        if how in GIVEN_UP:
            self.give_up()
        if not self._over:
            self._over = True
            self._note("end", how=how)

    def give_up(self) -> None:
        """Record that the lease is about to be released by its holder."""
        if not self.given_up:
            self.given_up = True
            self._note("gives up")
