"""The costs of the measured part of a slice: CPU time, commands, and the use by others.

The child of a slice sends the words `begin` and `end`. Between them the parent counts the CPU time
of the clients and of the servers. The rest of the CPU time of the machine was used by others:
`foreign`, in cores. Without /proc these figures are None.

Between the words `count` and `counted` MONITOR lists the commands, in a separate part, because it
costs the servers time. INFO commandstats would also count the calls of scripts.
"""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.fleet import Fleet, Site

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from quorlock.testing.servers import Server

PROC = Path("/proc")
# A line of MONITOR: time, database and client, command. The calls of a script have `lua` as client.
_SENT = re.compile(rb'^\+[\d.]+ \[\d+ (?!lua\])[^]]+\] "(?!quit")', re.MULTILINE | re.IGNORECASE)
TIMEOUT = 5.0


@dataclass(frozen=True)
class Look:
    """Totals at one moment."""

    at: float  # seconds
    busy: float  # CPU seconds of the whole machine
    cpu_ns: dict[int, int]  # by pid: this process and all its descendants


def look() -> Look:
    """Return the totals of now."""
    pids = [os.getpid(), *descendants(os.getpid())]
    return Look(time.monotonic(), busy(), {pid: cpu_ns(pid) for pid in pids})


class Monitor:
    """A connection to each server that lists its commands, until `count()`."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._connections = [_monitored(server.path) for server in servers]

    def count(self) -> int:
        """Return how many commands clients have sent; close the connections."""
        return sum(len(_SENT.findall(_to_the_end(one))) for one in self._connections)


def _monitored(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(TIMEOUT)
    connection.connect(path)
    connection.sendall(b"MONITOR\r\n")
    accepted = connection.recv(len(b"+OK\r\n"), socket.MSG_WAITALL)
    assert accepted == b"+OK\r\n", accepted
    return connection


def _to_the_end(connection: socket.socket) -> bytes:
    with connection:
        connection.sendall(b"QUIT\r\n")
        return b"".join(iter(lambda: connection.recv(1 << 20), b""))


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process with all its threads; 0 if it has ended."""
    try:
        # The number of another process's CPU clock: clock_getcpuclockid() in C.
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


def busy() -> float:
    """Return the seconds that all processors together were busy; NaN without /proc."""
    try:
        words = (PROC / "stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return float("nan")
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
    ticks = [int(word) for word in words[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Return the processes that this one has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for path in PROC.glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.name))
    found: list[int] = []
    ahead = [pid]
    while ahead:
        ahead += (more := children.get(ahead.pop(), []))
        found += more
    return found


def costs(before: Look, after: Look, servers: set[int], cycles: int) -> dict[str, float | None]:
    """Return the costs per cycle, and the cores that other programs used."""
    spent = {pid: ns - before.cpu_ns.get(pid, 0) for pid, ns in after.cpu_ns.items()}
    of_servers = sum(ns for pid, ns in spent.items() if pid in servers)
    of_clients = sum(spent.values()) - of_servers - spent[os.getpid()]
    others = after.busy - before.busy - sum(spent.values()) / 1e9
    foreign = others / (after.at - before.at)

    def each(total: float) -> float | None:
        return total / cycles if cycles and PROC.exists() else None

    return {
        "cpu_us": each(of_clients / 1000),
        "server_cpu_us": each(of_servers / 1000),
        "foreign": max(0.0, foreign) if foreign == foreign else None,  # noqa: PLR0124 (NaN)
    }


class MeteredSite(Site):
    """Servers whose use is measured between the words `begin` and `end`; `hung` nodes stop first.

    The word `start` stops them, once all connections are open.
    """

    def __init__(self, fleet: Fleet, urls: list[str], hung: int) -> None:
        super().__init__(fleet, urls)
        self._hung = hung
        self._looks: list[Look] = []
        self._monitor: Monitor | None = None
        self._commands = 0

    def on_word(self, word: str) -> None:
        """Handle `start`, `begin`, `end`, `count` or `counted`."""
        if word == "start":
            for server in self.fleet.servers[: self._hung]:
                server.stop()
        elif word in {"begin", "end"}:
            self._looks.append(look())
        elif word == "count":
            self._monitor = Monitor(self.fleet.servers[self._hung :])
        elif word == "counted" and self._monitor is not None:
            self._commands = self._monitor.count()
        else:
            super().on_word(word)

    def after(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the costs of each cycle of the row."""
        if len(self._looks) < 2:  # noqa: PLR2004 (the child failed before the end)
            return {}
        servers = {server.pid for server in self.fleet.servers}
        found = costs(self._looks[0], self._looks[1], servers, row.get("cycles", 0))
        counted = row.get("counted_cycles", 0)
        return found | {"commands": self._commands / counted if counted else None}


@contextmanager
def metered_site(fleet: Fleet, nodes: int, *, hung: int = 0) -> Generator[Site]:
    """Yield the servers of the whole run, or separate ones if some will hang."""
    if not hung:
        fleet.clear()
        yield MeteredSite(fleet, fleet.urls(nodes), 0)
        return
    with Fleet(nodes) as own:
        yield MeteredSite(own, own.urls(), hung)
