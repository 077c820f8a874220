"""Commands of a memory node, given as lists of words: one `ClientSession` for every connection.

The table has the commands that quorlock sends, and a few that show and change keys in tests.
Replies and error texts are the server's (Valkey 9, one database, no password).  Any other command
gets the server's error for an unknown command.  Only quorlock's own scripts can be run, with the
keys and arguments that quorlock gives them.  The locks' commands are in `fake_node`, bytes and
connections in `memory`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from quorlock import scripts
from quorlock._core.commands import Extend, Look
from quorlock._protocol.encoding import COUNTER, MARKER, SCRIPTS
from quorlock.testing import fake_info, fake_waiting
from quorlock.testing.fake_call import CommandCall, SessionState
from quorlock.testing.fake_info import INT64_MAX, SHOWN_MAX, error_of, integer, printed
from quorlock.testing.fake_keys import BAD_TTL
from quorlock.testing.fake_node import (
    FULL,
    OK,
    READ_ONLY,
    WRONG_TYPE,
    Entry,
    Error,
    ttl_left,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock._core.commands import Command
    from quorlock.scripts import Script
    from quorlock.testing.fake_node import Reply


class ClientSession(SessionState):
    """A connection to a node."""

    __slots__ = ()

    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        """Execute one command, of at least one word, at this instant of the node's clock (ms)."""
        name, rest = words[0].lower(), words[1:]
        known = COMMANDS.get(name)
        if known is None:
            return _unknown(words)
        if not known.least <= len(rest) <= known.most:
            return Error(f"ERR wrong number of arguments for '{name.decode()}' command")
        if known.writes and self.node.read_only:
            return READ_ONLY
        if known.grows and self.node.full:
            return FULL
        return known.run(CommandCall(self, self.node, rest, at))


class Known(NamedTuple):
    """A known command: its function, the number of words after its name, and its needs."""

    run: Callable[[CommandCall], Reply]
    least: int
    most: int
    writes: bool = False  # a replica refuses it
    grows: bool = False  # a node that is full refuses it


def _unknown(words: Sequence[bytes]) -> Error:
    begin = b""
    for word in words[1:]:
        if len(begin) < SHOWN_MAX:
            begin += b"'%b' " % printed(word, SHOWN_MAX - len(begin))
    text = b"ERR unknown command '%b', with args beginning with: %b"
    return error_of(text % (printed(words[0]), begin))


_SYNTAX: Final = Error("ERR syntax error")
_NO_INTEGER: Final = Error("ERR value is not an integer or out of range")


# --- keys -----------------------------------------------------------------------------------------


def _set(call: CommandCall) -> Reply:
    key, value = call.words[:2]
    options = _set_options(call.words[2:])
    if options is None:
        return _SYNTAX
    until: int | None = None
    for unit in _UNITS.keys() & options.keys():
        found = _until(options[unit], _UNITS[unit], call.at)
        if isinstance(found, Error):
            return found
        until = found
    unfit = b"xx" if call.alive() is None else b"nx"
    if unfit in options:
        return None
    call.node.keys[key] = Entry(value, until)
    return OK


def _set_options(words: Sequence[bytes]) -> dict[bytes, bytes] | None:
    """Parse the options, in lower case, with the number of PX and EX; None if they conflict."""
    options: dict[bytes, bytes] = {}
    rest = iter(words)
    for word in rest:
        option = word.lower()
        number = next(rest, None) if option in _UNITS else b""
        if option not in _CLASHES or number is None or _CLASHES[option] in options:
            return None
        options[option] = number
    return options


_UNITS: Final = {b"px": 1, b"ex": 1000}  # in ms
_CLASHES: Final = {b"nx": b"xx", b"xx": b"nx", b"px": b"ex", b"ex": b"px"}


def _until(word: bytes, unit: int, at: int) -> int | Error:
    """Return the expiry (ms) of a key that is set now with this time to live."""
    number = integer(word)
    if number is None:
        return _NO_INTEGER
    if not 0 < number <= (INT64_MAX - at) // unit:
        return BAD_TTL
    return at + number * unit


def _get(call: CommandCall) -> Reply:
    entry = call.alive()
    if entry is None:
        return None
    return WRONG_TYPE if entry.value is None else entry.value


def _del(call: CommandCall) -> Reply:
    node = call.node
    return sum(
        node.alive(key, call.at) is not None and bool(node.keys.pop(key)) for key in call.words
    )


def _exists(call: CommandCall) -> Reply:
    return sum(call.node.alive(key, call.at) is not None for key in call.words)


def _pttl(call: CommandCall) -> Reply:
    entry = call.alive()
    return -2 if entry is None else ttl_left(entry, call.at)


def _rpush(call: CommandCall) -> Reply:
    entry = call.alive() or Entry(None, None)
    if entry.value is not None or entry.places:
        return WRONG_TYPE
    members = (*entry.members, *call.words[1:])
    call.node.keys[call.words[0]] = Entry(None, entry.until, members)
    return len(members)


def _keys(call: CommandCall) -> Reply:
    # fnmatch has the server's ?, * and [a-c]; Latin-1 has a character for every byte.
    pattern = call.words[0].decode("latin-1").replace("[^", "[!")
    alive = (key for key in list(call.node.keys) if call.node.alive(key, call.at) is not None)
    return [key for key in alive if fnmatchcase(key.decode("latin-1"), pattern)]


def _flushall(call: CommandCall) -> Reply:
    call.node.flush()
    return OK


# --- scripts --------------------------------------------------------------------------------------


