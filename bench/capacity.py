"""Measure the cost of a lock in the client, on the network and on the nodes.

    python -m bench.capacity                              two or three minutes
    python -m bench.capacity --rounds 2 --cycles 100      a quick run

Prints the tables of docs/explanation/performance.md. `python -m bench` compares quorlock with
other libraries.

The figures are CPU times and counts, not latencies, because client and nodes share the machine. All
kinds of work take turns for several rounds. Ratios are taken within a round and shown as median
with the smallest and the largest. Shares are of all rounds together, because the kernel samples
user and system time only a few hundred times a second. The client's cost per node is measured as
in bench/guard.py: canned nodes, the fastest pieces. Counts (instructions, system calls, bytes,
memory) are the same every time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import inspect
import json
import resource
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from statistics import fmean, linear_regression, median
from typing import TYPE_CHECKING, Any, Self

import quorlock
import quorlock.asyncio as aio
from bench import guard
from bench.canned import Canned
from bench.child import ROOT
from bench.fleet import Fleet
from bench.limit import GRANTED, RELEASED, TOKEN, All, WrongAnswer, connect, pair, saturate, words
from quorlock import Node, Tls

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from types import FrameType

    from quorlock.testing.servers import Server

NODES = (1, 3, 5, 7, 9)
USUAL = 5
TASKS = 100
TTL = 10.0
NODE_TIMEOUT = 2.0  # on a busy machine and with the tracer a reply may take long
WARM_UP = 100  # cycles
SWEEPS = 10  # per round, of the fastest pieces
TRACED = 5  # calls, of which the median is taken: asyncio cleans up timers at varying times
SMALL = 80  # instructions per cycle; smaller modules are shown together
US_PER_S = 1e6

KEY = "invoice:42"
VERBS = 200  # calls of each, to count their bytes
KEY_BYTES = (16, 64, 256)  # lengths of the keys that fill a node's memory
CONNECTIONS = 50
COMMANDS = 2  # to each node: acquire, release

Table = list[list[str]]
Counts = defaultdict[str, float]


# --- kinds of work ---------------------------------------------------------------------------


class BothApis:
    """Both APIs of quorlock on the same nodes. A context manager; `ways` run cycles."""

    def __init__(self, nodes: Sequence[str | Node]) -> None:
        settings: dict[str, Any] = {"ttl": TTL, "node_timeout": NODE_TIMEOUT, "owner": None}
        self.redlock = quorlock.Redlock(nodes, **settings)
        self._asyncio = aio.Redlock(nodes, **settings)
        self._loop = asyncio.new_event_loop()
        self.ways: dict[str, Callable[[int], None]] = {
            "blocking": self._blocking,
            "asyncio, 1 task": lambda cycles: self._tasks(1, cycles),
            f"asyncio, {TASKS} tasks": lambda cycles: self._tasks(TASKS, cycles),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.redlock.close()
        self._loop.run_until_complete(self._asyncio.close())
        self._loop.close()

    def _blocking(self, cycles: int) -> None:
        for _ in range(cycles):
            self.redlock.lock(KEY, timeout=0).acquire().release()

    def _tasks(self, tasks: int, cycles: int) -> None:
        self._loop.run_until_complete(self._gather(tasks, cycles // tasks))

    async def _gather(self, tasks: int, cycles: int) -> None:
        await asyncio.gather(*(self._task(f"invoice:{task}", cycles) for task in range(tasks)))

    async def _task(self, resource: str, cycles: int) -> None:
        for _ in range(cycles):
            lease = await self._asyncio.lock(resource, timeout=0).acquire()
            await lease.release()


WAYS = ("blocking", "asyncio, 1 task", f"asyncio, {TASKS} tasks")
LIMIT = "limit"
CROWD = f"{CONNECTIONS} connections"
PIPELINES = {f"{count} cycles pipelined": count for count in (10, 100)}
MORE = {WAYS[-1]: 5}  # times as many cycles: they take that much less CPU
PIECES = {WAYS[-1]: TASKS}  # cycles in one piece of work


def limit_way(limit: All) -> Callable[[int], None]:
    """Return the work of bare sockets that wait for all nodes."""

    def cycles(count: int) -> None:
        for _ in range(count):
            limit.release(limit.acquire(KEY))

    return cycles


class Crowd:
    """Many connections to one node, each with one pending command, as from many processes."""

    def __init__(self, url: str) -> None:
        self._socks = [connect(url) for _ in range(CONNECTIONS)]
        self._pairs = [pair(f"crowd:{number}", TTL) for number in range(CONNECTIONS)]

    def work(self, cycles: int) -> None:
        """Run this number of cycles in total."""
        for _ in range(cycles // CONNECTIONS):
            for number, wanted in enumerate((GRANTED, RELEASED)):
                for sock, both in zip(self._socks, self._pairs, strict=True):
                    sock.send(both[number])
                for sock in self._socks:
                    if (answer := sock.recv(64)) != wanted:
                        raise WrongAnswer(repr(answer))

    def close(self) -> None:
        """Close the connections."""
        for sock in self._socks:
            sock.close()


# --- CPU time --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spent:
    """CPU time of a cycle in µs: that of the client and that of one node."""

    user: float
    system: float
    node: float = 0.0

    @property
    def client(self) -> float:
        """The user and system time of the client."""
        return self.user + self.system


def metered(work: Callable[[int], None], cycles: int, servers: Sequence[Server] = ()) -> Spent:
    """Measure the CPU time of a cycle, after a warm-up."""
    work(WARM_UP)
    node = -cpu_us(servers)
    own = resource.getrusage(resource.RUSAGE_SELF)
    work(cycles)
    now = resource.getrusage(resource.RUSAGE_SELF)
    node += cpu_us(servers)
    user, system = now.ru_utime - own.ru_utime, now.ru_stime - own.ru_stime
    return Spent(user * US_PER_S / cycles, system * US_PER_S / cycles, node / cycles)


def cpu_us(servers: Sequence[Server]) -> float:
    """Return the mean user and system time of these servers' processes since their start."""
    infos = [info_of(server, "cpu") for server in servers]
    both = [float(one["used_cpu_user"]) + float(one["used_cpu_sys"]) for one in infos]
    return US_PER_S * fmean(both) if both else 0.0


