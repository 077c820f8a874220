"""Places in the queue of a lock, and the names of what nodes keep for its waiters.

A place is `<inbox>:<serial>:<ms>`: the inbox that receives its calls (16 hexadecimal digits), a
number that the inbox gives out once, and the ms for which a node reserves the lock for it.  The
place of a reader, which shares the lock with others, ends in `:shared` on the nodes.
"""

from quorlock._core.time import NS_PER_MS, Duration

QUEUE = b"quorlock:queue:"  # + lock key: a sorted set of places by their tickets
RESERVED = b"quorlock:next:"  # + place: the value of a lock key that is reserved for it
INBOX = b"quorlock:inbox:"  # + inbox: the channel of its calls
INBOX_DIGITS = 16
_SHARED = b":shared"


def place_of(inbox: bytes, serial: int, reserved_for: Duration) -> bytes:
    """Return the place with this number of an inbox."""
    return b"%b:%d:%d" % (inbox, serial, max(1, reserved_for // NS_PER_MS))


def shared_place(place: bytes) -> bytes:
    """Return the place of a reader as nodes have it; b"" for b""."""
    return place and place + _SHARED


def is_shared_place(place: bytes) -> bool:
    """Return whether it is the place of a reader."""
    return place.endswith(_SHARED)


def enlisted_place(place: bytes) -> bytes:
    """Return the place of a call as the inbox gave it out."""
    return place.removesuffix(_SHARED)


def channel_of(inbox: bytes) -> bytes:
    """Return the channel on which nodes call the places of an inbox."""
    return INBOX + inbox


def is_reservation(value: bytes) -> bool:
    """Return whether a lock key's value reserves it for a waiter: it is held by none."""
    return value.startswith(RESERVED)


def called(message: bytes) -> tuple[bytes, bytes]:
    """Return the place and the lock key of a call; b"" for both if it is malformed."""
    place, found, key = message.partition(b" ")
    return (place, key) if found else (b"", b"")
