"""Owners: the readable tails of tokens, which say who holds a lock.

A token is 32 hexadecimal digits, which are secret, and if its client gave an owner, `@` and that
owner.  The owner is percent-encoded, so that a token is one word in a shell, a URL and JSON.  Nodes
and other libraries compare whole tokens, so the owner changes nothing for them.  See
docs/contributing/decisions/0034-owners.md.
"""

from __future__ import annotations

from typing import Final

from quorlock.errors import ConfigError

# The default: who the process is. Both are replaced in every process, also in a forked child.
DEFAULT_OWNER: Final = "{host}:{pid}"
# Encoded. scripts/release.lua has the sum of this and of the 33 bytes before it.
OWNER_BYTES_MAX: Final = 128
_HOST_MAX: Final = 64  # of Linux, as is the next
_PID_MAX: Final = 4_194_304
_HEX: Final = frozenset(b"0123456789ABCDEFabcdef")
_SEPARATOR: Final = b"@"
_DIGITS: Final = 32
# Before the owner in the mark of work that is done. No owner begins with it: it is encoded there.
_DONE: Final = b"~"
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._:/+,=")


def tail(owner: str | None, host: str, pid: int) -> bytes:
    """Return what follows the digits of a token: the separator and the owner; b"" for none.

    Raises:
        ConfigError: the owner cannot be shown on one line, or is too long.
    """
    if owner is None or owner == "":
        return b""
    if not isinstance(owner, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError("owner", owner, "give text, or None for no owner")
    if not owner.isprintable():
        raise ConfigError("owner", owner, "leave out control characters: it is shown on one line")
    # With the longest pid: a forked child must not find that it is too long.
    longest = len(_encoded(owner, host, max(pid, _PID_MAX)))
    if longest > OWNER_BYTES_MAX:
        fix = (
            f"it may take {OWNER_BYTES_MAX} bytes, and takes {longest}: shorten it, or use only"
            " letters, digits and - . _ : / (others take 3 bytes and more)"
        )
        raise ConfigError("owner", owner, fix)
    return _SEPARATOR + _encoded(owner, host, pid)


def owner_in(token: bytes) -> bytes:
    """Return the encoded owner of a token; b"" if it has none, as those of other libraries."""
    digits, _, owner = token[: _DIGITS + 1 + OWNER_BYTES_MAX + 1].partition(_SEPARATOR)
    is_ours = len(digits) == _DIGITS and _HEX.issuperset(digits)
    return owner if is_ours and len(owner) <= OWNER_BYTES_MAX else b""


def mark_of(token: bytes) -> bytes:
    """Return the mark that replaces a token when its work is done; it names the same owner."""
    return secret_of(token) + _SEPARATOR + (_DONE + owner_in(token))[:OWNER_BYTES_MAX]


def is_done(owner: bytes) -> bool:
    """Return whether this is the owner of a mark, not of a token."""
    return owner.startswith(_DONE)


def secret_of(token: bytes) -> bytes:
    """Return the part of a token that must not be shown: all but its owner."""
    return token[:_DIGITS] if owner_in(token) else token


def readable(owner: bytes) -> str | None:
    """Return an encoded owner as text, fit for one line of a terminal; None if there is none.

    It was written by another client, so it may be anything.
    """
    owner = owner.removeprefix(_DONE)
    if not owner:
        return None
    first, *rest = owner[:OWNER_BYTES_MAX].split(b"%")
    text = (first + b"".join(map(_decoded, rest))).decode(errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text)


def readers_in(owner: bytes) -> tuple[int, tuple[bytes, ...]]:
    """Return how many share a lock, and the encoded owners of a few; 0 for any other owner.

    A node reports readers as the owner `*4 a b c d` (scripts/release.lua).
    """
    number, *owners = owner.split(b" ")
    if not number.startswith(b"*") or not number[1:].isdigit():
        return 0, ()
    return int(number[1:]), tuple([name for name in owners if name])


def _encoded(owner: str, host: str, pid: int) -> bytes:
    name = "".join(c if c.isascii() and c.isprintable() else "?" for c in host[:_HOST_MAX])
    text = owner.replace("{host}", name).replace("{pid}", str(pid)).encode()
    return b"".join(b"%c" % byte if byte in _PLAIN else b"%%%02X" % byte for byte in text)


def _decoded(part: bytes) -> bytes:
    """Return what follows a percent sign, with the byte that its two digits stand for."""
    code, rest = part[:2], part[2:]
    if len(code) == 2 and _HEX.issuperset(code):  # noqa: PLR2004
        return bytes([int(code, 16)]) + rest
    return b"%" + part
