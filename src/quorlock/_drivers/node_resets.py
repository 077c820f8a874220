"""An operator's statements about nodes, for `quorlock nodes`: they are new, or their settings void.

No reply of a node proves either of them. A node that restarted without its keys looks like a new
one, and a client that is not connected may hold a lease. So each statement is compared with all
that the nodes show, and refused where they contradict it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from quorlock._core.agreement import is_named_after, parse
from quorlock._drivers.change_agreement import (
    ChangeError,
    asking,
    disconnect_clients,
    read,
    require_disconnecting,
    stored,
    wait,
)
from quorlock._drivers.diagnostics import info_fields
from quorlock._protocol.encoding import MARKER
from quorlock._protocol.handshake import BORN_EMPTY, CLIENT_NAME, CONFIG

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock._drivers.change_agreement import Ask, Say
    from quorlock._nodes.node import Node

__all__ = ["ChangeError", "FoundNode", "find", "mark_as_new", "read", "reset_settings"]


class FoundNode(NamedTuple):
    """One node as it was found before it is marked as new.

    Attributes:
        text: Its state in words.
        objection: Why it does not look new; "" if it does.
        failed: The error if it could not be examined.
    """

    node: Node
    text: str
    objection: str = ""
    failed: ChangeError | None = None
    is_marked: bool = False
    run_id: str = ""


class _Facts(NamedTuple):
    """The replies of one node."""

    info: dict[str, str]
    born_empty: bytes
    config: str
    marker: bytes

    @property
    def keys(self) -> int:
        """Return the number of its keys in all databases, without those of every handshake."""
        count = sum(_keyspace(self.info, "keys").values())
        return count - sum(map(bool, (self.born_empty, self.config, self.marker)))


# --- new nodes -----------------------------------------------------------------------------------


def find(nodes: Sequence[Node]) -> list[FoundNode]:
    """Examine the nodes that an operator calls new."""
    found = [_look(node) for node in nodes]
    facts = [it for it in found if isinstance(it, _Facts)]
    agreements = [parse(it.config) for it in facts]
    names = {agreed.name for agreed in agreements if agreed is not None and agreed.name}
    return [
        FoundNode(node, str(it), failed=it)
        if isinstance(it, ChangeError)
        else _found(node, it, names)
        for node, it in zip(nodes, found, strict=True)
    ]


def _look(node: Node) -> _Facts | ChangeError:
    try:
        with asking(node) as ask:
            born_empty = ask(b"GET", BORN_EMPTY, db=0) or b""
            return _Facts(_info(ask), born_empty, stored(ask), ask(b"GET", MARKER) or b"")
    except ChangeError as error:
        return error


def _found(node: Node, facts: _Facts, names: set[str]) -> FoundNode:
    run_id, keys = facts.info.get("run_id", ""), facts.keys
    up = f"up {facts.info.get('uptime_in_seconds', '?')} s"
    text = f"{up}, {_count(keys, 'key')}" if keys else f"{up}, no keys"
    objection = ""
    if keys:
        objection = f"it holds {_count(keys, 'key')}, and a new node has none"
    elif any(not is_named_after(name, run_id) for name in names):
        objection = (
            "these nodes were in use before it started, so it was restarted, or replaces a node"
        )
    is_marked = bool(run_id) and facts.born_empty == run_id.encode()
    return FoundNode(node, text, objection, is_marked=is_marked, run_id=run_id)


def mark_as_new(found: FoundNode) -> str:
    """Let the node vote at once, and return what was done. Raises ChangeError."""
    with asking(found.node) as ask:
        ask(b"SET", BORN_EMPTY, found.run_id.encode(), db=0)
        ask(b"DEL", MARKER)  # the next handshake writes it again, with this in mind
        try:
            disconnect_clients(ask)
        except ChangeError as error:
            return f"marked; clients see it at their next connection ({error})"
    return "marked: it votes at once"


# --- void settings -------------------------------------------------------------------------------


def reset_settings(nodes: Sequence[Node], say: Say, *, force: bool) -> list[ChangeError]:
    """Delete the settings that the nodes store, so that the next client writes its own.

    Args:
        nodes: The nodes.
        say: Called with a line for each node.
        force: Do not check for clients and leases, and skip nodes that do not answer.

    Returns:
        The errors of nodes on which they were not deleted.

    Raises:
        ChangeError: Clients are connected, or a node does not answer; nothing was deleted.
    """
    if not force:
        _require_unused(nodes)
        if longest_ms := max(map(_longest_lease_ms, nodes)):
            wait(longest_ms, say)
            _require_unused(nodes)
    errors = {node: _try(_delete, node, say) for node in nodes}
    # Only when no node has the old settings: a client that connects again would spread them.
    errors |= {node: _try(_disconnect, node, say) for node in nodes if errors[node] is None}
    return [error for error in errors.values() if error is not None]


def _try(act: Callable[[Node], str], node: Node, say: Say) -> ChangeError | None:
    try:
        if done := act(node):
            say(f"{node.address}: {done}")
    except ChangeError as error:
        return error
    return None


def _require_unused(nodes: Sequence[Node]) -> None:
    counts: dict[str, int] = {}
    for node in nodes:
        with asking(node, "a reset needs all nodes") as ask:
            require_disconnecting(ask)  # it comes last
            counts[node.address] = _clients(ask(b"CLIENT", b"LIST"), node.db)
    used = [
        f"{address}: {_count(count, 'connection')}" for address, count in counts.items() if count
    ]
    if used:
        fix = "end these clients first, or give --force"
        raise ChangeError(f"quorlock clients are connected ({'; '.join(used)}); {fix}")


def _longest_lease_ms(node: Node) -> int:
    """Return for how long leases may last whose holders are not connected to the node."""
    with asking(node) as ask:
        expiring, text = _keyspace(_info(ask), "expires"), stored(ask)
    if not text or not expiring.get(f"db{node.db}"):
        return 0
    agreed = parse(text)
    if agreed is None:
        why = f"keeps {text!r}, which this version cannot read; update it, or give --force"
        raise ChangeError(f"{node.address}: {why}")
    return max(agreed.max_ttl_ms, agreed.guard_ms)


def _delete(node: Node) -> str:
    with asking(node) as ask:
        text = stored(ask)
        ask(b"DEL", CONFIG)
    return f"deleted {text!r}" if text else "stores nothing"


def _disconnect(node: Node) -> str:
    with asking(node) as ask:
        disconnect_clients(ask)
    return ""


# --- replies -------------------------------------------------------------------------------------


def _clients(listed: Any, db: int) -> int:
    """Return how many connections of quorlock CLIENT LIST shows in this database."""
    ours, there = b"name=" + CLIENT_NAME, b"db=%d" % db
    lines = (line.split(b" ") for line in listed.splitlines())
    return sum(ours in words and there in words for words in lines)


def _info(ask: Ask) -> dict[str, str]:
    return info_fields(ask(b"INFO").decode(errors="replace"))


def _keyspace(info: dict[str, str], field: str) -> dict[str, int]:
    """Return a field of each database in INFO's section keyspace: `keys` or `expires`."""
    found = {name: re.search(rf"\b{field}=(\d+)", text) for name, text in info.items()}
    return {name: int(it[1]) for name, it in found.items() if it and re.fullmatch(r"db\d+", name)}


def _count(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'s' * (count != 1)}"