def _eval(call: CommandCall) -> Reply:
    script = _TEXTS.get(call.words[0])
    if script is None:
        return _STRANGE
    call.node.known.add(script.sha)
    return _run(call, script)


def _evalsha(call: CommandCall) -> Reply:
    sha = call.words[0]
    return _run(call, _SHAS[sha]) if sha in call.node.known else _NO_SCRIPT


def _run(call: CommandCall, script: Script) -> Reply:
    """Run a script, if it got the keys and arguments that quorlock gives it."""
    _, count, *words = call.words
    number = integer(count)
    if number is None or not 0 < number <= len(words):
        return _STRANGE
    (key, *further), arguments = words[:number], words[number:]
    if script is scripts.RELEASE_EACH:
        locks = list(zip([key, *further], arguments, strict=False))
        return call.node.release_each(locks, call.at) if len(arguments) == number else _STRANGE
    side_keys = _SIDE_KEYS[script](key) if script in _SIDE_KEYS else []
    also = tuple(further[len(side_keys) :])
    if further[: len(side_keys)] != side_keys or (also and script not in _OF_SEVERAL):
        return _STRANGE
    if script is scripts.PROBE and not arguments:
        return call.node.probe(key)
    if script in (scripts.CONFIG, scripts.GUARD) and len(arguments) == 2:  # noqa: PLR2004
        one, other = arguments
        act = call.node.guard if script is scripts.GUARD else call.node.compare_and_set
        return act(key, one, other, call.at)
    made = _command(script, key, arguments, also)
    return _STRANGE if made is None else call.node.ask(made, call.at)


def _command(
    script: Script, key: bytes, arguments: Sequence[bytes], also: tuple[bytes, ...]
) -> Command | None:
    """Return the command that a script carries out; None for other arguments than quorlock's."""
    shape = next((s for s in _SHAPES.get(script, ()) if len(s) == len(arguments)), None)
    if shape is None:
        return None
    fields = [
        integer(word) if kind == "n" else word for kind, word in zip(shape, arguments, strict=True)
    ]
    if None in fields or (script is scripts.RELEASE and b"" in fields[1:]):
        return None
    if script is scripts.EXTEND and len(fields) == 3:  # noqa: PLR2004
        token, ttl_ms, flag = arguments[0], integer(arguments[1]) or 0, arguments[2]
        return Extend(key, token, ttl_ms, also, shared=True) if flag == b"1" else None
    made: Command = _COMMANDS[script](key, *fields, **({"also": also} if also else {}))
    return made


# The arguments of a script, with and without a place in a queue: t a text, n a number.
_SHAPES: Final = {
    scripts.ACQUIRE: ("tnnn", "tnnntt"),
    scripts.ANY: ("tnn",),
    scripts.RAISE: ("tnn",),
    scripts.EXTEND: ("tn", "tnt"),
    scripts.SHARE: ("tnn", "tnnt"),
    scripts.KEEP: ("ttn",),
    scripts.RELEASE: ("t", "ttn"),
    scripts.INSPECT: ("",),
}
_NO_SCRIPT: Final = Error("NOSCRIPT No matching script.")
_STRANGE: Final = Error("ERR a node in memory runs quorlock's own scripts only, not this one")
_COMMANDS: Final[dict[Script, Any]] = {s: kind for kind, s in SCRIPTS.items() if kind is not Look}
_OF_SEVERAL: Final = (
    *(scripts.ACQUIRE, scripts.ANY, scripts.EXTEND, scripts.RAISE, scripts.RELEASE),
)
# The keys after the lock's.
_SIDE_KEYS: Final[dict[Script, Callable[[bytes], list[bytes]]]] = {
    scripts.ACQUIRE: lambda key: [COUNTER + key, MARKER],
    scripts.ANY: lambda _: [MARKER],
    scripts.SHARE: lambda _: [MARKER],
    scripts.RAISE: lambda key: [COUNTER + key],
}
_OWN: Final = (*_COMMANDS, scripts.RELEASE_EACH, scripts.CONFIG, scripts.GUARD, scripts.PROBE)
_TEXTS: Final = {script.text: script for script in _OWN}
_SHAS: Final = {script.sha: script for script in _OWN}


# --- the table of commands ------------------------------------------------------------------------


_MANY: Final = 2**31

COMMANDS: Final = {
    b"del": Known(_del, 1, _MANY, writes=True),
    b"eval": Known(_eval, 3, _MANY),
    b"evalsha": Known(_evalsha, 3, _MANY),
    b"exists": Known(_exists, 1, _MANY),
    b"flushall": Known(_flushall, 0, 0, writes=True),
    b"get": Known(_get, 1, 1),
    b"hello": Known(fake_info.hello, 0, _MANY),
    b"info": Known(fake_info.info, 0, _MANY),
    b"keys": Known(_keys, 1, 1),
    b"ping": Known(fake_info.ping, 0, 0),
    b"pttl": Known(_pttl, 1, 1),
    b"publish": Known(fake_waiting.publish, 2, 2),
    b"rpush": Known(_rpush, 2, _MANY, writes=True, grows=True),
    b"set": Known(_set, 2, _MANY, writes=True, grows=True),
    b"subscribe": Known(fake_waiting.subscribe, 1, 1),
    b"time": Known(fake_info.time, 0, 0),
    b"unsubscribe": Known(fake_waiting.unsubscribe, 1, 1),
    b"zadd": Known(fake_waiting.zadd, 3, 3, writes=True, grows=True),
    b"zcard": Known(fake_waiting.zcard, 1, 1),
    b"zrange": Known(fake_waiting.zrange, 4, 4),
    b"zrem": Known(fake_waiting.zrem, 2, 2, writes=True),
}
