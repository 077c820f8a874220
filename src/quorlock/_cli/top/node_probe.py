"""The state of one node: latency, INFO, connected clients and keys.

A command that is not permitted is a fact too. `node_pollers` owns the connections.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from quorlock import now
from quorlock._cli.node_pollers import DiagnosticConnection, ErrorReply, info_fields
from quorlock._cli.scan import Names, Scan

# At each poll; TIME is the cheapest command that docs/how-to/acl.md grants.
_QUESTIONS = 5
_LATENCIES_MAX = 100
# A line of CLIENT LIST has about 350 bytes: above this number it costs the node too much.
_CLIENTS_MAX = 2_000
_OURS = b"name=quorlock"


class NodeSample(NamedTuple):
    """The result of one poll. Latencies are in seconds, of recent polls too; None: unknown."""

    latencies: tuple[float, ...] = ()
    connections: int | None = None
    keys: int | None = None
    ops: int | None = None
    lacks: tuple[str, ...] = ()
    names: Names = Names()


class NodeProbe:
    """A callable that polls one node over one connection."""

    def __init__(
        self, connection: DiagnosticConnection, prefix: bytes, pattern: str, db: int
    ) -> None:
        self._connection = connection
        self._scan = Scan(connection, prefix, pattern)
        self._db = f"db{db}"
        self._latencies: list[float] = []
        self._lacks: dict[str, None] = {}

    def __call__(self) -> NodeSample:
        """Poll the node. Raise NoAnswer."""
        for _ in range(_QUESTIONS):
            asked = now()
            self._connection.ask(b"TIME")
            self._latencies.append(now() - asked)
        del self._latencies[:-_LATENCIES_MAX]
        info = self._info()
        clients = _number(info.get("connected_clients")) or 0
        return NodeSample(
            latencies=tuple(self._latencies),
            connections=self._connections() if clients <= _CLIENTS_MAX else None,
            keys=_keys(info, self._db),
            ops=_number(info.get("instantaneous_ops_per_sec")),
            lacks=tuple(self._lacks),
            names=self._scan(),
        )

    def _ask(self, right: str, *words: bytes) -> Any:
        """Return the reply; None if the permission is missing.

        Each permission is tried once per connection, because each refusal writes a line to ACL LOG.
        """
        if right in self._lacks:
            return None
        answer = self._connection.ask(*words)
        if isinstance(answer, ErrorReply):
            self._lacks[right] = None
            return None
        return answer

    def _info(self) -> dict[str, str]:
        answer = self._ask("+info", b"INFO")
        return info_fields(answer.decode(errors="replace")) if isinstance(answer, bytes) else {}

    def _connections(self) -> int | None:
        answer = self._ask("+client|list", b"CLIENT", b"LIST")
        if not isinstance(answer, bytes):
            return None
        return sum(_OURS in line.split(b" ") for line in answer.splitlines())


def _keys(info: dict[str, str], db: str) -> int | None:
    if not info:
        return None
    keyspace = info.get(db, "keys=0")  # INFO omits an empty database
    return _number(keyspace.removeprefix("keys=").partition(",")[0])


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
