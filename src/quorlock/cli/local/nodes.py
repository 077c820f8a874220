"""The local nodes of a user: one set for each user and machine, which all of his processes share.

Owns the folder in which they are, who may change the set at a moment, and what may be believed of
nodes that came up lately. Leaves one node's process to `server`, words to `command`.

The folder does not depend on how one logged in: XDG_RUNTIME_DIR is set for a shell and not for a
cron job, and goes with the last login while servers live on. Two sets would be two locks, each of
which only seems shared.

A node that was there before may have forgotten who holds what, so the restart guard keeps it out
for `max_ttl`. Nodes are said to be born empty, and vote at once, where nobody can hold anything:
when no note in the folder tells of nodes before them, or one of an earlier boot of this machine.
The note is written before the first node runs; `down` removes it when it has seen that nothing is
held.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from quorlock import Node
from quorlock.cli.exits import EX_CONFIG, EX_TEMPFAIL, EX_UNAVAILABLE, EX_USAGE, Failed
from quorlock.cli.local.server import LocalServer
from quorlock.testing.servers import ServersUnavailable, find_binary

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from quorlock.cli.local.server import Told

COUNT = 5
_PATH_BYTES_MAX = 103  # of a unix socket, on macOS; Linux has 107
_NOTE = "note.json"
_LATE = 1.0  # seconds for a server that was started to show itself
_SHOWN = 3  # resources, in a sentence


class Note(NamedTuple):
    """What the folder says of the nodes in it."""

    boot: str
    nodes: int


class Ended(NamedTuple):
    """What `down` did."""

    nodes: int
    sure: bool  # nothing can be held by what these nodes granted


def folder() -> Path:
    """Where the set is, if there is one. Raises Failed."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        place = Path(state).expanduser().absolute() / "quorlock" / _machine()
    except RuntimeError as error:
        raise Failed(EX_CONFIG, f"there is no home folder for local nodes: {error}") from error
    if len(os.fsencode(place / "00.sock")) > _PATH_BYTES_MAX:
        why = "too long for a unix socket; name a shorter one in XDG_STATE_HOME"
        raise Failed(EX_CONFIG, f"{place}: {why}")
    return place


def local_nodes() -> tuple[Node, ...]:
    """Them, all running: `--nodes local`. Raises Failed."""
    servers = present()
    if not servers or not all(server.pid for server in servers):
        servers = up(None)
    return tuple(Node(path=server.path) for server in servers)


def present() -> list[LocalServer]:
    """The nodes that were started, running or not. Raises Failed."""
    place = folder()
    note = _read(place)
    return [LocalServer(place, number) for number in range(note.nodes if note else 0)]


def up(count: int | None) -> list[LocalServer]:
    """All of them running: started, restarted or left alone. Raises Failed."""
    with _changing(folder()) as place:
        note = _read(place)
        if note and count and note.nodes != count:
            why = f"there are {note.nodes} local nodes; run `quorlock local down` first"
            raise Failed(EX_USAGE, why)
        number = note.nodes if note else count or COUNT
        servers = [LocalServer(place, index) for index in range(number)]
        try:
            if note is None:
                _start_first(place, servers)
            else:
                _start_again(servers)
        except (ServersUnavailable, OSError) as error:
            raise Failed(EX_UNAVAILABLE, str(error)) from error
    return servers


def down(*, force: bool) -> Ended:
    """End them. What is held is in the way, unless by force. Raises Failed."""
    place = folder()
    if not place.exists():
        return Ended(0, sure=True)
    with _changing(place):
        servers = present()
        told = _close(servers)
        held = sorted({resource for one in told for resource in one.held})
        if held and not force:
            _open(servers)
            raise Failed(EX_TEMPFAIL, f"{_named(held)}; --force ends the nodes all the same")
        # A lease is on a quorum, and each quorum has one of so many nodes that forgot nothing.
        knowing = sum(one.born_empty for one in told)
        sure = not held and knowing >= len(servers) - len(servers) // 2
        _end(place, servers, sure=sure)
    return Ended(len(servers), sure=sure or not servers)


