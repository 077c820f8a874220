"""Nodes in the memory of this process, for tests without a server: the `memory://` addresses.

    redlock = Redlock(["memory://a", "memory://b", "memory://c"])     # blocking or asyncio
    node("a").stop()                                                  # inject a fault

This module owns the names, the connections and the one thread that serves them; `fake_commands` and
`fake_node` execute the commands as a real server does.  A connection is a pair of sockets, so that
bytes take the same path through quorlock as with a server; the thread ends when the last of them is
closed.

A node belongs to the process that created it: all Redlocks there that name it share it, other
processes cannot see it, and a forked child gets `Elsewhere`.  Its clock starts at the machine's
wall clock, in ms, and advances with the clock of the leases (`quorlock.now`): when the wall clock
is set, no key expires early or late.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import select
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, cast, overload

import hiredis

import quorlock
from quorlock.testing.fake_commands import ClientSession, Text
from quorlock.testing.fake_node import Entry, Error, FakeNode, Status, is_side_key

if TYPE_CHECKING:
    from types import TracebackType

    from quorlock.testing.fake_node import Reply

__all__ = ["Elsewhere", "MemoryNode", "MemoryNodes", "node", "reset"]

_BORN_EMPTY = b"quorlock:born-empty"
_MORE = object()  # hiredis' sign that a request is not complete yet
_RECEIVE_BYTES = 65_536
_JOIN_TIMEOUT = 1.0  # seconds; it takes less than one millisecond
_NO_REQUEST = Error("ERR Protocol error: a request is an array of bulk strings")
_WALL_MS = time.time_ns() // 1_000_000 - int(quorlock.now() * 1_000)


class Elsewhere(RuntimeError):
    """A memory node was requested in a forked child of the process that it belongs to."""

    def __init__(self) -> None:
        super().__init__(
            "memory nodes live in the process that made them; in a forked child, call"
            " quorlock.testing.memory.reset() for new nodes"
        )


def node(name: str) -> MemoryNode:
    """Return the node at `memory://name`, created if there is none.

    Args:
        name: the name, or the URL.

    Raises:
        ConfigError: a node cannot have this name.
        Elsewhere: this is a forked child.
    """
    named = quorlock.Node.from_url(name) if "://" in name else quorlock.Node(memory=name)
    if named.memory is None:
        fix = "give the name of a memory node, or its URL: memory://a"
        raise quorlock.ConfigError("name", named.address, fix)
    return _home().find(named.memory)


def reset() -> None:
    """Reset all nodes: close connections, delete all keys, undo stops and hangs.

    A forked child starts with new nodes, which share nothing with the parent's.
    """
    global _house  # noqa: PLW0603 (one object per process)
    if _house.ours:
        _house.reset()
    else:
        _house = _House()
    _house.welcoming = True


def connect(name: str, *, forked: bool) -> socket.socket:
    """Open a connection to a node and return the client's end; for quorlock's drivers.

    Args:
        name: the name of the node.
        forked: this process is a forked child, and its parent had imported quorlock.

    Raises:
        Elsewhere: the node belongs to the parent process.
        ConnectionRefusedError: the node is stopped or was closed.
    """
    house = _home()
    if forked and not house.welcoming:
        raise Elsewhere
    return house.connect(name)


class MemoryNode:
    """One memory node, with the faults that it can have; from `node(name)` or `MemoryNodes`."""

    def __init__(self, name: str, house: _House, door: _Door) -> None:
        self._name = name
        self._house = house
        self._door = door

    def __repr__(self) -> str:
        state = "hung" if self.hung else "up" if self.up else "stopped"
        return f"<MemoryNode {self.url} {state}>"

    @property
    def name(self) -> str:
        """The name: `a` of `memory://a`."""
        return self._name

    @property
    def url(self) -> str:
        """The URL, such as `memory://a`; errors and reports name the node by it."""
        return f"memory://{self._name}"

    @property
    def up(self) -> bool:
        """True if the node accepts connections; a hung one does."""
        return self._door.up

    @property
    def hung(self) -> bool:
        """True if the node is up, but sends no replies."""
        return self._door.hung

    def stop(self) -> None:
        """Close all connections and refuse new ones. The node keeps its keys."""
        with self._house.lock:
            self._door.up = self._door.hung = False
            self._door.empty()

    def start(self) -> None:
        """Undo `stop()`; a node that is up stays as it is."""
        with self._house.lock:
            self._door.up = True

    def hang(self) -> None:
        """Stay connected and send no replies, like a process after SIGSTOP; see `go_on()`.

        A stopped node stays stopped.
        """
        with self._house.lock:
            self._door.hung = self._door.up

    def go_on(self) -> None:
        """Undo `hang()`; before this returns, the node executes all that it was sent."""
        with self._house.lock:
            self._door.hung = False
            self._door.catch_up()
            self._house.look_again()

    def restart(self, *, memory: Literal["lost", "kept", "saved"] = "lost") -> None:
        """Restart the node: close all connections, and start with another run_id.

        A Redlock does not know what a restarted node has forgotten. Its restart guard gives the
        node no vote before `max_ttl` has passed, unless `born_empty()` is called.

        Args:
            memory: the keys that remain: none, all, or those at the last `save()`.

        Raises:
            ConfigError: `memory` has another value.
        """
        if memory not in ("lost", "kept", "saved"):
            raise quorlock.ConfigError("memory", memory, "give 'lost', 'kept' or 'saved'")
        with self._house.lock:
            self._door.empty()
            self._door.twin.restart(_run_id(), memory=memory, started=_at_ms())
            self._door.up, self._door.hung = True, False

    def born_empty(self) -> None:
        """Declare that the present process had no locks to forget: it may vote at once.

        A fresh node is declared so already.
        """
        with self._house.lock:
            self._door.mark()

    def save(self) -> None:
        """Save all keys to the node's disk, for a `restart(memory="saved")`."""
        with self._house.lock:
            self._door.twin.save()

    def flush(self) -> None:
        """Delete all keys, as FLUSHALL does, even on a stopped node; it stays born empty."""
        with self._house.lock:
            self._door.flush()

    def keys(self) -> list[bytes]:
        """Return all keys that have not expired, sorted, even of a stopped node.

        The keys of quorlock's metadata (`quorlock:config` and others) are left out.
        """
        with self._house.lock:
            twin, at = self._door.twin, _at_ms()
            alive = (key for key in list(twin.keys) if twin.alive(key, at) is not None)
            return sorted(key for key in alive if not is_side_key(key))

    def execute(self, *args: bytes | str | float) -> Any:
        """Execute one command, even on a stopped node, and return the reply, strings as bytes.

        Raises:
            quorlock.testing.servers.ServerReplyError: the reply is an error.
        """
        words = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
        with self._house.lock:
            reply = ClientSession(self._door.twin).execute(words, _at_ms())
        if isinstance(reply, Error):
            from quorlock.testing.servers import ServerReplyError

            raise ServerReplyError(str(reply))
        return reply

    def reset(self) -> None:
        """Reset the node: close all connections, delete all keys, undo `stop()` and `hang()`."""
        with self._house.lock:
            self._door.empty()
            self._door.renew()


