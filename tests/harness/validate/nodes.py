"""The keys that are left on the nodes at the end, read in plain RESP over separate sockets.

A key may be left only if it is excused, and then for at most one ttl: its holder was killed, or its
lease was handed over (the adopter does not know which node never got the key).
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import IO, Any

from tests.harness.validate.history import History

_TIMEOUT = 5.0


@dataclass(frozen=True)
class Key:
    """One key on one node. pttl_ms as in Redis: -1 never ends, -2 is gone."""

    node: str
    name: bytes
    token: bytes | None
    pttl_ms: int

    @property
    def digest(self) -> str:
        """Return the digest of its token, as in the records."""
        return hashlib.sha256(self.token or b"").hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.node}: {self.name!r} token {self.digest}, {self.pttl_ms} ms"


def keys(paths: Iterable[str]) -> list[Key]:
    """Every key on every node, by its unix socket."""
    return [key for path in paths for key in _keys(path)]


def not_excused(
    found: Iterable[Key], history: History, killed: Set[int], max_ttl_ms: int
) -> list[str]:
    """Return the keys that should not be there."""
    stays = history.stays.values()
    excused = {stay.token for stay in stays if stay.pid in killed or stay.how == "handed over"}
    return [
        f"left behind: {key}{_whose(key, history)}"
        for key in found
        # The token of an acquire that was in flight when its process was killed is in no record.
        if not (0 <= key.pttl_ms <= max_ttl_ms and (killed or key.digest in excused))
        and key.pttl_ms != -2
    ]


def _whose(key: Key, history: History) -> str:
    stays = [stay for stay in history.stays.values() if stay.token == key.digest]
    return "".join(f"; {stay}" for stay in stays) or "; of nobody who ever held it"


def _keys(path: str) -> Iterable[Key]:
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as replies:
        connection.settimeout(_TIMEOUT)
        connection.connect(path)
        for name in _ask(connection, replies, b"KEYS", b"*"):
            if name.startswith(b"quorlock:"):
                continue  # notes about the node, which no lock leaves behind
            token = _ask(connection, replies, b"GET", name)
            yield Key(path, name, token, _ask(connection, replies, b"PTTL", name))


def _ask(connection: socket.socket, replies: IO[bytes], *command: bytes) -> Any:
    parts = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)
    connection.sendall(b"*%d\r\n" % len(command) + parts)
    return _reply(replies)


def _reply(replies: IO[bytes]) -> Any:
    line = replies.readline()
    kind, rest = line[:1], line[1:].strip()
    if kind == b"*":
        return [_reply(replies) for _ in range(int(rest))]
    if kind == b"$":
        size = int(rest)
        return replies.read(size + 2)[:-2] if size >= 0 else None
    if kind == b":":
        return int(rest)
    raise ConnectionError(f"a node answered {line!r}")
