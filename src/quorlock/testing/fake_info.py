"""A memory node's replies about itself: INFO, HELLO, TIME; and words in the server's notation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from quorlock.testing.fake_keys import Error, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock.testing.fake_call import CommandCall
    from quorlock.testing.fake_keys import Reply
    from quorlock.testing.fake_node import FakeNode


class Text(bytes):
    """Human-readable text, such as INFO's: a verbatim string."""

    __slots__ = ()


SHOWN_MAX: Final = 128


def printed(word: bytes, most: int = SHOWN_MAX) -> bytes:
    """Return the part of a word that C's printf shows: up to a zero byte."""
    return word.partition(b"\0")[0][:most]


def error_of(text: bytes) -> Error:
    """Return an error that quotes bytes from the client, on one line."""
    line = text.replace(b"\r", b" ").replace(b"\n", b" ")
    return Error(line.decode("utf-8", "surrogateescape"))


INT64_MAX: Final = 2**63 - 1


def integer(word: bytes) -> int | None:
    """Parse a 64-bit integer in the server's notation; None for any other word."""
    if not re.fullmatch(rb"0|-?[1-9][0-9]{0,18}", word):
        return None
    number = int(word)
    return number if -INT64_MAX - 1 <= number <= INT64_MAX else None


def time(call: CommandCall) -> Reply:
    """Execute TIME."""
    return [b"%d" % (call.at // 1000), b"%d" % (call.at % 1000 * 1000)]


def info(call: CommandCall) -> Reply:
    """Execute INFO."""
    wanted = {word.lower() for word in call.words} or _SECTIONS.keys()
    return Text(b"\r\n".join(tell(call) for name, tell in _SECTIONS.items() if name in wanted))


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


_SECTIONS: Final[dict[bytes, Callable[[CommandCall], bytes]]] = {
    b"server": _info_server,
    b"replication": _info_replication,
}

# The commands are those of this version: the Redis version that Valkey reports as its own.
VERSION: Final = "7.2.4"


def _role(node: FakeNode, second: str) -> str:
    return second if node.read_only else "master"


def hello(call: CommandCall) -> Reply:
    """Execute HELLO, for RESP3 only."""
    version, *options = call.words or [b"3"]
    if integer(version) is None:
        return Error("ERR Protocol version is not an integer or out of range")
    if version != b"3":
        return Error("NOPROTO unsupported protocol version")
    if options and (len(options), options[0].lower()) != (2, b"setname"):
        return error_of(b"ERR Syntax error in HELLO option '%b'" % printed(options[0]))
    return {
        b"server": b"quorlock",
        b"version": VERSION.encode(),
        b"proto": 3,
        b"id": call.session.id,
        b"mode": b"standalone",
        b"role": _role(call.node, "replica").encode(),
        b"modules": [],
    }


def ping(_: CommandCall) -> Reply:
    """Execute PING."""
    return Status(b"PONG")