class MemoryNodes(Sequence[MemoryNode]):
    """A sequence of `count` fresh nodes (`MemoryNode`) with unique names.

    The nodes end at `close()` or at the end of the `with` block; later connections are refused.
    """

    _numbers = itertools.count(1)

    def __init__(self, count: int = 3) -> None:
        if count < 1:
            raise ValueError(f"MemoryNodes({count}): count must be at least 1")
        first, house = f"fresh{next(self._numbers)}", _home()
        self._nodes = [house.find(f"{first}-{number}") for number in range(1, count + 1)]
        self._house = house

    @property
    def urls(self) -> list[str]:
        """The URLs, to pass to `Redlock`."""
        return [node.url for node in self._nodes]

    def start(self) -> None:
        """Undo `stop()` and `hang()` on all nodes."""
        for node in self._nodes:
            node.start()
            node.go_on()

    def close(self) -> None:
        """Close all connections and forget the nodes; do nothing in a forked child."""
        if self._house.ours:
            for node in self._nodes:
                node.stop()
                self._house.forget(node.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._nodes)

    @overload
    def __getitem__(self, index: int) -> MemoryNode: ...
    @overload
    def __getitem__(self, index: slice) -> list[MemoryNode]: ...
    def __getitem__(self, index: int | slice) -> MemoryNode | list[MemoryNode]:
        return self._nodes[index]

    def __repr__(self) -> str:
        return f"<MemoryNodes {', '.join(self.urls)}>"


# --- connections -----------------------------------------------------------------------------


