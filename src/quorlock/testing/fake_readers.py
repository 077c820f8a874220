"""The readers of a lock on a node in memory: a sorted set of their tokens by their ends.

As the scripts use it: scripts/share.lua has the contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.owner import owner_in
from quorlock.testing.fake_keys import Entry, ttl_left, with_place, without

if TYPE_CHECKING:
    from quorlock.testing.fake_keys import FakeKeys

# So many tokens are in the reply of an inspection, and of a release.
_SHOWN_MAX = 100
_NAMED_MAX = 4


def is_other_type(entry: Entry | None) -> bool:
    """Return whether a lock key has another type of data: neither a token nor readers."""
    return entry is not None and entry.value is None and not entry.places


def is_shared(entry: Entry | None) -> bool:
    """Return whether readers have the lock."""
    return entry is not None and bool(entry.places)


def is_read_at(entry: Entry | None, at: int) -> bool:
    """Return whether it is so by its ttl: without one, it is data of another program."""
    return entry is not None and is_shared(entry) and ttl_left(entry, at) >= 0


class FakeReaders:
    """The readers of the lock `key` at the instant `at`."""

    def __init__(self, node: FakeKeys, key: bytes, at: int) -> None:
        self._node = node
        self._key = key
        self._at = at

    @property
    def ends(self) -> dict[bytes, float]:
        """The end of each, in order, also of those that have ended."""
        entry = self._node.alive(self._key, self._at) or Entry(None, None)
        return {token: end for end, token in entry.places}

    @property
    def ttl_left(self) -> int:
        """Return the ttl of the key that is left."""
        entry = self._node.alive(self._key, self._at)
        return -2 if entry is None else ttl_left(entry, self._at)

    def has(self, token: bytes | None) -> bool:
        """Return whether this is the token of one that has not ended."""
        return token is not None and self.ends.get(token, -1) >= self._at

    def add(self, token: bytes, ttl_ms: int) -> None:
        """Add a reader, or move its end; the key lives as long."""
        entry = self._node.alive(self._key, self._at) or Entry(None, None)
        places = with_place(entry.places, self._at + ttl_ms, token)
        self._node.set_places(self._key, places, self._at)
        self.keep_for(ttl_ms)

    def keep_for(self, ttl_ms: int) -> None:
        """Let the key live for so long at least."""
        entry = self._node.alive(self._key, self._at)
        if entry is not None and ttl_left(entry, self._at) < ttl_ms:
            self._node.expire_at(self._key, entry, self._at + ttl_ms, self._at)

    def remove(self, token: bytes) -> None:
        """Remove a reader."""
        entry = self._node.alive(self._key, self._at)
        if entry is not None:
            self._node.set_places(self._key, without(entry.places, token), self._at)

    def purge(self) -> None:
        """Remove those that have ended; a replica cannot."""
        if self._node.read_only:
            return
        for token, end in self.ends.items():
            if end < self._at:
                self.remove(token)

    def end_with_last(self) -> bool:
        """Let the key live no longer than those that are left; return whether there are any."""
        last = int(max(self.ends.values(), default=0))
        entry = self._node.alive(self._key, self._at)
        if entry is not None:
            self._node.expire_at(self._key, entry, last, self._at)
        return last > self._at

    def report(self) -> bytes:
        """Return their number and the owners of a few, as scripts/release.lua does."""
        tokens = list(self.ends)
        named = [b" " + owner_in(token) for token in tokens[-_NAMED_MAX:]]
        return b"*%d" % len(tokens) + b"".join(named)

    def shown(self) -> list[bytes | int]:
        """Return their tokens with the ms that each has left, as scripts/inspect.lua does."""
        left = {token: int(end) - self._at for token, end in self.ends.items()}
        last = list(left.items())[: -_SHOWN_MAX - 1 : -1]
        return [part for token, ms in last if ms >= 0 for part in (token[:4_096], ms)]
