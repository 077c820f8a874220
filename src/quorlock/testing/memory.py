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
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast, overload

import hiredis

import quorlock
from quorlock.testing.fake_commands import ClientSession
from quorlock.testing.fake_info import Text
from quorlock.testing.fake_keys import Push
from quorlock.testing.fake_node import Entry, Error, FakeNode, Status, is_side_key

if TYPE_CHECKING:
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
    return _own_server().find(named.memory)


def reset() -> None:
    """Reset all nodes: close connections, delete all keys, undo stops and hangs.

    A forked child starts with new nodes, which share nothing with the parent's.
    """
    global _server  # noqa: PLW0603 (one object per process)
    if _server.ours:
        _server.reset()
    else:
        _server = _NodeServer()
    _server.admits_forked = True


def connect(name: str, *, forked: bool) -> socket.socket:
    """Open a connection to a node and return the client's end; for quorlock's drivers.

    Args:
        name: the name of the node.
        forked: this process is a forked child, and its parent had imported quorlock.

    Raises:
        Elsewhere: the node belongs to the parent process.
        ConnectionRefusedError: the node is stopped or was closed.
    """
    server = _own_server()
    if forked and not server.admits_forked:
        raise Elsewhere
    return server.connect(name)


class MemoryNode:
    """One memory node, with the faults that it can have; from `node(name)` or `MemoryNodes`."""

    def __init__(self, name: str, server: _NodeServer, state: _NodeState) -> None:
        self._name = name
        self._server = server
        self._state = state

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
        return self._state.up

    @property
    def hung(self) -> bool:
        """True if the node is up, but sends no replies."""
        return self._state.hung

    def stop(self) -> None:
        """Close all connections and refuse new ones. The node keeps its keys."""
        with self._server.lock:
            self._state.up = self._state.hung = False
            self._state.close_all()

    def start(self) -> None:
        """Undo `stop()`; a node that is up stays as it is."""
        with self._server.lock:
            self._state.up = True

    def hang(self) -> None:
        """Stay connected and send no replies, like a process after SIGSTOP; see `go_on()`.

        A stopped node stays stopped.
        """
        with self._server.lock:
            self._state.hung = self._state.up

    def go_on(self) -> None:
        """Undo `hang()`; before this returns, the node executes all that it was sent."""
        with self._server.lock:
            self._state.hung = False
            self._state.catch_up()
            self._server.wake()

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
        with self._server.lock:
            self._state.close_all()
            self._state.model.restart(_run_id(), memory=memory, started=_at_ms())
            self._state.up, self._state.hung = True, False

    def born_empty(self) -> None:
        """Declare that the present process had no locks to forget: it may vote at once.

        A fresh node is declared so already.
        """
        with self._server.lock:
            self._state.mark()

    def save(self) -> None:
        """Save all keys to the node's disk, for a `restart(memory="saved")`."""
        with self._server.lock:
            self._state.model.save()

    def flush(self) -> None:
        """Delete all keys, as FLUSHALL does, even on a stopped node; it stays born empty."""
        with self._server.lock:
            self._state.flush()

    def keys(self) -> list[bytes]:
        """Return all keys that have not expired, sorted, even of a stopped node.

        The keys of quorlock's metadata (`quorlock:config` and others) are left out.
        """
        with self._server.lock:
            model, at = self._state.model, _at_ms()
            alive = (key for key in list(model.keys) if model.alive(key, at) is not None)
            return sorted(key for key in alive if not is_side_key(key))

    def execute(self, *args: bytes | str | float) -> Any:
        """Execute one command, even on a stopped node, and return the reply, strings as bytes.

        Raises:
            quorlock.testing.servers.ServerReplyError: the reply is an error.
        """
        words = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
        with self._server.lock:
            reply = ClientSession(self._state.model).execute(words, _at_ms())
        if isinstance(reply, Error):
            from quorlock.testing.servers import ServerReplyError

            raise ServerReplyError(str(reply))
        return reply

    def reset(self) -> None:
        """Reset the node: close all connections, delete all keys, undo `stop()` and `hang()`."""
        with self._server.lock:
            self._state.close_all()
            self._state.renew()


