"""One worker process: adds to the counter, each addition under the lock. `crew` starts it.

Its standard input is the thread it hangs by: a line says "go", its end says "stop", whether the
parent closed it or died. Its standard output tells the parent what it did, as lines of JSON.
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

from quorlock import AcquireError, Lease, LeaseLost, Lock, NodeError, Redlock
from quorlock.demo.counter import Counter
from quorlock.demo.scenario import TTL
from quorlock.demo.witness import Log

if TYPE_CHECKING:
    from quorlock import NodeVote

STDIN, STDOUT = 0, 1
REPORT_EVERY = 0.1  # seconds

# Until waiters are woken by the nodes they poll. An addition takes a millisecond or two, so the
# pause is short, or the lock would lie idle most of the time; and random, or the same two would
# meet again and again. A lock that is held for seconds does well with the default.
RETRY_DELAY = (0.005, 0.03)
TIMEOUT = 5.0
OUTAGE_TIMEOUT = 3.0
INSIDE = (0.0003, 0.001)  # between reading and writing the counter
# After a turn a worker does something else for as long as the others pause. If it came back at
# once it would find the lock free nearly always, and the others held.
ELSEWHERE = RETRY_DELAY
DRIFT = TTL * 0.01 + 0.002

GRANTED, REFUSED, UNKNOWN, NOT_WAITED_FOR = range(4)
_KINDS = {"granted": GRANTED, "refused": REFUSED, "unknown": UNKNOWN}


@dataclass
class Report:
    """What was done since the last report.

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
    def empty(cls, nodes: int) -> Report:
        """Nothing yet."""
        return cls([[0, 0, 0, 0] for _ in range(nodes)])

    def count(self, votes: tuple[NodeVote, ...]) -> None:
        """Add the votes of one attempt."""
        for node, vote in enumerate(votes):
            # The verdict fell without it; that says nothing against the node.
            unheard = vote.cause == "not waited for"
            self.votes[node][NOT_WAITED_FOR if unheard else _KINDS[vote.vote]] += 1


class Worker:
    """Its tools, and its turns."""

    def __init__(self, number: int, folder: str, nodes: int, lock: Lock | None) -> None:
        self._log = Log(f"{folder}/log", number)
        self._counter = Counter(f"{folder}/counter")
        self._nodes = nodes
        self._lock = lock
        self._report = Report.empty(nodes)
        self._reported_at = 0.0

    def work(self) -> None:
        """Turn after turn, until the parent says stop."""
        while heard(random.uniform(*ELSEWHERE)) is None:
            self._turn()
            if time.monotonic() - self._reported_at > REPORT_EVERY:
                self._tell()
        self._tell()

    def close(self) -> None:
        """Close its files."""
        self._log.close()
        self._counter.close()

    def _tell(self) -> None:
        say(asdict(self._report))
        self._report = Report.empty(self._nodes)
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
        # In a program of yours: `with lock as lease: ...`; here both ends are timed.
        asked = time.perf_counter()
        lease = lock.acquire()
        # validity = ttl - elapsed - drift, where elapsed is what the attempt that won has taken.
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
        """The critical section: read, a tiny pause, write."""
        self._log.begin()
        value = self._counter.read()
        time.sleep(random.uniform(*INSIDE))
        if lease is not None and not lease.held:
            self._log.left()
            lease.ensure()  # raises
        self._counter.write(value + 1)
        self._log.end()


def heard(seconds: float | None) -> bytes | None:
    """What the parent says within so many seconds: "go", "" for stop, or None, nothing."""
    ready, _, _ = select.select([STDIN], [], [], seconds)
    return os.read(STDIN, 100) if ready else None


def say(what: object) -> None:
    """One line to the parent, who may be gone."""
    with suppress(BrokenPipeError):
        os.write(STDOUT, json.dumps(what).encode() + b"\n")


def main(number: str, folder: str, *urls: str) -> None:
    """Work with the nodes at these URLs, or without a lock if there are none."""
    if not urls:
        start(Worker(int(number), folder, 0, None))
        return
    with Redlock(
        urls, ttl=TTL, max_ttl=TTL, outage_timeout=OUTAGE_TIMEOUT, retry_delay=RETRY_DELAY
    ) as redlock:
        redlock.inspect("counter")  # connects, so that the first turn is like any other
        lock = redlock.lock("counter", ttl=TTL, timeout=TIMEOUT)
        start(Worker(int(number), folder, len(urls), lock))


def start(worker: Worker) -> None:
    """Wait for the others, then work."""
    with closing(worker):
        say("ready")
        if heard(None):
            worker.work()


if __name__ == "__main__":
    main(*sys.argv[1:])