def info_of(server: Server, section: str) -> dict[str, str]:
    """Return a section of INFO."""
    text: str = server.execute("INFO", section).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


class Rounds:
    """The measurements of each round, by kind of work."""

    def __init__(self) -> None:
        self._found: defaultdict[str, list[Spent]] = defaultdict(list)

    def note(self, way: str, spent: Spent) -> None:
        """Add one measurement."""
        self._found[way].append(spent)

    def all(self, way: str, figure: str) -> list[float]:
        """Return one figure of all rounds."""
        return [getattr(spent, figure) for spent in self._found[way]]

    def ratio(self, one: str, other: str, figure: str) -> str:
        """Return the ratio of two kinds of work, round by round: median (smallest – largest)."""
        pairs = zip(self.all(one, figure), self.all(other, figure), strict=True)
        values = [a / b for a, b in pairs]
        return f"{median(values):.2f} ({min(values):.2f} – {max(values):.2f})"


def rounds_of_cpu(fleet: Fleet, rounds: int, cycles: int) -> Rounds:
    """Measure all kinds of work in turn."""
    fleet.clear()
    found, urls, servers = Rounds(), fleet.urls(USUAL), fleet.servers[:USUAL]
    with ExitStack() as stack:
        limit = stack.enter_context(closing(All(urls, TTL)))
        crowd = stack.enter_context(closing(Crowd(urls[0])))
        works = {LIMIT: limit_way(limit), **stack.enter_context(BothApis(urls)).ways}
        for number in range(rounds):
            say(f"CPU, round {number + 1} of {rounds}")
            for way, work in works.items():
                found.note(way, metered(work, cycles * MORE.get(way, 1), servers))
            found.note(CROWD, metered(crowd.work, cycles, servers[:1]))
            for way, in_flight in PIPELINES.items():
                found.note(way, _flooded(fleet, in_flight, cycles))
    return found


