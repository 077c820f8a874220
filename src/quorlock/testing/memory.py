"""Nodes in this process's memory, for tests that need no server: where `memory://` addresses lead.

    redlock = Redlock(["memory://a", "memory://b", "memory://c"])     # blocking or asyncio
    node("a").stop()                                                  # and see what your code does

Owns the names, the connections and the one thread that serves them; what a command does is for
`words` and `node`, the twin of a real server.  A connection is a pair of sockets, so that real
bytes take the real way through quorlock; the thread ends when the last of them is closed.

A node lives in the process that made it: all Redlocks there that name it share it, another process
does not see it, and a forked child is told so.  Its clock began as the machine's, in ms, and goes
on by the one that leases end by (`quorlock.now`): when the machine's is set, nothing expires early
or late.
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
from quorlock.testing.node import Entry, Error, Node, Status
from quorlock.testing.words import Session, Text

if TYPE_CHECKING:
    from types import TracebackType

    from quorlock.testing.node import Reply

__all__ = ["Elsewhere", "MemoryNode", "MemoryNodes", "node", "reset"]

_SIDE_KEYS = b"quorlock:"
_BORN_EMPTY = b"quorlock:born-empty"
_MORE = object()  # hiredis' sign that a request is not complete yet
_RECEIVE_BYTES = 65_536
_RESP3 = 3
_JOIN_TIMEOUT = 1.0  # seconds; it takes less than one millisecond
_NO_REQUEST = Error("ERR Protocol error: a request is an array of bulk strings")
_WALL_MS = time.time_ns() // 1_000_000 - int(quorlock.now() * 1_000)


class Elsewhere(RuntimeError):
    """A memory node was asked for in a child that was forked from the process where it lives."""

    def __init__(self) -> None:
        super().__init__(
            "memory nodes live in the process that made them; call quorlock.testing.memory.reset()"
            " in a forked child that is to have its own"
        )


def node(name: str) -> MemoryNode:
    """The node that `memory://name` leads to, made if there is none. Takes the URL as well.

    Raises ConfigError for what cannot be its name, and Elsewhere in a forked child.
    """
    named = quorlock.Node.from_url(name) if "://" in name else quorlock.Node(memory=name)
    if named.memory is None:
        fix = "give the name of a memory node, or its URL: memory://a"
        raise quorlock.ConfigError("name", named.address, fix)
    return _home().find(named.memory)


def reset() -> None:
    """Make all nodes as new: connections closed, all keys gone, none stopped or hung.

    In a forked child: begin with nodes of its own, which share nothing with the parent's.
    """
    global _house  # noqa: PLW0603 (the process is what it stands for)
    if _house.ours:
        _house.reset()
    else:
        _house = _House()
    _house.welcoming = True


def connect(name: str, *, forked: bool) -> socket.socket:
    """Our end of a new connection to a node; for quorlock's drivers.

    forked: this process is a child of one that had quorlock loaded.  Raises Elsewhere, and
    ConnectionRefusedError as the kernel does.
    """
    house = _home()
    if forked and not house.welcoming:
        raise Elsewhere
    return house.connect(name)


class MemoryNode:
    """One node in memory, and what may befall it. Got by `node(name)` or from `MemoryNodes`."""

    def __init__(self, name: str, house: _House, door: _Door) -> None:
        self._name = name
        self._house = house
        self._door = door

    def __repr__(self) -> str:
        state = "hung" if self.hung else "up" if self.up else "stopped"
        return f"<MemoryNode {self.url} {state}>"

    @property
    def name(self) -> str:
        """`a` of `memory://a`."""
        return self._name

    @property
    def url(self) -> str:
        """`memory://a`, which is also how errors and reports call it."""
        return f"memory://{self._name}"

    @property
    def up(self) -> bool:
        """It takes connections; a hung one does."""
        return self._door.up

    @property
    def hung(self) -> bool:
        """It is up and answers nothing."""
        return self._door.hung

    def stop(self) -> None:
        """Out of reach: connections are closed, new ones refused. It keeps what it holds."""
        with self._house.lock:
            self._door.up = self._door.hung = False
            self._door.empty()

    def start(self) -> None:
        """Undo `stop()`; one that is up stays as it is."""
        with self._house.lock:
            self._door.up = True

    def hang(self) -> None:
        """Stay connected and answer nothing, as a process after SIGSTOP; undone by `go_on()`.

        One that is stopped stays so.
        """
        with self._house.lock:
            self._door.hung = self._door.up

    def go_on(self) -> None:
        """Undo `hang()`: when this returns, it has done all that it was sent meanwhile."""
        with self._house.lock:
            self._door.hung = False
            self._door.catch_up()
            self._house.look_again()

    def restart(self, *, memory: Literal["lost", "kept", "saved"] = "lost") -> None:
        """Another process comes up in its place, with another run_id; connections are closed.

        memory: what it still holds: nothing, everything, or what it held at `save()`.  A Redlock
        lets it vote no sooner than `max_ttl` later, whatever it holds: it can't know (its restart
        guard); unless `born_empty()` says that there was nothing to forget.
        """
        if memory not in ("lost", "kept", "saved"):
            raise quorlock.ConfigError("memory", memory, "give 'lost', 'kept' or 'saved'")
        with self._house.lock:
            self._door.empty()
            self._door.twin.restart(_run_id(), memory=memory, started=_at_ms())
            self._door.up, self._door.hung = True, False

    def born_empty(self) -> None:
        """Say that its present process had nothing to forget: it may vote at once.

        That is so of a fresh node without saying.
        """
        with self._house.lock:
            self._door.mark()

    def save(self) -> None:
        """Write what it holds to its disk, for a `restart(memory="saved")`."""
        with self._house.lock:
            self._door.twin.save()

    def flush(self) -> None:
        """Delete all keys, as FLUSHALL does, whether it is up or not; it stays born empty."""
        with self._house.lock:
            self._door.flush()

    def keys(self) -> list[bytes]:
        """All keys that have not expired, sorted, whether it is up or not.

        But for those in which quorlock takes notes (`quorlock:config` and the like).
        """
        with self._house.lock:
            twin, at = self._door.twin, _at_ms()
            alive = (key for key in list(twin.keys) if twin.alive(key, at) is not None)
            return sorted(key for key in alive if not key.startswith(_SIDE_KEYS))

    def execute(self, *args: bytes | str | float) -> Any:
        """Do one command and return the reply, strings as bytes, whether it is up or not.

        Raises `quorlock.testing.servers.ServerReplyError` for an error reply.
        """
        words = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
        with self._house.lock:
            reply = Session(self._door.twin).execute(words, _at_ms())
        if isinstance(reply, Error):
            from quorlock.testing.servers import ServerReplyError

            raise ServerReplyError(str(reply))
        return reply

    def reset(self) -> None:
        """As new: connections closed, all keys gone, neither stopped nor hung."""
        with self._house.lock:
            self._door.empty()
            self._door.renew()


class MemoryNodes(Sequence[MemoryNode]):
    """`count` fresh nodes of which nobody else knows the names; a sequence of `MemoryNode`.

    They are gone after `close()` or the end of the `with` block: who still names one of them is
    refused.
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
        """What to give to `Redlock`."""
        return [node.url for node in self._nodes]

    def start(self) -> None:
        """All are up again and none is hung."""
        for node in self._nodes:
            node.start()
            node.go_on()

    def close(self) -> None:
        """Close all connections and forget the nodes; in a forked child it does nothing."""
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
    """A node, and who is connected to it. Whoever uses it holds the house's lock."""

    def __init__(self) -> None:
        self._visits: dict[_Visit, None] = {}
        self.renew()

    def renew(self) -> None:
        """A node that nobody has used; up."""
        self.twin = Node(_run_id(), _at_ms())
        self.up, self.hung = True, False
        self.mark()

    def mark(self) -> None:
        """The present process had nothing to forget."""
        self._marked = self.twin.run_id
        self.twin.keys[_BORN_EMPTY] = Entry(self._marked.encode(), None)

    def flush(self) -> None:
        """All keys are gone, but it is as it was born."""
        self.twin.flush()
        if self._marked == self.twin.run_id:
            self.mark()

    def enter(self, sock: socket.socket, number: int) -> _Visit:
        """A connection comes in."""
        visit = _Visit(self, Session(self.twin, number), sock)
        self._visits[visit] = None
        return visit

    def leave(self, visit: _Visit) -> None:
        """A connection is over, and nothing more is to be done for it."""
        self._visits.pop(visit, None)

    def serves(self, visit: _Visit) -> bool:
        """It answers now, and the connection is not over."""
        return not self.hung and visit in self._visits

    def catch_up(self) -> None:
        """Do what was sent, also by clients that have gone since."""
        for visit in list(self._visits):
            visit.look()  # the thread may not have seen it yet
            visit.work()

    def empty(self) -> None:
        """Close all connections."""
        for visit in list(self._visits):
            visit.end()


