"""Samples who tries to acquire what, by MONITOR at one node: nodes keep no list of waiters, but one
who waits tries again and again. Costs that node a good part of its speed while it lasts, so it is
short, at one node, and asked for.

Tokens pass by in what MONITOR tells; nothing here looks at them or keeps them.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, NamedTuple, Self

from quorlock.cli.asking import Refused, Silent, Talk
from quorlock.cli.exits import is_not_permitted
from quorlock.cli.listing import prefix_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quorlock import Node
    from quorlock.cli.config import Settings

# quorlock's waiters pause for 0.2 s at the most, unless they are told otherwise.
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
    """How many connections tried to acquire a resource, whether or not they got it.

    counts: by name; None: nothing was told.  note: how that came about.
    """

    counts: Mapping[str, int] | None = None
    note: str = ""


class Try(NamedTuple):
    """Somebody wanted to have a key."""

    key: bytes
    client: bytes


class Tries:
    """The latest sample, taken in a thread of its own. A context manager."""

    def __init__(self, settings: Settings, interval: float) -> None:
        self.sample = Sample()
        self._nodes = list(settings.nodes)
        self._connect_seconds = settings.seconds("connect_timeout")
        self._prefix = prefix_of(settings)
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
                with Talk(node, self._connect_seconds) as talk:
                    self.sample = self._take(talk, node)
            except Silent as error:
                self.sample = Sample(note=f"{node.address}: {error}")
                self._nodes.append(self._nodes.pop(0))  # another one, next time
            self._over.wait(self._pause)

    def _take(self, talk: Talk, node: Node) -> Sample:
        answer = talk.ask(b"MONITOR")
        if isinstance(answer, Refused):
            if is_not_permitted([answer]):
                self._over.set()  # each time would leave a line in ACL LOG
                answer = Refused(f"{answer}; grant +monitor (docs/acl.md)")
            return Sample(note=f"{node.address}: {answer}")
        clients: dict[str, set[bytes]] = {}
        for number, line in enumerate(talk.hear(self._seconds)):
            found = tried(line, node.db) if isinstance(line, bytes) else None
            if found is not None and found.key.startswith(self._prefix):
                name = found.key.removeprefix(self._prefix).decode(errors="surrogateescape")
                clients.setdefault(name, set()).add(found.client)
            if number >= _LINES_MAX:
                break
        note = f"tried: connections that tried in {self._seconds:g} s at {node.address}"
        if node.path is not None:
            note += "; over a unix socket they all look like one"
        return Sample({name: len(found) for name, found in clients.items()}, note)


def tried(line: bytes, db: int) -> Try | None:
    """The acquire that a line of MONITOR tells of: a SET as quorlock and others send it, or
    quorlock's script.
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
    """Without the escapes of MONITOR."""

    def one(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([int(code[1:], 16)]) if len(code) > 1 else _CONTROL.get(code, code)

    return _ESCAPE.sub(one, word)