def _flooded(fleet: Fleet, in_flight: int, cycles: int) -> Spent:
    servers = fleet.servers[:USUAL]
    before = cpu_us(servers)
    done = saturate(fleet.urls(USUAL), cycles / 2000, in_flight, TTL)
    node = cpu_us(servers) - before
    return Spent(done["cpu_ns"] / 1000 / done["cycles"], 0.0, node / done["cycles"])


def table_of_shares(found: Rounds) -> Table:
    """Return the shares of client and nodes in the CPU time of a cycle."""
    rows = [[f"N = {USUAL}", "client, user", "client, kernel", "the nodes"]]
    for way in (LIMIT, *WAYS):
        user, system, node = (fmean(found.all(way, name)) for name in ("user", "system", "node"))
        parts = [user, system, node * USUAL]
        rows.append([way, *(f"{part / sum(parts):.0%}" for part in parts)])
    return rows


def table_of_commands(found: Rounds, executed: dict[str, float]) -> Table:
    """Return the CPU time of a node for each command."""
    rows = [["a node's CPU for a command", "µs", "× the last one"]]
    ways = (LIMIT, *WAYS, CROWD, *PIPELINES)
    for way in ways:
        us = median(found.all(way, "node")) / COMMANDS
        rows.append([way, f"{us:.1f}", found.ratio(way, ways[-1], "node")])
    rows += [[f"inside {name} alone", f"{us:.1f}", ""] for name, us in executed.items()]
    return rows


def executed(fleet: Fleet, cycles: int) -> dict[str, float]:
    """Return a node's own figures for a command, without reading, parsing and replying."""
    server = fleet.servers[0]
    server.execute("CONFIG", "RESETSTAT")
    saturate([server.tcp_url], cycles / 2000, max(PIPELINES.values()), TTL)
    stats = info_of(server, "commandstats")
    return {
        name: float(stats[f"cmdstat_{command}"].partition("usec_per_call=")[2].partition(",")[0])
        for name, command in (("SET", "set"), ("the release", "evalsha"))
    }


# --- counts: interpreter and kernel ----------------------------------------------------------


_HARNESS = frozenset({__file__, guard.__file__, str(Path(guard.__file__).with_name("canned.py"))})
_OURS = str(Path(quorlock.__file__).parent)
OTHERS = "standard library"
SYSTEM_CALLS = "system calls"
_SYSTEM_CALLS = frozenset({"send", "sendmsg", "recv", "recv_into", "poll"})


@contextmanager
def canned_works(
    fleet: Fleet, n: int
) -> Generator[tuple[Canned, dict[str, Callable[[int], None]]]]:
    """Yield all kinds of work on `n` canned nodes, which do not depend on the scheduler."""
    fleet.clear()  # also the shared settings of clients with another N
    canned = Canned([server.port for server in fleet.servers[:n]])
    with closing(canned), canned.in_place(), ExitStack() as stack:
        limit = stack.enter_context(closing(All(canned.urls, TTL)))
        works = {LIMIT: limit_way(limit), **stack.enter_context(BothApis(canned.urls)).ways}
        for work in works.values():
            work(WARM_UP)
        canned.replay = True
        yield canned, works
        canned.replay = False


def counted(fleet: Fleet) -> dict[tuple[str, int], Counts]:
    """Return instructions by module and system calls of one cycle, by kind of work and N."""
    found: dict[tuple[str, int], Counts] = {}
    for n in NODES:
        say(f"counts, N = {n}")
        with canned_works(fleet, n) as (_, works):
            for way in WAYS:
                cycles = PIECES.get(way, 1)
                calls = [by_module(partial(works[way], cycles)) for _ in range(TRACED)]
                found[way, n] = _middle(calls, cycles)
    return found