class MemoryNodes(Sequence[MemoryNode]):
    """A sequence of `count` fresh nodes (`MemoryNode`) with unique names.

    The nodes end at `close()` or at the end of the `with` block; later connections are refused.
    """

    _numbers = itertools.count(1)

    def __init__(self, count: int = 3) -> None:
        if count < 1:
            raise ValueError(f"MemoryNodes({count}): count must be at least 1")
        first, server = f"fresh{next(self._numbers)}", _own_server()
        self._nodes = [server.find(f"{first}-{number}") for number in range(1, count + 1)]
        self._server = server

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
        if self._server.ours:
            for node in self._nodes:
                node.stop()
                self._server.forget(node.name)

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


class _NodeState:
    """A node and its connections. Callers must hold the lock of the `_NodeServer`."""

    model: FakeNode
    up: bool
    hung: bool

    def __init__(self) -> None:
        self._connections: dict[_Connection, None] = {}
        self.renew()

    def renew(self) -> None:
        """Replace the node by a fresh one that is up."""
        self.model = FakeNode(_run_id(), _at_ms())
        self.up, self.hung = True, False
        self.mark()

    def mark(self) -> None:
        """Mark the present process as born empty."""
        self._marked = self.model.run_id
        self.model.keys[_BORN_EMPTY] = Entry(self._marked.encode(), None)

    def flush(self) -> None:
        """Delete all keys, but keep the mark of a process that was born empty."""
        self.model.flush()
        if self._marked == self.model.run_id:
            self.mark()

    def add(self, sock: socket.socket, number: int) -> _Connection:
        """Add a connection."""
        connection = _Connection(self, ClientSession(self.model, number), sock)
        self._connections[connection] = None
        return connection

    def remove(self, connection: _Connection) -> None:
        """Remove a connection that is closed and needs no more work."""
        self._connections.pop(connection, None)
        connection.session.close()

    def serves(self, connection: _Connection) -> bool:
        """Return whether the node replies now to this connection."""
        return not self.hung and connection in self._connections

    def catch_up(self) -> None:
        """Execute all requests, also those of clients that have disconnected since."""
        for connection in list(self._connections):
            connection.receive()  # the thread may not have seen it yet
            connection.execute()

    def close_all(self) -> None:
        """Close all connections."""
        for connection in list(self._connections):
            connection.end()


class _Connection:
    """The node's end of one connection. Callers must hold the lock of the `_NodeServer`."""

    def __init__(self, state: _NodeState, session: ClientSession, sock: socket.socket) -> None:
        self.registered: int = 0  # the poll events that the thread waits for here
        self._state = state
        self.session = session
        self._sock = sock
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._out = b""
        self._pushed: list[Push] | None = None  # to itself, by the request that it executes
        session.on_push = self._push
        self._over = False  # the client sent no request: the connection ends after the error
        sock.setblocking(False)

    @property
    def wanted(self) -> int:
        """The poll events that this connection waits for."""
        return select.POLLIN | select.POLLOUT if self._out else select.POLLIN

    def receive(self) -> bool:
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
            self.execute()
        return bool(data)

    def execute(self) -> None:
        """Reply to all complete requests, unless the node hangs."""
        if not self._state.serves(self):
            return
        while not self._over and (request := self._next()) is not _MORE:
            self._out += self._answer(request)
        self._send()
        if self._over:
            self.end()
        elif self._closed:
            self._state.remove(self)

    def close(self) -> None:
        """Close our end after the client's; requests from before that are still executed."""
        self._sock.close()
        if self._state.serves(self):
            self._state.remove(self)

    @property
    def _closed(self) -> bool:
        return self._sock.fileno() < 0

    def end(self) -> None:
        """Close the connection, and drop pending requests and replies."""
        self._state.remove(self)
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
        pushed: list[Push] = []
        self._pushed = pushed
        reply = self.session.execute(words, _at_ms())
        self._pushed = None
        # After the reply, as Valkey does; Redis 7.0 sends them before it.
        return b"".join(map(_encoded, [reply, *pushed]))

    def _push(self, push: Push) -> None:
        if self._pushed is not None:
            self._pushed.append(push)
            return
        self._out += _encoded(push)
        self._send()
        if self._out:
            _own_server().wake()

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


def _encoded_more(reply: float | list[Reply] | dict[bytes, Reply] | None) -> bytes:
    if reply is None:
        return b"_\r\n"
    if isinstance(reply, (int, float)):
        return f",{reply:.17g}\r\n".encode()
    if isinstance(reply, Push):
        return b">%d\r\n" % len(reply) + b"".join(map(_encoded, reply))
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(map(_encoded, reply))
    parts = (part for item in reply.items() for part in item)
    return b"%%%d\r\n" % len(reply) + b"".join(map(_encoded, parts))


