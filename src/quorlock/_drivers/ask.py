"""Asks one node plain questions over a connection of its own, blocking: for `quorlock doctor`,
`status --match` and `top`.

Nothing that is asked here votes, and nothing that votes passes here. Leaves what to ask, and what
the answers mean, to the caller (docs/decisions/0020-a-door-for-the-doctor.md).
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Self

from quorlock._core.time import NS_PER_S
from quorlock._drivers.clock import now
from quorlock._drivers.dial import opened
from quorlock._wire.answers import printable, redacted
from quorlock._wire.conversation import Nonsense
from quorlock._wire.handshake import HANGS_UP, Unfit
from quorlock._wire.packing import pack_words
from quorlock._wire.plain import NOTHING_YET, Refused, Replies
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock._core.time import Instant
    from quorlock._wire.nodes import Node

__all__ = ["Refused", "Silent", "Talk"]

_READ_BYTES = 16_384
_SILENCE_MS = 10_000
_NONSENSE = "it does not speak the Redis protocol"


class Silent(Exception):
    """No connection, no login, or no answer; the text says why, without our password.

    login: it is there, and does not let us in.
    """

    def __init__(self, why: str, *, login: bool = False) -> None:
        super().__init__(why)
        self.login = login


class Talk:
    """A connection that asks and is answered, logged in unless `anonymous`. A context manager.

    `seconds` is the time for the connection, and again for each question. Raises Silent.
    """

    def __init__(self, node: Node, seconds: float, *, anonymous: bool = False) -> None:
        username, password = (None, None) if anonymous else node.authority()
        self._seconds = seconds
        self._secret = password
        self._replies = Replies(password)
        try:
            self._sock, _ = opened(node, self._give_up(), _SILENCE_MS)
        except (OSError, Unfit, ConfigError) as error:
            raise Silent(self._words(error)) from None
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
        """The IP address at the other end; "" for a unix socket."""
        if self._sock.family == socket.AF_UNIX:
            return ""
        return str(self._sock.getpeername()[0])

    def ask(self, *words: bytes) -> Any:
        """The answer to one command, in RESP2; an error reply is a `Refused`. Raises Silent."""
        give_up = self._give_up()
        try:
            self._sock.settimeout(self._seconds)
            self._sock.sendall(pack_words(*words))
            return self._read(give_up)
        except Nonsense:
            why = _NONSENSE
        except OSError as error:
            why = self._words(error)
        raise Silent(why)

    def hear(self, seconds: float) -> Iterator[Any]:
        """What comes in that time without being asked for, as after MONITOR. Raises Silent."""
        until = now() + round(seconds * NS_PER_S)
        while now() < until:
            try:
                reply = self._read(until)
            except TimeoutError:
                return
            except Nonsense:
                raise Silent(_NONSENSE) from None
            except OSError as error:
                raise Silent(self._words(error)) from None
            yield reply

    def close(self) -> None:
        """Twice does no harm."""
        self._sock.close()

    def _log_in(self, username: str | None, password: str | None) -> None:
        if password is not None:
            user = (username.encode(),) if username else ()
            answer = self.ask(b"AUTH", *user, password.encode())
            if isinstance(answer, Refused):
                raise Silent(answer, login=True)
        answer = self.ask(b"PING")
        if isinstance(answer, Refused) and not answer.startswith("NOPERM"):
            login = answer.startswith(("NOAUTH", "DENIED", "WRONGPASS"))
            raise Silent(answer, login=login)

    def _read(self, give_up: Instant) -> Any:
        while (reply := self._replies.next()) is NOTHING_YET:
            left = give_up - now()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(left / NS_PER_S)
            data = self._sock.recv(_READ_BYTES)
            if not data:
                raise Silent(f"it {HANGS_UP}")
            self._replies.hear(data)
        return reply

    def _give_up(self) -> Instant:
        return now() + round(self._seconds * NS_PER_S)

    def _words(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._seconds:g} s"
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return printable(redacted(why, self._secret))
