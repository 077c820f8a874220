"""Commands as bytes: RESP arrays of bulk strings. The drivers send them.

Byte templates: 0.2 µs a command where hiredis.pack_command takes 0.5 and redis-py 1.7.
Lengths come first in RESP, so no name or token can inject anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock import scripts
from quorlock._core.commands import (
    Acquire,
    AcquireAny,
    Command,
    EnableTracking,
    Extend,
    Inspect,
    IssueFence,
    Keep,
    Look,
    Publish,
    Release,
    ScriptedAcquire,
    Share,
    Subscribe,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock.scripts import Script


def encode(command: Command) -> bytes:
    """Return the bytes of a command; scripts are named by their SHA-1."""
    if type(command) is Acquire:
        key, token, ttl_ms = command
        ttl = b"%d" % ttl_ms
        return (
            b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%b\r\n"
        ) % (len(key), key, len(token), token, len(ttl), ttl)
    if type(command) is Release:
        key, token, place, ticket, also = command
        if also:
            return encode_command(b"EVALSHA", scripts.RELEASE.sha, *_arguments(command))
        if place:
            number = b"%d" % ticket
            words = (len(key), key, len(token), token, len(place), place, len(number), number)
            return _RELEASE_WITH_PLACE % words
        return _RELEASE % (len(key), key, len(token), token)
    if type(command) is ScriptedAcquire and not command.also:
        return _scripted_acquire(command)
    return encode_command(*_words(command))


def _scripted_acquire(command: ScriptedAcquire) -> bytes:
    key, token, ttl = command.key, command.token, b"%d" % command.ttl_ms
    grid, marker = b"%d" % command.grid_ms, b"%d" % command.marker_ms
    place, instead = command.place, command.instead
    words = (
        *(len(key), key, len(COUNTER) + len(key), key, len(token), token),
        *(len(ttl), ttl, len(grid), grid, len(marker), marker),
    )
    if place or instead:
        return _ACQUIRE_WITH_PLACE % (*words, len(place), place, len(instead), instead)
    return _ACQUIRE % words


def encode_group(releases: Sequence[Release], *, in_full: bool) -> bytes:
    """Return the bytes of one command for the releases of several locks, none with a place."""
    script = scripts.RELEASE_EACH
    name = (b"EVAL", script.text) if in_full else (b"EVALSHA", script.sha)
    keys = [key for key, _, _, _, _ in releases]
    return encode_command(
        *name, b"%d" % len(keys), *keys, *[token for _, token, _, _, _ in releases]
    )


def encode_message(channel: bytes, message: bytes) -> bytes:
    """Return a message to a channel as a server pushes it, in RESP3."""
    words = (len(channel), channel, len(message), message)
    return b">3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % words


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
    return head + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


_TWO = b"$%d\r\n%b\r\n$%d\r\n%b\r\n"  # words
_RELEASE_WORDS = b"$7\r\nEVALSHA\r\n$40\r\n" + scripts.RELEASE.sha + b"\r\n$1\r\n1\r\n" + _TWO
_RELEASE = b"*5\r\n" + _RELEASE_WORDS
_RELEASE_WITH_PLACE = b"*7\r\n" + _RELEASE_WORDS + _TWO
_CHANNEL_WORDS: dict[type, tuple[bytes, ...]] = {
    Subscribe: (b"SUBSCRIBE",),
    Publish: (b"PUBLISH", b""),
}
# Which script carries a command out.
SCRIPTS: dict[type, Script] = {
    ScriptedAcquire: scripts.ACQUIRE,
    AcquireAny: scripts.ANY,
    Share: scripts.SHARE,
    IssueFence: scripts.RAISE,
    Extend: scripts.EXTEND,
    Keep: scripts.KEEP,
    Look: scripts.RELEASE,
    Release: scripts.RELEASE,
    Inspect: scripts.INSPECT,
}
# Side keys: a counter for each lock, under its key with this prefix, and one marker for the node.
COUNTER = b"quorlock:fence:"
MARKER = b"quorlock:guard"


_ACQUIRE_WORDS = (
    b"$7\r\nEVALSHA\r\n$40\r\n" + scripts.ACQUIRE.sha + b"\r\n$1\r\n3\r\n$%d\r\n%b\r\n"
    b"$%d\r\n" + COUNTER + b"%b\r\n$14\r\n" + MARKER + b"\r\n" + 2 * _TWO
)
_ACQUIRE = b"*10\r\n" + _ACQUIRE_WORDS
_ACQUIRE_WITH_PLACE = b"*12\r\n" + _ACQUIRE_WORDS + _TWO


def _script(command: Command) -> Script:
    return SCRIPTS[type(command)]


def _arguments(command: Command) -> tuple[bytes, ...]:
    if isinstance(command, Inspect):
        return _with_keys((command.key,))
    keys: tuple[bytes, ...] = (command.key,)
    said: tuple[bytes, ...] = (command.token,)
    if isinstance(command, Release):
        if command.place:
            said = (*said, command.place, b"%d" % command.ticket)
    elif isinstance(command, IssueFence):
        keys = (command.key, COUNTER + command.key)
        said = (*said, b"%d" % command.fence, b"%d" % command.ahead_ms)
    elif isinstance(command, Keep):
        said = (*said, command.mark, b"%d" % command.kept_ms)
    elif isinstance(command, ScriptedAcquire):
        keys = (command.key, COUNTER + command.key, MARKER)
        numbers = (command.ttl_ms, command.grid_ms, command.marker_ms)
        said = (*said, *[b"%d" % number for number in numbers])
        if command.place or command.instead:
            said = (*said, command.place, command.instead)
    elif isinstance(command, (AcquireAny, Share)):
        keys = (command.key, MARKER)
        said = (*said, b"%d" % command.ttl_ms, b"%d" % command.marker_ms)
        place = command.place if isinstance(command, Share) else b""
        said = (*said, place) if place else said
    else:
        said = (
            *said,
            b"%d" % command.ttl_ms,
            *([b"1"] if type(command) is Extend and command.shared else []),
        )
    also: tuple[bytes, ...] = getattr(command, "also", ())
    return (*_with_keys((*keys, *also)), *said)


def _with_keys(keys: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return (b"%d" % len(keys), *keys)
