"""The local nodes of a user: one set for each user and machine, shared by all processes.

This module owns the folder of the set, the lock on changes, and the guard against restarted nodes.
`server` owns one node's process.

The folder does not depend on the kind of login. XDG_RUNTIME_DIR is set in a shell but not in a cron
job, and is removed at the last logout while servers live on. With two sets there would be two locks
that only seem shared.

A restarted node may have forgotten a lock, so the restart guard keeps it out for `max_ttl`. Nodes
are marked as born empty, and vote at once, only if no lock can be held: no note in the folder
mentions earlier nodes, or the note is from an earlier boot. The note is written before the first
node runs. `down` removes it if it has seen that no lock is held.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from quorlock import Node
from quorlock._cli.exit_status import EX_CONFIG, EX_TEMPFAIL, EX_UNAVAILABLE, EX_USAGE, Failed
from quorlock._cli.local.server import LocalServer, ServerState
from quorlock.testing.servers import ServersUnavailable, find_binary

COUNT = 5
_PATH_BYTES_MAX = 103  # of a unix socket, on macOS; Linux has 107
_NOTE = "note.json"
_SHOWN = 3  # resources in a message


class Note(NamedTuple):
    """The content of the note in the folder."""

    boot: str
    nodes: int


class NodeEnded(NamedTuple):
    """The result of `down`."""

    nodes: int
    sure: bool  # no lock can be held on these nodes


def folder() -> Path:
    """Return the folder of the set, which may not exist. Raise Failed."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        home = Path(state).expanduser()
    except RuntimeError as error:
        raise Failed(EX_CONFIG, f"there is no home folder for local nodes: {error}") from error
    if not home.is_absolute():
        # Each working directory would have its own nodes: locks that only seem shared.
        why = "local nodes need an absolute path in HOME or XDG_STATE_HOME"
        raise Failed(EX_CONFIG, f"{str(home)!r}: {why}")
    if not str(home).isprintable():
        why = "no path of a node has such letters; name another folder in XDG_STATE_HOME"
        raise Failed(EX_CONFIG, f"{str(home)!r}: {why}")
    place = home / "quorlock" / _machine()
    if len(os.fsencode(place / "00.sock")) > _PATH_BYTES_MAX:
        why = "too long for a unix socket; name a shorter one in XDG_STATE_HOME"
        raise Failed(EX_CONFIG, f"{place}: {why}")
    return place


def local_nodes() -> tuple[Node, ...]:
    """Return the nodes for `--nodes local`, all of them running. Raise Failed."""
    servers = present()
    if not servers or not all(server.pid for server in servers):
        servers = up(None)
    return tuple(Node(path=server.path) for server in servers)


def present() -> list[LocalServer]:
    """Return the nodes that were started, running or not. Raise Failed."""
    place = folder()
    note = _read(place)
    return [LocalServer(place, number) for number in range(note.nodes if note else 0)]


def up(count: int | None) -> list[LocalServer]:
    """Start or restart the nodes that are not running. Raise Failed."""
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


def down(*, force: bool) -> NodeEnded:
    """Stop the nodes. Raise Failed if a lock is held, unless by force."""
    place = folder()
    if not place.exists():
        return NodeEnded(0, sure=True)
    with _changing(place):
        servers = present()
        try:
            states = _close(servers)
            held = sorted({resource for one in states for resource in one.held})
            if held and not force:
                raise Failed(EX_TEMPFAIL, f"{_named(held)}; --force ends the nodes all the same")
        except BaseException:
            _open(servers)
            raise
        # A lease needs a quorum, and each quorum contains one of this many nodes that forgot
        # nothing.
        remembering = sum(one.born_empty for one in states)
        sure = not held and remembering >= len(servers) - len(servers) // 2
        _end(place, servers, sure=sure)
    return NodeEnded(len(servers), sure=sure or not servers)


def _start_first(place: Path, servers: list[LocalServer]) -> None:
    binary = find_binary()
    for left in place.iterdir():  # of an earlier boot
        left.unlink()
    try:
        _write(place, Note(_boot(), len(servers)))
        _start(servers, binary)
        for server in servers:
            server.say_born_empty()
    except BaseException:
        _end(place, servers, sure=True)  # no caller knows these nodes yet
        raise


def _start_again(servers: list[LocalServer]) -> None:
    dead = [server for server in servers if not server.pid]
    # An earlier `down` may have been killed.
    _open([server for server in servers if server not in dead])
    _start(dead, find_binary() if dead else "")


def _start(servers: list[LocalServer], binary: str) -> None:
    # Start all processes before waiting, so that they boot concurrently.
    for server in servers:
        server.spawn(binary)
    for server in servers:
        server.await_ready()


def _close(servers: Iterable[LocalServer]) -> list[ServerState]:
    """Refuse new acquires, then list what is held: afterwards the list can only shrink."""
    states: list[ServerState] = []
    for server in servers:
        with suppress(OSError):  # dead or stopped: its keys are unknown
            server.close()
            if said := server.state():
                states.append(said)
    return states


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
    """Lock the folder against other processes, and remove it at the end if it is empty."""
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
            if found.st_nlink:  # else another process has removed it
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
    """Return the note if it is from this boot: the nodes and holders of an earlier one are gone."""
    try:
        said = json.loads((place / _NOTE).read_text())
    except (FileNotFoundError, ValueError):  # a crash of the machine may have truncated it
        return None
    except OSError as error:
        raise Failed(EX_CONFIG, f"{place}: {error.strerror}") from error
    return Note(said["boot"], said["nodes"]) if said["boot"] == _boot() else None


def _write(place: Path, note: Note) -> None:
    new = place / "note.new"
    new.write_text(json.dumps(note._asdict()))
    new.rename(place / _NOTE)


def _machine() -> str:
    """Return a name for this machine, because machines may share a home; host names change."""
    try:
        machine_id = Path("/etc/machine-id").read_bytes()
    except OSError:
        return "local"
    return hashlib.sha256(b"quorlock" + machine_id).hexdigest()[:8]  # machine-id(5) requires a hash


def _boot() -> str:
    """Return a name for the current boot of this machine."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    command = ["sysctl", "-n", "kern.bootsessionuuid"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
