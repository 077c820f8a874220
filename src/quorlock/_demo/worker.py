"""One worker process: adds to the counter, each addition under the lock.

`workers` starts it. Its standard input controls it: a line starts it, and the end of the stream
stops it, whether the parent closed the pipe or died. It reports its turns on its standard output,
as lines of JSON.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from quorlock import AcquireError, Lease, LeaseLost, Lock, NodeError, Redlock, VoteCode
from quorlock._demo.checker import Log
from quorlock._demo.counter import Counter
from quorlock._demo.scenario import TTL

if TYPE_CHECKING:
    from quorlock import NodeVote

STDIN, STDOUT = 0, 1
REPORT_EVERY = 0.1  # seconds

# The clients poll. An addition takes a millisecond or two, so the pause is short: else the lock
# would be idle most of the time. It is random, so that the same two do not collide repeatedly. For
# a lock that is held for seconds the default is better.
RETRY_DELAY = (0.005, 0.03)
TIMEOUT = 5.0
OUTAGE_TIMEOUT = 3.0
INSIDE = (0.0003, 0.001)  # between reading and writing the counter
# After a turn a worker sleeps for as long as the others pause. If it retried at once, it would
# nearly always find the lock free, and the others would find it held.
ELSEWHERE = RETRY_DELAY
DRIFT = TTL * 0.01 + 0.002

GRANTED, REFUSED, UNKNOWN, NOT_WAITED_FOR = range(4)
_KINDS = {"granted": GRANTED, "refused": REFUSED, "unknown": UNKNOWN}


@dataclass
class WorkerReport:
    """The turns since the last report.

    Attributes:
        turns: for each: seconds to acquire, of the attempt that won, to release.
        votes: for each node: granted, refused, unknown, not waited for.
        troubles: acquires that failed and leases that were lost, in words.
    """

    votes: list[list[int]]
    turns: list[tuple[float, float, float]] = field(
        default_factory=list[tuple[float, float, float]]
    )
    troubles: list[str] = field(default_factory=list[str])

    @classmethod
    def empty(cls, nodes: int) -> WorkerReport:
        """Return an empty report."""
        return cls([[0, 0, 0, 0] for _ in range(nodes)])

    def count(self, votes: tuple[NodeVote, ...]) -> None:
        """Add the votes of one attempt."""
        for node, vote in enumerate(votes):
            # The verdict fell without it; that is no fault of the node.
            unheard = vote.code is VoteCode.NOT_AWAITED
            self.votes[node][NOT_WAITED_FOR if unheard else _KINDS[vote.vote]] += 1


class DemoWorker:
    """The files, the lock and the turns of this process."""

    def __init__(self, number: int, folder: str, nodes: int, lock: Lock | None) -> None:
        self._log = Log(f"{folder}/log", number)
        self._counter = Counter(f"{folder}/counter")
        self._nodes = nodes
        self._lock = lock
        self._report = WorkerReport.empty(nodes)
        self._reported_at = 0.0

    def work(self) -> None:
        """Take turns until the parent stops it."""
        while receive(random.uniform(*ELSEWHERE)) is None:
            self._turn()
            if time.monotonic() - self._reported_at > REPORT_EVERY:
                self._report_turns()
        self._report_turns()

    def close(self) -> None:
        """Close its files."""
        self._log.close()
        self._counter.close()

    def _report_turns(self) -> None:
        send(asdict(self._report))
        self._report = WorkerReport.empty(self._nodes)
        self._reported_at = time.monotonic()

    def _turn(self) -> None:
        if self._lock is None:
            self._add(None)
            self._report.turns.append((0.0, 0.0, 0.0))
            return
        try:
            self._locked_turn(self._lock)
        except (AcquireError, NodeError) as error:
            self._report.count(error.votes)
            self._report.troubles.append(str(error))
        except LeaseLost as error:
            self._report.troubles.append(str(error))

    def _locked_turn(self, lock: Lock) -> None:
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
        released = time.perf_counter()
        self._report.turns.append((acquired - asked, attempt, released - done))
        self._report.count(lease.votes)

    def _add(self, lease: Lease | None) -> None:
        """Run the critical section: read, pause briefly, write."""
        self._log.begin()
        value = self._counter.read()
        time.sleep(random.uniform(*INSIDE))
        if lease is not None and not lease.held:
            self._log.left()
            lease.ensure()  # raises
        self._counter.write(value + 1)
        self._log.end()


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
        start(DemoWorker(int(number), folder, 0, None))
        return
    with Redlock(
        urls, ttl=TTL, max_ttl=TTL, outage_timeout=OUTAGE_TIMEOUT, retry_delay=RETRY_DELAY
    ) as redlock:
        redlock.inspect("counter")  # connects, so that the first turn is like any other
        lock = redlock.lock("counter", ttl=TTL, timeout=TIMEOUT)
        start(DemoWorker(int(number), folder, len(urls), lock))


def start(worker: DemoWorker) -> None:
    """Report that this worker is ready, wait for the start, then work."""
    with closing(worker):
        send("ready")
        if receive(None):
            worker.work()


if __name__ == "__main__":
    main(*sys.argv[1:])
