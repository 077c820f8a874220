"""Commands of a memory node, given as lists of words: one `Session` for every connection.

The table has the commands that quorlock and its users' tests send.  Replies and error texts are the
server's (Valkey 9, one database, no password).  Any other command gets the server's error for an
unknown command.  Only quorlock's own scripts can be run.  The locks' commands are in `fake_node`,
bytes and connections in `memory`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from quorlock import scripts
from quorlock._core.commands import IssueFence, ScriptedAcquire
from quorlock._protocol.encoding import COUNTER, MARKER
from quorlock.testing.fake_node import (
    FULL,
    OK,
    READ_ONLY,
    READ_ONLY_EXTEND,
    WRONG_TYPE,
    Entry,
    Error,
    FakeNode,
    Status,
    in_script,
    ttl_left,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from quorlock.scripts import Script
    from quorlock.testing.fake_node import Reply


class Text(bytes):
    """Human-readable text, such as INFO's: a verbatim string in RESP3, a bulk string in RESP2."""

    __slots__ = ()


class ClientSession:
    """The state of one connection to a node.

    Replies are Python objects: int, bytes, `Status`, `Text`, `Error`, None, list, and dict for a
    map. RESP2 sends a map as the flat list of its items.

    Attributes:
        node: the node at the other end.
        resp: the protocol version, 2 until HELLO 3. The reply to HELLO is in the new one.
        name: the name that the client has set.
        over: QUIT was received: the connection is to be closed after this reply.
    """

    __slots__ = ("id", "name", "node", "over", "resp")

    def __init__(self, node: FakeNode, number: int = 1) -> None:
        self.node: FakeNode = node
        self.id: int = number
        self.resp: int = 2
        self.name: bytes = b""
        self.over: bool = False

    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        """Execute one command, of at least one word, at this instant of the node's clock (ms)."""
        name, rest = words[0].lower(), words[1:]
        if name in _CONTAINERS and rest:
            name, rest = b"%b|%b" % (name, rest[0].lower()), rest[1:]
            known = COMMANDS.get(name)
        else:
            known = None if b"|" in name else COMMANDS.get(name)
        if known is None:
            return _unknown(words)
        if not known.least <= len(rest) <= known.most:
            return _wrong_number(name)
        if known.writes and self.node.read_only:
            return READ_ONLY
        if known.grows and self.node.full:
            return FULL
        return known.run(CommandCall(self, self.node, rest, at))


class CommandCall(NamedTuple):
    """A command that is being executed: the words after its name, and the instant."""

    session: ClientSession
    node: FakeNode
    words: Sequence[bytes]
    at: int

    def alive(self) -> Entry | None:
        """Return the entry of the first key among the words."""
        return self.node.alive(self.words[0], self.at)


class Known(NamedTuple):
    """A known command: its function, the number of words after its name, and its needs."""

    run: Callable[[CommandCall], Reply]
    least: int
    most: int
    writes: bool = False  # a replica refuses it
    grows: bool = False  # a node that is full refuses it


def _wrong_number(name: bytes) -> Error:
    return Error(f"ERR wrong number of arguments for '{name.decode()}' command")


def _unknown(words: Sequence[bytes]) -> Error:
    name = words[0].lower()
    if name in _CONTAINERS:
        return _unknown_below(name, words[1]) if len(words) > 1 else _wrong_number(name)
    begin = b""
    for word in words[1:]:
        if len(begin) < _SHOWN_MAX:
            begin += b"'%b' " % _printed(word, _SHOWN_MAX - len(begin))
    text = b"ERR unknown command '%b', with args beginning with: %b"
    return _error(text % (_printed(words[0]), begin))


def _unknown_below(name: bytes, word: bytes) -> Error:
    return _error(b"ERR unknown subcommand '%b'. Try %b HELP." % (_printed(word), name.upper()))


_SHOWN_MAX: Final = 128


def _printed(word: bytes, most: int = _SHOWN_MAX) -> bytes:
    """Return the part of a word that C's printf shows: up to a zero byte."""
    return word.partition(b"\0")[0][:most]


