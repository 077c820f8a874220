"""The queue of one lock on a node in memory, as scripts/release.lua and acquire.lua use it.

No error of the queue (another type, a replica, no memory) reaches the caller: as in the scripts, it
counts as an empty queue that takes no place.  A script that has written something may continue
after the memory is full, so a place can be removed and the lock reserved then.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from quorlock._core.commands import LEAVE
from quorlock._core.places import QUEUE, RESERVED, channel_of, enlisted_place, is_shared_place
from quorlock.testing.fake_keys import NO_RIGHT, with_place, without
from quorlock.testing.fake_readers import FakeReaders

if TYPE_CHECKING:
    from quorlock.testing.fake_keys import FakeKeys, Places

# A queue is deleted after this time without use.
QUEUE_MS: Final = 60_000
_TICKET_MAX: Final = 2**52
_PLACE: Final = re.compile(rb"([0-9a-fA-F]+):[0-9]+:([0-9]+)")
_INT64_MAX: Final = 2**63 - 1


class FakeQueue:
    """The queue of the lock `key` at the instant `at`."""

    def __init__(self, node: FakeKeys, key: bytes, at: int) -> None:
        self._node = node
        self._lock_key = key
        self._key = QUEUE + key
        self._at = at

    @property
    def places(self) -> Places:
        """All places; () if there is no queue, or another type of data."""
        entry = self._node.alive(self._key, self._at)
        return (entry and entry.places) or ()

    def ahead(self, place: bytes) -> int:
        """Return how many places are before this one; -1 if it is not in the queue."""
        members = [member for _, member in self.places]
        return members.index(place) if place in members else -1

    def act(self, place: bytes, action: int) -> int:
        """Do what a release asks for its place; return its ticket, 0 if it is not queued."""
        if action < 0:
            if action == LEAVE:
                self.remove(place)
            elif self.ahead(place) >= 0 and self._takes_places():
                self._write(with_place(self.places, -action, place))
            return 0
        if not self._takes_places():
            return 0
        own = {member: ticket for ticket, member in self.places}.get(place)
        last = self.places[-1][0] if self.places else 0
        ticket = action or (min(max(last, 0), _TICKET_MAX) + 1 if own is None else own)
        self._write(with_place(self.places, ticket, place), QUEUE_MS)
        return action or int(min(max(ticket, 0), 2 * _TICKET_MAX))

    def remove(self, place: bytes) -> None:
        """Remove a place."""
        if not self._node.read_only:
            self._write(without(self.places, place))

    def call(self, place: bytes) -> tuple[re.Match[bytes] | None, int]:
        """Call a place; return its parts, and how many connections receive the call."""
        found = _PLACE.fullmatch(enlisted_place(place))
        call = place + b" " + self._lock_key
        return found, self._node.publish(channel_of(found[1]), call) if found else 0

    @property
    def reader_is_first(self) -> bool:
        """Return whether the first place is that of a reader."""
        return bool(self.places) and is_shared_place(self.places[0][1])

    def alone_is_first(self, own: bytes = b"") -> tuple[bool, bool]:
        """Return whether the first place wants the lock alone; removes those that are gone.

        And whether any was removed.
        """
        is_removed = False
        while self.places:
            first = self.places[0][1]
            if is_shared_place(first):
                break
            found = _PLACE.fullmatch(first)
            is_here = first == own or (found and self._node.publish(channel_of(found[1]), b""))
            if is_here or self._node.read_only:
                return True, is_removed
            self.remove(first)
            is_removed = True
        return False, is_removed

    def pass_on(self, own: bytes, *, is_read: bool, to_readers: bool) -> tuple[bool, bool]:
        """Reserve the lock for the first places whose processes receive the calls.

        Args:
            own: The place of the caller.
            is_read: Readers have the lock.
            to_readers: Others may join them.

        Returns:
            Whether it is reserved; and whether the place `own` was removed, since its process is
            gone.
        """
        node, is_deaf, passed = self._node, False, False
        readers = FakeReaders(node, self._lock_key, self._at)
        while not is_read or (to_readers and not self.alone_is_first(own)[0]):
            if not self.places or node.read_only:
                break
            (ticket, first), *rest = self.places
            self._write(tuple(rest))
            found, heard = self.call(first)
            if heard == NO_RIGHT:
                self._write(with_place(self.places, ticket, first), QUEUE_MS)
                break
            if found and heard:
                ms = int(found[2])
                if is_shared_place(first):
                    if not is_read:
                        node.keys.pop(self._lock_key, None)
                    readers.add(RESERVED + first, min(ms, QUEUE_MS))
                    is_read = passed = to_readers = True
                    continue
                if 0 < ms <= _INT64_MAX - self._at:
                    node.set_value(self._lock_key, RESERVED + first, self._at + ms, self._at)
                    passed = True
                break
            is_deaf = is_deaf or first == own
        return passed, is_deaf

    def _takes_places(self) -> bool:
        node = self._node
        entry = node.alive(self._key, self._at)
        return not (node.read_only or node.full) and (entry is None or bool(entry.places))

    def _write(self, places: Places, keep_ms: int = 0) -> None:
        self._node.set_places(self._key, places, self._at, keep_ms)
