"""List the resources by SCAN on all nodes.

Any string key with the prefix may be a lock, and any sorted set one that is shared: nodes do not
know a lock's key from the keys of other programs. Inspections find the holders; `node_pollers`
owns the connections.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from quorlock._cli.config import FileSettings
from quorlock._cli.exit_status import EX_NOPERM, EX_UNAVAILABLE, Failed
from quorlock._cli.node_pollers import DiagnosticConnection, ErrorReply, NodePollers, PollReport
from quorlock.errors import VoteCode

_SIDE_KEYS = b"quorlock:"
# Keys that one SCAN examines: about 0.3 ms of the node's time, followed by a pause. So a node
# spends at most a tenth of its time on this, however many keys there are.
_COUNT = b"1000"
_REST = 0.003
# Limits for one node: the names that are kept, and the duration of one listing.
_NAMES_MAX = 100_000
SECONDS = 10.0
# A lock's key (docs/reference/cli.md) is never longer and contains no NUL.
_KEY_BYTES_MAX = 512


class Names(NamedTuple):
    """The names that one node lists."""

    found: frozenset[str] = frozenset()
    whole: bool = True  # the list is complete
    refused: str = ""  # the node's error, if it refused
    is_forbidden: bool = False  # the error is a missing permission or login


class Listing(NamedTuple):
    """The names that all nodes list, sorted."""

    names: list[str]
    whole: bool  # the list is complete
    unlisted: Mapping[str, str]  # nodes that listed nothing, and the reasons
    n: int  # configured nodes
    is_forbidden: bool = False  # one of them lacks a permission or a login

    @property
    def enough(self) -> bool:
        """Return whether a quorum listed its keys: every held lock is on one of these nodes."""
        return self.n - len(self.unlisted) >= self.n // 2 + 1

    @property
    def trouble(self) -> str:
        """Return a sentence about what is missing; "" if the listing is complete."""
        reasons = [f"{address}: {why}" for address, why in self.unlisted.items()]
        words = f"{len(reasons)} of {self.n} nodes did not list their keys ({'; '.join(reasons)})"
        if self.is_forbidden:
            words += "; grant +scan (docs/how-to/acl.md), or name the resources"
        cut = f"not all keys were listed, only those found within {SECONDS:g} s; narrow the pattern"
        return "; ".join([words] * bool(reasons) + [cut] * (not self.whole))


class WatchedNames:
    """The resources that are inspected at each poll, up to a limit.

    A resource that once matched stays until it is free.
    """

    def __init__(self, names: Iterable[str], limit: int) -> None:
        self.names: list[str] = list(names)
        self._limit = limit

    def take(self, listing: Listing) -> int:
        """Add the listed names up to the limit, and return the number of names left out."""
        known = set(self.names)
        new = [name for name in listing.names if name not in known]
        room = max(0, self._limit - len(known))
        self.names = sorted([*self.names, *new[:room]])
        return max(0, len(new) - room)

    def keep(self, names: Iterable[str]) -> None:
        """Drop all other names."""
        self.names = list(names)


class Scan:
    """A callable that lists the keys of one node. During its pause it returns the last list."""

    def __init__(self, connection: DiagnosticConnection, prefix: bytes, pattern: str) -> None:
        self._connection = connection
        self._prefix = prefix
        match = escaped(prefix) + pattern.encode(errors="surrogateescape")
        self._words = [b"MATCH", match, b"COUNT", _COUNT]
        self._types = [b"string", b"zset"]  # of a lock that is held alone, and that is shared
        self._has_types = True  # from Redis 6.0 on
        self._last = Names()
        self._next_at = 0.0

    def __call__(self) -> Names:
        """Return the current names. Raise NoAnswer."""
        # A node that refused is asked again only over a new connection: each refusal writes a line
        # to its ACL LOG.
        if not self._last.is_forbidden and time.monotonic() >= self._next_at:
            self._last = self._list()
        return self._last

    def _list(self) -> Names:
        found, cursor, began = set[str](), b"0", time.monotonic()
        self._next_at, kinds = began, self._types.copy()
        while True:
            answer = self._ask(cursor, kinds[0])
            if isinstance(answer, ErrorReply):
                return Names(refused=answer, is_forbidden=answer.code is VoteCode.ACCESS_DENIED)
            self._next_at += _REST
            cursor, keys = cast("tuple[bytes, list[bytes]]", answer)
            found.update(self._resources(keys))
            if cursor == b"0":
                kinds.pop(0)
                if not (kinds and self._has_types):
                    return Names(frozenset(found))
            if len(found) >= _NAMES_MAX or time.monotonic() > began + SECONDS:
                return Names(frozenset(found), whole=False)

    def _ask(self, cursor: bytes, kind: bytes) -> Any:
        typed = [b"TYPE", kind] if self._has_types else []
        answer = self._connection.ask(b"SCAN", cursor, *self._words, *typed)
        if typed and isinstance(answer, ErrorReply) and answer.startswith("ERR syntax"):
            self._has_types = False
            return self._ask(cursor, kind)
        return answer

    def _resources(self, keys: Iterable[bytes]) -> Iterable[str]:
        for key in keys:
            name = key.removeprefix(self._prefix)
            fits = name and len(key) <= _KEY_BYTES_MAX and b"\0" not in name
            if fits and not key.startswith(_SIDE_KEYS):
                yield name.decode(errors="surrogateescape")


def escaped(text: bytes) -> bytes:
    """Return a SCAN pattern that matches exactly this text."""
    return b"".join(b"\\" + c if c in b"*?[]\\" else c for c in (b"%c" % byte for byte in text))


def pollers_of(settings: FileSettings, pattern: str, pause: float) -> NodePollers[Names]:
    """Return pollers that list the keys of all nodes; they are not started yet."""
    prefix = settings.prefix
    return NodePollers(settings, pause, lambda connection, _: Scan(connection, prefix, pattern))


def list_once(settings: FileSettings, pattern: str) -> Listing:
    """Return the matching names. Raise Failed.

    The wait for a node is bounded by the time to connect and to list.
    """
    with pollers_of(settings, pattern, SECONDS) as pollers:
        pollers.wait(2 * settings.seconds("connect_timeout") + SECONDS)
        return required(merged(pollers.reports))


def merged(reports: Mapping[str, PollReport[Names]]) -> Listing:
    """Return the listing that combines the nodes' reports."""
    listed = {address: _names(report) for address, report in reports.items()}
    names = frozenset[str]().union(*(one.found for one in listed.values()))
    unlisted = {address: one.refused for address, one in listed.items() if one.refused}
    return Listing(
        sorted(names),
        whole=all(one.whole for one in listed.values()),
        unlisted=unlisted,
        n=len(listed),
        is_forbidden=any(one.is_forbidden for one in listed.values()),
    )


def required(listing: Listing) -> Listing:
    """Return the listing if a quorum of nodes listed its keys, else raise Failed."""
    if listing.enough:
        return listing
    raise Failed(EX_NOPERM if listing.is_forbidden else EX_UNAVAILABLE, listing.trouble)


def _names(report: PollReport[Names]) -> Names:
    if report.said is not None:
        return report.said
    is_forbidden = report.code is VoteCode.ACCESS_DENIED
    return Names(refused=report.silent or "no answer yet", is_forbidden=is_forbidden)