def _error(text: bytes) -> Error:
    """Return an error that quotes bytes from the client, on one line."""
    line = text.replace(b"\r", b" ").replace(b"\n", b" ")
    return Error(line.decode("utf-8", "surrogateescape"))


_SYNTAX: Final = Error("ERR syntax error")
_NO_INTEGER: Final = Error("ERR value is not an integer or out of range")
_INT64_MAX: Final = 2**63 - 1


def _integer(word: bytes) -> int | None:
    """Parse a 64-bit integer in the server's notation; None for any other word."""
    if not re.fullmatch(rb"0|-?[1-9][0-9]{0,18}", word):
        return None
    number = int(word)
    return number if -_INT64_MAX - 1 <= number <= _INT64_MAX else None


# --- strings --------------------------------------------------------------------------------------


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
    return _put(call.node, key, Entry(value, until), options, call.at)


def _put(node: FakeNode, key: bytes, new: Entry, options: dict[bytes, bytes], at: int) -> Reply:
    old = node.alive(key, at)
    if b"get" in options and old is not None and old.value is None:
        return WRONG_TYPE
    found = old.value if old is not None else None
    unfit = b"nx" in options if old is not None else b"xx" in options
    if not unfit:
        keeps = b"keepttl" in options and old is not None
        node.keys[key] = Entry(new.value, old.until) if keeps and old else new
    if b"get" in options:
        return found
    return None if unfit else OK


def _set_options(words: Sequence[bytes]) -> dict[bytes, bytes] | None:
    """Parse the options, in lower case, with the number of PX and EX; None if they conflict."""
    options: dict[bytes, bytes] = {}
    rest = iter(words)
    for word in rest:
        option = word.lower()
        number = next(rest, None) if option in _UNITS else b""
        if option not in _CLASHES or number is None or _CLASHES[option] & options.keys():
            return None
        options[option] = number
    return options


_UNITS: Final = {b"px": 1, b"ex": 1000}  # in ms
_CLASHES: Final[dict[bytes, set[bytes]]] = {
    b"nx": {b"xx"},
    b"xx": {b"nx"},
    b"get": set(),
    b"px": {b"ex", b"keepttl"},
    b"ex": {b"px", b"keepttl"},
    b"keepttl": {b"px", b"ex"},
}


def _until(word: bytes, unit: int, at: int) -> int | Error:
    """Return the expiry (ms) of a key that is set now with this time to live."""
    number = _integer(word)
    if number is None:
        return _NO_INTEGER
    if not 0 < number <= (_INT64_MAX - at) // unit:
        return Error("ERR invalid expire time in 'set' command")
    return at + number * unit


def _get(call: CommandCall) -> Reply:
    entry = call.alive()
    if entry is None:
        return None
    return WRONG_TYPE if entry.value is None else entry.value


# --- keys of any type -----------------------------------------------------------------------------


def _del(call: CommandCall) -> Reply:
    node = call.node
    return sum(
        node.alive(key, call.at) is not None and bool(node.keys.pop(key)) for key in call.words
    )


def _exists(call: CommandCall) -> Reply:
    return sum(call.node.alive(key, call.at) is not None for key in call.words)


def _type(call: CommandCall) -> Reply:
    entry = call.alive()
    if entry is None:
        return Status(b"none")
    if entry.value is not None:
        return Status(b"string")
    return Status(b"list" if isinstance(entry.members, tuple) else b"set")


def _lpush(call: CommandCall) -> Reply:
    return _push(call.node, call.words[0], tuple(reversed(call.words[1:])), call.at, left=True)


def _rpush(call: CommandCall) -> Reply:
    return _push(call.node, call.words[0], tuple(call.words[1:]), call.at, left=False)


def _push(node: FakeNode, key: bytes, new: tuple[bytes, ...], at: int, *, left: bool) -> Reply:
    entry = node.alive(key, at) or Entry(None, None)
    if entry.value is not None or not isinstance(entry.members, tuple):
        return WRONG_TYPE
    members = new + entry.members if left else entry.members + new
    node.keys[key] = Entry(None, entry.until, members)
    return len(members)


