"""Reads replies: what a node's bytes mean for the lock. Leaves counting to the core.

A reply of a shape that the command cannot have is NONSENSE: after it nothing that comes down
this connection can be trusted to belong to its question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorlock._core.commands import (
    Acquire,
    AcquireByScript,
    Command,
    Extend,
    Inspect,
    Raise,
    Release,
    Track,
)
from quorlock._core.outcomes import ABSENT, GRANTED, HELD, Answer, Cause, Vote

if TYPE_CHECKING:
    from collections.abc import Callable

NONSENSE = Answer(Vote.UNKNOWN, Cause.NONSENSE)

_TEXT_MAX = 160
# Read at every answer (see _core/quorum.py).
_GRANTED, _YES = Vote.GRANTED, Cause.YES

# First words (or texts) of errors that the same question will meet again.  Source: the error
# texts of Redis 7.0 and Valkey 9 (shared/faults.md, rows 21-24).
_LASTING = (
    "READONLY",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "DENIED",
    "MOVED",
    "ASK ",
    "CROSSSLOT",
    "ERR unknown command",
    "ERR DB index",
    "ERR invalid DB index",
    "ERR AUTH",
    "ERR Client sent AUTH",
    "ERR invalid password",
    "ERR The user executing the script",
    "ERR ACL failure in script",
)
# The same two from inside a script on servers before 7.0, which put their own words first.
_LASTING_INSIDE = (
    "can't run this command",
    "can't access at least one of the keys",
    "has no permissions",
)


def interpret(command: Command, reply: Any) -> Answer:
    """What one node's reply to the command means, if it is not an error (`error_answer`)."""
    return READERS[type(command)](reply)


def error_answer(text: str) -> Answer:
    """An error reply as a vote: the node did nothing of what it was asked."""
    cause = Cause.FAILED
    if "WRONGTYPE" in text:
        return Answer(Vote.REFUSED, Cause.WRONG_TYPE)
    if text.startswith(_LASTING) or any(words in text for words in _LASTING_INSIDE):
        cause = Cause.FORBIDDEN
    return Answer(Vote.REFUSED, cause, printable(text))


def redacted(text: str, secret: str | None) -> str:
    """A server's words without our password, in case it plays them back."""
    return text.replace(secret, "***") if secret else text


def printable(text: str) -> str:
    """A server's words, fit for a log: one line, no control characters, not endless."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: _TEXT_MAX + 1])
    return clean if len(clean) <= _TEXT_MAX else clean[:_TEXT_MAX] + "…"


def _acquired(reply: Any) -> Answer:
    if reply == b"OK":
        return GRANTED
    return HELD if reply is None else NONSENSE


def _acquired_by_script(reply: Any) -> Answer:
    told = _told(reply)
    if told is None:
        return NONSENSE
    what, clock_us, number = told
    if what == 1 and number >= 0:
        return Answer(_GRANTED, _YES, "", None, None, number, clock_us)
    if what == 0:
        return _holds(number, clock_us)
    if what == -1 and number > 0:
        text = f"restarted, emptied or first used; votes again in {-(-number // 1000)} s"
        return Answer(Vote.UNKNOWN, Cause.RESTARTED, text, clock_us=clock_us)
    return _COUNTER_OFF._replace(clock_us=clock_us) if (what, number) == (-2, 0) else NONSENSE


def _raised(reply: Any) -> Answer:
    told = _told(reply)
    if told is None:
        return NONSENSE
    what, clock_us, number = told
    if what == 1 and number > 0:
        return Answer(Vote.GRANTED, Cause.YES, fence=number, clock_us=clock_us)
    if what == 0:
        return _holds(number, clock_us)
    cause = _NOT_RAISED.get(what) if number == 0 else None
    return NONSENSE if cause is None else Answer(Vote.REFUSED, cause, clock_us=clock_us)


def _holds(ttl_left_ms: int, clock_us: int) -> Answer:
    found = _found(ttl_left_ms, None)
    return found if found is NONSENSE else found._replace(clock_us=clock_us)


def _told(reply: Any) -> tuple[int, int, int] | None:
    """What the scripts about fences return: three whole numbers, of which one is a clock."""
    try:
        what, clock_us, number = reply
    except (TypeError, ValueError):
        return None
    whole = type(what) is int and type(clock_us) is int and type(number) is int
    return (what, clock_us, number) if whole and clock_us > 0 else None


_COUNTER_OFF = Answer(
    Vote.REFUSED,
    Cause.SKEWED,
    "its fence counter is no number, or more than a day ahead of its clock",
)
_NOT_RAISED = {-1: Cause.ABSENT, -2: Cause.UNFENCED, -3: Cause.SKEWED}


def _extended(reply: Any) -> Answer:
    return {1: GRANTED, 0: HELD, -1: ABSENT}.get(reply, NONSENSE) if _whole(reply) else NONSENSE


def _released(reply: Any) -> Answer:
    if type(reply) is int and reply == -3:  # noqa: PLR2004 (see release.lua)
        return GRANTED
    return _found(reply, None)


def _inspected(reply: Any) -> Answer:
    try:
        holder, ttl_left_ms = reply
    except (TypeError, ValueError):
        return NONSENSE
    if holder is None:
        return ABSENT
    return _found(ttl_left_ms, holder) if isinstance(holder, bytes) else NONSENSE


def _tracked(reply: Any) -> Answer:
    del reply  # a server that does not track gives no hints, and that is all
    return GRANTED


def _found(ttl_left_ms: Any, holder: bytes | None) -> Answer:
    """Another's key with the life it has left: PTTL's own numbers."""
    if not _whole(ttl_left_ms) or ttl_left_ms < -2:  # noqa: PLR2004
        return NONSENSE
    if ttl_left_ms == -2:  # noqa: PLR2004
        return ABSENT
    text = "held by another, by a key without ttl" if ttl_left_ms == -1 else ""
    return Answer(Vote.REFUSED, Cause.HELD, text, ttl_left_ms, holder)


def _whole(reply: Any) -> bool:
    return type(reply) is int  # bool is RESP3's true and false, not a number


# Whole answers as they nearly always come, by the kind of command (both of RESP's ways to say nil).
WHOLE: dict[type, dict[bytes, Answer]] = {
    Acquire: {b"+OK\r\n": GRANTED, b"_\r\n": HELD, b"$-1\r\n": HELD},
    AcquireByScript: {},
    Raise: {},
    Extend: {b":1\r\n": GRANTED, b":0\r\n": HELD, b":-1\r\n": ABSENT},
    Release: {b":-3\r\n": GRANTED},
    Inspect: {},
    Track: {},
}
# By the kind of command, for who reads many.
READERS: dict[type, Callable[[Any], Answer]] = {
    Acquire: _acquired,
    AcquireByScript: _acquired_by_script,
    Raise: _raised,
    Extend: _extended,
    Release: _released,
    Inspect: _inspected,
    Track: _tracked,
}
