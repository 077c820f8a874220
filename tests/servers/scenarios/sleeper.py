"""A process that holds a renewed, fenced lease, is stopped, and prints what it sees afterwards.

    python -m tests.servers.scenarios.sleeper FACE DATABASE URL...

Prints `ready`, and once it has slept past its validity four lines: the first value of `held`,
whether `lost` is set, what became of a fenced write, the reason of the loss.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from functools import partial
from typing import Any

import quorlock
from quorlock import LeaseLost, StaleFence
from quorlock.fencing import FenceTable
from tests.harness.traffic.faces import FACES, Face, call

TTL = 1.0
SETTINGS: dict[str, Any] = {"ttl": TTL, "max_ttl": TTL}
FENCES = FenceTable(sqlite3.paramstyle)


def write(database: str, fence: int | None) -> bool:
    """Return whether the storage accepts the write."""
    with closing(sqlite3.connect(database)) as storage, storage:
        FENCES.create(storage)
        try:
            FENCES.claim(storage, "a", fence)
        except StaleFence:
            return False
        return True


async def sleep_and_report(face: Face, database: str, urls: list[str]) -> None:
    """Run the process and print the results."""
    redlock = face.redlock(urls, **SETTINGS)
    lease = await call(redlock.lock("a", renew=True, fencing=True).acquire)
    event = lease.lost
    assert write(database, lease.fence)
    say("ready")
    before = quorlock.now()
    while True:
        await face.sleep(0.002)
        held, at = lease.held, quorlock.now()
        if at - before > TTL:
            break
        before = at
    say("held" if held else "lost")
    say("set" if await face.is_set_within(event, 5) else "not set")
    say("written" if write(database, lease.fence) else "refused")
    try:
        await call(lease.extend)
    except LeaseLost as error:
        say(error.reason)
    await call(redlock.close)


def say(word: str) -> None:
    print(word, flush=True)


if __name__ == "__main__":
    _, name, *arguments = sys.argv
    FACES[name].run(partial(sleep_and_report, FACES[name], arguments[0], arguments[1:]))