def cheapest(fleet: Fleet, sweeps: int) -> dict[tuple[str, int], float]:
    """Return the client's CPU time of a cycle in ns, by kind of work and N: the fastest pieces."""
    fastest = guard.Fastest()
    with ExitStack() as stack:
        everywhere = {n: stack.enter_context(canned_works(fleet, n)) for n in NODES}
        say("the client's CPU, all N")
        for _ in range(sweeps):
            for n, (canned, works) in everywhere.items():
                for way, work in works.items():
                    began = time.process_time_ns() - canned.spent_ns
                    work(PIECES.get(way, 1))
                    ended = time.process_time_ns() - canned.spent_ns
                    fastest.note(f"{way}:{n}", [ended - began])
    return {
        (way, n): fastest.ns(f"{way}:{n}") / PIECES.get(way, 1)
        for way in (LIMIT, *WAYS)
        for n in NODES
    }


def table_of_nodes(cheapest: dict[tuple[str, int], float]) -> Table:
    """Return the client's CPU time by the number of nodes."""
    ways = (LIMIT, *WAYS)
    rows = [["client's CPU × that of N = 1", *ways]]
    for n in NODES[1:]:
        ratios = [cheapest[way, n] / cheapest[way, 1] for way in ways]
        rows.append([f"N = {n}", *(f"{ratio:.2f}" for ratio in ratios)])
    return rows


def _middle(calls: list[Counter[str]], cycles: int) -> Counts:
    names = {name for call in calls for name in call}
    middle = {name: median(call[name] for call in calls) / cycles for name in names}
    return defaultdict(float, middle)


def by_module(work: Callable[[], object]) -> Counter[str]:
    """Count the Python instructions of each module in a call of `work`, and the system calls.

    The comments of `guard.traced` on Python 3.12 and on far ends apply here as well.
    """
    counts: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        del arg
        path = frame.f_code.co_filename
        if event == "opcode":
            counts[_module(path)] += 1
        elif event == "call":
            if path in _HARNESS:
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return trace

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        del frame
        if event == "c_call" and arg.__name__ in _SYSTEM_CALLS:
            whose: type[object] = type(arg.__self__)
            if whose.__module__ == "select" or (issubclass(whose, socket) and whose is not socket):
                counts[SYSTEM_CALLS] += 1

    frame = inspect.currentframe()
    assert frame is not None
    frame.f_trace_opcodes = True
    before = sys.gettrace(), sys.getprofile()
    gc.collect()
    gc.disable()  # the time and the work of a collection vary
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
        gc.enable()
    return counts


def _module(path: str) -> str:
    # The __new__ of a named tuple is compiled from a string.
    return path.removeprefix(_OURS)[1:] if path.startswith(_OURS) else OTHERS


def table_of_modules(counts: dict[tuple[str, int], Counts]) -> Table:
    """Return the fixed part and the part per node of each module, by linear regression over N."""
    ways = (WAYS[0], WAYS[-1])
    head = [(f"{way}: once", "for each node", f"in all, N = {USUAL}") for way in ways]
    rows = [["instructions a cycle", *head[0], *head[1]]]
    modules = {name for way in ways for name in counts[way, USUAL]} - {SYSTEM_CALLS}
    small = {name for name in modules if all(counts[way, USUAL][name] < SMALL for way in ways)}
    groups = {f"`{name}`" if name != OTHERS else name: {name} for name in modules - small}
    groups[f"{len(small)} other modules"] = small

    def cells(names: set[str]) -> list[str]:
        return [f"{value:.0f}" for way in ways for value in _line(counts, way, names)]

    def rank(group: str) -> tuple[bool, float]:
        return groups[group] is small, -sum(_line(counts, way, groups[group])[-1] for way in ways)

    in_order = sorted(groups, key=rank)
    return [*rows, *([name, *cells(groups[name])] for name in in_order), ["all", *cells(modules)]]


def table_of_system_calls(counts: dict[tuple[str, int], Counts]) -> Table:
    """Return the system calls of one cycle."""
    rows = [["system calls a cycle", *(f"N = {n}" for n in NODES)]]
    rows += [[way, *(f"{counts[way, n][SYSTEM_CALLS]:.2f}" for n in NODES)] for way in WAYS]
    return rows