class _Visit:
    """One connection, seen from its node. Whoever uses it holds the house's lock."""

    def __init__(self, door: _Door, session: Session, sock: socket.socket) -> None:
        self.registered = 0  # the poll events that the thread waits for here
        self._door = door
        self._session = session
        self._sock = sock
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._out = b""
        sock.setblocking(False)

    @property
    def wanted(self) -> int:
        """The poll events that it waits for."""
        return select.POLLIN | select.POLLOUT if self._out else select.POLLIN

    def look(self) -> bool:
        """Take in what came, answer it, send what can be sent; False: the client hung up."""
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
        """Answer what is complete, unless the node hangs."""
        if not self._door.serves(self):
            return
        while not self._session.over and (request := self._next()) is not _MORE:
            self._out += self._answer(request)
        self._send()
        if self._session.over:
            self.end()
        elif self._closed:
            self._door.leave(self)

    def close(self) -> None:
        """The client has hung up; what it sent before that is done all the same."""
        self._sock.close()
        if self._door.serves(self):
            self._door.leave(self)

    @property
    def _closed(self) -> bool:
        return self._sock.fileno() < 0

    def end(self) -> None:
        """Close it, work that is not done and answers that are not sent dropped."""
        self._door.leave(self)
        # It wakes the thread, which closes our end: nobody else may, for its number could be
        # another's by the time that the thread looks.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _next(self) -> object:
        try:
            return self._reader.gets()
        except Exception:  # noqa: BLE001 (whatever the parser makes of a stranger's bytes)
            return None

    def _answer(self, request: object) -> bytes:
        words = cast("list[bytes]", request) if isinstance(request, list) else None
        if words is None or not all(isinstance(word, bytes) for word in words):
            self._session.over = True
            return _encoded(_NO_REQUEST, self._session.resp)
        if not words:
            return b""
        return _encoded(self._session.execute(words, _at_ms()), self._session.resp)

    def _send(self) -> None:
        if self._out:
            with contextlib.suppress(OSError):
                self._out = self._out[self._sock.send(self._out) :]


