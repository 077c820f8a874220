"""Readers and writers on five real nodes, of which one at a time is stopped or killed.

    python -m tests.servers.scenarios.shared [--seconds 60] [--control | --fair]

Four processes with three threads each: three in four acquires share the lock.  The witness needs no
node: every process writes down when it held the lock and how, by a clock that all processes of a
machine share.  No time of a writer may overlap any other.

With --control each node counts its readers, and a refused attempt is released on all nodes.  The
witness must find a writer beside a reader then, without any fault.

With --fair there are no faults: ten readers and two writers ask again at once, in two processes.
It prints how often each side got the lock, and the longest waits.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import redis

from quorlock import Redlock, now
from quorlock.testing.servers import Servers
from tests.servers.scenarios.witness import PATIENCE, Held, observe, parser, turns, work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock import Lease

READER, WRITER = ("reader",), ("writer",)
# The control: what a node does that counts its readers.
COUNTED = """
if ARGV[1] == 'share' then
  return redis.call('GET', 'writer') and 0 or redis.call('INCR', 'readers')
elseif ARGV[1] == 'unshare' then
  local count = tonumber(redis.call('GET', 'readers') or '0')
  return count > 0 and redis.call('DECR', 'readers')
elseif ARGV[1] == 'release' then
  return redis.call('GET', 'writer') == ARGV[2] and redis.call('DEL', 'writer')
end
if tonumber(redis.call('GET', 'readers') or '0') > 0 then
  return 0
end
return redis.call('SET', 'writer', ARGV[2], 'NX') and 1 or 0
"""


class Report(NamedTuple):
    """The result of a run."""

    reads: int
    writes: int
    most: int  # how many readers held it at the same time
    clashes: int  # how often a writer held it beside another
    stops: int
    kills: int
    left: dict[str, list[bytes]]

    def __str__(self) -> str:
        return (
            f"{self.reads:,} reads, {self.writes:,} writes, at most {self.most} readers at once,"
            f" {self.clashes} clashes, {self.stops} stops, {self.kills} kills,"
            f" {len(self.left)} nodes with keys"
        )


def run(seconds: float, *, control: bool = False, faults: bool = True) -> Report:
    """Run the processes and the faults; return what the witness has seen."""
    seen = observe("shared", seconds, control=control, faults=faults)
    return witness(seen.held)._replace(stops=seen.stops, kills=seen.kills, left=seen.left)


def witness(held: list[Held]) -> Report:
    """Return how many readers held it at once, and how often a writer was beside another."""
    most = clashes = 0
    inside: list[Held] = []
    for one in sorted(held):
        inside = [other for other in inside if one.begin < other.end]
        clashes += any(WRITER in (one.resources, other.resources) for other in inside)
        inside.append(one)
        most = max(most, sum(other.resources == READER for other in inside))
    reads = sum(one.resources == READER for one in held)
    return Report(reads, len(held) - reads, most, clashes, 0, 0, {})


# --- a process ------------------------------------------------------------------------------------


def share(redlock: Redlock, _: list[str], until: float) -> Iterator[Held]:
    """Read, and sometimes write, until the time is up; yield when the lock was held."""

    def acquire() -> tuple[Lease, tuple[str, ...]]:
        shared = random.random() < 0.75
        lease = redlock.lock("doc", shared=shared, timeout=PATIENCE).acquire()
        return lease, READER if lease.shared else WRITER

    return turns(acquire, until)


def count_readers(_: Redlock, urls: list[str], until: float) -> Iterator[Held]:
    """Read and write on nodes that count their readers; without faults, every node replies."""
    entropy = random.Random()
    clients = [redis.Redis.from_url(url) for url in urls]
    scripts = [client.register_script(COUNTED) for client in clients]
    while now() < until:
        reads, token = entropy.random() < 0.3, f"{entropy.random()}"
        nodes = entropy.sample(range(len(urls)), len(urls))
        verb = "share" if reads else "acquire"
        granted = sum(bool(scripts[node](args=[verb, token])) for node in nodes)
        begin = now()
        if granted > len(urls) // 2:
            time.sleep(entropy.uniform(0, 0.01))
            yield Held(begin, now(), READER if reads else WRITER, "")
        for script in scripts:
            script(args=["unshare" if reads else "release", token])
        time.sleep(entropy.uniform(0, 0.02))


# --- fairness -------------------------------------------------------------------------------------


def compete(name: str, folder: Path, urls: list[str], seconds: float) -> None:
    """Run five readers and a writer in one process, which ask again at once; write down waits."""
    with Redlock(urls, node_timeout=0.2) as redlock:

        def ask(number: int) -> None:
            shared = number > 0
            until, waits = now() + seconds, list[float]()
            while now() < until:
                began = now()
                with redlock.lock("doc", shared=shared):
                    waits.append(now() - began)
                    time.sleep(0.002)
            kind = "reads" if shared else "writes"
            (folder / f"{name}.{number}").write_text(json.dumps([kind, waits]))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def fairness(seconds: float) -> str:
    """Return how often each side got the lock, and how long it waited."""
    with Servers(5) as servers, tempfile.TemporaryDirectory() as folder:
        module = "tests.servers.scenarios.shared"
        command = [sys.executable, "-m", module, "--worker", folder, "--seconds", str(seconds)]
        workers = [
            subprocess.Popen([*command, "--fair", "--name", str(number), *servers.urls])
            for number in range(2)
        ]
        assert [worker.wait(seconds + 60) for worker in workers] == [0, 0]
        waits: dict[str, list[float]] = {"reads": [], "writes": []}
        for path in Path(folder).iterdir():
            kind, found = json.loads(path.read_text())
            waits[kind] += found
    lines: list[str] = []
    for kind, found in waits.items():
        ordered = sorted(found)
        p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
        lines.append(
            f"{kind}: {len(ordered) / seconds:,.0f} a second, waits p50 {p50 * 1e3:.1f} ms,"
            f" p99 {p99 * 1e3:.1f} ms, longest {ordered[-1] * 1e3:.0f} ms"
        )
    return "\n".join(lines)


def main() -> int:
    """Run as a program: the whole, or one process of it."""
    options = parser()
    options.add_argument("--fair", action="store_true")
    given = options.parse_args()
    if given.worker and given.fair:
        compete(given.name, given.worker, given.urls, given.seconds)
    elif given.worker:
        work(given, count_readers if given.control else share)
    elif given.fair:
        print(fairness(given.seconds))
    else:
        report = run(given.seconds, control=given.control, faults=not given.control)
        print(report)
        return bool(report.clashes or report.left)
    return 0


if __name__ == "__main__":
    sys.exit(main())