def _sadd(call: CommandCall) -> Reply:
    node, key = call.node, call.words[0]
    entry = node.alive(key, call.at) or Entry(None, None, frozenset())
    if entry.value is not None or not isinstance(entry.members, frozenset):
        return WRONG_TYPE
    members = entry.members.union(call.words[1:])
    node.keys[key] = Entry(None, entry.until, members)
    return len(members) - len(entry.members)


# --- time to live ---------------------------------------------------------------------------------


def _pttl(call: CommandCall) -> Reply:
    entry = call.alive()
    return -2 if entry is None else ttl_left(entry, call.at)


def _ttl(call: CommandCall) -> Reply:
    entry = call.alive()
    if entry is None:
        return -2
    return -1 if entry.until is None else (ttl_left(entry, call.at) + 500) // 1000


def _persist(call: CommandCall) -> Reply:
    entry = call.alive()
    if entry is None or entry.until is None:
        return 0
    call.node.keys[call.words[0]] = entry._replace(until=None)
    return 1


def _pexpire(call: CommandCall) -> Reply:
    return _expire_in(call.node, call.words, call.at, b"pexpire", 1)


def _expire(call: CommandCall) -> Reply:
    return _expire_in(call.node, call.words, call.at, b"expire", 1000)


def _expire_in(node: FakeNode, words: Sequence[bytes], at: int, name: bytes, unit: int) -> Reply:
    conditions = {word.lower() for word in words[2:]}
    if error := _unfit(words[2:], conditions):
        return error
    number = _integer(words[1])
    if number is None:
        return _NO_INTEGER
    if not -_INT64_MAX - 1 <= number * unit <= _INT64_MAX - at:
        return Error(f"ERR invalid expire time in '{name.decode()}' command")
    until = at + number * unit
    entry = node.alive(words[0], at)
    if entry is None or not _applies(conditions, entry.until, until):
        return 0
    node.expire_at(words[0], entry, until, at)
    return 1


def _unfit(words: Sequence[bytes], conditions: set[bytes]) -> Error | None:
    for word in words:
        if word.lower() not in {b"nx", b"xx", b"gt", b"lt"}:
            return _error(b"ERR Unsupported option " + _printed(word))
    if b"nx" in conditions and len(conditions) > 1:
        text = "NX and XX, GT or LT options at the same time are not compatible"
        return Error(f"ERR {text}")
    if {b"gt", b"lt"} <= conditions:
        return Error("ERR GT and LT options at the same time are not compatible")
    return None


def _applies(conditions: set[bytes], old: int | None, new: int) -> bool:
    """Return whether the conditions allow the new expiry; no expiry counts as the latest."""
    return not (
        (b"nx" in conditions and old is not None)
        or (b"xx" in conditions and old is None)
        or (b"gt" in conditions and (old is None or new <= old))
        or (b"lt" in conditions and (old is not None and new >= old))
    )


# --- scripts --------------------------------------------------------------------------------------


def _eval(call: CommandCall) -> Reply:
    split = _keys_and_arguments(call.words)
    if isinstance(split, Error):
        return split
    script = _TEXTS.get(call.words[0])
    if script is None:
        return _STRANGE
    call.node.known.add(script.sha)
    return _run(call, script, *split)


def _evalsha(call: CommandCall) -> Reply:
    if len(call.words[0]) != len(scripts.RELEASE.sha):
        return _NO_SCRIPT
    split = _keys_and_arguments(call.words)
    if isinstance(split, Error):
        return split
    script = _known(call.node, call.words[0])
    return _NO_SCRIPT if script is None else _run(call, script, *split)


def _known(node: FakeNode, sha: bytes) -> Script | None:
    return _SHAS[sha.lower()] if sha.lower() in node.known else None


