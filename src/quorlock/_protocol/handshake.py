"""The handshake on a new connection: login, facts about the server, and checks that it may vote.

A generator yields packets of commands and is sent their replies, so both drivers run it.  It needs
Redis 5 or later, and uses RESP3 where the server has it.  Sockets and time are left to the drivers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from quorlock._core.agreement import Decision, Step
from quorlock._protocol.encoding import MARKER, encode_command
from quorlock._protocol.fitness import PROBES, product, refused_script, tracks_keys, unfit_mode
from quorlock._protocol.reader import (
    NEED_DATA,
    ProtocolError,
    PushNotification,
    ReplyError,
    ReplyReader,
)
from quorlock._protocol.redaction import redacted, without
from quorlock._protocol.replies import error_answer, printable
from quorlock.errors import VoteCode
from quorlock.scripts import CONFIG as CONFIG_SCRIPT
from quorlock.scripts import GUARD

if TYPE_CHECKING:
    from quorlock._nodes.node import Node

CLIENT_NAME = b"quorlock"
# Side keys: what all clients agree on, one for a database, for ever; and in database 0 the run_id
# of the server's first start, written by the program that started it with no data.
CONFIG = b"quorlock:config"
BORN_EMPTY = b"quorlock:born-empty"
CLOSED_IMMEDIATELY = "closes the connection at once"
_NONSENSE = "does not speak the Redis protocol"
_OPENINGS = (b"HELLO", b"AUTH", b"PING")

Words = tuple[bytes, ...]
Talk: TypeAlias = Generator[list[Words], list[Any], "ServerInfo"]


class ServerInfo(NamedTuple):
    """Facts about a server, from its replies to the handshake.

    Attributes:
        run_id: names the *process*: another one after every restart, the same one behind every
            address of the same server.
        version: as text, "unknown" if the server has none in INFO.
        uptime_s: for how long that process is up; None if INFO lacks it.
        born_empty: the run_id of a process that had no data when it started.
        agreed: what the clients of these nodes have in common (`_core.agreement`); b"": nothing
            yet.
        marked_ms: for how long it has had its marker, where that is requested (scripts/guard.lua).
        resp3: it speaks RESP3 over this connection.
        tracks: it can report changes of keys over this connection.
    """

    run_id: str
    version: str
    uptime_s: int | None = None
    born_empty: bytes = b""
    agreed: bytes = b""
    marked_ms: int = 0
    resp3: bool = False
    tracks: bool = False


# Decides whether a node with these facts is admitted. Raises NodeRejected.
Consider: TypeAlias = Callable[[ServerInfo], Decision]


class NodeRejected(Exception):
    """The node may not vote over this connection.

    text: why, fit for an error message.  code: of its votes until it is let in.  replica: the
    run_id of a server that is a replica; "" of others.
    """

    def __init__(self, text: str, code: VoteCode, replica: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.code = code
        self.replica = replica


class Handshake:
    """The handshake over bytes: `to_send`, `feed`, and at the end `server_info`."""

    def __init__(
        self,
        node: Node,
        username: str | None,
        password: str | None,
        consider: Consider | None = None,
        *,
        marks: bool = False,
    ) -> None:
        self.server_info: ServerInfo | None = None
        self.to_send = b""
        self._secret = password
        self.is_waiting = False  # it waits for other nodes; call `go_on` after a moment
        self._talk = _handshake(node, username, password, consider, marks=marks)
        self._reader = ReplyReader()
        self._replies: list[Any] = []
        self._wanted = 0
        self._opens = False  # the first reply decides whether the server accepts us
        self._go_on(None)

    def feed(self, data: bytes) -> None:
        """Take in what came; `to_send` or `server_info` may be set then. Raises NodeRejected."""
        try:
            self._reader.feed(data, len(data))
            while (
                self.server_info is None and (reply := self._reader.next_reply()) is not NEED_DATA
            ):
                if not self.is_waiting and not isinstance(reply, PushNotification):
                    self._take(reply)
        except ProtocolError as error:
            raise NodeRejected(str(error), VoteCode.PROTOCOL_ERROR) from None

    def go_on(self) -> None:
        """Check again whether the other nodes are there. Raises NodeRejected."""
        self._go_on([])

    def _take(self, reply: Any) -> None:
        self._replies.append(reply)
        if self._opens and len(self._replies) == 1 and not _knows_no_hello(reply):
            # A server that refuses us may say so and hang up: its words are the reason.
            _check(reply, self._secret)
        if len(self._replies) == self._wanted:
            self._go_on(self._replies)

    def _go_on(self, replies: list[Any] | None) -> None:
        try:
            packet = self._talk.send(replies)  # type: ignore[arg-type] # None starts it
        except StopIteration as stop:
            self.server_info, self.is_waiting = stop.value, False
        else:
            self.is_waiting = not packet
            self._opens = bool(packet) and packet[0][0] in _OPENINGS
            self.to_send = b"".join(encode_command(*words) for words in packet)
            self._replies, self._wanted = [], len(packet)


def _handshake(
    node: Node,
    username: str | None,
    password: str | None,
    consider: Consider | None,
    *,
    marks: bool,
) -> Talk:
    # One packet, so that connecting costs one round trip; what becomes of the
    # commands behind a refused HELLO does not matter.
    infos = [(b"INFO", b"server"), (b"INFO", b"replication")]
    rest = [(b"GET", BORN_EMPTY), *_select(node.db), *PROBES, *infos]
    if consider is not None:
        rest.append((b"GET", CONFIG))
    hello, *replies = yield [_hello(username, password), *rest]
    resp3 = isinstance(hello, dict)
    if _knows_no_hello(hello):
        logged_in, *replies = yield [*_login(username, password), *rest]
        _check(logged_in, password)
    else:
        _check(hello, password)
    born_empty = replies.pop(0)
    if node.db:
        _check(replies.pop(0), password)
    probes, replies = replies[: len(PROBES)], replies[len(PROBES) :]
    server, replication = (_info(reply, password) for reply in replies[:2])
    server_info = _server_info(server, replication, password)
    agreed = b"" if consider is None else _value(replies[2], password)
    server_info = server_info._replace(
        born_empty=_value(born_empty, password),
        agreed=agreed,
        resp3=resp3,
        tracks=resp3 and tracks_keys(server),
    )
    for reply in probes:
        _check_script(reply, password)
    if consider is not None:
        server_info = yield from _agree(server_info, consider, password)
    if not marks:
        return server_info
    (marked_ms,) = yield [_mark(server_info, durable=node.durable)]
    return server_info._replace(marked_ms=_number(marked_ms, password))


def _mark(server_info: ServerInfo, *, durable: bool) -> Words:
    """Return the command that writes the marker, if it is not this process's."""
    run_id = server_info.run_id.encode()
    worth = b"the same" if durable else b"nothing"
    if server_info.born_empty == run_id:
        worth = b"all"
    return (b"EVAL", GUARD.text, b"1", MARKER, run_id, worth)