class _Door:
    """A node and its connections. Callers must hold the lock of the `_House`."""

    twin: FakeNode
    up: bool
    hung: bool

    def __init__(self) -> None:
        self._visits: dict[_Visit, None] = {}
        self.renew()

    def renew(self) -> None:
        """Replace the node by a fresh one that is up."""
        self.twin = FakeNode(_run_id(), _at_ms())
        self.up, self.hung = True, False
        self.mark()

    def mark(self) -> None:
        """Mark the present process as born empty."""
        self._marked = self.twin.run_id
        self.twin.keys[_BORN_EMPTY] = Entry(self._marked.encode(), None)

    def flush(self) -> None:
        """Delete all keys, but keep the mark of a process that was born empty."""
        self.twin.flush()
        if self._marked == self.twin.run_id:
            self.mark()

    def enter(self, sock: socket.socket, number: int) -> _Visit:
        """Add a connection."""
        visit = _Visit(self, ClientSession(self.twin, number), sock)
        self._visits[visit] = None
        return visit

    def leave(self, visit: _Visit) -> None:
        """Remove a connection that is closed and needs no more work."""
        self._visits.pop(visit, None)

    def serves(self, visit: _Visit) -> bool:
        """Return whether the node replies now to this connection."""
        return not self.hung and visit in self._visits

    def catch_up(self) -> None:
        """Execute all requests, also those of clients that have disconnected since."""
        for visit in list(self._visits):
            visit.look()  # the thread may not have seen it yet
            visit.work()

    def empty(self) -> None:
        """Close all connections."""
        for visit in list(self._visits):
            visit.end()


class _Visit:
    """The node's end of one connection. Callers must hold the lock of the `_House`."""

    def __init__(self, door: _Door, session: ClientSession, sock: socket.socket) -> None:
        self.registered: int = 0  # the poll events that the thread waits for here
        self._door = door
        self._session = session
        self._sock = sock
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._out = b""
        self._over = False  # the client sent no request: the connection ends after the error
        sock.setblocking(False)

    @property
    def wanted(self) -> int:
        """The poll events that this connection waits for."""
        return select.POLLIN | select.POLLOUT if self._out else select.POLLIN

    def look(self) -> bool:
        """Receive, execute and reply, without blocking; return False if the client closed."""
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            self._send()
            return True
        except OSError:
            data = b""
        if data:
            self._reader.feed(data)
            self.work()
        return bool(data)

    def work(self) -> None:
        """Reply to all complete requests, unless the node hangs."""
        if not self._door.serves(self):
            return
        while not self._over and (request := self._next()) is not _MORE:
            self._out += self._answer(request)
        self._send()
        if self._over:
            self.end()
        elif self._closed:
            self._door.leave(self)

    def close(self) -> None:
        """Close our end after the client's; requests from before that are still executed."""
        self._sock.close()
        if self._door.serves(self):
            self._door.leave(self)

    @property
    def _closed(self) -> bool:
        return self._sock.fileno() < 0

    def end(self) -> None:
        """Close the connection, and drop pending requests and replies."""
        self._door.leave(self)
        # This wakes the thread, which closes our end. No other thread may close it: the descriptor
        # could be reused before the polling thread looks it up.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _next(self) -> object:
        try:
            return self._reader.gets()
        except Exception:  # noqa: BLE001 (the parser may raise anything on foreign bytes)
            return None

    def _answer(self, request: object) -> bytes:
        words = cast("list[bytes]", request) if isinstance(request, list) else None
        if words is None or not all(isinstance(word, bytes) for word in words):
            self._over = True
            return _encoded(_NO_REQUEST)
        if not words:
            return b""
        return _encoded(self._session.execute(words, _at_ms()))

    def _send(self) -> None:
        if self._out:
            with contextlib.suppress(OSError):
                self._out = self._out[self._sock.send(self._out) :]


def _encoded(reply: Reply) -> bytes:
    """Encode a reply in RESP3."""
    match reply:
        case Error():
            return b"-%b\r\n" % reply.encode(errors="surrogateescape")
        case Status():
            return b"+%b\r\n" % reply
        case Text():
            return b"=%d\r\ntxt:%b\r\n" % (len(reply) + 4, reply)
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case int():
            return b":%d\r\n" % reply
        case _:
            return _encoded_more(reply)


def _encoded_more(reply: list[Reply] | dict[bytes, Reply] | None) -> bytes:
    if reply is None:
        return b"_\r\n"
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(map(_encoded, reply))
    parts = (part for item in reply.items() for part in item)
    return b"%%%d\r\n" % len(reply) + b"".join(map(_encoded, parts))


# --- the process's nodes, and the thread that serves them ------------------------------------


