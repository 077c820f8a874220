"""The keys and channels of a node in memory, and the faults that it may have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias, Union

# The places of a queue with their tickets, in order.
Places = tuple[tuple[float, bytes], ...]


def with_place(places: Places, ticket: float, place: bytes) -> Places:
    """Return the places with this one added, or moved to another ticket."""
    return tuple(sorted((*without(places, place), (ticket, place))))


def without(places: Places, place: bytes) -> Places:
    """Return the places without this one."""
    return tuple(entry for entry in places if entry[1] != place)


class Error(str):
    """An error reply: the text after the minus sign (surrogates stand for bytes not in UTF-8)."""

    __slots__ = ()


class Status(bytes):
    """A simple string such as OK; equal to the same bytes."""

    __slots__ = ()


class Push(list["Reply"]):
    """An out-of-band message."""


Reply: TypeAlias = Union[int, float, bytes, Error, "list[Reply]", "dict[bytes, Reply]", None]
# Takes the channel and the message of a PUBLISH.
Subscriber: TypeAlias = Callable[[bytes, bytes], None]

# The number of receivers of a message that its sender has no right to publish.
NO_RIGHT: Final = -1
OK: Final = Status(b"OK")
WRONG_TYPE: Final = Error("WRONGTYPE Operation against a key holding the wrong kind of value")
READ_ONLY: Final = Error("READONLY You can't write against a read only replica.")
FULL: Final = Error("OOM command not allowed when used memory > 'maxmemory'.")
BAD_TTL: Final = Error("ERR invalid expire time in 'set' command")


class Entry(NamedTuple):
    """A key's value, and the last instant (ms) at which it exists (None: it does not expire).

    If the value is None, the key has another type: `members` are those of a list, `places` those of
    a sorted set.
    """

    value: bytes | None
    until: int | None
    members: tuple[bytes, ...] = ()
    places: Places = ()


class FakeKeys:
    """The keys and channels of a node, and the identity of its process.

    Attributes:
        keys: all keys, expired ones included until a command finds them.
        run_id: the id of the process; every restart changes it.
        read_only: the node is a replica and refuses writes.
        full: maxmemory is reached and nothing may be evicted; writes that need memory are refused.
        known: SHA-1 (hex) of the cached scripts.
        started: the start of the process, by the node's wall clock (ms).
        followed: the replication id of the last master, after a dot; "" if there was none.
        subscribers: those of each channel.
    """

    __slots__ = (
        "_saved",
        "followed",
        "full",
        "keys",
        "known",
        "read_only",
        "run_id",
        "started",
        "subscribers",
    )

    def __init__(self, run_id: str = "", started: int = 0) -> None:
        self.keys: dict[bytes, Entry] = {}
        self.run_id: str = run_id
        self.read_only: bool = False
        self.full: bool = False
        self.known: set[bytes] = set()
        self.started: int = started
        self.followed: bytes = b""
        self.subscribers: dict[bytes, list[Subscriber]] = {}
        self._saved: dict[bytes, Entry] = {}

    def alive(self, key: bytes, at: int) -> Entry | None:
        """Return the key's entry, or None if there is none or its last instant is past."""
        entry = self.keys.get(key)
        if entry is None or entry.until is None or entry.until >= at:
            return entry
        if not self.read_only:  # a replica hides the key and waits for its master's DEL
            del self.keys[key]
        return None

    def expire_at(self, key: bytes, entry: Entry, until: int, at: int) -> None:
        """Set the key's expiry; if it is not in the future, delete the key now."""
        if until > at:
            self.keys[key] = entry._replace(until=until)
        else:
            self.keys.pop(key, None)

    def set_value(self, key: bytes, value: bytes, until: int, at: int) -> None:
        """Set a string that expires."""
        self.expire_at(key, Entry(value, None), until, at)

    def set_places(self, key: bytes, places: Places, at: int, keep_ms: int = 0) -> None:
        """Set the members of a sorted set, and for keep_ms > 0 its time to live."""
        entry = self.alive(key, at) or Entry(None, None)
        if places:
            self.keys[key] = entry._replace(places=places)
            if keep_ms:
                self.expire_at(key, self.keys[key], at + keep_ms, at)
        elif entry.places:
            self.keys.pop(key, None)

    # --- channels ----------------------------------------------------------------------------

    def subscribe(self, channel: bytes, subscriber: Subscriber) -> None:
        """Pass what is published on the channel on to the subscriber."""
        subscribers = self.subscribers.setdefault(channel, [])
        if subscriber not in subscribers:
            subscribers.append(subscriber)

    def unsubscribe(self, channel: bytes, subscriber: Subscriber) -> None:
        """Undo `subscribe`."""
        subscribers = self.subscribers.get(channel, [])
        if subscriber in subscribers:
            subscribers.remove(subscriber)
        if not subscribers:
            self.subscribers.pop(channel, None)

    def publish(self, channel: bytes, message: bytes) -> int:
        """Execute PUBLISH: return how many subscribers the message has."""
        subscribers = list(self.subscribers.get(channel, ()))
        for subscriber in subscribers:
            subscriber(channel, message)
        return len(subscribers)

    def uptime_s(self, at: int) -> int:
        """Return the uptime as INFO does: the difference of whole seconds of the wall clock."""
        return at // 1000 - self.started // 1000

    # --- faults ------------------------------------------------------------------------------

    def save(self) -> None:
        """Save all keys to disk."""
        self._saved = dict(self.keys)

    def restart(self, run_id: str, *, memory: str, started: int = 0) -> None:
        """Start another process: `memory` is "kept", "saved" (the keys on disk) or "lost"."""
        self.run_id, self.started = run_id, started
        self.known.clear()
        self.subscribers.clear()
        if memory == "saved":
            self.keys = dict(self._saved)
        elif memory == "lost":
            self.keys = {}
            self._saved = {}

    def flush(self) -> None:
        """Execute FLUSHALL."""
        self.keys.clear()

    def evict(self, key: bytes) -> None:
        """Evict the key, as a server that is out of memory does, even if it has no ttl."""
        self.keys.pop(key, None)


def ttl_left(entry: Entry, at: int) -> int:
    """Return PTTL's reply for a key that exists."""
    return -1 if entry.until is None else entry.until - at