def _keys_and_arguments(words: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[bytes]] | Error:
    count = _integer(words[1])
    if count is None:
        return _NO_INTEGER
    if count > len(words) - 2:
        return Error("ERR Number of keys can't be greater than number of args")
    if count < 0:
        return Error("ERR Number of keys can't be negative")
    return words[2 : 2 + count], words[2 + count :]


def _script_load(call: CommandCall) -> Reply:
    script = _TEXTS.get(call.words[0])
    if script is None:
        return _STRANGE
    call.node.known.add(script.sha)
    return script.sha


def _script_exists(call: CommandCall) -> Reply:
    return [int(_known(call.node, sha) is not None) for sha in call.words]


def _script_flush(call: CommandCall) -> Reply:
    if not _is_flush(call.words):
        return Error("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
    call.node.known.clear()
    return OK


def _run(
    call: CommandCall, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]
) -> Reply:
    if not keys:
        return in_script(_NO_STRING, script, b"redis.call('GET'")
    token = arguments[0] if arguments else None
    if script in (scripts.ACQUIRE, scripts.RAISE):
        return _run_with_numbers(call, script, keys, arguments)
    if script is scripts.RELEASE:
        return call.node.release(keys[0], token, call.at)
    if script in (scripts.INSPECT, scripts.PROBE):
        probes = script is scripts.PROBE
        return call.node.probe(keys[0]) if probes else call.node.inspect(keys[0], call.at)
    if script in (scripts.CONFIG, scripts.GUARD):
        one, other = arguments
        act = call.node.guard if script is scripts.GUARD else call.node.compare_and_set
        return act(keys[0], one, other, call.at)
    return _extend(call.node, keys[0], token, b"".join(arguments[1:2]), call.at)


def _run_with_numbers(
    call: CommandCall, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]
) -> Reply:
    """Run a script about fences; only with the keys and numbers that quorlock passes."""
    key, numbers = keys[0], [_integer(word) for word in arguments[1:]]
    ours = [key, COUNTER + key, *([MARKER] if script is scripts.ACQUIRE else [])]
    if [*keys] != ours or len(numbers) != len(ours) or None in numbers:
        return _STRANGE
    made = ScriptedAcquire if script is scripts.ACQUIRE else IssueFence
    command = made(key, arguments[0], *[number or 0 for number in numbers])
    return call.node.ask(command, call.at)


def _extend(node: FakeNode, key: bytes, token: bytes | None, ttl: bytes, at: int) -> Reply:
    ttl_ms = _integer(ttl)
    if ttl_ms is not None and ttl_ms <= _INT64_MAX - at:
        return node.extend(key, token, ttl_ms, at)
    entry = node.alive(key, at)
    if entry is None or entry.value is None or entry.value != token:
        return node.extend(key, token, 0, at)  # the script ends before it reads the ttl
    return _extend_oddly(node, entry, ttl, at)


def _extend_oddly(node: FakeNode, entry: Entry, word: bytes, at: int) -> Reply:
    """Extend a key that holds the token by a ttl that PEXPIRE does not accept."""
    number = _lua_number(word)
    if number is None:
        where = in_script(Error(""), scripts.EXTEND, b"redis.call('PTTL'")
        place = where.rpartition("@")[2].removesuffix(".")
        return Error(f"ERR {place}: attempt to compare number with nil{where}")
    if not ttl_left(entry, at) < number:
        return 1
    if node.read_only:
        return READ_ONLY_EXTEND
    fits = _integer(word) is not None
    error = Error("ERR invalid expire time in 'pexpire' command") if fits else _NO_INTEGER
    return in_script(error, scripts.EXTEND, b"redis.call('PEXPIRE'")


def _lua_number(word: bytes) -> float | None:
    """Convert a string as Lua's tonumber() does."""
    text = word.partition(b"\0")[0].strip(b" \t\n\v\f\r").decode("latin-1").lower()
    if re.fullmatch(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)", text, re.ASCII):
        return float(text)
    return float(int(text, 16)) if re.fullmatch(r"[+-]?0x[0-9a-f]{1,99}", text) else None