# --- the process's nodes, and the thread that serves them ------------------------------------


class _NodeServer:
    """All nodes of one process."""

    def __init__(self) -> None:
        self.ours: bool = True  # False for the copy in a forked child
        self.admits_forked = False  # whether drivers that know of the fork may connect
        self._nodes: dict[str, MemoryNode] = {}
        self._states: dict[str, _NodeState | None] = {}  # None: closed permanently
        self._lock = threading.RLock()
        self._clients: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._connections: dict[int, _Connection] = {}
        self._numbers = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._wake_pipe: tuple[int, int] | None = None

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
                state = self._states[name] = _NodeState()
                self._nodes[name] = MemoryNode(name, self, state)
            return self._nodes[name]

    def forget(self, name: str) -> None:
        """Forget the node; later connections to its name are refused."""
        with self.lock:
            self._nodes.pop(name, None)
            self._states[name] = None

    def connect(self, name: str) -> socket.socket:
        """Open a connection and return the client's end."""
        with self.lock:
            if name not in self._states:
                self.find(name)
            state = self._states[name]
            if state is None or not state.up or not self._serves():
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            ours, theirs = socket.socketpair()
            self._connections[ours.fileno()] = state.add(ours, next(self._numbers))
            self._clients.add(theirs)
            self.wake()
            return theirs

    def wake(self) -> None:
        """Wake the thread: a connection is new, or waits for other events."""
        if self._wake_pipe is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_pipe[1], b"!")

    def reset(self) -> None:
        """Reset all nodes, and wait for the thread to end, unless new connections arrive."""
        with self.lock:
            for node in self._nodes.values():
                node.reset()
            for name in list(self._states):
                if self._states[name] is None:
                    del self._states[name]
            thread = self._thread
        if thread is not None:
            thread.join(_JOIN_TIMEOUT)

    def abandon(self) -> None:
        """Close the forked child's copies of the parent's connections, and nothing else."""
        self.ours = False
        # The clients' ends, too, which loops or drivers may keep: as long as these copies are
        # open, the parent's thread sees no end of the connection.
        for connection in self._connections.values():
            connection.close()
        for client in list(self._clients):
            client.close()
        self._connections.clear()
        self._stop()

    # --- the thread --------------------------------------------------------------------------

    def _serves(self) -> bool:
        """Start the thread if need be; return False if the interpreter is shutting down."""
        if self._thread is None:
            self._wake_pipe = os.pipe()
            for end in self._wake_pipe:
                os.set_blocking(end, False)
            name = "quorlock memory nodes"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self._stop()
                return False
        return True

    def _serve(self) -> None:
        poll = select.poll()
        try:
            while self._goes_on(poll):
                for fd, _ in poll.poll():
                    with self._lock:
                        self._receive(fd, poll)
        except BaseException:
            self._abort()  # a bug in this module: clients must not wait for replies
            raise

    def _goes_on(self, poll: select.poll) -> bool:
        """Register every connection's events with the poll; return False if there are none."""
        with self._lock:
            if not self._connections or self._wake_pipe is None:
                self._stop()
                return False
            poll.register(self._wake_pipe[0], select.POLLIN)
            for fd, connection in self._connections.items():
                if connection.registered != connection.wanted:
                    connection.registered = connection.wanted
                    poll.register(fd, connection.registered)
            return True

    def _receive(self, fd: int, poll: select.poll) -> None:
        connection = self._connections.get(fd)
        if connection is None:
            os.read(fd, 4096)  # the wake-up pipe
        elif not connection.receive():
            poll.unregister(fd)
            self._connections.pop(fd).close()

    def _stop(self) -> None:
        self._thread = None
        for end in self._wake_pipe or ():
            os.close(end)
        self._wake_pipe = None

    def _abort(self) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.end()
                connection.close()
            self._connections.clear()
            self._stop()


def _run_id() -> str:
    return secrets.token_hex(20)


def _at_ms() -> int:
    return _WALL_MS + int(quorlock.now() * 1_000)


_server = _NodeServer()


def _own_server() -> _NodeServer:
    if not _server.ours:
        raise Elsewhere
    return _server


def _in_child() -> None:
    _server.abandon()


os.register_at_fork(after_in_child=_in_child)
