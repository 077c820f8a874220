"""One node: where it is and how to enter, checked when it is made.

Resolving, connecting and encrypting are left to the drivers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias, cast

from quorlock._core.record import Record
from quorlock._nodes.redact import (
    PORTS,
    is_clean,
    is_number,
    parse_ipv6,
    redacted,
    refuse,
    shown,
    type_of,
)
from quorlock._nodes.tls import LazySSLContext, Tls, as_tls, tls_in_short
from quorlock._nodes.url import read_url
from quorlock.errors import ConfigError

Credentials: TypeAlias = Callable[[], tuple[str | None, str]]


class Node(Record):
    """One independent master: where it is and how to enter. Compares by value, shows no secret.

    Args:
        host: a DNS name, an IPv4 address, or an IPv6 address without brackets.
        port: 1 to 65535.
        db: the number of the database, from 0.
        path: a unix socket, in place of host and port.
        username: the ACL user; None is the server's `default` user.
        password: its password; None for a user that has none.
        credentials: asked for (username, password) at every connect, in place of the two;
            for passwords that change. Called in the thread or event loop that connects,
            so it must not block for long.
        tls: `Tls(...)`, True for `Tls()`, or an `ssl.SSLContext`.
        durable: you know that this server syncs every write to its disk before it answers
            (`appendfsync always`): the restart guard lets it vote as soon as it is back.
        memory: the name of a node in this process's memory, for tests, in place of all others
            (`quorlock.testing.memory`).

    Raises:
        ConfigError: a value that cannot work; `argument` says which.
    """

    host: str
    port: int
    db: int
    path: str | None
    username: str | None
    password: str | None
    credentials: Credentials | None
    tls: Tls | None
    durable: bool
    memory: str | None

    def __init__(
        self,
        host: str = "localhost",
        port: int = 6379,
        *,
        db: int = 0,
        path: str | None = None,
        username: str | None = None,
        password: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | LazySSLContext | bool | None = None,
        durable: bool = False,
        memory: str | None = None,
    ) -> None:
        tls = as_tls(tls)
        self._fill(locals())
        _check_node(self)

    @classmethod
    def from_url(cls, url: str) -> Node:
        """Return the node that a `redis://`, `rediss://`, `unix://` (or `valkey(s)://`) URL names.

        `memory://name` is a node in this process, for tests.

        Raises:
            ConfigError: the URL is not one, with what to change; without its secrets.
        """
        try:
            return cls(**read_url(url))
        except ConfigError as error:
            fix = error.fix
        # Outside of the except block: the first error must not hang on to this one.
        raise ConfigError(argument="url", value=shown(url), fix=fix)

    @property
    def address(self) -> str:
        """`a:6379`, `[::1]:6379`, the socket's path or `memory://a`; never with user info."""
        if self.memory is not None:
            return f"memory://{self.memory}"
        if self.path is not None:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __hash__(self) -> int:
        # Without its credentials: any callable will do, hashable or not.
        return hash((self.address, self.db, self.username, self.password, self.tls))

    def __repr__(self) -> str:
        parts = [repr(self.address), f"db={self.db}"]
        parts += [f"username={self.username!r}"] if self.username else []
        parts += ["password=***"] if self.password else []
        parts += ["credentials=***"] if self.credentials else []
        parts += [f"tls={tls_in_short(self.tls)}"] if self.tls else []
        parts += ["durable=True"] if self.durable else []
        return f"Node({', '.join(parts)})"


def current_credentials(node: Node) -> tuple[str | None, str | None]:
    """Return (username, password) for a connect that begins now; (None, None) is without AUTH.

    A username never comes with None: a user without a password gets an empty one.

    Raises:
        ConfigError: `credentials` returned something else. Its own errors pass through.
    """
    pair = (node.username, node.password)
    if node.credentials is not None:
        pair = _checked_credentials(node.credentials())
    username, password = pair[0] or None, pair[1] or None
    return username, (password or "") if username else password


