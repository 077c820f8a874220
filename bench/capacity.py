"""Where the price of a lock is paid: in the client, on the wire, on the nodes. Prints the tables of
docs/performance.md, which says what follows from them. Leaves the race with others to `bench`.

    python -m bench.capacity                              two or three minutes
    python -m bench.capacity --rounds 2 --cycles 100      a glance

CPU time and counts only, no latency: the same machine runs client and nodes, and most likely more.
All kinds of work take turns, several rounds; ratios are taken within a round, and what is told is
their median with the smallest and the largest. Shares are of all rounds together: the kernel tells
user from system time by looking a few hundred times a second. What N costs the client is measured
as the guard does it (bench/guard.py): canned nodes, the cheapest pieces. Counts (instructions,
system calls, bytes, memory) are the same every time.
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
NODE_TIMEOUT = 2.0  # on a busy machine, and under the tracer, an answer may take long
WARM_UP = 100  # cycles
SWEEPS = 10  # a round, of the cheapest pieces
TRACED = 5  # calls, of which the median is taken: asyncio tidies up its timers when it likes
SMALL = 80  # instructions of a cycle: such modules are told together
US_PER_S = 1e6

KEY = "invoice:42"
VERBS = 200  # of each, to count their bytes
KEY_BYTES = (16, 64, 256)  # of the keys that fill a node's memory
CONNECTIONS = 50
COMMANDS = 2  # to each node: acquire, release

Table = list[list[str]]
Counts = defaultdict[str, float]


# --- who works -------------------------------------------------------------------------------


class Faces:
    """Both faces of quorlock on the same nodes. A context manager; each way does so many cycles."""

    def __init__(self, nodes: Sequence[str | Node]) -> None:
        settings: dict[str, Any] = {"ttl": TTL, "node_timeout": NODE_TIMEOUT}
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


FACES = ("blocking", "asyncio, 1 task", f"asyncio, {TASKS} tasks")
LIMIT = "limit"
CROWD = f"{CONNECTIONS} connections"
PIPELINES = {f"{count} cycles pipelined": count for count in (10, 100)}
MORE = {FACES[-1]: 5}  # times as many cycles: they take that much less CPU
PIECES = {FACES[-1]: TASKS}  # cycles in one piece of work


def limit_way(limit: All) -> Callable[[int], None]:
    """Bare sockets that wait for all nodes."""

    def cycles(count: int) -> None:
        for _ in range(count):
            limit.release(limit.acquire(KEY))

    return cycles


class Crowd:
    """Many connections to one node, each with one command on its way: as from many processes."""

    def __init__(self, url: str) -> None:
        self._socks = [connect(url) for _ in range(CONNECTIONS)]
        self._pairs = [pair(f"crowd:{number}", TTL) for number in range(CONNECTIONS)]

    def work(self, cycles: int) -> None:
        """So many in all."""
        for _ in range(cycles // CONNECTIONS):
            for number, wanted in enumerate((GRANTED, RELEASED)):
                for sock, both in zip(self._socks, self._pairs, strict=True):
                    sock.send(both[number])
                for sock in self._socks:
                    if (answer := sock.recv(64)) != wanted:
                        raise WrongAnswer(repr(answer))

    def close(self) -> None:
        """Close them."""
        for sock in self._socks:
            sock.close()


# --- CPU time --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spent:
    """CPU time of a cycle in µs: the client's own, and that of one node."""

    user: float
    system: float
    node: float = 0.0

    @property
    def client(self) -> float:
        """User and system."""
        return self.user + self.system


def metered(work: Callable[[int], None], cycles: int, servers: Sequence[Server] = ()) -> Spent:
    """What a cycle takes, after some to warm up."""
    work(WARM_UP)
    node = -cpu_us(servers)
    own = resource.getrusage(resource.RUSAGE_SELF)
    work(cycles)
    now = resource.getrusage(resource.RUSAGE_SELF)
    node += cpu_us(servers)
    user, system = now.ru_utime - own.ru_utime, now.ru_stime - own.ru_stime
    return Spent(user * US_PER_S / cycles, system * US_PER_S / cycles, node / cycles)


def cpu_us(servers: Sequence[Server]) -> float:
    """User and system time of these servers' processes since they began; their mean."""
    told = [told_by(server, "cpu") for server in servers]
    both = [float(one["used_cpu_user"]) + float(one["used_cpu_sys"]) for one in told]
    return US_PER_S * fmean(both) if both else 0.0


def told_by(server: Server, section: str) -> dict[str, str]:
    """A section of INFO."""
    text: str = server.execute("INFO", section).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


