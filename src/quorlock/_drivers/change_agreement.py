"""Changes to the settings that the clients of a set of nodes share, for `quorlock nodes`.

`_core.changes` defines the steps of each change
(docs/contributing/decisions/0030-agreement.md).
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from quorlock._core import changes
from quorlock._core.changes import ChangeError, Disconnect, Read, StoredSettings, Write
from quorlock._core.time import NS_PER_S
from quorlock._drivers.clock import now, sleep_seconds
from quorlock._drivers.diagnostics import DiagnosticConnection, ErrorReply, NoAnswer
from quorlock._protocol.handshake import CONFIG
from quorlock.errors import VoteCode
from quorlock.scripts import CONFIG as CONFIG_SCRIPT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from quorlock._core.changes import Change
    from quorlock._nodes.node import Node

    Say = Callable[[str], None]
    Ask = Callable[..., Any]

__all__ = ["ChangeError", "StoredSettings"]

_SECONDS = 2.0  # to connect, and for each reply
# Added to a ttl: for clocks that differ (`drift_factor`) and for requests in flight.
_SHARE, _MORE = 1.02, 0.05


def read(nodes: Sequence[Node]) -> list[StoredSettings]:
    """Return the settings that each node stores."""
    return [_read(node) for node in nodes]


def change_max_ttl(nodes: Sequence[Node], max_ttl_ms: int, say: Say) -> None:
    """Set the longest ttl that clients may use. Raises ChangeError."""
    _run(changes.change_max_ttl(nodes, max_ttl_ms), say)


def change_guards(nodes: Sequence[Node], guards: tuple[str, ...], say: Say) -> None:
    """Set the restart guards that clients may use. Raises ChangeError."""
    _run(changes.change_guards(nodes, guards), say)


def begin(members: Sequence[Node], other: Node, *, joins: bool, say: Say) -> None:
    """Let clients list the members alone, or the members and the other node. Raises ChangeError."""
    _run(changes.begin(members, other, joins=joins), say)


def finish(members: Sequence[Node], other: Node, *, joins: bool, say: Say) -> None:
    """Let clients list the new set only. Raises ChangeError."""
    _run(changes.finish(members, other, joins=joins), say)
    there = _read(other)
    if there.why and not joins:
        say(f"{there.address}: {there.why}; it is no member any more: do not start it again")


def _run(change: Change[Node], say: Say) -> None:
    found: list[StoredSettings] | None = None
    with suppress(StopIteration):
        while True:
            step = change.send(found)
            found = None
            if isinstance(step, Read):
                found = read(step.nodes)
            elif isinstance(step, Write):
                _write(step, say)
            elif isinstance(step, Disconnect):
                for node in step.nodes:
                    with asking(node) as ask:
                        disconnect_clients(ask)
            else:
                wait(step.ttl_ms, say)


def wait(ttl_ms: int, say: Say) -> None:
    """Wait until every lease is over that was granted for this ttl until now."""
    seconds = ttl_ms / 1000 * _SHARE + _MORE
    say(f"waiting {seconds:.1f} s, until every lease of before is over")
    until = now() + round(seconds * NS_PER_S)
    while now() < until:
        time.sleep(sleep_seconds(until))


def _read(node: Node) -> StoredSettings:
    try:
        with asking(node) as ask:
            return StoredSettings(node.address, stored(ask))
    except ChangeError as error:
        return StoredSettings(node.address, "", str(error).removeprefix(f"{node.address}: "))


def _write(write: Write[Node], say: Say) -> None:
    """Replace the settings of one node and disconnect all its clients. Raises ChangeError."""
    node, before, new = write
    words = (b"EVAL", CONFIG_SCRIPT.text, b"1", CONFIG, before.encode(), new.text.encode())
    with asking(node, "begin the same change again when it is there") as ask:
        require_disconnecting(ask)  # else clients would not read the new text
        if ask(*words) != before.encode():
            why = "another client has just changed it; run the command again"
            raise ChangeError(f"{node.address}: {why}")
        disconnect_clients(ask)
    say(f"{node.address}: {new.text}")


def _error_of(node: Node, error: NoAnswer | ErrorReply, fix: str = "") -> ChangeError:
    """Return the error of one node."""
    made = ChangeError(f"{node.address}: {error}" + (f"; {fix}" if fix else ""))
    is_login = isinstance(error, NoAnswer) and error.login
    made.denied = is_login or error.code is VoteCode.ACCESS_DENIED
    made.silent = isinstance(error, NoAnswer) and not made.denied
    return made


@contextmanager
def asking(node: Node, fix: str = "") -> Generator[Ask]:
    """Yield a function that sends a command to the node's database, and returns the reply.

    Both raise ChangeError.

    Args:
        node: The node.
        fix: What to do if it does not answer.
    """

    def send(*words: bytes) -> Any:
        answer = connection.ask(*words)
        if isinstance(answer, ErrorReply):
            raise _error_of(node, answer)
        return answer

    def ask(*words: bytes, db: int = node.db) -> Any:
        if db:  # else that of a new connection
            send(b"SELECT", b"%d" % db)
        return send(*words)

    try:
        with DiagnosticConnection(node, _SECONDS) as connection:
            yield ask
    except NoAnswer as error:
        raise _error_of(node, error, fix) from error


def stored(ask: Ask) -> str:
    """Return the settings that a node stores; "" if none."""
    text: bytes = ask(b"GET", CONFIG) or b""
    return text.decode(errors="replace")


def require_disconnecting(ask: Ask) -> None:
    """Raise ChangeError unless `disconnect_clients` is permitted; no client has this address."""
    ask(b"CLIENT", b"KILL", b"TYPE", b"pubsub", b"ADDR", b"0.0.0.0:0")


def disconnect_clients(ask: Ask) -> None:
    """Close all other connections; those that have subscribed, for waiters, are of another type."""
    for kind in (b"normal", b"pubsub"):
        ask(b"CLIENT", b"KILL", b"TYPE", kind, b"SKIPME", b"yes")
