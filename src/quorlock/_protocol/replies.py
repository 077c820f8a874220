"""Meanings of replies for the lock. Counting them is left to the core.

A reply of a shape that the command cannot have is NONSENSE: after it nothing that comes down
this connection can be trusted to belong to its question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorlock._core.commands import (
    Acquire,
    AcquireAny,
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
from quorlock._core.owner import owner_in
from quorlock._core.restart_guard import MARKED, kept_out
from quorlock._core.votes import ABSENT, GRANTED, HELD, Answer, Vote
from quorlock._protocol.redaction import redacted
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NONSENSE = Answer(Vote.UNKNOWN, VoteCode.PROTOCOL_ERROR)

_TEXT_MAX = 160

# First words (or texts) of errors for want of a login or a right; and of others that the same
# question will meet again.  Source: the error texts of Redis 7.0 and Valkey 9.
_DENIED = (
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "DENIED",
    "ERR AUTH",
    "ERR Client sent AUTH",
    "ERR invalid password",
    "ERR The user executing the script",
    "ERR ACL failure in script",
)
# The last two from inside a script on servers before 7.0, which put their own words first.
_DENIED_INSIDE = (
    "can't run this command",
    "can't access at least one of the keys",
    "has no permissions",
)
_PERMANENT = (
    "READONLY",
    "MOVED",
    "ASK ",
    "CROSSSLOT",
    "ERR unknown command",
    "ERR DB index",
    "ERR invalid DB index",
)
# What only a replica says, and how a script says it on servers before 7.0.  LOADING: it loads its
# master's keys. A server that loads its own, at its start, completes no handshake.
_OF_REPLICA = ("READONLY", "MASTERDOWN", "LOADING")
_READ_ONLY_INSIDE = ": -READONLY You can't write against"


def is_of_replica(text: str) -> bool:
    """Return whether an error shows that the server is a replica."""
    return text.startswith(_OF_REPLICA) or _READ_ONLY_INSIDE in text


def error_answer(text: str, secrets: Iterable[str | None] = ()) -> Answer:
    """Return an error reply as a vote: the node did nothing of what it was asked.

    secrets: what must not be shown, if the server plays it back.
    """
    code = VoteCode.TRANSIENT_ERROR
    if "WRONGTYPE" in text:
        return Answer(Vote.REFUSED, VoteCode.WRONG_TYPE)
    if text.startswith(_DENIED) or any(words in text for words in _DENIED_INSIDE):
        code = VoteCode.ACCESS_DENIED
    elif text.startswith(_PERMANENT) or _READ_ONLY_INSIDE in text:
        code = VoteCode.PERMANENT_ERROR
    return Answer(Vote.REFUSED, code, printable(redacted(text, secrets)))


def printable(text: str) -> str:
    """Return a server's text, fit for a log: one line, no control characters, not endless."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: _TEXT_MAX + 1])
    return clean if len(clean) <= _TEXT_MAX else clean[:_TEXT_MAX] + "…"


def _acquired(reply: Any) -> Answer:
    if reply == b"OK":
        return GRANTED
    return HELD if reply is None else NONSENSE


def _acquired_maybe_in_turn(reply: Any) -> Answer:
    if _whole(reply):
        return _GRANTS_IN_TURN.get(reply, NONSENSE)
    return _acquired_by_script(reply)


def _acquired_by_script(reply: Any) -> Answer:
    if reply.__class__ is list and len(reply) > 3:  # noqa: PLR2004
        return _acquired_in_detail(reply)
    told = _told(reply)
    if told is None:
        return NONSENSE
    what, clock_us, number = told
    if what == 1 and number >= 0:
        return Answer(Vote.GRANTED, VoteCode.GRANTED, "", None, None, number, clock_us)
    if what == 0:
        return _holds(number, clock_us)
    if what == -1 and number > 0:
        return kept_out(MARKED, None, number / 1000)._replace(clock_us=clock_us)
    return _COUNTER_OFF._replace(clock_us=clock_us) if (what, number) == (-2, 0) else NONSENSE


