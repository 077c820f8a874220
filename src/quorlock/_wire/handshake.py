"""The first words on a connection: who we are, who the node is, and whether it is fit to vote.

A generator: it yields packets of commands and is sent their replies, so both drivers run it.
Needs Redis 5 or later; RESP3 where the server has it.  Leaves sockets and time to the drivers.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from hiredis import PushNotification, Reader, ReplyError

from quorlock._core.outcomes import Cause
from quorlock._wire.answers import error_answer, printable, redacted
from quorlock._wire.conversation import REPLY_BYTES_MAX
from quorlock._wire.packing import MARKER, pack_words
from quorlock.scripts import GUARD

if TYPE_CHECKING:
    from quorlock._wire.nodes import Node

CLIENT_NAME = b"quorlock"
# Side keys: what all clients agree on, one for a database, for ever; and in database 0 the run_id
# of the server's first start, where whoever started it knows that it was empty.
CONFIG = b"quorlock:config"
BORN_EMPTY = b"quorlock:born-empty"
HANGS_UP = "closes the connection at once"
_NOTHING_YET = object()  # not hiredis' own False, which is a reply as well (RESP3's #f)

Words = tuple[bytes, ...]
Talk: TypeAlias = Generator[list[Words], list[Any], "Greeting"]


class Greeting(NamedTuple):
    """What a node told of itself.

    run_id names the *process*: another one after every restart, the same one behind every
    address of the same server.  uptime_s: since when that is up; None if it does not tell.
    born_empty: the run_id of a process that had nothing to forget when it came up.
    marked_ms: for how long it has had its marker, where that is asked for (scripts/guard.lua).
    agreed: what the clients of these nodes have in common (`Policy.agreement`); b"" if the node
    can't keep it at present.
    """

    run_id: str
    version: str
    uptime_s: int | None = None
    born_empty: bytes = b""
    agreed: bytes = b""
    marked_ms: int = 0


class Unfit(Exception):
    """The node may not vote over this connection.

    text: why, fit for an error message.  lasting: trying again will not mend it.
    faulty: it said so itself, as it would to an acquire (LOADING, CLUSTERDOWN).
    """

    def __init__(self, text: str, *, lasting: bool, faulty: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.lasting = lasting
        self.faulty = faulty


class Handshake:
    """Drives the talk over bytes: `to_send`, `hear`, and at the end `greeting`."""

    def __init__(
        self,
        node: Node,
        username: str | None,
        password: str | None,
        agreement: bytes = b"",
        *,
        marks: bool = False,
    ) -> None:
        self.greeting: Greeting | None = None
        self.to_send = b""
        self._secret = password
        self._talk = _talk(node, username, password, agreement, marks=marks)
        self._reader = Reader(notEnoughData=_NOTHING_YET)
        self._unread = 0
        self._replies: list[Any] = []
        self._wanted = 0
        self._go_on(None)

    def hear(self, data: bytes) -> None:
        """Take in what came; afterwards `to_send` or `greeting` may be set. Raises Unfit."""
        self._unread += len(data)
        if self._unread > REPLY_BYTES_MAX:
            raise Unfit("sends a reply without an end", lasting=True)
        self._reader.feed(data)
        while self.greeting is None and (reply := self._next()) is not _NOTHING_YET:
            self._replies.append(reply)
            if len(self._replies) == 1 and not _knows_no_hello(reply):
                # A server that refuses us may say so and hang up: its words are the reason.
                _check(reply, self._secret)
            if len(self._replies) == self._wanted:
                self._go_on(self._replies)

    def _next(self) -> Any:
        while True:
            try:
                reply = self._reader.gets()
            except Exception as error:
                # Whatever the parser makes of a stranger's bytes.  They are not shown: an echo
                # server sends our password back.
                raise Unfit("does not speak the Redis protocol", lasting=True) from error
            if not isinstance(reply, PushNotification):
                return reply

    def _go_on(self, replies: list[Any] | None) -> None:
        try:
            packet = self._talk.send(replies)  # type: ignore[arg-type] # None starts it
        except StopIteration as stop:
            self.greeting = stop.value
        else:
            self.to_send = b"".join(pack_words(*words) for words in packet)
            self._replies, self._wanted, self._unread = [], len(packet), 0


def _talk(
    node: Node, username: str | None, password: str | None, agreement: bytes, *, marks: bool
) -> Talk:
    # One packet, so that connecting costs one round trip; what a refused HELLO makes of the
    # words behind it does not matter.
    infos = [(b"INFO", b"server"), (b"INFO", b"replication")]
    rest = [(b"GET", BORN_EMPTY), *_select(node.db), *infos, *_agree(agreement)]
    hello, *replies = yield [_hello(username, password), *rest]
    if _knows_no_hello(hello):
        logged_in, *replies = yield [*_login(username, password), *rest]
        _check(logged_in, password)
    else:
        _check(hello, password)
    born_empty = replies.pop(0)
    if node.db:
        _check(replies.pop(0), password)
    server, replication = (_info(reply, password) for reply in replies[:2])
    greeting = _greeting(server, replication, password)
    # What became of the SET shows in the GET: a node that is full or can't save keeps nothing.
    agreed = _value(replies[3], password) if agreement else b""
    greeting = greeting._replace(born_empty=_value(born_empty, password), agreed=agreed)
    if not marks:
        return greeting
    (marked_ms,) = yield [_mark(greeting, durable=node.durable)]
    return greeting._replace(marked_ms=_number(marked_ms, password))


def _mark(greeting: Greeting, *, durable: bool) -> Words:
    """Have the marker written, where it is not this process's."""
    run_id = greeting.run_id.encode()
    worth = b"the same" if durable else b"nothing"
    if greeting.born_empty == run_id:
        worth = b"all"
    return (b"EVAL", GUARD.text, b"1", MARKER, run_id, worth)


