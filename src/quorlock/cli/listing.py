"""Which resources there are, by SCAN of all nodes: what the keys of other programs have in common
with a lock's is told by no node, so any string with the prefix may be one.

Leaves who holds them to an inspection, and connections to `asking`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from quorlock.cli.asking import Askers, Refused
from quorlock.cli.exits import EX_NOPERM, EX_UNAVAILABLE, Failed, is_not_permitted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from quorlock.cli.asking import Report, Talk
    from quorlock.cli.config import Settings

_SIDE_KEYS = b"quorlock:"
# Keys that one SCAN looks at: some 0.3 ms of the node's time, and a rest after it, so that however
# many keys there are, a node spends no more than a tenth of its time on who watches.
_COUNT = b"1000"
_REST = 0.003
# What is kept of one node, and for how long one look goes on, whatever is there.
_NAMES_MAX = 100_000
SECONDS = 10.0
# Of a lock's key (docs/cli.md): what is longer or has a NUL is none.
_KEY_BYTES_MAX = 512


class Names(NamedTuple):
    """What one node has. whole: that is all of it.  refused: what it said instead."""

    found: frozenset[str] = frozenset()
    whole: bool = True
    refused: str = ""


class Listing(NamedTuple):
    """What all nodes have.

    names: sorted.  whole: nothing was left out.  unlisted: nodes that told nothing, and why.
    n: all nodes.
    """

    names: list[str]
    whole: bool
    unlisted: Mapping[str, str]
    n: int

    @property
    def enough(self) -> bool:
        """A quorum has told: what is held is on a quorum, and so on one of these at least."""
        return self.n - len(self.unlisted) >= self.n // 2 + 1

    @property
    def is_forbidden(self) -> bool:
        """It is for want of a right or a login."""
        return is_not_permitted(self.unlisted.values())

    @property
    def trouble(self) -> str:
        """In words, what is missing; "" if nothing is."""
        told = [f"{address}: {why}" for address, why in self.unlisted.items()]
        words = f"{len(told)} of {self.n} nodes did not tell their keys ({'; '.join(told)})"
        if self.is_forbidden:
            words += "; grant +scan (docs/acl.md), or name the resources"
        cut = f"not all keys were looked at, only what came in {SECONDS:g} s; narrow the pattern"
        return "; ".join([words] * bool(told) + [cut] * (not self.whole))


class Wanted:
    """Which resources are looked at, from turn to turn: those that match, so many at most, and what
    once matched until it is free.
    """

    def __init__(self, names: Iterable[str], limit: int) -> None:
        self.names = list(names)
        self._limit = limit

    def take(self, listing: Listing) -> int:
        """Look at these too, as far as there is room; for how many there is none."""
        known = set(self.names)
        new = [name for name in listing.names if name not in known]
        room = max(0, self._limit - len(known))
        self.names = sorted([*self.names, *new[:room]])
        return max(0, len(new) - room)

    def keep(self, names: Iterable[str]) -> None:
        """Look on at these only."""
        self.names = list(names)


class Scan:
    """Lists the keys of one node, as often as it is called; gives what it has while it rests."""

    def __init__(self, talk: Talk, prefix: bytes, pattern: str) -> None:
        self._talk = talk
        self._prefix = prefix
        match = escaped(prefix) + pattern.encode(errors="surrogateescape")
        self._words = [b"MATCH", match, b"COUNT", _COUNT]
        self._typed = [b"TYPE", b"string"]  # from Redis 6.0 on
        self._last = Names()
        self._next_at = 0.0

    def __call__(self) -> Names:
        """What there is now. Raises Silent."""
        # Refused once, refused until somebody grants it and we connect anew: each time would
        # leave a line in ACL LOG.
        if not is_not_permitted([self._last.refused]) and time.monotonic() >= self._next_at:
            self._last = self._list()
        return self._last

    def _list(self) -> Names:
        found, cursor, began = set[str](), b"0", time.monotonic()
        self._next_at = began
        while True:
            answer = self._ask(cursor)
            if isinstance(answer, Refused):
                return Names(refused=answer)
            self._next_at += _REST
            cursor, keys = cast("tuple[bytes, list[bytes]]", answer)
            found.update(self._resources(keys))
            if cursor == b"0":
                return Names(frozenset(found))
            if len(found) >= _NAMES_MAX or time.monotonic() > began + SECONDS:
                return Names(frozenset(found), whole=False)

    def _ask(self, cursor: bytes) -> Any:
        answer = self._talk.ask(b"SCAN", cursor, *self._words, *self._typed)
        if self._typed and isinstance(answer, Refused) and answer.startswith("ERR syntax"):
            self._typed = []
            return self._ask(cursor)
        return answer

    def _resources(self, keys: Iterable[bytes]) -> Iterable[str]:
        for key in keys:
            name = key.removeprefix(self._prefix)
            fits = name and len(key) <= _KEY_BYTES_MAX and b"\0" not in name
            if fits and not key.startswith(_SIDE_KEYS):
                yield name.decode(errors="surrogateescape")


def escaped(text: bytes) -> bytes:
    """As a pattern of SCAN that matches just this."""
    return b"".join(b"\\" + c if c in b"*?[]\\" else c for c in (b"%c" % byte for byte in text))


def prefix_of(settings: Settings) -> bytes:
    """Of the keys, as bytes."""
    prefix: str | bytes = settings.argument("prefix")
    return prefix if isinstance(prefix, bytes) else prefix.encode()


def askers_of(settings: Settings, pattern: str, pause: float) -> Askers[Names]:
    """Who list the keys of all nodes, again and again; not started yet."""
    prefix = prefix_of(settings)
    return Askers(settings, pause, lambda talk, _: Scan(talk, prefix, pattern))


def list_once(settings: Settings, pattern: str) -> Listing:
    """What matches. Waits for no node longer than for connecting and listing. Raises Failed."""
    with askers_of(settings, pattern, SECONDS) as askers:
        askers.wait(2 * settings.seconds("connect_timeout") + SECONDS)
        return required(merged(askers.reports))


def merged(reports: Mapping[str, Report[Names]]) -> Listing:
    """The listing that comes of what each node told."""
    told = {address: _names(report) for address, report in reports.items()}
    names = frozenset[str]().union(*(one.found for one in told.values()))
    unlisted = {address: one.refused for address, one in told.items() if one.refused}
    return Listing(sorted(names), all(one.whole for one in told.values()), unlisted, len(told))


def required(listing: Listing) -> Listing:
    """It, if a quorum has told. Raises Failed."""
    if listing.enough:
        return listing
    raise Failed(EX_NOPERM if listing.is_forbidden else EX_UNAVAILABLE, listing.trouble)


def _names(report: Report[Names]) -> Names:
    if report.said is not None:
        return report.said
    return Names(refused=report.silent or "no answer yet")
