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

from quorlock._core.agreement import Agreement, parse, passes_of_max_ttl
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
_FINISH = (
    "end that change first, with `quorlock nodes add URL --finish` if its node (URL) is to be in"
    " the set, else with `quorlock nodes remove URL --finish`"
)


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
    for step in passes_of_max_ttl(_unchanging(nodes), max_ttl_ms):
        _write_all([(node, step.new) for node in nodes], say)
        if step.wait_ms:
            wait(step.wait_ms, say)


def change_guards(nodes: Sequence[Node], guards: tuple[str, ...], say: Say) -> None:
    """Set the restart guards that clients may use. Raises ChangeError."""
    new = _unchanging(nodes)._replace(guards=guards)
    _write_all([(node, new) for node in nodes], say)


def begin(members: Sequence[Node], other: Node, *, joins: bool, say: Say) -> None:
    """Let clients list the members alone, or the members and the other node. Raises ChangeError.

    joins: The other node is being added. If false, it is a member until now and may be dead.
    """
    larger = len(members) + 1
    size = larger - 1 if joins else larger
    both = (larger - 1, larger)
    agreed = _agreed_on(members, (size,), both)
    if agreed.sizes == (size,):
        # Majorities of lists that are two changes apart may be disjoint.
        wait(agreed.guard_ms, say)
        agreed = _agreed_on(members, (size,), both)  # another change may have begun
    there = _read(other)
    if there.why and joins:
        raise ChangeError(f"{there.address}: {there.why}")
    with_other: list[tuple[Node, Agreement]] = []
    if not there.why:
        if agreed.sizes == both:
            _require_joined(there, agreed)
        else:
            _require_free(there, agreed)
        # It admits only clients that list it beside all members.
        with_other.append((other, agreed._replace(sizes=(larger,))))
    first, *rest = [(node, agreed._replace(sizes=both)) for node in members]
    # A member comes first: of two changes that begin at once, one fails there.
    _write_all([first, *with_other, *rest], say)


def finish_change(members: Sequence[Node], other: Node, *, joins: bool, say: Say) -> None:
    """Let clients list the new set only. Raises ChangeError."""
    larger = len(members) + 1
    size = larger if joins else larger - 1
    agreed = _agreed_on(members, (size,), (larger - 1, larger), fix="begin the change first")
    there = _read(other)
    if joins or (not there.why and agreed.is_changing):
        _require_joined(there, agreed)
    elif not there.why:
        _require_free(there, agreed)
    new = agreed._replace(sizes=(size,))
    changed = [(node, new) for node in members]
    if joins:
        changed.insert(0, (other, new))  # first: it is never older than the members
    elif there.why:
        say(f"{there.address}: {there.why}; it is no member any more: do not start it again")
    else:
        changed.append((other, new._replace(sizes=_LEFT)))
    _write_all(changed, say)


def _require_joined(there: StoredSettings, agreed: Agreement) -> None:
    """Raise ChangeError unless this node is the one of the change under way.

    If two nodes are added or removed at once, the lists with one of them and with the other may
    have majorities that share no node.
    """
    if there.why:
        raise ChangeError(f"{there.address}: {there.why}")
    kept = parse(there.text)
    of_this_change = (
        kept is not None
        and (kept.name, kept.sizes) == (agreed.name, agreed.sizes[-1:])
        and kept.version >= agreed.version
    )
    if not of_this_change:
        raise ChangeError(f"{there.address} is not part of the change that is under way: {_FINISH}")


def _require_free(there: StoredSettings, agreed: Agreement) -> None:
    """Raise ChangeError if this node belongs to another set."""
    kept = parse(there.text)
    if there.text and (kept is None or (kept.sizes != _LEFT and kept.name != agreed.name)):
        fix = "if that set is gone, run `quorlock nodes reset-config` for this node"
        raise ChangeError(f"{there.address} belongs to another set ({there.text!r}): {fix}")


def _unchanging(nodes: Sequence[Node]) -> Agreement:
    """Return the settings that the nodes share, with the limits that suit the leases of all.

    Raises ChangeError, also if a node is being added or removed.
    """
    kept = _agreements(nodes)
    agreed = _oldest(kept)
    if any(one.is_changing for one in kept):
        raise ChangeError(f"a node is being added or removed: {_FINISH}")
    return agreed._replace(
        max_ttl_ms=min(one.max_ttl_ms for one in kept), guard_ms=max(one.guard_ms for one in kept)
    )


def _agreed_on(nodes: Sequence[Node], *sizes: tuple[int, ...], fix: str = "") -> Agreement:
    """Return the settings that the nodes share. Raises ChangeError if clients list other sizes."""
    agreed = _oldest(_agreements(nodes))
    if agreed.sizes not in sizes:
        fix = fix or f"these are {sizes[0][0]} nodes"
        raise ChangeError(f"clients list {agreed.text!r}: {fix}")
    return agreed


def _oldest(kept: Sequence[Agreement]) -> Agreement:
    """Return the settings that the nodes share; during a change, the settings before it.

    Raises ChangeError if the newest differ: one of the nodes is being added or removed.
    """
    newest = max(one.version for one in kept)
    if len({one.sizes for one in kept if one.version == newest}) > 1:
        raise ChangeError(f"one of these nodes is being added or removed: {_FINISH}")
    return min(kept, key=lambda one: one.version)


def _agreements(nodes: Sequence[Node]) -> list[Agreement]:
    """Return what the nodes store, without those that store nothing. Raises ChangeError."""
    found = read(nodes)
    lacking = [f"{kept.address}: {kept.why}" for kept in found if kept.why]
    if lacking:
        raise ChangeError("a change needs all nodes; " + "; ".join(lacking))
    agreements = [agreed for kept in found if (agreed := parse(kept.text)) is not None]
    names = {agreed.name for agreed in agreements}
    if len(agreements) < quorum(len(nodes)) or len(names) > 1:
        texts = "; ".join(f"{kept.address}: {kept.text or 'nothing'}" for kept in found)
        raise ChangeError(f"these nodes do not keep the same: {texts}")
    return agreements


def _write_all(changed: Sequence[tuple[Node, Agreement]], say: Say) -> None:
    """Write these settings, with one new version, unless all of the nodes store them already."""
    found = read([node for node, _ in changed])
    kept = [parse(there.text) for there in found]
    version = max((one.version for one in kept if one is not None), default=0)
    if kept == [new._replace(version=version) for _, new in changed]:
        # An earlier command may have been interrupted after it had written the last one.
        with asking(changed[-1][0]) as ask:
            disconnect_clients(ask)
        return
    for (node, new), there in zip(changed, found, strict=True):
        _write(node, there.text, new._replace(version=version + 1), say)


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


def _write(node: Node, before: str, new: Agreement, say: Say) -> None:
    """Replace the settings of one node and disconnect all its clients. Raises ChangeError."""
    text = new.text.encode()
    with asking(node, "begin the same change again when it is there") as ask:
        require_disconnecting(ask)  # else clients would not read the new text
        if ask(b"EVAL", CONFIG_SCRIPT.text, b"1", CONFIG, before.encode(), text) != text:
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