def _line(
    counts: dict[tuple[str, int], Counts], way: str, names: Iterable[str]
) -> tuple[float, float, float]:
    """Return the instructions of modules: once, for each node, and in total with the usual N."""
    sums = {n: sum(counts[way, n][name] for name in names) for n in NODES}
    each, once = linear_regression(NODES, [sums[n] for n in NODES])
    return once, each, sums[USUAL]


# --- the wire and the memory -----------------------------------------------------------------


def table_of_verbs(fleet: Fleet) -> Table:
    """Return commands and bytes of each call, as counted by one node."""
    fleet.clear()
    server, rows = fleet.servers[0], [["a call", "commands", "bytes to a node", "bytes back"]]
    leases: list[quorlock.Lease] = []
    with BothApis(fleet.urls(1)) as apis:
        redlock = apis.redlock
        names = [f"inv:{number:06}" for number in range(VERBS)]  # of the length of KEY
        apis.ways["blocking"](WARM_UP)

        def acquire() -> None:
            leases.extend(redlock.lock(name, timeout=0).acquire() for name in names)

        def refused() -> None:
            assert all(redlock.lock(name).try_acquire() is None for name in names)

        def extend() -> None:
            for lease in leases:
                lease.extend()

        def release() -> None:
            assert all(lease.release() for lease in leases)

        for name, work in (
            ("acquire", acquire),
            ("acquire, refused", refused),
            ("extend", extend),
            ("release", release),
        ):
            rows.append([name, *map(str, _traffic(server, work))])
    return rows


def _traffic(server: Server, work: Callable[[], None]) -> list[int]:
    """Return commands, bytes in and bytes out per call, without those of the counting itself."""
    first, second = _counters(server), _counters(server)
    work()
    third = _counters(server)
    return [round((c - b - (b - a)) / VERBS) for a, b, c in zip(first, second, third, strict=True)]


def _counters(server: Server) -> list[int]:
    stats, calls = info_of(server, "stats"), info_of(server, "commandstats")
    count = sum(
        int(calls[f"cmdstat_{name}"].partition("calls=")[2].partition(",")[0])
        for name in ("set", "evalsha")
        if f"cmdstat_{name}" in calls
    )
    return [count, int(stats["total_net_input_bytes"]), int(stats["total_net_output_bytes"])]


def table_of_memory(server: Server, keys: int) -> Table:
    """Return the memory of held locks on a node."""
    rows = [[f"{keys:,} locks held", "bytes a lock, in all", "MEMORY USAGE of one"]]
    for length in KEY_BYTES:
        say(f"memory, keys of {length} bytes")
        server.execute("FLUSHALL", "SYNC")  # otherwise old keys are freed during the measurement
        before = int(info_of(server, "memory")["used_memory"])
        with closing(connect(server.tcp_url)) as sock:
            for start in range(0, keys, 1000):
                numbers = range(start, min(start + 1000, keys))
                block = [
                    words(b"SET", b"%0*d" % (length, number), TOKEN, b"PX", b"3600000")
                    for number in numbers
                ]
                sock.sendall(b"".join(block))
                missing = len(GRANTED) * len(numbers)
                while missing:
                    missing -= len(sock.recv(65536))
        used = int(info_of(server, "memory")["used_memory"]) - before
        one = server.execute("MEMORY", "USAGE", b"%0*d" % (length, 0))
        rows.append([f"keys of {length} bytes", f"{used / keys:.0f}", str(one)])
    server.flush()
    return rows


# --- TLS -------------------------------------------------------------------------------------