_HOST_FAULTS: tuple[tuple[Callable[[str], bool], str], ...] = (
    (lambda host: host == "", "name the host, e.g. localhost or 10.0.0.7"),
    (lambda host: not is_clean(host), "the host contains a blank or a control character"),
    (
        lambda host: any(mark in host for mark in "/@?#"),
        "the host is a name or an address alone; a whole URL goes to Node.from_url(url)",
    ),
    (lambda host: "[" in host or "]" in host, "write an IPv6 host without brackets: Node('::1')"),
    (
        lambda host: ":" in host and parse_ipv6(host) is None,
        "this is no IPv6 address; the port is a separate argument: Node('a', 6379)",
    ),
    (
        # RFC 1035, section 2.3.4: Python looks no other name up.  A last dot makes it complete.
        lambda host: re.fullmatch(r"(?=.{1,253}\.?$)[^.]{1,63}(\.[^.]{1,63})*\.?", host) is None,
        "a host name has at most 253 characters, and 1 to 63 between two dots",
    ),
)


def _check_node(node: Node) -> None:
    if not is_number(node.db, 0, float("inf")):
        refuse("the db must be a whole number, 0 or more", "db", shown(node.db))
    if not isinstance(cast("object", node.durable), bool):
        refuse("durable is True or False", "durable", shown(node.durable))
    if node.memory is not None:
        _check_memory(node)
    elif node.path is None:
        _check_host(node.host)
        if not is_number(node.port, PORTS[0], PORTS[-1]):
            refuse("the port must be a whole number from 1 to 65535", "port", shown(node.port))
    else:
        _check_path(node)
    _check_credentials(node)


def _check_host(host: object) -> None:
    if not isinstance(host, str):
        refuse("the host must be a str", "host", shown(host))
    for at_fault, fix in _HOST_FAULTS:
        if at_fault(host):
            refuse(fix, "host", redacted(host))


_PATH_FAULTS: tuple[tuple[Callable[[str], bool], str], ...] = (
    (lambda path: "://" in path, "a whole URL goes to Node.from_url(url)"),
    (
        lambda path: not path or not path.isprintable(),
        "name the unix socket's file: not empty, without control characters",
    ),
)


def _check_path(node: Node) -> None:
    path: object = node.path
    if not isinstance(path, str):
        refuse("the path of a unix socket must be a str", "path", shown(path))
    for at_fault, fix in _PATH_FAULTS:
        if at_fault(path):
            refuse(fix, "path", redacted(path))
    if (node.host, node.port) != ("localhost", 6379):
        refuse("a unix socket has no host and no port; give the path alone", "path", path)
    if node.tls is not None:
        refuse("a unix socket is not encrypted; leave tls out", "path", path)


_MEMORY_NAME = r"[a-z0-9][a-z0-9._-]{0,63}"


def _check_memory(node: Node) -> None:
    name: object = node.memory
    if not isinstance(name, str):
        refuse("the name of a memory node must be a str", "memory", shown(name))
    if not re.fullmatch(_MEMORY_NAME, name):
        # Lower case alone: a host's case says nothing, and two spellings would be two nodes.
        fix = "name it with up to 64 of a-z, 0-9 and . _ - (a letter or digit first): memory://a"
        refuse(fix, "memory", redacted(name))
    place = (node.host, node.port, node.db, node.path, node.tls)
    login = (node.username, node.password, node.credentials)
    if place != ("localhost", 6379, 0, None, None) or any(login) or node.durable:
        refuse("a memory node has a name and nothing else: memory://a", "memory", name)


def _check_credentials(node: Node) -> None:
    for name in ("username", "password"):
        value = getattr(node, name)
        if not isinstance(value, (str, type(None))):
            refuse(f"the {name} must be a str", name, type_of(value))
        _check_encodable(name, value)
    credentials: object = node.credentials
    if credentials is None:
        return
    if not callable(credentials):
        fix = "credentials is a function without arguments that returns (username, password)"
        refuse(fix, "credentials", type_of(credentials))
    if node.username or node.password:
        fix = "give either credentials or username and password"
        refuse(fix, "credentials", "***")


def _check_encodable(name: str, value: str | None) -> None:
    """Refuse what cannot be sent, as a variable in another encoding, or half of a pair."""
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        pass  # it quotes the text
    else:
        return
    refuse(f"give a {name} that UTF-8 can encode", name, "***")


def _checked_credentials(answer: object) -> tuple[str | None, str | None]:
    match answer:
        case [str() | None as username, str() as password]:
            _check_encodable("username", username)
            _check_encodable("password", password)
            return username, password
        case _:
            fix = "the function must return (username or None, password), both str, not awaitable"
            return refuse(fix, "credentials", type_of(answer))