def _acquired_in_detail(reply: list[Any]) -> Answer:
    """Return the answer about a lock with a place in its queue, or about several keys."""
    if len(reply) == 4 and reply[0] == 0:  # noqa: PLR2004
        return _with_before(_acquired_by_script(reply[:3]), reply[3])
    return _granted_from_queue(reply) if len(reply) == 5 else NONSENSE  # noqa: PLR2004


def _granted_from_queue(reply: list[Any]) -> Answer:
    if set(map(type, reply)) != _INTEGERS:
        return NONSENSE
    what, clock_us, fence, others_wait, replaced = reply
    if what != 1 or clock_us <= 0 or fence <= 0 or not 0 <= others_wait <= 1:
        return NONSENSE
    ahead, replaced = others_wait, replaced == 1
    return GRANTED._replace(fence=fence, clock_us=clock_us, ahead=ahead, replaced=replaced)


def _acquired_any(reply: Any) -> Answer:
    """Return the answer about any one of several keys; it says which."""
    if reply.__class__ is not list or len(reply) not in (3, 4):
        return NONSENSE
    answer = _acquired_by_script(reply[:3])
    is_about_one = answer.vote is Vote.GRANTED or answer.is_held
    is_of_fences = bool(answer.fence) or answer.code is VoteCode.CLOCK_SKEW
    if is_of_fences or is_about_one != (len(reply) == 4):  # noqa: PLR2004
        return NONSENSE
    return _with_before(answer, reply[3]) if is_about_one else answer


def _shared(reply: Any) -> Answer:
    """Return the answer about a place among the readers."""
    if reply.__class__ is not list or len(reply) != 3:  # noqa: PLR2004
        return NONSENSE
    answer = _acquired_by_script(reply)
    return NONSENSE if answer.fence or answer.code is VoteCode.CLOCK_SKEW else answer


def _raised(reply: Any) -> Answer:
    told = _told(reply)
    if told is None:
        return NONSENSE
    what, clock_us, number = told
    if what == 1 and number > 0:
        return Answer(Vote.GRANTED, VoteCode.GRANTED, fence=number, clock_us=clock_us)
    if what == 0:
        return _holds(number, clock_us)
    code = _NOT_RAISED.get(what) if number == 0 else None
    return NONSENSE if code is None else Answer(Vote.REFUSED, code, clock_us=clock_us)


def _holds(ttl_left_ms: int, clock_us: int) -> Answer:
    found = _found(ttl_left_ms, None)
    return found if found is NONSENSE else found._replace(clock_us=clock_us)


def _told(reply: Any) -> tuple[int, int, int] | None:
    """Return the three numbers of a fencing script, the second one a clock; None if malformed."""
    try:
        what, clock_us, number = reply
    except (TypeError, ValueError):
        return None
    whole = type(what) is int and type(clock_us) is int and type(number) is int
    return (what, clock_us, number) if whole and clock_us > 0 else None


_COUNTER_OFF = Answer(
    Vote.REFUSED,
    VoteCode.CLOCK_SKEW,
    "its fence counter is no number, or more than a day ahead of its clock",
)
_NOT_RAISED = {-1: VoteCode.KEY_MISSING, -2: VoteCode.FENCE_MISMATCH, -3: VoteCode.CLOCK_SKEW}


def _extended(reply: Any) -> Answer:
    return {1: GRANTED, 0: HELD, -1: ABSENT}.get(reply, NONSENSE) if _whole(reply) else NONSENSE


def _released(reply: Any) -> Answer:
    if _whole(reply):
        return GRANTED if reply == -3 else _found(reply, None)  # noqa: PLR2004 (see release.lua)
    if reply.__class__ is not list or tuple(map(type, reply)) not in _RELEASED:
        return NONSENSE
    what, owner, *of_place = reply
    before = of_place.pop() if len(of_place) % 2 else 0  # of several keys
    ticket, ahead = of_place or (0, -1)
    if min(ticket, ahead + 1) < 0:
        return NONSENSE
    found = _found(what, None, owner, ticket, ahead)
    if what == -3 and not owner and reply[2:]:  # noqa: PLR2004
        found = GRANTED._replace(ticket=ticket, ahead=ahead) if of_place else GRANTED
    return _with_before(found, before) if before else found