def _encoded(reply: Reply, resp: int) -> bytes:
    """A reply as bytes of RESP2 or RESP3."""
    match reply:
        case Error():
            return b"-%b\r\n" % reply.encode(errors="surrogateescape")
        case Status():
            return b"+%b\r\n" % reply
        case Text() if resp == _RESP3:
            return b"=%d\r\ntxt:%b\r\n" % (len(reply) + 4, reply)
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case int():
            return b":%d\r\n" % reply
        case _:
            return _encoded_more(reply, resp)


def _encoded_more(reply: list[Reply] | dict[bytes, Reply] | None, resp: int) -> bytes:
    if reply is None:
        return b"_\r\n" if resp == _RESP3 else b"$-1\r\n"
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(_encoded(part, resp) for part in reply)
    if resp == _RESP3:
        parts = (part for item in reply.items() for part in item)
        return b"%%%d\r\n" % len(reply) + b"".join(_encoded(part, resp) for part in parts)
    return _encoded([part for item in reply.items() for part in item], resp)


# --- the process's nodes, and the thread that serves them ------------------------------------


class _House:
    """All nodes of one process."""

    def __init__(self) -> None:
        self.ours = True  # and not the parent's, of which this is a copy
        self.welcoming = False  # of drivers that know that they were forked
        self._nodes: dict[str, MemoryNode] = {}
        self._doors: dict[str, _Door | None] = {}  # None: closed for good
        self._lock = threading.RLock()
        self._clients: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._visits: dict[int, _Visit] = {}
        self._numbers = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._bell: tuple[int, int] | None = None

    @property
    def lock(self) -> threading.RLock:
        """Held by whoever reads or changes a node. Raises Elsewhere."""
        if not self.ours:
            raise Elsewhere
        return self._lock

    def find(self, name: str) -> MemoryNode:
        """The node of that name; a new one, if there is none."""
        with self.lock:
            if name not in self._nodes:
                door = self._doors[name] = _Door()
                self._nodes[name] = MemoryNode(name, self, door)
            return self._nodes[name]

    def forget(self, name: str) -> None:
        """Nobody gets in there any more."""
        with self.lock:
            self._nodes.pop(name, None)
            self._doors[name] = None

    def connect(self, name: str) -> socket.socket:
        """The client's end of a new connection."""
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
        """Tell the thread that a connection is new, or waits for something else."""
        if self._bell is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._bell[1], b"!")

    def reset(self) -> None:
        """All nodes as new; returns when the thread has ended, if nobody connects meanwhile."""
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
        """In a forked child: close our copies of the parent's connections, touch nothing else."""
        self.ours = False
        # Also the clients' ends, if their loops or drivers keep them: the parent's thread would
        # wait for us to close them.
        for visit in self._visits.values():
            visit.close()
        for client in list(self._clients):
            client.close()
        self._visits.clear()
        self._rest()

    # --- the thread --------------------------------------------------------------------------

    def _serves(self) -> bool:
        """The thread runs; False if it cannot be started: the interpreter ends."""
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
            self._collapse()  # a fault of ours: nobody is to wait for answers that will not come
            raise

    def _goes_on(self, poll: select.poll) -> bool:
        """There are connections to serve, and the poll knows what each of them waits for."""
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
            os.read(fd, 4096)  # the bell
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
