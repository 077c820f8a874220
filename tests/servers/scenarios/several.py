"""Contention for sets of resources on five real nodes, of which one at a time is stopped or killed.

    python -m tests.servers.scenarios.several [--seconds 60] [--control]

Four processes with three threads each take one, two or three of five resources.  The witness needs
no node: every process writes down when it held which resources, by a clock that all processes of a
machine share, and no two such times of one resource may overlap.

With --control a lock on several resources is replaced by one on the first of them.  The witness
must report overlaps then.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from quorlock import AcquireTimeout, LeaseLost, NodeError, QuorumUnreachable, Redlock, now
from quorlock.testing.servers import Server, Servers

RESOURCES = tuple(f"r{number}" for number in range(5))
PROCESSES, THREADS = 4, 3
SETTINGS: dict[str, Any] = {"ttl": 1.0, "max_ttl": 1.0, "node_timeout": 0.05}
# A fault begins after this time without one, and lasts so long.
CALM, FAULT = (0.3, 0.6), (0.2, 1.0)


class Held(NamedTuple):
    """A time in which a thread held these resources: at most until the end of its validity."""

    begin: float
    end: float
    resources: tuple[str, ...]
    thread: str


class Report(NamedTuple):
    """The result of a run."""

    held: list[Held]
    overlaps: list[tuple[Held, Held]]
    stops: int
    kills: int
    left: dict[str, list[bytes]]

    def __str__(self) -> str:
        sizes = [sum(len(held.resources) == size for held in self.held) for size in (1, 2, 3)]
        return (
            f"{len(self.held):,} grants (of 1, 2, 3 resources: {sizes}), {len(self.overlaps)}"
            f" overlaps, {self.stops} stops, {self.kills} kills, {len(self.left)} nodes with keys"
        )


def run(seconds: float, *, control: bool = False, faults: bool = True) -> Report:
    """Run the processes and the faults; return what the witness has seen."""
    with Servers(5) as servers, tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "tests.servers.scenarios.several",
            "--worker",
            folder,
            "--seconds",
            str(seconds),
        ]
        command += ["--control"] if control else []
        workers = [
            subprocess.Popen([*command, "--name", str(number), *servers.urls])
            for number in range(PROCESSES)
        ]
        stops = kills = 0
        if faults:
            stops, kills = inflict(servers, time.monotonic() + seconds)
        assert [worker.wait(seconds + 60) for worker in workers] == [0] * PROCESSES
        held = read(Path(folder))
        left = {server.path: keys for server in servers if (keys := left_on(server))}
        return Report(held, overlapping(held), stops, kills, left)


def left_on(server: Server) -> list[bytes]:
    """Return the lock keys that are there after their ttl."""
    server.left_alone(5.0)
    time.sleep(SETTINGS["ttl"] / 5)
    return server.keys()


def inflict(servers: Servers, until: float) -> tuple[int, int]:
    """Stop or kill one node at a time; a killed one comes back empty."""
    entropy, counts = random.Random(), [0, 0]
    while time.monotonic() < until:
        time.sleep(entropy.uniform(*CALM))
        node, kills = entropy.choice(list(servers)), entropy.random() < 0.4
        counts[kills] += 1
        if kills:
            node.kill()
            time.sleep(entropy.uniform(*FAULT))
            node.restart()
            # It keeps out for max_ttl, and INFO's uptime has whole seconds.
            time.sleep(SETTINGS["max_ttl"] + 1.2)
        else:
            node.stop()
            time.sleep(entropy.uniform(*FAULT))
            node.cont()
    return counts[0], counts[1]


def read(folder: Path) -> list[Held]:
    """Return what all threads have written down."""
    held: list[Held] = []
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            begin, end, resources, thread = json.loads(line)
            held.append(Held(begin, end, tuple(resources), thread))
    return held


def overlapping(held: list[Held]) -> list[tuple[Held, Held]]:
    """Return the pairs of times in which two threads held one resource."""
    found: list[tuple[Held, Held]] = []
    for resource in RESOURCES:
        times = sorted([one for one in held if resource in one.resources])
        latest: Held | None = None
        for one in times:
            if latest is not None and one.begin < latest.end:
                found.append((latest, one))
            if latest is None or one.end > latest.end:
                latest = one
    return found


# --- a process ------------------------------------------------------------------------------------


def work(name: str, folder: Path, urls: list[str], seconds: float, *, control: bool) -> None:
    """Take sets of resources in one thread after the other's fashion, until the time is up."""
    with Redlock(urls, **SETTINGS) as redlock:
        threads = [
            threading.Thread(
                target=take_turns,
                args=(redlock, f"{name}.{number}", folder, now() + seconds),
                kwargs={"control": control},
            )
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def take_turns(redlock: Redlock, name: str, folder: Path, until: float, *, control: bool) -> None:
    """Take sets of resources until the time is up, and write down when they were held."""
    entropy = random.Random(name)
    with (folder / name).open("w") as file:
        while now() < until:
            names = entropy.sample(RESOURCES, entropy.choice((1, 2, 3)))
            lock = redlock.lock(*sorted(names)[: 1 if control else None], timeout=5.0)
            try:
                lease = lock.acquire()
            except (AcquireTimeout, QuorumUnreachable, NodeError):
                continue
            begin, valid_until = now(), lease.valid_until
            time.sleep(entropy.uniform(0, 0.01))
            if entropy.random() < 0.1:
                with contextlib.suppress(LeaseLost):
                    lease.extend()
                    valid_until = max(valid_until, lease.valid_until)
            held = Held(begin, min(now(), valid_until), tuple(names), name)
            with contextlib.suppress(NodeError):
                lease.release()
            if held.begin < held.end:
                file.write(json.dumps(held) + "\n")


def main() -> int:
    """Run as a program: the whole, or one process of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("urls", nargs="*")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--worker", type=Path)
    parser.add_argument("--name", default="")
    given = parser.parse_args()
    if given.worker:
        work(given.name, given.worker, given.urls, given.seconds, control=given.control)
        return 0
    report = run(given.seconds, control=given.control)
    print(report)
    for pair in itertools.islice(report.overlaps, 5):
        print(*pair, sep="\n  ")
    return bool(report.overlaps or report.left)


if __name__ == "__main__":
    sys.exit(main())