_NO_SCRIPT: Final = Error("NOSCRIPT No matching script.")
_NO_STRING: Final = Error("ERR Command arguments must be strings or integers")
_STRANGE: Final = Error("ERR a node in memory runs quorlock's own scripts only, not this one")
_SCRIPTS: Final = (
    *(scripts.ACQUIRE, scripts.RAISE, scripts.GUARD, scripts.CONFIG),
    *(scripts.EXTEND, scripts.INSPECT, scripts.RELEASE, scripts.PROBE),
)
_TEXTS: Final = {script.text: script for script in _SCRIPTS}
_SHAS: Final = {script.sha: script for script in _SCRIPTS}


# --- all keys, and INFO ---------------------------------------------------------------------------


def _flush(call: CommandCall) -> Reply:
    if not _is_flush(call.words):
        return _SYNTAX
    call.node.flush()
    return OK


def _is_flush(words: Sequence[bytes]) -> bool:
    return not words or (len(words) == 1 and words[0].lower() in {b"sync", b"async"})


def _all_alive(node: FakeNode, at: int) -> list[bytes]:
    return [key for key in list(node.keys) if node.alive(key, at) is not None]


def _dbsize(call: CommandCall) -> Reply:
    # As if the server's active expiry had just run; a replica has none.
    _all_alive(call.node, call.at)
    return len(call.node.keys)


def _keys(call: CommandCall) -> Reply:
    return list(_matching(call.words[0], _all_alive(call.node, call.at)))


def _scan(call: CommandCall) -> Reply:
    """Return all keys at once; the cursor in the reply is therefore always 0, the end."""
    if not call.words[0].isdigit() or int(call.words[0]) > 2 * _INT64_MAX + 1:
        return Error("ERR invalid cursor")
    pattern = b"*"
    options = iter(call.words[1:])
    for option, value in zip(options, options, strict=False):
        if option.lower() == b"match":
            pattern = value
        elif error := _count_error(option, value):
            return error
    if len(call.words) % 2 == 0:
        return _SYNTAX
    found = _all_alive(call.node, call.at) if int(call.words[0]) == 0 else []
    return [b"0", list(_matching(pattern, found))]


def _count_error(option: bytes, value: bytes) -> Error | None:
    if option.lower() != b"count":
        return _SYNTAX
    count = _integer(value)
    if count is None:
        return _NO_INTEGER
    return None if count > 0 else _SYNTAX