def _hello(username: str | None, password: str | None) -> Words:
    name = (b"SETNAME", CLIENT_NAME)
    if password is None:
        return (b"HELLO", b"3", *name)
    return (b"HELLO", b"3", b"AUTH", (username or "default").encode(), password.encode(), *name)


def _login(username: str | None, password: str | None) -> list[Words]:
    """Return the login for servers before 6.0, and for users without permission for HELLO."""
    if password is None:
        return [(b"PING",)]
    user = (username.encode(),) if username else ()
    return [(b"AUTH", *user, password.encode())]


def _agree(server_info: ServerInfo, consider: Consider, secret: str | None) -> Talk:
    """Write quorlock:config as `consider` decides, until the node may be admitted."""
    while (decision := consider(server_info)).step is not Step.ADMIT:
        if decision.step is Step.WAIT:
            yield []
            continue
        text = decision.text.encode()
        words = [(b"SET", CONFIG, text, b"NX"), (b"GET", CONFIG)]
        if server_info.agreed:
            words = [(b"EVAL", CONFIG_SCRIPT.text, b"1", CONFIG, server_info.agreed, text)]
        replies = yield words
        kept = _value(replies[-1], secret)
        if kept and kept == server_info.agreed:
            kept = text  # it was replaced
        server_info = server_info._replace(agreed=kept)
        if not kept:
            raise _keeps_nothing(replies[0], secret)
    return server_info


def _keeps_nothing(reply: Any, secret: str | None) -> NodeRejected:
    """Return the error for a node that is full, cannot save, or may not write."""
    if not isinstance(reply, ReplyError):
        return NodeRejected("does not keep quorlock:config", VoteCode.NOT_ADMITTED)
    return _rejected(str(reply).partition(", with args")[0], secret)


def _rejected(
    text: str, secret: str | None, passing: VoteCode = VoteCode.TRANSIENT_ERROR
) -> NodeRejected:
    """Make it of an error reply. passing: the code of an error that may pass."""
    answer = error_answer(text, [secret])
    lasts = answer.code in (VoteCode.ACCESS_DENIED, VoteCode.PERMANENT_ERROR)
    return NodeRejected(answer.reason, answer.code if lasts else passing)


