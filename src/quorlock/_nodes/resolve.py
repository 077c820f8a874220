"""Nodes from what users give: URLs, `Node(...)`, and clients of redis-py and valkey-py.

Clients are recognized by their shape; their libraries are never imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from quorlock._core.record import Record
from quorlock._nodes.node import Node
from quorlock._nodes.redact import parse_ipv6, refuse, shown
from quorlock._nodes.tls import Tls, as_given, tls_from
from quorlock._nodes.url import FOREIGN_OPTIONS, NOT_BY_URL
from quorlock.errors import ConfigError


def as_node(thing: object) -> Node:
    """Return the node that a URL, a `Node`, or a redis-py or valkey-py client names.

    Raises:
        ConfigError: it is none of them, or one that Redlock cannot use.
    """
    if isinstance(thing, Node):
        return thing
    if isinstance(thing, str):
        return Node.from_url(thing)
    return _node_of_client(thing)


def as_nodes(things: Iterable[object]) -> tuple[Node, ...]:
    """Return all the nodes, in order; at least one, no server twice.

    Raises:
        ConfigError: with the position (`nodes[1]`) of what cannot be used.
    """
    _check_list(things)
    nodes = tuple(_node_at(position, thing) for position, thing in enumerate(things))
    if not nodes:
        refuse("give at least one node; five independent ones are usual", "nodes", ())
    _check_distinct(nodes)
    return nodes


def _node_at(position: int, thing: object) -> Node:
    try:
        return as_node(thing)
    except ConfigError as error:
        value, fix = error.value, error.fix
    raise ConfigError(argument=f"nodes[{position}]", value=value, fix=fix)


def _check_list(things: object) -> None:
    # By __iter__ alone: redis.Redis has __getitem__, so iter(client) would send GET 0.
    value = shown(things)
    if not isinstance(things, Iterable) or isinstance(things, (str, bytes, Mapping)):
        refuse("give a list, also for one node: nodes=[...]", "nodes", value)


def _check_distinct(nodes: tuple[Node, ...]) -> None:
    seen: dict[object, int] = {}
    for position, node in enumerate(nodes):
        first = seen.setdefault(identity(node), position)
        if first != position:
            fix = (
                f"this is the same server as nodes[{first}] ({nodes[first].address}), and its vote"
                " would count twice; every node must be a separate server (another db is none)"
            )
            refuse(fix, f"nodes[{position}]", node.address)


def identity(node: Node) -> tuple[str, int | None]:
    """Return a value that is equal for nodes of the same server, whatever their db."""
    if node.path is not None or node.memory is not None:
        return (node.address, None)
    literal = parse_ipv6(node.host)
    return (str(literal) if literal else node.host.lower(), node.port)


_INDEPENDENT = (
    "Redlock needs independent masters, each by its own address: give a URL, a Node(...) or a"
    " plain client for each"
)
_REFUSED_KINDS: Mapping[str, str] = {
    **dict.fromkeys(
        ("RedisCluster", "ValkeyCluster", "AbstractRedisCluster", "ClusterNode"),
        f"the nodes of a Cluster share its data; {_INDEPENDENT}",
    ),
    **dict.fromkeys(
        ("Sentinel", "SentinelConnectionPool", "SentinelManagedConnection"),
        f"Sentinel moves its master from server to server, and a lock does not move with it;"
        f" {_INDEPENDENT}",
    ),
    "MultiDBClient": f"this client moves between databases; {_INDEPENDENT}",
}
_ACCEPTED = "give a URL (redis://host:6379), a Node(...), or a redis-py or valkey-py client"


class _Provider(Record):
    """A client's credential_provider as a Node's `credentials`."""

    provider: Any

    _SECRET = ("provider",)

    def __init__(self, provider: Any) -> None:
        self._fill(locals())

    def __call__(self) -> tuple[str | None, str]:
        answer = self.provider.get_credentials()  # (password,) or (username, password)
        return cast("tuple[str | None, str]", answer if len(answer) != 1 else (None, *answer))


def _node_of_client(client: object) -> Node:
    pool: object = getattr(client, "connection_pool", None)
    connection: object = getattr(pool, "connection_class", None)
    value = shown(client)
    for name in (*_kinds(type(client)), *_kinds(type(pool)), *_kinds(connection)):
        if name in _REFUSED_KINDS:
            refuse(_REFUSED_KINDS[name], "node", value)
    settings: object = getattr(pool, "connection_kwargs", None)
    if not isinstance(settings, Mapping):
        refuse(_ACCEPTED, "node", value)
    try:
        return Node(**_read_settings(connection, cast("Mapping[str, object]", settings)))
    except ConfigError as error:
        fix = error.fix
    raise ConfigError(argument="node", value=value, fix=fix)


def _kinds(kind: object) -> list[str]:
    return [base.__name__ for base in kind.__mro__] if isinstance(kind, type) else []


def _read_settings(connection: object, settings: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments of `Node` that a pool's connection_kwargs give."""
    # By the exact name: a subclass (fakeredis has one) may connect to something else.
    kind = getattr(connection, "__name__", "")
    if kind not in _CONNECTIONS:
        refuse("its connection class is not one of redis-py or valkey-py; give a URL or Node(...)")
    if settings.get("redis_connect_func") or settings.get("valkey_connect_func"):
        refuse("its connect function cannot be taken over; give Node(..., credentials=...)")
    facts = {name: settings[name] for name in _CONNECTIONS[kind] if settings.get(name) is not None}
    facts |= {name: read(facts[name]) for name, read in _FORMS.items() if name in facts}
    if settings.get("credential_provider") is not None:
        facts["credentials"] = _Provider(settings["credential_provider"])
    if kind == "SSLConnection":
        facts["tls"] = _tls_of_client(settings)
    return facts


_LOGIN = ("db", "username", "password")
_CONNECTIONS: Mapping[str, tuple[str, ...]] = {
    "Connection": ("host", "port", *_LOGIN),
    "SSLConnection": ("host", "port", *_LOGIN),
    "UnixDomainSocketConnection": ("path", *_LOGIN),
}


def _whole(value: object) -> object:
    # redis-py takes numbers as text (from the environment, most often).
    return int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value) else value


_FORMS = {"port": _whole, "db": _whole, "path": as_given}


def _tls_of_client(settings: Mapping[str, object]) -> Tls:
    for name, fix in FOREIGN_OPTIONS.items():
        if fix == NOT_BY_URL and settings.get(name):
            refuse(f"its {name} {fix}")
    return tls_from(settings)