# The forms of its lists: with a place or without, of one key or of several.
_RELEASED = {(int, bytes, *(int,) * rest) for rest in range(4)}


def _with_before(found: Answer, before: Any) -> Answer:
    """Add how many keys are before the one that the answer is about."""
    if found is NONSENSE or not _whole(before) or before < 0:
        return NONSENSE
    return found._replace(before=before) if before else found


def _inspected(reply: Any) -> Answer:
    try:
        holder, ttl_left_ms, waiters, *readers = reply
    except (TypeError, ValueError):
        return NONSENSE
    if not _whole(waiters) or waiters < 0:
        return NONSENSE
    if holder is None and readers:
        return _read_by(readers, _found(ttl_left_ms, None, ahead=waiters))
    if holder is None:
        return ABSENT._replace(ahead=waiters) if ttl_left_ms == -2 else NONSENSE  # noqa: PLR2004
    if not isinstance(holder, bytes):
        return NONSENSE
    return _found(ttl_left_ms, holder, owner_in(holder), ahead=waiters)


def _read_by(readers: list[Any], found: Answer) -> Answer:
    """Return the answer with the readers, of which each is a token and the ms that it has left."""
    pairs = tuple(zip(readers[::2], readers[1::2], strict=False))
    is_shaped = all(isinstance(token, bytes) and _whole(left) for token, left in pairs)
    if len(readers) % 2 or not is_shaped or not found.is_held:
        return NONSENSE
    return found._replace(readers=pairs)


def _told_nothing(reply: Any) -> Answer:
    """Return the answer to a request about pushes; no flow waits for it."""
    del reply  # a server that sends no pushes, or a number of receivers
    return GRANTED


def _found(
    ttl_left_ms: Any, holder: bytes | None, owner: bytes = b"", ticket: int = 0, ahead: int = -1
) -> Answer:
    """Return the answer for another's key; `ttl_left_ms` is as in PTTL's replies."""
    if not _whole(ttl_left_ms) or ttl_left_ms < -2:  # noqa: PLR2004
        return NONSENSE
    if ttl_left_ms == -2:  # noqa: PLR2004
        return ABSENT if ahead == -1 and not ticket else ABSENT._replace(ticket=ticket, ahead=ahead)
    code = VoteCode.HELD_WITHOUT_TTL if ttl_left_ms == -1 else VoteCode.HELD
    return Answer(Vote.REFUSED, code, "", ttl_left_ms, holder, 0, 0, owner, None, ticket, ahead)


_INTEGERS = {int}


def _whole(reply: Any) -> bool:
    return type(reply) is int  # bool is RESP3's true and false, not a number


# The plain grants of the rounds that every lock makes. Both have the same length, so the n-th of
# many stands at n times that length.
PLAIN_GRANTS: dict[type, bytes] = {Acquire: b"+OK\r\n", Release: b":-3\r\n"}
PLAIN_GRANT_SIZE = 5
# Grants of an acquire with a place in the queue of its lock, or with a token to replace.
GRANTS_IN_TURN: dict[bytes, Answer] = {
    b":-3\r\n": GRANTED._replace(ahead=0),
    b":-4\r\n": GRANTED._replace(ahead=1),
    b":-5\r\n": GRANTED._replace(ahead=0, replaced=True),
    b":-6\r\n": GRANTED._replace(ahead=1, replaced=True),
}
_GRANTS_IN_TURN = {int(reply[1:]): answer for reply, answer in GRANTS_IN_TURN.items()}
# What a reply means, if it is not an error (`error_answer`), by the kind of command.
READERS: dict[type, Callable[[Any], Answer]] = {
    Acquire: _acquired,
    ScriptedAcquire: _acquired_maybe_in_turn,
    AcquireAny: _acquired_any,
    Share: _shared,
    IssueFence: _raised,
    Extend: _extended,
    Keep: _extended,
    Release: _released,
    Look: _released,
    Inspect: _inspected,
    EnableTracking: _told_nothing,
    Subscribe: _told_nothing,
    Publish: _told_nothing,
}
