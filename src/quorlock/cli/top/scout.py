"""Asks one node how it is: how fast it answers, what INFO counts, who is connected, which keys it
has. What it may not ask is a fact like others. Leaves connections to `asking`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from quorlock import now
from quorlock.cli.asking import Refused
from quorlock.cli.listing import Names, Scan

if TYPE_CHECKING:
    from quorlock.cli.asking import Talk

# At each look; TIME is the cheapest command that docs/acl.md grants.
_QUESTIONS = 5
_LATENCIES_MAX = 100
# A line of CLIENT LIST has some 350 bytes: beyond so many it costs the node more than it tells.
_CLIENTS_MAX = 2_000
_OURS = b"name=quorlock"


class Sample(NamedTuple):
    """What one look brought. Latencies in seconds, of the last looks too; None: it did not tell."""

    latencies: tuple[float, ...] = ()
    connections: int | None = None
    keys: int | None = None
    ops: int | None = None
    lacks: tuple[str, ...] = ()
    names: Names = Names()


class Scout:
    """Asks over one connection, as often as it is called."""

    def __init__(self, talk: Talk, prefix: bytes, pattern: str, db: int) -> None:
        self._talk = talk
        self._scan = Scan(talk, prefix, pattern)
        self._db = f"db{db}"
        self._latencies: list[float] = []
        self._lacks: dict[str, None] = {}

    def __call__(self) -> Sample:
        """Look. Raises Silent."""
        for _ in range(_QUESTIONS):
            asked = now()
            self._talk.ask(b"TIME")
            self._latencies.append(now() - asked)
        del self._latencies[:-_LATENCIES_MAX]
        info = self._info()
        clients = _number(info.get("connected_clients")) or 0
        return Sample(
            latencies=tuple(self._latencies),
            connections=self._connections() if clients <= _CLIENTS_MAX else None,
            keys=_keys(info, self._db),
            ops=_number(info.get("instantaneous_ops_per_sec")),
            lacks=tuple(self._lacks),
            names=self._scan(),
        )

    def _ask(self, right: str, *words: bytes) -> Any:
        """The answer; None where the right is lacking, which is tried once on a connection: each
        time would leave a line in ACL LOG.
        """
        if right in self._lacks:
            return None
        answer = self._talk.ask(*words)
        if isinstance(answer, Refused):
            self._lacks[right] = None
            return None
        return answer

    def _info(self) -> dict[str, str]:
        answer = self._ask("+info", b"INFO")
        text = answer.decode(errors="replace") if isinstance(answer, bytes) else ""
        lines = (line.partition(":") for line in text.splitlines() if ":" in line)
        return {name: value for name, _, value in lines}

    def _connections(self) -> int | None:
        answer = self._ask("+client|list", b"CLIENT", b"LIST")
        if not isinstance(answer, bytes):
            return None
        return sum(_OURS in line.split(b" ") for line in answer.splitlines())


def _keys(info: dict[str, str], db: str) -> int | None:
    if not info:
        return None
    told = info.get(db, "keys=0")  # an empty database is not told of
    return _number(told.removeprefix("keys=").partition(",")[0])


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
