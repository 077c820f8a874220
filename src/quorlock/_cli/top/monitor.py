"""Sample acquire attempts by MONITOR at one node.

Clients that poll (`waiting="poll"`, other libraries) are in no queue, but they retry. MONITOR costs
a node a good part of its speed, so the sample is short, at one node, and taken only on request.

MONITOR's lines contain tokens. They are neither parsed nor stored.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import NamedTuple, Self

from quorlock import Node
from quorlock._cli.config import FileSettings
from quorlock._cli.node_pollers import DiagnosticConnection, ErrorReply, NoAnswer
from quorlock.errors import VoteCode

# Clients of quorlock that poll pause for at most 0.2 s by default.
_SECONDS_MAX = 0.5
_LINES_MAX = 20_000
_FENCE = b"quorlock:fence:"
_LINE = re.compile(rb'[\d.]+ \[(\d+) (.+?)\] "')
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|.)")
_CONTROL = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}
_SET = 6  # words of `SET key token NX PX ttl`, the shortest that is an acquire
_ACQUIRE = 8  # of quorlock's script: EVALSHA sha 3 key counter marker token ttl


class Sample(NamedTuple):
    """The number of connections that tried to acquire each resource, successfully or not."""

    counts: Mapping[str, int] | None = None  # by name; None: no result
    note: str = ""  # the conditions of the sample, or the error


class Try(NamedTuple):
    """An attempt to acquire a key."""

    key: bytes
    client: bytes


class AttemptMonitor:
    """The latest sample, taken by a thread. A context manager."""

    def __init__(self, settings: FileSettings, interval: float) -> None:
        self.sample: Sample = Sample()
        self._nodes = list(settings.nodes)
        self._connect_seconds = settings.seconds("connect_timeout")
        self._prefix = settings.prefix
        self._seconds = min(_SECONDS_MAX, interval / 2)
        self._pause = interval - self._seconds
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._work, name="quorlock samples tries", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _work(self) -> None:
        while not self._over.is_set():
            node = self._nodes[0]
            try:
                with DiagnosticConnection(node, self._connect_seconds) as connection:
                    self.sample = self._take(connection, node)
            except NoAnswer as error:
                self.sample = Sample(note=f"{node.address}: {error}")
                self._nodes.append(self._nodes.pop(0))  # another node, next time
            self._over.wait(self._pause)

    def _take(self, connection: DiagnosticConnection, node: Node) -> Sample:
        answer = connection.ask(b"MONITOR")
        if isinstance(answer, ErrorReply):
            if answer.code is VoteCode.ACCESS_DENIED:
                self._over.set()  # each refusal writes a line to ACL LOG
                answer = ErrorReply(f"{answer}; grant +monitor (docs/how-to/acl.md)")
            return Sample(note=f"{node.address}: {answer}")
        clients: dict[str, set[bytes]] = {}
        for number, line in enumerate(connection.receive(self._seconds)):
            found = tried(line, node.db) if isinstance(line, bytes) else None
            if found is not None and found.key.startswith(self._prefix):
                name = found.key.removeprefix(self._prefix).decode(errors="surrogateescape")
                clients.setdefault(name, set()).add(found.client)
            if number >= _LINES_MAX:
                break
        note = f"tried: connections that tried in {self._seconds:g} s at {node.address}"
        if node.path is not None:
            note += "; over a unix socket all count as one"
        return Sample({name: len(found) for name, found in clients.items()}, note)


def tried(line: bytes, db: int) -> Try | None:
    """Return the acquire that a line of MONITOR shows, or None.

    It is a SET as quorlock and other libraries send it, or quorlock's script.
    """
    head = _LINE.match(line)
    if head is None or int(head[1]) != db or head[2] == b"lua":
        return None
    words = _WORD.findall(line, head.end() - 1)
    command = words[0].upper() if words else b""
    if command == b"SET" and len(words) >= _SET:
        options = {word.upper() for word in words[3:]}
        if b"NX" in options and options & {b"PX", b"EX"}:
            return Try(_plain(words[1]), head[2])
    elif command in {b"EVAL", b"EVALSHA"} and len(words) >= _ACQUIRE and words[2] == b"3":
        key = _plain(words[3])
        if _plain(words[4]) == _FENCE + key:
            return Try(key, head[2])
    return None


def _plain(word: bytes) -> bytes:
    """Remove the escapes of MONITOR."""

    def one(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([int(code[1:], 16)]) if len(code) > 1 else _CONTROL.get(code, code)

    return _ESCAPE.sub(one, word)
