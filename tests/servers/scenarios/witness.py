"""The common part of the contention scenarios: processes that take locks, faults, and a witness.

The witness needs no node: every process writes down when it held what, by a clock that all
processes of a machine share.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from quorlock import AcquireTimeout, Lease, LeaseLost, NodeError, QuorumUnreachable, Redlock, now
from quorlock.testing.servers import Server, Servers

PROCESSES, THREADS = 4, 3
PATIENCE = 5.0  # of an acquire
SETTINGS: dict[str, Any] = {"ttl": 1.0, "max_ttl": 1.0, "node_timeout": 0.05}
# A fault begins after this time without one, and lasts so long.
CALM, FAULT = (0.3, 0.6), (0.2, 1.0)


class Held(NamedTuple):
    """A time in which a thread held these resources: at most until the end of its validity."""

    begin: float
    end: float
    resources: tuple[str, ...]
    thread: str


class Seen(NamedTuple):
    """The times that the processes have written down, the faults, and the keys that are left."""

    held: list[Held]
    stops: int
    kills: int
    left: dict[str, list[bytes]]


# How one thread takes locks until an instant, on these nodes.
Take: TypeAlias = Callable[[Redlock, list[str], float], Iterator[Held]]


def observe(scenario: str, seconds: float, *, control: bool, faults: bool) -> Seen:
    """Run the processes of a scenario on five servers, and the faults."""
    with Servers(5) as servers, tempfile.TemporaryDirectory() as folder:
        module = f"tests.servers.scenarios.{scenario}"
        command = [sys.executable, "-m", module, "--worker", folder, "--seconds", str(seconds)]
        command += ["--control"] if control else []
        workers = [
            subprocess.Popen([*command, "--name", str(number), *servers.urls])
            for number in range(PROCESSES)
        ]
        stops = kills = 0
        if faults:
            stops, kills = inflict(servers, time.monotonic() + seconds)
        assert [worker.wait(seconds + 60) for worker in workers] == [0] * PROCESSES
        left = {server.path: keys for server in servers if (keys := left_on(server))}
        return Seen(read(Path(folder)), stops, kills, left)


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


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options that all scenarios have."""
    made = argparse.ArgumentParser()
    made.add_argument("urls", nargs="*")
    made.add_argument("--seconds", type=float, default=60.0)
    made.add_argument("--control", action="store_true")
    made.add_argument("--worker", type=Path)
    made.add_argument("--name", default="")
    return made


# --- a process ------------------------------------------------------------------------------------


def work(given: argparse.Namespace, take: Take) -> None:
    """Take locks in several threads, until the time is up."""
    with Redlock(given.urls, **SETTINGS) as redlock:
        threads = [
            threading.Thread(
                target=write_down,
                args=(
                    take(redlock, given.urls, now() + given.seconds),
                    given.worker / f"{given.name}.{number}",
                ),
            )
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def write_down(times: Iterator[Held], path: Path) -> None:
    """Write down when a lock was held."""
    with path.open("w") as file:
        for held in times:
            if held.begin < held.end:
                file.write(json.dumps(held._replace(thread=path.name)) + "\n")


def turns(acquire: Callable[[], tuple[Lease, tuple[str, ...]]], until: float) -> Iterator[Held]:
    """Acquire and release until the time is up; yield when the resources were held."""
    entropy = random.Random()
    while now() < until:
        try:
            lease, resources = acquire()
        except (AcquireTimeout, QuorumUnreachable, NodeError):
            continue
        begin, valid_until = now(), lease.valid_until
        time.sleep(entropy.uniform(0, 0.01))
        if entropy.random() < 0.1:
            with contextlib.suppress(LeaseLost):
                lease.extend()
                valid_until = max(valid_until, lease.valid_until)
        yield Held(begin, min(now(), valid_until), resources, "")
        with contextlib.suppress(NodeError):
            lease.release()
