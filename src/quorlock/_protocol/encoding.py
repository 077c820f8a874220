"""Commands as bytes: RESP arrays of bulk strings. The drivers send them.

Byte templates: 0.2 µs a command where hiredis.pack_command takes 0.5 and redis-py 1.7.
Lengths come first in RESP, so no name or token can inject anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock import scripts
from quorlock._core.commands import (
    Acquire,
    Command,
    EnableTracking,
    Extend,
    Inspect,
    IssueFence,
    Look,
    Publish,
    Release,
    ScriptedAcquire,
    Subscribe,
)

if TYPE_CHECKING:
    from quorlock.scripts import Script


def encode(command: Command) -> bytes:
    """Return the bytes of a command; scripts are named by their SHA-1."""
    if type(command) is Acquire:
        key, token, ttl = command.key, command.token, b"%d" % command.ttl_ms
        return (
            b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%b\r\n"
        ) % (len(key), key, len(token), token, len(ttl), ttl)
    if type(command) is Release:
        key, token, place, _ = command
        if place:
            return encode_command(b"EVALSHA", scripts.RELEASE.sha, *_arguments(command))
        return _RELEASE % (len(key), key, len(token), token)
    if type(command) is ScriptedAcquire and not (command.place or command.instead):
        key, token, ttl = command.key, command.token, b"%d" % command.ttl_ms
        grid, marker = b"%d" % command.grid_ms, b"%d" % command.marker_ms
        return _ACQUIRE % (
            *(len(key), key, len(COUNTER) + len(key), key, len(token), token),
            *(len(ttl), ttl, len(grid), grid, len(marker), marker),
        )
    return encode_command(*_words(command))


def _words(command: Command) -> tuple[bytes, ...]:
    if type(command) is Subscribe or type(command) is Publish:
        name, *message = _CHANNEL_WORDS[type(command)]
        return (name, command.key, *message)
    if type(command) is EnableTracking:
        return (b"CLIENT", *command.key.split())
    return (b"EVALSHA", _script(command).sha, *_arguments(command))


def encode_eval(command: Command) -> bytes:
    """Return the bytes of a command with its script's text, for a node that replied NOSCRIPT."""
    return encode_command(b"EVAL", _script(command).text, *_arguments(command))


def encode_command(*words: bytes) -> bytes:
    """Return the bytes of any command."""
    head = b"*%d\r\n" % len(words)
    return head + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


_RELEASE = (
    b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n" + scripts.RELEASE.sha + b"\r\n$1\r\n1\r\n"
    b"$%d\r\n%b\r\n$%d\r\n%b\r\n"
)


_CHANNEL_WORDS: dict[type, tuple[bytes, ...]] = {
    Subscribe: (b"SUBSCRIBE",),
    Publish: (b"PUBLISH", b""),
}
# Which script carries a command out.
SCRIPTS: dict[type, Script] = {
    ScriptedAcquire: scripts.ACQUIRE,
    IssueFence: scripts.RAISE,
    Extend: scripts.EXTEND,
    Look: scripts.RELEASE,
    Release: scripts.RELEASE,
    Inspect: scripts.INSPECT,
}
# Side keys: a counter for each lock, under its key with this prefix, and one marker for the node.
COUNTER = b"quorlock:fence:"
MARKER = b"quorlock:guard"


_ACQUIRE = (
    b"*10\r\n$7\r\nEVALSHA\r\n$40\r\n" + scripts.ACQUIRE.sha + b"\r\n$1\r\n3\r\n$%d\r\n%b\r\n"
    b"$%d\r\n" + COUNTER + b"%b\r\n$14\r\n" + MARKER + b"\r\n"
    b"$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
)


def _script(command: Command) -> Script:
    return SCRIPTS[type(command)]


def _arguments(command: Command) -> tuple[bytes, ...]:
    said: tuple[bytes, ...]
    if isinstance(command, Inspect):
        return (b"1", command.key)
    if isinstance(command, Release):
        said = (command.token,)
        if command.place:
            said = (*said, command.place, b"%d" % command.ticket)
        return (b"1", command.key, *said)
    if isinstance(command, IssueFence):
        keys = (b"2", command.key, COUNTER + command.key)
        return (*keys, command.token, b"%d" % command.fence, b"%d" % command.ahead_ms)
    if isinstance(command, ScriptedAcquire):
        numbers = (command.ttl_ms, command.grid_ms, command.marker_ms)
        said = (command.token, *[b"%d" % number for number in numbers])
        if command.place or command.instead:
            said = (*said, command.place, command.instead)
        return (b"3", command.key, COUNTER + command.key, MARKER, *said)
    return (b"1", command.key, command.token, b"%d" % command.ttl_ms)