def _hello(username: str | None, password: str | None) -> Words:
    name = (b"SETNAME", CLIENT_NAME)
    if password is None:
        return (b"HELLO", b"3", *name)
    return (b"HELLO", b"3", b"AUTH", (username or "default").encode(), password.encode(), *name)


def _login(username: str | None, password: str | None) -> list[Words]:
    """For servers before 6.0, and users who may not say HELLO."""
    if password is None:
        return [(b"PING",)]
    user = (username.encode(),) if username else ()
    return [(b"AUTH", *user, password.encode())]


def _agree(agreement: bytes) -> list[Words]:
    """Write it down where nobody has yet, and read what is written; b"": for whoever stands in."""
    return [(b"SET", CONFIG, agreement, b"NX"), (b"GET", CONFIG)] if agreement else []


def _select(db: int) -> list[Words]:
    return [(b"SELECT", b"%d" % db)] if db else []


def _knows_no_hello(reply: Any) -> bool:
    refusals = ("ERR unknown command", "NOPERM", "NOPROTO")
    return isinstance(reply, ReplyError) and str(reply).startswith(refusals)


def _check(reply: Any, secret: str | None) -> None:
    if isinstance(reply, ReplyError):
        answer = error_answer(redacted(str(reply), secret))
        raise Unfit(answer.reason, lasting=answer.cause is Cause.FORBIDDEN)


def _info(reply: Any, secret: str | None) -> dict[str, str]:
    """INFO's `name:value` lines."""
    if isinstance(reply, ReplyError) and str(reply).startswith("NOPERM"):
        raise Unfit("may not run INFO, which tells its run_id (grant +info)", lasting=True)
    _check(reply, secret)
    if not isinstance(reply, (bytes, str)):
        raise Unfit("does not speak the Redis protocol: INFO is not a text", lasting=True)
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
    lines = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


def _greeting(server: dict[str, str], replication: dict[str, str], secret: str | None) -> Greeting:
    role = replication.get("role", "none")
    if role != "master":
        of = f" of {replication['master_host']}" if "master_host" in replication else ""
        text = printable(redacted(f"is not a master (role {role}{of})", secret))
        raise Unfit(text, lasting=True)
    if not server.get("run_id"):
        raise Unfit("does not tell its run_id in INFO", lasting=True)
    uptime = server.get("uptime_in_seconds", "")
    uptime_s = int(uptime) if re.fullmatch("-?[0-9]{1,18}", uptime) else None
    version = server.get("valkey_version") or server.get("redis_version") or "unknown"
    return Greeting(printable(server["run_id"]), printable(version), uptime_s)


def _number(reply: Any, secret: str | None) -> int:
    _check_side_key(reply, secret)
    if type(reply) is not int:
        raise Unfit("does not speak the Redis protocol: EVAL is not a number", lasting=True)
    return reply


def _value(reply: Any, secret: str | None) -> bytes:
    """What a side key holds."""
    _check_side_key(reply, secret)
    if reply is not None and not isinstance(reply, bytes):
        raise Unfit("does not speak the Redis protocol: GET is not a text", lasting=True)
    return reply or b""


def _check_side_key(reply: Any, secret: str | None) -> None:
    if isinstance(reply, ReplyError) and str(reply).startswith("NOPERM"):
        text = "may not use the keys quorlock:* (grant ~quorlock:* +set +get)"
        raise Unfit(text, lasting=True)
    if isinstance(reply, ReplyError):
        answer = error_answer(redacted(str(reply), secret))
        raise Unfit(answer.reason, lasting=answer.cause is Cause.FORBIDDEN, faulty=True)
