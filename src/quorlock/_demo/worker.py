"""One worker process: adds to the counter, each addition under the lock.

`workers` starts it. Its standard input controls it: a line starts it, and the end of the stream
stops it, whether the parent closed the pipe or died. It reports every turn on its standard output,
as a line of JSON: `times` (seconds to acquire, of the attempt that won, to release) unless it
failed, `votes` (for each node, as an index of `workers.Workers.votes`), and `trouble`, in words.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from contextlib import closing, suppress
from typing import Any

from quorlock import AcquireError, Lease, LeaseLost, Lock, NodeError, NodeVote, Redlock, VoteCode
from quorlock._demo.checker import Log
from quorlock._demo.counter import Counter
from quorlock._demo.scenario import TTL

STDIN, STDOUT = 0, 1

# The clients poll. An addition takes a millisecond or two, so the pause is short: else the lock
# would be idle most of the time. It is random, so that the same two do not collide repeatedly. For
# a lock that is held for seconds the default is better.
RETRY_DELAY = (0.005, 0.03)
TIMEOUT = 5.0
OUTAGE_TIMEOUT = 3.0
INSIDE = (0.0003, 0.001)  # between reading and writing the counter
# After a turn a worker sleeps for as long as one that polls pauses. If it retried at once, it would
# nearly always find the lock free, and the others would find it held.
ELSEWHERE = RETRY_DELAY
DRIFT = TTL * 0.01 + 0.002

GRANTED, REFUSED, UNKNOWN, NOT_WAITED_FOR = range(4)
_KINDS = {"granted": GRANTED, "refused": REFUSED, "unknown": UNKNOWN}


class DemoWorker:
    """The files, the lock and the turns of this process."""

    def __init__(self, number: int, folder: str, lock: Lock | None) -> None:
        self._log = Log(f"{folder}/log", number)
        self._counter = Counter(f"{folder}/counter")
        self._lock = lock

    def work(self) -> None:
        """Take turns until the parent stops it."""
        while receive(random.uniform(*ELSEWHERE)) is None:
            send(self._turn())

    def close(self) -> None:
        self._log.close()
        self._counter.close()

    def _turn(self) -> dict[str, Any]:
        if self._lock is None:
            self._add(None)
            return {"times": (0.0, 0.0, 0.0)}
        try:
            return self._locked_turn(self._lock)
        except (AcquireError, NodeError) as error:
            return {"votes": kinds(error.votes), "trouble": str(error)}
        except LeaseLost as error:
            return {"trouble": str(error)}

    def _locked_turn(self, lock: Lock) -> dict[str, Any]:
        # Users write `with lock as lease: ...`; here both ends are timed.
        asked = time.perf_counter()
        lease = lock.acquire()
        # validity = ttl - elapsed - drift, where elapsed is the duration of the attempt that won.
        attempt = lease.ttl - DRIFT - lease.validity
        acquired = time.perf_counter()
        try:
            self._add(lease)
        finally:
            done = time.perf_counter()
            lease.release()
        times = (acquired - asked, attempt, time.perf_counter() - done)
        return {"times": times, "votes": kinds(lease.votes)}

    def _add(self, lease: Lease | None) -> None:
        """Run the critical section: read, pause briefly, write."""
        self._log.write("begin")
        value = self._counter.read()
        time.sleep(random.uniform(*INSIDE))
        if lease is not None and not lease.held:
            self._log.write("left")
            lease.ensure()  # raises
        self._counter.write(value + 1)
        self._log.write("end")


def kinds(votes: tuple[NodeVote, ...]) -> list[int]:
    """Return the kind of each vote; it is no fault of a node that the verdict fell without it."""
    return [
        NOT_WAITED_FOR if vote.code is VoteCode.NOT_AWAITED else _KINDS[vote.vote] for vote in votes
    ]


def receive(seconds: float | None) -> bytes | None:
    """Return the parent's input within this time: a line to start, b"" to stop, or None."""
    ready, _, _ = select.select([STDIN], [], [], seconds)
    return os.read(STDIN, 100) if ready else None


def send(what: object) -> None:
    """Send a line to the parent, which may be gone."""
    with suppress(BrokenPipeError):
        os.write(STDOUT, json.dumps(what).encode() + b"\n")


def main(number: str, folder: str, *urls: str) -> None:
    """Work with the nodes at these URLs, or without a lock if there are none."""
    if not urls:
        start(DemoWorker(int(number), folder, None))
        return
    with Redlock(
        urls, ttl=TTL, max_ttl=TTL, outage_timeout=OUTAGE_TIMEOUT, retry_delay=RETRY_DELAY
    ) as redlock:
        redlock.inspect("counter")  # connects, so that the first turn is like any other
        lock = redlock.lock("counter", ttl=TTL, timeout=TIMEOUT)
        start(DemoWorker(int(number), folder, lock))


def start(worker: DemoWorker) -> None:
    """Report that this worker is ready, wait for the start, then work."""
    with closing(worker):
        send("ready")
        if receive(None):
            worker.work()


if __name__ == "__main__":
    main(*sys.argv[1:])