class Rounds:
    """What was found in each round, by kind of work."""

    def __init__(self) -> None:
        self._found: defaultdict[str, list[Spent]] = defaultdict(list)

    def note(self, way: str, spent: Spent) -> None:
        """One slice of it."""
        self._found[way].append(spent)

    def all(self, way: str, figure: str) -> list[float]:
        """One figure, round by round."""
        return [getattr(spent, figure) for spent in self._found[way]]

    def ratio(self, one: str, other: str, figure: str) -> str:
        """Of one kind of work to another, round by round: median (smallest – largest)."""
        pairs = zip(self.all(one, figure), self.all(other, figure), strict=True)
        values = [a / b for a, b in pairs]
        return f"{median(values):.2f} ({min(values):.2f} – {max(values):.2f})"


def rounds_of_cpu(fleet: Fleet, rounds: int, cycles: int) -> Rounds:
    """All ways to use so many nodes, in turn."""
    fleet.clear()
    found, urls, servers = Rounds(), fleet.urls(USUAL), fleet.servers[:USUAL]
    with ExitStack() as stack:
        limit = stack.enter_context(closing(All(urls, TTL)))
        crowd = stack.enter_context(closing(Crowd(urls[0])))
        works = {LIMIT: limit_way(limit), **stack.enter_context(Faces(urls)).ways}
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
    """Who spends the CPU time of a cycle."""
    rows = [[f"N = {USUAL}", "client, user", "client, kernel", "the nodes"]]
    for way in (LIMIT, *FACES):
        user, system, node = (fmean(found.all(way, name)) for name in ("user", "system", "node"))
        parts = [user, system, node * USUAL]
        rows.append([way, *(f"{part / sum(parts):.0%}" for part in parts)])
    return rows


def table_of_commands(found: Rounds, executed: dict[str, float]) -> Table:
    """CPU time of a node for each command that it gets."""
    rows = [["a node's CPU for a command", "µs", "× the last one"]]
    ways = (LIMIT, *FACES, CROWD, *PIPELINES)
    for way in ways:
        us = median(found.all(way, "node")) / COMMANDS
        rows.append([way, f"{us:.1f}", found.ratio(way, ways[-1], "node")])
    rows += [[f"inside {name} alone", f"{us:.1f}", ""] for name, us in executed.items()]
    return rows


def executed(fleet: Fleet, cycles: int) -> dict[str, float]:
    """What a node itself says that a command takes, without reading, parsing and answering."""
    server = fleet.servers[0]
    server.execute("CONFIG", "RESETSTAT")
    saturate([server.tcp_url], cycles / 2000, max(PIPELINES.values()), TTL)
    told = told_by(server, "commandstats")
    return {
        name: float(told[f"cmdstat_{command}"].partition("usec_per_call=")[2].partition(",")[0])
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
    """All ways on so many canned nodes, where nothing depends on the scheduler."""
    fleet.clear()  # also what clients of another N have agreed on there
    canned = Canned([server.port for server in fleet.servers[:n]])
    with closing(canned), canned.in_place(), ExitStack() as stack:
        limit = stack.enter_context(closing(All(canned.urls, TTL)))
        works = {LIMIT: limit_way(limit), **stack.enter_context(Faces(canned.urls)).ways}
        for work in works.values():
            work(WARM_UP)
        canned.replay = True
        yield canned, works
        canned.replay = False


def counted(fleet: Fleet) -> dict[tuple[str, int], Counts]:
    """Instructions by module, and system calls, of one cycle, by way and N."""
    found: dict[tuple[str, int], Counts] = {}
    for n in NODES:
        say(f"counts, N = {n}")
        with canned_works(fleet, n) as (_, works):
            for way in FACES:
                cycles = PIECES.get(way, 1)
                calls = [by_module(partial(works[way], cycles)) for _ in range(TRACED)]
                found[way, n] = _middle(calls, cycles)
    return found


def cheapest(fleet: Fleet, sweeps: int) -> dict[tuple[str, int], float]:
    """The client's CPU time of a cycle in ns, by way and N: the cheapest pieces of so many."""
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
        for way in (LIMIT, *FACES)
        for n in NODES
    }


