"""A blocking connection for plain queries to one node, for the commands of `quorlock`.

`quorlock doctor`, `status --match` and `top` use it. Votes never do, and its replies never count as
votes. The caller chooses the commands and interprets the replies
(docs/contributing/decisions/0020-diagnostic-connections.md).
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Self, cast

from quorlock._core.time import NS_PER_S
from quorlock._drivers.clock import now
from quorlock._drivers.sync.connect import open_socket, send
from quorlock._drivers.tls_errors import is_end, tls_reason
from quorlock._nodes.node import current_credentials
from quorlock._protocol.encoding import encode_command
from quorlock._protocol.handshake import CLOSED_IMMEDIATELY, NodeRejected
from quorlock._protocol.reader import NEED_DATA, ProtocolError, ReplyError, ReplyReader
from quorlock._protocol.redaction import redacted, without
from quorlock._protocol.replies import error_answer, printable
from quorlock.errors import ConfigError, VoteCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock._core.time import Instant
    from quorlock._nodes.node import Node

__all__ = ["DiagnosticConnection", "ErrorReply", "NoAnswer", "info_fields"]

_READ_BYTES = 16_384
_SILENCE_MS = 10_000
_NONSENSE = "it does not speak the Redis protocol"


class ErrorReply(str):
    """An error reply: its text, without our password, fit for a terminal."""

    __slots__ = ()

    @property
    def code(self) -> VoteCode:
        """Return the kind of error, as a vote would have it."""
        return error_answer(self).code


class NoAnswer(Exception):
    """A failed connection, login or query; the text gives the reason, without our password.

    login: The node is reachable and refuses the login.
    code: The kind of error that the node replied with, or TIMED_OUT; else None.
    """

    def __init__(self, why: str, code: VoteCode | None = None, *, login: bool = False) -> None:
        super().__init__(why)
        self.login = login
        self.code: VoteCode | None = why.code if isinstance(why, ErrorReply) else code


def info_fields(text: str) -> dict[str, str]:
    """Return the `name:value` lines of INFO."""
    lines = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


def _has_form(words: tuple[bytes, ...], reply: Any) -> bool:
    """Return whether a reply has the form that callers expect of the replies to this command."""
    match words:
        case (b"GET", _):
            return reply is None or isinstance(reply, bytes)
        case (b"INFO", *_) | (b"CLIENT", b"LIST"):
            return isinstance(reply, bytes)
        case (b"TIME",):
            return _has_texts(reply) and len(reply) == 2 and b"".join(reply).isdigit()  # noqa: PLR2004
        case (b"CONFIG", *_):
            return _has_texts(reply) and len(reply) % 2 == 0
        case (b"SCAN", *_):
            pair = cast("list[object]", reply if isinstance(reply, list) else [])
            return len(pair) == 2 and isinstance(pair[0], bytes) and _has_texts(pair[1])  # noqa: PLR2004
        case _:
            return True


def _has_texts(reply: Any) -> bool:
    """Return whether a reply is a list of texts."""
    texts = cast("list[object]", reply)
    return isinstance(reply, list) and all(isinstance(text, bytes) for text in texts)


class DiagnosticConnection:
    """A connection for single commands, logged in unless `anonymous`. A context manager.

    `seconds` limits connecting, and each command. Raises NoAnswer.
    """

    def __init__(self, node: Node, seconds: float, *, anonymous: bool = False) -> None:
        username, password = (None, None) if anonymous else current_credentials(node)
        self._seconds = seconds
        self._secret = password
        self._reader = ReplyReader()
        try:
            self._sock, _ = open_socket(node, self._give_up(), _SILENCE_MS)
        except (OSError, NodeRejected, ConfigError) as error:
            raise self._failed(error) from None
        try:
            self._log_in(username, password)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def peer(self) -> str:
        """The IP address of the peer; "" for a unix socket."""
        if self._sock.family == socket.AF_UNIX:
            return ""
        return str(self._sock.getpeername()[0])

    def ask(self, *words: bytes) -> Any:
        """Return the RESP2 reply to one command; an error is an `ErrorReply`. Raises NoAnswer."""
        give_up = self._give_up()
        try:
            self._sock.settimeout(self._seconds)
            send(self._sock, encode_command(*words))
            reply = self._read(give_up)
        except ProtocolError:
            raise NoAnswer(_NONSENSE) from None
        except OSError as error:
            raise self._failed(error) from None
        if not isinstance(reply, ErrorReply) and not _has_form(words, reply):
            raise NoAnswer(_NONSENSE)
        return reply

    def receive(self, seconds: float) -> Iterator[Any]:
        """Yield replies that arrive within `seconds` without a command, as after MONITOR.

        Raises NoAnswer.
        """
        until = now() + round(seconds * NS_PER_S)
        while now() < until:
            try:
                reply = self._read(until)
            except TimeoutError:
                return
            except ProtocolError:
                raise NoAnswer(_NONSENSE) from None
            except OSError as error:
                raise self._failed(error) from None
            yield reply

    def shown(self, text: str) -> str:
        """Return a server's text without our password, which a server may echo."""
        return without(text, [self._secret])

    def close(self) -> None:
        """Close the socket; idempotent."""
        self._sock.close()

    def _log_in(self, username: str | None, password: str | None) -> None:
        if password is not None:
            user = (username.encode(),) if username else ()
            answer = self.ask(b"AUTH", *user, password.encode())
            if isinstance(answer, ErrorReply):
                raise NoAnswer(answer, login=True)
        answer = self.ask(b"PING")
        if not isinstance(answer, ErrorReply):
            if answer != b"PONG":  # else callers would have to expect anything
                raise NoAnswer(_NONSENSE)
        elif not answer.startswith("NOPERM"):
            login = answer.startswith(("NOAUTH", "DENIED", "WRONGPASS"))
            raise NoAnswer(answer, login=login)

    def _read(self, give_up: Instant) -> Any:
        while (reply := self._reader.next_reply()) is NEED_DATA:
            left = give_up - now()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(left / NS_PER_S)
            data = self._sock.recv(_READ_BYTES)
            if not data:
                raise NoAnswer(f"it {CLOSED_IMMEDIATELY}")
            self._reader.feed(data, len(data))
        if isinstance(reply, ReplyError):
            return ErrorReply(printable(redacted(str(reply), [self._secret])))
        return reply

    def _give_up(self) -> Instant:
        return now() + round(self._seconds * NS_PER_S)

    def _failed(self, error: Exception) -> NoAnswer:
        if isinstance(error, TimeoutError):
            return NoAnswer(f"no answer within {self._seconds:g} s", VoteCode.TIMED_OUT)
        if is_end(error):
            return NoAnswer(f"it {CLOSED_IMMEDIATELY}")
        if reason := tls_reason(error):
            return NoAnswer(f"TLS failed: {reason}")
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return NoAnswer(printable(redacted(why, [self._secret])))