def table_of_tls(fleet: Fleet, rounds: int, cycles: int) -> Table:
    """Return the client's cost of TLS, through a front: the servers here have no TLS."""
    plain, tls = "plain", "TLS"
    fleet.clear()
    found = Rounds()
    ports = [server.port for server in fleet.servers[:USUAL]]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quorlock-tls-")))
        certificate = make_certificate(folder)
        fronts = {
            plain: stack.enter_context(front(ports, None)),
            tls: stack.enter_context(front(ports, certificate)),
        }
        trust = Tls(ca_certs=str(certificate))
        nodes = {
            kind: [Node("127.0.0.1", port, tls=trust if kind == tls else None) for port in ports]
            for kind, ports in fronts.items()
        }
        apis = {kind: stack.enter_context(BothApis(nodes[kind])) for kind in nodes}
        for number in range(rounds):
            say(f"TLS, round {number + 1} of {rounds}")
            for way in WAYS:
                for kind in nodes:
                    spent = metered(apis[kind].ways[way], cycles * MORE.get(way, 1))
                    found.note(f"{way}, {kind}", spent)
            for kind, of_kind in nodes.items():
                found.note(f"connecting, {kind}", _connecting(of_kind))
    rows = [[f"through a front, N = {USUAL}", "client's CPU, TLS × plain"]]
    for way in (*WAYS, "connecting"):
        ratio = found.ratio(f"{way}, {tls}", f"{way}, {plain}", "client")
        rows.append([way, ratio])
    return rows


def _connecting(nodes: Sequence[Node]) -> Spent:
    began = time.process_time_ns()
    with quorlock.Redlock(nodes, ttl=TTL, node_timeout=NODE_TIMEOUT) as redlock:
        redlock.lock(KEY).acquire().release()
    return Spent((time.process_time_ns() - began) / 1000, 0.0)


def make_certificate(folder: Path) -> Path:
    """Make a self-signed certificate for 127.0.0.1, with its key in the same file."""
    path = folder / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
    command += " -subj /CN=quorlock -addext subjectAltName=IP:127.0.0.1"
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    path.write_text(certificate.read_text() + key.read_text())
    return path


@contextmanager
def front(ports: Sequence[int], certificate: Path | None) -> Generator[list[int]]:
    """Run a process that forwards bytes to these ports, with TLS if it gets a certificate."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bench.capacity",
            "--front",
            json.dumps([*ports]),
            *([] if certificate is None else ["--certificate", str(certificate)]),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


async def be_front(ports: Sequence[int], certificate: str | None) -> None:
    """Run the front in the child process, until its stdin ends."""
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    servers = [
        await asyncio.start_server(_Front(port).serve, "127.0.0.1", 0, ssl=context)
        for port in ports
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.to_thread(sys.stdin.read)


class _Front:
    """The front of one node."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward in both directions until one ends."""
        node_reader, node_writer = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._carry(reader, node_writer), self._carry(node_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # the peer has closed the connection
        finally:
            writer.close()


# --- output ----------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print progress."""
    print(f"bench-capacity: {text}", file=sys.stderr, flush=True)


def markdown(rows: Table) -> str:
    """Return a table in Markdown."""
    head, *body = rows
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(rounds: int, cycles: int, keys: int) -> Generator[Table]:
    """Measure and yield all tables, in the order of docs/explanation/performance.md."""
    with Fleet(max(NODES)) as fleet:
        yield table_of_verbs(fleet)
        counts = counted(fleet)
        yield table_of_system_calls(counts)
        yield table_of_modules(counts)
        prices = cheapest(fleet, rounds * SWEEPS)
        yield table_of_nodes(prices)
        found = rounds_of_cpu(fleet, rounds, cycles)
        yield table_of_shares(found)
        yield table_of_commands(found, executed(fleet, cycles))
        if shutil.which("openssl"):
            yield table_of_tls(fleet, rounds, cycles)
        else:
            say("TLS skipped: no openssl to make a certificate")
        yield table_of_memory(fleet.servers[0], keys)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.capacity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="number of rounds [default: %(default)s]"
    )
    parser.add_argument(
        "--cycles",
        type=int,
        default=300,
        help="cycles of each kind of work in a round [default: %(default)s]",
    )
    parser.add_argument(
        "--keys",
        type=int,
        default=100_000,
        help="locks held at once on a node [default: %(default)s]",
    )
    parser.add_argument("--front", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--certificate", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.front is not None:
        asyncio.run(be_front(options.front, options.certificate))
        return 0
    if options.cycles < TASKS:
        parser.error(f"--cycles: at least {TASKS}, one for each task")
    for table in tables(options.rounds, options.cycles, options.keys):
        print(markdown(table), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