class _House:
    """All nodes of one process."""

    def __init__(self) -> None:
        self.ours: bool = True  # False for the copy in a forked child
        self.welcoming = False  # whether drivers that know of the fork may connect
        self._nodes: dict[str, MemoryNode] = {}
        self._doors: dict[str, _Door | None] = {}  # None: closed permanently
        self._lock = threading.RLock()
        self._clients: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._visits: dict[int, _Visit] = {}
        self._numbers = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._bell: tuple[int, int] | None = None

    @property
    def lock(self) -> threading.RLock:
        """The lock to hold while a node is read or changed. Raises Elsewhere."""
        if not self.ours:
            raise Elsewhere
        return self._lock

    def find(self, name: str) -> MemoryNode:
        """Return the node of that name; create it if there is none."""
        with self.lock:
            if name not in self._nodes:
                door = self._doors[name] = _Door()
                self._nodes[name] = MemoryNode(name, self, door)
            return self._nodes[name]

    def forget(self, name: str) -> None:
        """Forget the node; later connections to its name are refused."""
        with self.lock:
            self._nodes.pop(name, None)
            self._doors[name] = None

    def connect(self, name: str) -> socket.socket:
        """Open a connection and return the client's end."""
        with self.lock:
            if name not in self._doors:
                self.find(name)
            door = self._doors[name]
            if door is None or not door.up or not self._serves():
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            ours, theirs = socket.socketpair()
            self._visits[ours.fileno()] = door.enter(ours, next(self._numbers))
            self._clients.add(theirs)
            self.look_again()
            return theirs

    def look_again(self) -> None:
        """Wake the thread: a connection is new, or waits for other events."""
        if self._bell is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._bell[1], b"!")

    def reset(self) -> None:
        """Reset all nodes, and wait for the thread to end, unless new connections arrive."""
        with self.lock:
            for node in self._nodes.values():
                node.reset()
            for name in list(self._doors):
                if self._doors[name] is None:
                    del self._doors[name]
            thread = self._thread
        if thread is not None:
            thread.join(_JOIN_TIMEOUT)

    def leave(self) -> None:
        """Close the forked child's copies of the parent's connections, and nothing else."""
        self.ours = False
        # The clients' ends, too, which loops or drivers may keep: as long as these copies are
        # open, the parent's thread sees no end of the connection.
        for visit in self._visits.values():
            visit.close()
        for client in list(self._clients):
            client.close()
        self._visits.clear()
        self._rest()

    # --- the thread --------------------------------------------------------------------------

    def _serves(self) -> bool:
        """Start the thread if need be; return False if the interpreter is shutting down."""
        if self._thread is None:
            self._bell = os.pipe()
            for end in self._bell:
                os.set_blocking(end, False)
            name = "quorlock memory nodes"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self._rest()
                return False
        return True

    def _serve(self) -> None:
        poll = select.poll()
        try:
            while self._goes_on(poll):
                for fd, _ in poll.poll():
                    with self._lock:
                        self._look(fd, poll)
        except BaseException:
            self._collapse()  # a bug in this module: clients must not wait for replies
            raise

    def _goes_on(self, poll: select.poll) -> bool:
        """Register every connection's events with the poll; return False if there are none."""
        with self._lock:
            if not self._visits or self._bell is None:
                self._rest()
                return False
            poll.register(self._bell[0], select.POLLIN)
            for fd, visit in self._visits.items():
                if visit.registered != visit.wanted:
                    visit.registered = visit.wanted
                    poll.register(fd, visit.registered)
            return True

    def _look(self, fd: int, poll: select.poll) -> None:
        visit = self._visits.get(fd)
        if visit is None:
            os.read(fd, 4096)  # the wake-up pipe
        elif not visit.look():
            poll.unregister(fd)
            self._visits.pop(fd).close()

    def _rest(self) -> None:
        self._thread = None
        for end in self._bell or ():
            os.close(end)
        self._bell = None

    def _collapse(self) -> None:
        with self._lock:
            for visit in self._visits.values():
                visit.end()
                visit.close()
            self._visits.clear()
            self._rest()


def _run_id() -> str:
    return secrets.token_hex(20)


def _at_ms() -> int:
    return _WALL_MS + int(quorlock.now() * 1_000)


_house = _House()


def _home() -> _House:
    if not _house.ours:
        raise Elsewhere
    return _house


def _in_child() -> None:
    _house.leave()


os.register_at_fork(after_in_child=_in_child)