def table_of_nodes(cheapest: dict[tuple[str, int], float]) -> Table:
    """What another node costs the client."""
    ways = (LIMIT, *FACES)
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
    """How many instructions of Python each module executes in a call of it, and its system calls.

    As `guard.traced` does it: what is said there of Python 3.12 and of far ends holds here as well.
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
    gc.disable()  # whom it finalizes, and when, is not ours to count
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
    # A named tuple's own __new__ is compiled from a string.
    return path.removeprefix(_OURS)[1:] if path.startswith(_OURS) else OTHERS


def table_of_modules(counts: dict[tuple[str, int], Counts]) -> Table:
    """Fixed part and part per node, from straight lines through all N."""
    ways = (FACES[0], FACES[-1])
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
    """Of one cycle."""
    rows = [["system calls a cycle", *(f"N = {n}" for n in NODES)]]
    rows += [[way, *(f"{counts[way, n][SYSTEM_CALLS]:.2f}" for n in NODES)] for way in FACES]
    return rows


def _line(
    counts: dict[tuple[str, int], Counts], way: str, names: Iterable[str]
) -> tuple[float, float, float]:
    """What these modules take once, for each node, and in all with the usual N."""
    sums = {n: sum(counts[way, n][name] for name in names) for n in NODES}
    each, once = linear_regression(NODES, [sums[n] for n in NODES])
    return once, each, sums[USUAL]


# --- the wire and the memory -----------------------------------------------------------------


def table_of_verbs(fleet: Fleet) -> Table:
    """Commands and bytes, as one node counts them."""
    fleet.clear()
    server, rows = fleet.servers[0], [["a call", "commands", "bytes to a node", "bytes back"]]
    leases: list[quorlock.Lease] = []
    with Faces(fleet.urls(1)) as faces:
        redlock = faces.redlock
        names = [f"inv:{number:06}" for number in range(VERBS)]  # as long as KEY
        faces.ways["blocking"](WARM_UP)

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
    """Commands, bytes in, bytes out, for each of VERBS; what our asking adds is subtracted."""
    first, second = _counters(server), _counters(server)
    work()
    third = _counters(server)
    return [round((c - b - (b - a)) / VERBS) for a, b, c in zip(first, second, third, strict=True)]


def _counters(server: Server) -> list[int]:
    told, calls = told_by(server, "stats"), told_by(server, "commandstats")
    count = sum(
        int(calls[f"cmdstat_{name}"].partition("calls=")[2].partition(",")[0])
        for name in ("set", "evalsha")
        if f"cmdstat_{name}" in calls
    )
    return [count, int(told["total_net_input_bytes"]), int(told["total_net_output_bytes"])]


def table_of_memory(server: Server, keys: int) -> Table:
    """What held locks take on a node."""
    rows = [[f"{keys:,} locks held", "bytes a lock, in all", "MEMORY USAGE of one"]]
    for length in KEY_BYTES:
        say(f"memory, keys of {length} bytes")
        server.execute("FLUSHALL", "SYNC")  # else what was there is freed while we measure
        before = int(told_by(server, "memory")["used_memory"])
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
        used = int(told_by(server, "memory")["used_memory"]) - before
        one = server.execute("MEMORY", "USAGE", b"%0*d" % (length, 0))
        rows.append([f"keys of {length} bytes", f"{used / keys:.0f}", str(one)])
    server.flush()
    return rows


# --- TLS -------------------------------------------------------------------------------------


def table_of_tls(fleet: Fleet, rounds: int, cycles: int) -> Table:
    """The client's side alone, through a front that does TLS or not: the servers have none here."""
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
        faces = {kind: stack.enter_context(Faces(nodes[kind])) for kind in nodes}
        for number in range(rounds):
            say(f"TLS, round {number + 1} of {rounds}")
            for way in FACES:
                for kind in nodes:
                    spent = metered(faces[kind].ways[way], cycles * MORE.get(way, 1))
                    found.note(f"{way}, {kind}", spent)
            for kind, of_kind in nodes.items():
                found.note(f"connecting, {kind}", _connecting(of_kind))
    rows = [[f"through a front, N = {USUAL}", "client's CPU, TLS × plain"]]
    for way in (*FACES, "connecting"):
        ratio = found.ratio(f"{way}, {tls}", f"{way}, {plain}", "client")
        rows.append([way, ratio])
    return rows


def _connecting(nodes: Sequence[Node]) -> Spent:
    began = time.process_time_ns()
    with quorlock.Redlock(nodes, ttl=TTL, node_timeout=NODE_TIMEOUT) as redlock:
        redlock.lock(KEY).acquire().release()
    return Spent((time.process_time_ns() - began) / 1000, 0.0)


def make_certificate(folder: Path) -> Path:
    """For 127.0.0.1, signed by itself, its key in the same file."""
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
    """A process that passes bytes on to these ports; with a certificate, TLS on its near side."""
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
    """The process itself; ends with its stdin."""
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
    """One node's."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both ways, until one ends."""
        node_reader, node_writer = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._carry(reader, node_writer), self._carry(node_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # it has hung up; so do we
        finally:
            writer.close()


# --- telling ---------------------------------------------------------------------------------


def say(text: str) -> None:
    """Progress."""
    print(f"bench-capacity: {text}", file=sys.stderr, flush=True)


def markdown(rows: Table) -> str:
    """A table."""
    head, *body = rows
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(rounds: int, cycles: int, keys: int) -> Generator[Table]:
    """All that is measured, in the order of docs/performance.md."""
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
            say("TLS skipped: there is no openssl to make a certificate with")
        yield table_of_memory(fleet.servers[0], keys)


def main(arguments: list[str] | None = None) -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.capacity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=15, help="of all kinds of work")
    parser.add_argument("--cycles", type=int, default=300, help="of each kind in a round")
    parser.add_argument("--keys", type=int, default=100_000, help="held at once on a node")
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