def _matching(pattern: bytes, keys: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the keys that match a glob pattern: ? * [abc] [^a-c], a backslash escapes."""
    regex = re.compile(_GLOB.sub(_as_regex, pattern), re.DOTALL)
    # A server matches longer patterns, even **, only against keys that are not empty.
    return (key for key in keys if regex.fullmatch(key) and (key or len(pattern) < 2))  # noqa: PLR2004


# Every pattern is valid: a set that is not closed goes to the end, [] matches nothing.
_GLOB: Final = re.compile(
    rb"\\(?P<plain>.)|\[(?P<but>\^?)(?P<set>(?:\\.|(?!\]).-.|[^\]])*)(?:\]|\Z)|.", re.DOTALL
)
_MEMBER: Final = re.compile(rb"\\(.)|(?!\])(.)-(.)|([^\]])", re.DOTALL)


def _as_regex(found: re.Match[bytes]) -> bytes:
    if found["plain"] is not None:
        return re.escape(found["plain"])
    if found["set"] is not None:
        return _set_as_regex(found["set"], found["but"])
    return {b"*": b".*", b"?": b"."}.get(found[0], re.escape(found[0]))


def _set_as_regex(text: bytes, but: bytes) -> bytes:
    members: set[int] = set()
    for escaped, first, last, plain in _MEMBER.findall(text):
        low, high = sorted((first or escaped or plain)[0:1] + (last or escaped or plain)[0:1])
        members.update(range(low, high + 1))
    if not members:
        return b"." if but else b"(?!)"
    return b"[%b%b]" % (but, b"".join(b"\\x%02x" % member for member in sorted(members)))


def _time(call: CommandCall) -> Reply:
    return [b"%d" % (call.at // 1000), b"%d" % (call.at % 1000 * 1000)]


def _info(call: CommandCall) -> Reply:
    wanted = {word.lower() for word in call.words} or {b"default"}
    whole = wanted & {b"default", b"all", b"everything"}
    told = [tell(call) for name, tell in _SECTIONS.items() if whole or name in wanted]
    return Text(b"\r\n".join(told))


def _section(title: str, lines: dict[str, str | int]) -> bytes:
    text = "".join(f"{name}:{value}\r\n" for name, value in lines.items())
    return f"# {title}\r\n{text}".encode()


def _info_server(call: CommandCall) -> bytes:
    up = call.node.uptime_s(call.at)
    lines: dict[str, str | int] = {
        "redis_version": VERSION,
        "server_name": "quorlock",
        "server_mode": "standalone",
        "run_id": call.node.run_id,
        "server_time_usec": call.at * 1000,
        "uptime_in_seconds": up,
        "uptime_in_days": up // 86_400,
    }
    return _section("Server", lines)


def _info_replication(call: CommandCall) -> bytes:
    return _section("Replication", {"role": _role(call.node, "slave"), "connected_slaves": 0})


def _info_keyspace(call: CommandCall) -> bytes:
    alive = [call.node.keys[key] for key in _all_alive(call.node, call.at)]
    expiring = sum(entry.until is not None for entry in alive)
    lines: dict[str, str | int] = {"db0": f"keys={len(alive)},expires={expiring},avg_ttl=0"}
    return _section("Keyspace", lines if alive else {})


_SECTIONS: Final[dict[bytes, Callable[[CommandCall], bytes]]] = {
    b"server": _info_server,
    b"replication": _info_replication,
    b"keyspace": _info_keyspace,
}

# The commands are those of this version: the Redis version that Valkey reports as its own.
VERSION: Final = "7.2.4"


def _role(node: FakeNode, second: str) -> str:
    return second if node.read_only else "master"


# --- the connection -------------------------------------------------------------------------------


def _hello(call: CommandCall) -> Reply:
    version = _integer(call.words[0]) if call.words else call.session.resp
    if version is None:
        return Error("ERR Protocol version is not an integer or out of range")
    if version not in {2, 3}:
        return Error("NOPROTO unsupported protocol version")
    asked = _hello_options(call.words[1:])
    if isinstance(asked, Error):
        return asked
    if b"auth" in asked and (error := _denied(asked[b"auth"][0])):
        return error
    if b"setname" in asked:
        (call.session.name,) = asked[b"setname"]
    call.session.resp = version
    return _server_info(call.session)


def _hello_options(words: Sequence[bytes]) -> dict[bytes, Sequence[bytes]] | Error:
    asked: dict[bytes, Sequence[bytes]] = {}
    while words:
        option = words[0].lower()
        count = {b"auth": 2, b"setname": 1}.get(option, len(words))
        if count >= len(words):
            return _error(b"ERR Syntax error in HELLO option '%b'" % _printed(words[0]))
        asked[option], words = words[1 : count + 1], words[count + 1 :]
        if option == b"setname" and not _is_name(asked[option][0]):
            return _BAD_NAME
    return asked


def _server_info(session: ClientSession) -> dict[bytes, Reply]:
    return {
        b"server": b"quorlock",
        b"version": VERSION.encode(),
        b"proto": session.resp,
        b"id": session.id,
        b"mode": b"standalone",
        b"role": _role(session.node, "replica").encode(),
        b"modules": [],
    }


def _auth(call: CommandCall) -> Reply:
    if len(call.words) > 2:  # noqa: PLR2004 (user and password)
        return _SYNTAX
    if len(call.words) == 1:
        return Error(
            "ERR AUTH <password> called without any password configured for the default user."
            " Are you sure your configuration is correct?"
        )
    return _denied(call.words[0]) or OK


def _denied(user: bytes) -> Error | None:
    """Return an error unless it is the only user, `default`, who may give any password."""
    text = "WRONGPASS invalid username-password pair or user is disabled."
    return None if user == b"default" else Error(text)


def _client_setname(call: CommandCall) -> Reply:
    if not _is_name(call.words[0]):
        return _BAD_NAME
    call.session.name = call.words[0]
    return OK


def _client_getname(call: CommandCall) -> Reply:
    return call.session.name or None


def _client_setinfo(call: CommandCall) -> Reply:
    option = call.words[0].lower()
    if option not in {b"lib-name", b"lib-ver"}:
        return _error(b"ERR Unrecognized option '%b'" % _printed(call.words[0]))
    if not _is_name(call.words[1]):
        text = b"ERR %b cannot contain spaces, newlines or special characters."
        return _error(text % call.words[0])
    return OK


def _is_name(word: bytes) -> bool:
    # Bytes after a zero byte are not checked, as in Valkey.
    return all(b"!"[0] <= byte <= b"~"[0] for byte in word.partition(b"\0")[0])


_BAD_NAME: Final = Error("ERR Client names cannot contain spaces, newlines or special characters.")


def _client_id(call: CommandCall) -> Reply:
    return call.session.id


def _select(call: CommandCall) -> Reply:
    number = _integer(call.words[0])
    if number is None:
        return _NO_INTEGER
    if not -(2**31) <= number < 2**31:
        return Error(f"ERR value is out of range, value must between {-(2**31)} and {2**31 - 1}")
    return OK if number == 0 else Error("ERR DB index is out of range")


def _ping(call: CommandCall) -> Reply:
    return call.words[0] if call.words else Status(b"PONG")


def _echo(call: CommandCall) -> Reply:
    return call.words[0]


def _quit(call: CommandCall) -> Reply:
    call.session.over = True
    return OK


# --- the table of commands ------------------------------------------------------------------------


_MANY: Final = 2**31
_CONTAINERS: Final = {b"client", b"script"}

COMMANDS: Final = {
    b"auth": Known(_auth, 1, _MANY),
    b"client|getname": Known(_client_getname, 0, 0),
    b"client|id": Known(_client_id, 0, 0),
    b"client|setinfo": Known(_client_setinfo, 2, 2),
    b"client|setname": Known(_client_setname, 1, 1),
    b"dbsize": Known(_dbsize, 0, 0),
    b"del": Known(_del, 1, _MANY, writes=True),
    b"echo": Known(_echo, 1, 1),
    b"eval": Known(_eval, 2, _MANY),
    b"evalsha": Known(_evalsha, 2, _MANY),
    b"exists": Known(_exists, 1, _MANY),
    b"expire": Known(_expire, 2, _MANY, writes=True),
    b"flushall": Known(_flush, 0, _MANY, writes=True),
    b"flushdb": Known(_flush, 0, _MANY, writes=True),
    b"get": Known(_get, 1, 1),
    b"hello": Known(_hello, 0, _MANY),
    b"info": Known(_info, 0, _MANY),
    b"keys": Known(_keys, 1, 1),
    b"lpush": Known(_lpush, 2, _MANY, writes=True, grows=True),
    b"persist": Known(_persist, 1, 1, writes=True),
    b"pexpire": Known(_pexpire, 2, _MANY, writes=True),
    b"ping": Known(_ping, 0, 1),
    b"pttl": Known(_pttl, 1, 1),
    b"quit": Known(_quit, 0, _MANY),
    b"rpush": Known(_rpush, 2, _MANY, writes=True, grows=True),
    b"sadd": Known(_sadd, 2, _MANY, writes=True, grows=True),
    b"scan": Known(_scan, 1, _MANY),
    b"script|exists": Known(_script_exists, 1, _MANY),
    b"script|flush": Known(_script_flush, 0, _MANY),
    b"script|load": Known(_script_load, 1, 1),
    b"select": Known(_select, 1, 1),
    b"set": Known(_set, 2, _MANY, writes=True, grows=True),
    b"time": Known(_time, 0, 0),
    b"ttl": Known(_ttl, 1, 1),
    b"type": Known(_type, 1, 1),
}
