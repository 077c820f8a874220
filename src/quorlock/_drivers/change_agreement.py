"""Changes to the settings that the clients of a set of nodes share, for `quorlock nodes`.

A change makes passes over all nodes. On each node the stored text is compared and set. Then the
connections of all clients are closed, so that they read the text before their next vote there. An
interrupted change continues when it is begun again. `_core.agreement` defines the steps of each
change (docs/contributing/decisions/0030-agreement.md).
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from quorlock._core.agreement import Agreement, ChangeStep, parse, passes_of_max_ttl
from quorlock._core.tally import quorum
from quorlock._core.time import NS_PER_S
from quorlock._drivers.clock import now, sleep_seconds
from quorlock._drivers.diagnostics import DiagnosticConnection, ErrorReply, NoAnswer
from quorlock._protocol.handshake import CONFIG
from quorlock.errors import QuorlockError, VoteCode
from quorlock.scripts import CONFIG as CONFIG_SCRIPT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from quorlock._nodes.node import Node

    Say = Callable[[str], None]
    Ask = Callable[..., Any]

_SECONDS = 2.0  # to connect, and for each reply
# Added to a ttl: for clocks that differ (`drift_factor`) and for requests in flight.
_SHARE, _MORE = 1.02, 0.05
# No list has this length: the node has left its set.
_LEFT = (0,)


class StoredSettings(NamedTuple):
    """The text that one node stores ("" if none), or the reason why it is not known."""

    address: str
    text: str
    why: str = ""


class ChangeError(QuorlockError):
    """A change that was not begun or that stopped half way; the text says where and what to do.

    Attributes:
        denied: A node refused the login or a command.
        silent: A node did not answer.
    """

    denied = False
    silent = False

    @classmethod
    def of(cls, node: Node, error: NoAnswer | ErrorReply, fix: str = "") -> ChangeError:
        """Return the error of one node."""
        made = cls(f"{node.address}: {error}" + (f"; {fix}" if fix else ""))
        is_login = isinstance(error, NoAnswer) and error.login
        made.denied = is_login or error.code is VoteCode.ACCESS_DENIED
        made.silent = isinstance(error, NoAnswer) and not made.denied
        return made


def read(nodes: Sequence[Node]) -> list[StoredSettings]:
    """Return the settings that each node stores."""
    return [_read(node) for node in nodes]


def change_max_ttl(nodes: Sequence[Node], max_ttl_ms: int, say: Say) -> None:
    """Set the longest ttl that clients may use. Raises ChangeError."""
    for step in passes_of_max_ttl(_agreed(nodes), max_ttl_ms):
        _make(nodes, step, say)


def change_guards(nodes: Sequence[Node], guards: tuple[str, ...], say: Say) -> None:
    """Set the restart guards that clients may use. Raises ChangeError."""
    _make(nodes, ChangeStep(_agreed(nodes)._replace(guards=guards)), say)


def begin(node_states: Sequence[Node], other: Node, *, joins: bool, say: Say) -> None:
    """Let clients list the members alone, or the members and the other node. Raises ChangeError.

    joins: The other node is being added. If false, it is a member until now and may be dead.
    """
    larger = len(node_states) + 1
    size = larger - 1 if joins else larger
    agreed = _agreed(node_states)
    both = agreed._replace(sizes=(larger - 1, larger))
    if agreed.sizes not in ((size,), both.sizes):
        raise ChangeError(f"clients list {agreed.text!r}, and these are {size} nodes")
    if agreed.sizes == (size,):
        # Majorities of lists that are two changes apart may be disjoint.
        wait(agreed.guard_ms, say)
    there = _read(other)
    if joins and agreed.sizes == both.sizes:
        _require_joined(there, both)
    if not there.why:
        # The other node comes first, so that it admits only clients that list it beside all
        # members.
        _join(other, there, agreed._replace(sizes=(larger,), version=agreed.version + 1), say)
    elif joins:
        raise ChangeError(f"{there.address}: {there.why}")
    _make(node_states, ChangeStep(both), say)


def finish_change(node_states: Sequence[Node], other: Node, *, joins: bool, say: Say) -> None:
    """Let clients list the new set only. Raises ChangeError."""
    larger = len(node_states) + 1
    agreed = _agreed(node_states)
    size = larger if joins else larger - 1
    if size not in agreed.sizes:
        raise ChangeError(f"clients list {agreed.text!r}: begin the change first")
    new = agreed._replace(sizes=(size,))
    if joins:
        _require_joined(_read(other), new)
    _make([*node_states, other] if joins else node_states, ChangeStep(new), say)
    if joins:
        return
    there = _read(other)
    if there.why:
        say(f"{there.address}: {there.why}; it is no member any more: do not start it again")
    else:
        _write(other, new._replace(sizes=_LEFT, version=agreed.version + 2), say)


def _require_joined(there: StoredSettings, agreed: Agreement) -> None:
    """Raise ChangeError unless this node is the one that the change under way adds.

    If two nodes are added at once, the lists with one of them and with the other may have
    majorities that share no node.
    """
    if there.why:
        raise ChangeError(f"{there.address}: {there.why}")
    kept = parse(there.text)
    if kept is None or (kept.name, kept.sizes) != (agreed.name, agreed.sizes[-1:]):
        raise ChangeError(
            f"{there.address} is not part of the change that is under way: finish that with"
            " `quorlock nodes add URL --finish`, or undo it with `quorlock nodes remove URL` and"
            " `quorlock nodes remove URL --finish`, where URL is the node of that change"
        )


def _join(other: Node, there: StoredSettings, new: Agreement, say: Say) -> None:
    kept = parse(there.text)
    if there.text and (kept is None or (kept.sizes != _LEFT and kept.name != new.name)):
        fix = "if that set is gone, run `quorlock nodes reset-config` for this node"
        raise ChangeError(f"{there.address} belongs to another set ({there.text!r}): {fix}")
    _write(other, new, say)


def _agreed(nodes: Sequence[Node]) -> Agreement:
    """Return the settings that the nodes share; during a change, the settings before it."""
    found = read(nodes)
    lacking = [f"{kept.address}: {kept.why}" for kept in found if kept.why]
    if lacking:
        raise ChangeError("a change needs all nodes; " + "; ".join(lacking))
    agreements = [agreed for kept in found if (agreed := parse(kept.text)) is not None]
    names = {agreed.name for agreed in agreements}
    if len(agreements) < quorum(len(nodes)) or len(names) > 1:
        texts = "; ".join(f"{kept.address}: {kept.text or 'nothing'}" for kept in found)
        raise ChangeError(f"these nodes do not keep the same: {texts}")
    return min(agreements, key=lambda agreed: agreed.version)


def _make(nodes: Sequence[Node], step: ChangeStep, say: Say) -> None:
    """Write the same settings on all nodes, unless all of them store these already."""
    found = [parse(_read(node).text) for node in nodes]
    version = max(agreed.version for agreed in found if agreed is not None)
    if any(agreed != step.new._replace(version=version) for agreed in found):
        for node in nodes:
            _write(node, step.new._replace(version=version + 1), say)
    if step.wait_ms:
        wait(step.wait_ms, say)


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


def _write(node: Node, new: Agreement, say: Say) -> None:
    """Write the settings on one node and disconnect all its clients. Raises ChangeError."""
    text = new.text.encode()
    with asking(node, "begin the same change again when it is there") as ask:
        require_disconnecting(ask)  # else clients would not read the new text
        before = ask(b"GET", CONFIG) or b""
        if ask(b"EVAL", CONFIG_SCRIPT.text, b"1", CONFIG, before, text) != text:
            why = "another client has just changed it; run the command again"
            raise ChangeError(f"{node.address}: {why}")
        disconnect_clients(ask)
    say(f"{node.address}: {new.text}")


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
            raise ChangeError.of(node, answer)
        return answer

    def ask(*words: bytes, db: int = node.db) -> Any:
        if db:  # else that of a new connection
            send(b"SELECT", b"%d" % db)
        return send(*words)

    try:
        with DiagnosticConnection(node, _SECONDS) as connection:
            yield ask
    except NoAnswer as error:
        raise ChangeError.of(node, error, fix) from error


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