def _select(db: int) -> list[Words]:
    return [(b"SELECT", b"%d" % db)] if db else []


def _knows_no_hello(reply: Any) -> bool:
    refusals = ("ERR unknown command", "NOPERM", "NOPROTO")
    return isinstance(reply, ReplyError) and str(reply).startswith(refusals)


def _check(reply: Any, secret: str | None) -> None:
    if isinstance(reply, ReplyError):
        raise _rejected(str(reply), secret, VoteCode.NOT_ADMITTED)


def _info(reply: Any, secret: str | None) -> dict[str, str]:
    """Return INFO's `name:value` lines."""
    if isinstance(reply, ReplyError) and str(reply).startswith("NOPERM"):
        text = "may not run INFO, which tells its run_id (grant +info)"
        raise NodeRejected(text, VoteCode.ACCESS_DENIED)
    if isinstance(reply, ReplyError) and str(reply).startswith("ERR unknown command"):
        text = "does not know INFO, which tells its run_id (a proxy? INFO renamed?)"
        raise NodeRejected(text, VoteCode.PERMANENT_ERROR)
    _check(reply, secret)
    if not isinstance(reply, (bytes, str)):
        raise NodeRejected(f"{_NONSENSE}: INFO is not a text", VoteCode.PROTOCOL_ERROR)
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
    lines = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


def _server_info(
    server: dict[str, str], replication: dict[str, str], secret: str | None
) -> ServerInfo:
    if why := unfit_mode(server):
        raise NodeRejected(why, VoteCode.PERMANENT_ERROR)
    run_id = printable(without(server.get("run_id", ""), [secret]))
    role = replication.get("role", "none")
    if role != "master":
        of = f" of {replication['master_host']}" if "master_host" in replication else ""
        text = printable(redacted(f"is not a master (role {role}{of})", [secret]))
        raise NodeRejected(text, VoteCode.PERMANENT_ERROR, run_id)
    if not run_id:
        name = printable(redacted(product(server), [secret]))
        text = "does not report its run_id in INFO" + f" (it is {name})" * bool(name)
        raise NodeRejected(text, VoteCode.PERMANENT_ERROR)
    uptime = server.get("uptime_in_seconds", "")
    uptime_s = int(uptime) if re.fullmatch("-?[0-9]{1,18}", uptime) else None
    version = server.get("valkey_version") or server.get("redis_version") or "unknown"
    return ServerInfo(run_id, printable(redacted(version, [secret])), uptime_s)


def _check_script(reply: Any, secret: str | None) -> None:
    """Refuse a node on which a lock could be set and not released."""
    if not isinstance(reply, ReplyError):
        _number(reply, secret)
        return
    text = str(reply)
    if text.startswith("NOSCRIPT"):
        return  # EVALSHA: a script that is forgotten is sent again
    reason = error_answer(text, [secret]).reason
    fix, code = refused_script(text)
    if fix:
        reason = f"cannot run the scripts that release a lock: {reason} ({fix})"
    raise NodeRejected(reason, code)


def _number(reply: Any, secret: str | None) -> int:
    _check_side_key(reply, secret)
    if type(reply) is not int:
        raise NodeRejected(f"{_NONSENSE}: EVAL is not a number", VoteCode.PROTOCOL_ERROR)
    return reply


def _value(reply: Any, secret: str | None) -> bytes:
    """Return the value of a side key."""
    _check_side_key(reply, secret)
    if reply is not None and not isinstance(reply, bytes):
        raise NodeRejected(f"{_NONSENSE}: GET is not a text", VoteCode.PROTOCOL_ERROR)
    return reply or b""


def _check_side_key(reply: Any, secret: str | None) -> None:
    if isinstance(reply, ReplyError) and str(reply).startswith("NOPERM"):
        text = "may not use the keys quorlock:* (grant ~quorlock:* +set +get)"
        raise NodeRejected(text, VoteCode.ACCESS_DENIED)
    if isinstance(reply, ReplyError) and str(reply).startswith("WRONGTYPE"):
        keys = "quorlock:config, quorlock:guard or quorlock:born-empty"
        text = f"its key {keys} holds another type of data (delete that key)"
        raise NodeRejected(text, VoteCode.PERMANENT_ERROR)
    if isinstance(reply, ReplyError):
        raise _rejected(str(reply), secret)