def _start_first(place: Path, servers: list[LocalServer]) -> None:
    binary = find_binary()
    for left in place.iterdir():  # by an earlier boot
        left.unlink()
    try:
        _write(place, Note(_boot(), len(servers)))
        _start(servers, binary)
        for server in servers:
            server.say_born_empty()
    except BaseException:
        for server in servers:
            with suppress(ServersUnavailable):  # one that does not listen yet would be missed
                server.await_started(_LATE)
        _end(place, servers, sure=True)  # nobody was told of them yet
        raise


def _start_again(servers: list[LocalServer]) -> None:
    dead = [server for server in servers if not server.pid]
    _open([server for server in servers if server not in dead])  # a `down` may have been cut off
    _start(dead, find_binary() if dead else "")


def _start(servers: list[LocalServer], binary: str) -> None:
    # All processes first, then the waiting: they boot beside one another.
    for server in servers:
        server.spawn(binary)
    for server in servers:
        server.await_ready()


def _close(servers: Iterable[LocalServer]) -> list[Told]:
    """Let nobody acquire, then look: what is not held now will not be."""
    told: list[Told] = []
    for server in servers:
        with suppress(OSError):  # dead, or stopped: it tells nothing
            server.close()
            if said := server.told():
                told.append(said)
    return told


def _open(servers: Iterable[LocalServer]) -> None:
    for server in servers:
        with suppress(OSError):
            server.open()


def _end(place: Path, servers: list[LocalServer], *, sure: bool) -> None:
    try:
        for server in servers:
            server.end()
    except OSError as error:
        raise Failed(EX_UNAVAILABLE, str(error)) from error
    for left in place.iterdir():
        if sure or left.name != _NOTE:
            left.unlink()


def _named(held: list[str]) -> str:
    shown = ", ".join(map(repr, held[:_SHOWN]))
    more = f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
    return f"held: {shown}{more}"


@contextmanager
def _changing(place: Path) -> Generator[Path]:
    """The folder, for us alone: others wait. An empty one is removed at the end."""
    try:
        descriptor = _locked(place)
    except OSError as error:
        why = f"{place}: {error.strerror}; name another folder in XDG_STATE_HOME"
        raise Failed(EX_CONFIG, why) from error
    try:
        yield place
    finally:
        with suppress(OSError):  # it is not empty
            place.rmdir()
        os.close(descriptor)


def _locked(place: Path) -> int:
    while True:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            found = os.fstat(descriptor)
            _require_ours(place, found)
            if found.st_nlink:  # else whom we waited for has removed it
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _require_ours(place: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        why = "this folder must be yours, and closed to others (mode 700)"
        raise Failed(EX_CONFIG, f"{place}: {why}")


def _read(place: Path) -> Note | None:
    """What it says of nodes since this boot: those before it are gone, and so is who held them."""
    try:
        said = json.loads((place / _NOTE).read_text())
    except (FileNotFoundError, ValueError):  # it is cut short where the machine went down then
        return None
    except OSError as error:
        raise Failed(EX_CONFIG, f"{place}: {error.strerror}") from error
    return Note(said["boot"], said["nodes"]) if said["boot"] == _boot() else None


def _write(place: Path, note: Note) -> None:
    new = place / "note.new"
    new.write_text(json.dumps(note._asdict()))
    new.rename(place / _NOTE)


def _machine() -> str:
    """A name for this machine, for homes that machines share: not its host name, which changes."""
    try:
        told = Path("/etc/machine-id").read_bytes()
    except OSError:
        return "local"
    return hashlib.sha256(b"quorlock" + told).hexdigest()[:8]  # machine-id(5) asks for a hash


def _boot() -> str:
    """A name for the time since this machine was started."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    command = ["sysctl", "-n", "kern.bootsessionuuid"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
