"""Says what a node's address is, and reads it: from a URL, from `Node(...)`, from the client
objects of redis-py and valkey-py (known by their shape, never imported). Leaves resolving,
connecting and encrypting to the drivers. A secret that comes in here stays in its field: every
repr and every error shows only what fits the grammar of an address.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeAlias, cast

from quorlock._core.values import Value
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from ipaddress import IPv6Address
    from ssl import SSLContext

Verify: TypeAlias = Literal["required", "optional", "none"]
Credentials: TypeAlias = Callable[[], tuple[str | None, str]]

# TLS 1.0 and 1.1 are not offered: broken, and switched off in OpenSSL's own defaults.
# The numbers are those of ssl.TLSVersion, which redis-py takes in its URLs.
_MIN_VERSIONS: Mapping[object, str] = {
    **dict.fromkeys((771, "771", "1.2", "TLSv1.2", "TLSv1_2"), "TLSv1.2"),
    **dict.fromkeys((772, "772", "1.3", "TLSv1.3", "TLSv1_3"), "TLSv1.3"),
}


class Tls(Value):
    """How the connection to a node is encrypted; the safe choice by default. Data only.

    Attributes:
        verify: whether the node must show a certificate that a known authority signed.
            "optional" is the same as "required" on a client's side; "none" checks nothing,
            the host name neither.
        check_hostname: whether the certificate must be for the node's host.
        ca_certs: path of a PEM file of authorities; in place of the system's.
        ca_path: path of a folder of authorities, hashed as OpenSSL wants it.
        ca_data: authorities as PEM text or DER bytes.
        certfile: path of our own certificate, where the node asks for one.
        keyfile: path of its key, where it is not in `certfile`.
        keyfile_password: what unlocks the key.
        min_version: "TLSv1.2" (the default) or "TLSv1.3".
        context: a ready `ssl.SSLContext`, in place of all the others.

    Raises:
        ConfigError: a value that cannot work.
    """

    __slots__ = __match_args__ = (
        *("verify", "check_hostname", "ca_certs", "ca_path", "ca_data", "certfile", "keyfile"),
        *("keyfile_password", "min_version", "context"),
    )
    HIDDEN: ClassVar = frozenset({"ca_data", "keyfile_password"})  # the first is only long

    verify: Verify
    check_hostname: bool
    ca_certs: str | None
    ca_path: str | None
    ca_data: str | bytes | None
    certfile: str | None
    keyfile: str | None
    keyfile_password: str | None
    min_version: str | None
    context: SSLContext | None

    def __init__(
        self,
        *,
        verify: Verify = "required",
        check_hostname: bool = True,
        ca_certs: str | None = None,
        ca_path: str | None = None,
        ca_data: str | bytes | None = None,
        certfile: str | None = None,
        keyfile: str | None = None,
        keyfile_password: str | None = None,
        min_version: str | None = None,
        context: SSLContext | None = None,
    ) -> None:
        self._fill(verify=verify, check_hostname=check_hostname, context=context)
        self._fill(ca_certs=ca_certs, ca_path=ca_path, ca_data=ca_data, min_version=min_version)
        self._fill(certfile=certfile, keyfile=keyfile, keyfile_password=keyfile_password)
        _check_tls(self)
        if verify == "none":
            self._fill(check_hostname=False)
        if min_version is not None:
            self._fill(min_version=_MIN_VERSIONS[min_version])


class Node(Value):
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

    __slots__ = __match_args__ = (
        *("host", "port", "db", "path", "username", "password", "credentials", "tls"),
        *("durable", "memory"),
    )

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
        tls: Tls | SSLContext | bool | None = None,
        durable: bool = False,
        memory: str | None = None,
    ) -> None:
        self._fill(host=host, port=port, db=db, path=path, tls=_as_tls(tls), memory=memory)
        self._fill(durable=durable)
        self._fill(username=username, password=password, credentials=credentials)
        _check_node(self)

    @classmethod
    def from_url(cls, url: str) -> Node:
        """The node that a `redis://`, `rediss://`, `unix://` (or `valkey(s)://`) URL names.

        `memory://name` is a node in this process, for tests.

        Raises:
            ConfigError: the URL is not one, with what to change; without its secrets.
        """
        try:
            return cls(**_read_url(url))
        except ConfigError as error:
            fix = error.fix
        # Outside of the except block: the first error must not hang on to this one.
        raise ConfigError(argument="url", value=_shown(url), fix=fix)

    @property
    def address(self) -> str:
        """`a:6379`, `[::1]:6379`, the socket's path or `memory://a`; never with user info."""
        if self.memory is not None:
            return f"memory://{self.memory}"
        if self.path is not None:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def identity(self) -> tuple[str, int | None]:
        """Equal for two nodes that are one server by configuration, whatever their db."""
        if self.path is not None or self.memory is not None:
            return (self.address, None)
        literal = _ipv6(self.host)
        return (str(literal) if literal else self.host.lower(), self.port)

    def authority(self) -> tuple[str | None, str | None]:
        """(username, password) for a connect that begins now; (None, None) is without AUTH.

        A username never comes with None: a user without a password gets an empty one.

        Raises:
            ConfigError: `credentials` returned something else. Its own errors pass through.
        """
        pair = (self.username, self.password)
        if self.credentials is not None:
            pair = _checked_credentials(self.credentials())
        username, password = pair[0] or None, pair[1] or None
        return username, (password or "") if username else password

    def __hash__(self) -> int:
        # Without its credentials: any callable will do, hashable or not.
        return hash((self.address, self.db, self.username, self.password, self.tls))

    def __repr__(self) -> str:
        parts = [repr(self.address), f"db={self.db}"]
        parts += [f"username={self.username!r}"] if self.username else []
        parts += ["password=***"] if self.password else []
        parts += ["credentials=***"] if self.credentials else []
        parts += [f"tls={_tls_in_short(self.tls)}"] if self.tls else []
        parts += ["durable=True"] if self.durable else []
        return f"Node({', '.join(parts)})"


def as_node(thing: object) -> Node:
    """The node that a URL, a `Node`, or a redis-py or valkey-py client names.

    Raises:
        ConfigError: it is none of them, or one that Redlock cannot use.
    """
    if isinstance(thing, Node):
        return thing
    if isinstance(thing, str):
        return Node.from_url(thing)
    return _node_of_client(thing)


def as_nodes(things: Iterable[object]) -> tuple[Node, ...]:
    """All the nodes, in order; at least one, no server twice.

    Raises:
        ConfigError: with the position (`nodes[1]`) of what cannot be used.
    """
    _check_list(things)
    nodes = tuple(_node_at(position, thing) for position, thing in enumerate(things))
    if not nodes:
        _refuse("give at least one node; five independent ones are usual", "nodes", ())
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
    shown = _shown(things)
    if not isinstance(things, Iterable) or isinstance(things, (str, bytes, Mapping)):
        _refuse("give a list, also for one node: nodes=[...]", "nodes", shown)


def _check_distinct(nodes: tuple[Node, ...]) -> None:
    seen: dict[object, int] = {}
    for position, node in enumerate(nodes):
        first = seen.setdefault(node.identity, position)
        if first != position:
            fix = (
                f"this is the same server as nodes[{first}] ({nodes[first].address}), and its vote"
                " would count twice; every node must be a server of its own (another db is not)"
            )
            _refuse(fix, f"nodes[{position}]", node.address)


# --- What may be shown -----------------------------------------------------------------------


def _refuse(fix: str, argument: str = "url", value: object = "***") -> NoReturn:
    raise ConfigError(argument=argument, value=value, fix=fix)


def _shown(value: object) -> object:
    """`value` for an error: text by the grammar of addresses, the rest by its type alone."""
    if isinstance(value, str):
        return redacted(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _type_of(value)


def _type_of(value: object) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def redacted(url: str) -> str:
    """`url` without user info and options; what does not look like an address is `***`."""
    match = re.fullmatch(_URL, url)
    if match is None:
        begin = re.match(_SCHEME, url)
        return f"{begin[0]}***" if begin else "***"
    scheme = f"{match['scheme']}://" if match["scheme"] else ""
    user = "" if match["userinfo"] is None else "***@"
    return f"{scheme}{user}{_shown_place(match)}"


def _shown_place(match: re.Match[str]) -> str:
    host, port, path = match["host"], match["port"], match["path"] or ""
    if not host and match["scheme"] == "unix" and port is None:
        return path
    # "redis://app:secret" (host forgotten) puts a password where the port should be.
    if not re.fullmatch(_PLAIN_HOST, host) or not (port is None or _port(port)):
        return "***"
    numbered = f"{host}:{port}" if port and match["scheme"] else host
    return numbered + (path if re.fullmatch(_DB_PATH, path) else "/***")


def _tls_in_short(tls: Tls) -> str:
    if tls.context is not None:
        return "context"
    loose = tls.verify != "none" and not tls.check_hostname
    return f"{tls.verify}, any host name" if loose else tls.verify


# --- What is valid ---------------------------------------------------------------------------


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object, low: int, high: float) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_clean(text: str) -> bool:
    return text.isprintable() and not any(map(str.isspace, text))


def _ipv6(host: str) -> IPv6Address | None:
    if ":" not in host:
        return None
    from ipaddress import IPv6Address  # here: most hosts are names

    try:
        return IPv6Address(host)
    except ValueError:
        return None


_PORTS = range(1, 65536)
_HOST_FAULTS: tuple[tuple[Callable[[str], bool], str], ...] = (
    (lambda host: host == "", "name the host, e.g. localhost or 10.0.0.7"),
    (lambda host: not _is_clean(host), "the host contains a blank or a control character"),
    (
        lambda host: any(mark in host for mark in "/@?#"),
        "the host is a name or an address alone; a whole URL goes to Node.from_url(url)",
    ),
    (lambda host: "[" in host or "]" in host, "write an IPv6 host without brackets: Node('::1')"),
    (
        lambda host: ":" in host and _ipv6(host) is None,
        "this is no IPv6 address; the port is an argument of its own: Node('a', 6379)",
    ),
)


def _check_node(node: Node) -> None:
    if not _is_number(node.db, 0, float("inf")):
        _refuse("the db must be a whole number, 0 or more", "db", _shown(node.db))
    if not isinstance(cast("object", node.durable), bool):
        _refuse("durable is True or False", "durable", _shown(node.durable))
    if node.memory is not None:
        _check_memory(node)
    elif node.path is None:
        _check_host(node.host)
        if not _is_number(node.port, _PORTS[0], _PORTS[-1]):
            _refuse("the port must be a whole number from 1 to 65535", "port", _shown(node.port))
    else:
        _check_path(node)
    _check_authority(node)


def _check_host(host: object) -> None:
    if not isinstance(host, str):
        _refuse("the host must be a str", "host", _shown(host))
    for at_fault, fix in _HOST_FAULTS:
        if at_fault(host):
            _refuse(fix, "host", redacted(host))


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
        _refuse("the path of a unix socket must be a str", "path", _shown(path))
    for at_fault, fix in _PATH_FAULTS:
        if at_fault(path):
            _refuse(fix, "path", redacted(path))
    if (node.host, node.port) != ("localhost", 6379):
        _refuse("a unix socket has no host and no port; give the path alone", "path", path)
    if node.tls is not None:
        _refuse("a unix socket is not encrypted; leave tls out", "path", path)


_MEMORY_NAME = r"[a-z0-9][a-z0-9._-]{0,63}"


def _check_memory(node: Node) -> None:
    name: object = node.memory
    if not isinstance(name, str):
        _refuse("the name of a memory node must be a str", "memory", _shown(name))
    if not re.fullmatch(_MEMORY_NAME, name):
        # Lower case alone: a host's case says nothing, and two spellings would be two nodes.
        fix = "name it with up to 64 of a-z, 0-9 and . _ - (a letter or digit first): memory://a"
        _refuse(fix, "memory", redacted(name))
    place = (node.host, node.port, node.db, node.path, node.tls)
    login = (node.username, node.password, node.credentials)
    if place != ("localhost", 6379, 0, None, None) or any(login) or node.durable:
        _refuse("a memory node has a name and nothing else: memory://a", "memory", name)


def _check_authority(node: Node) -> None:
    for name in ("username", "password"):
        value = getattr(node, name)
        if not (value is None or _is_text(value)):
            _refuse(f"the {name} must be a str", name, _type_of(value))
    credentials: object = node.credentials
    if credentials is None:
        return
    if not callable(credentials):
        fix = "credentials is a function without arguments that returns (username, password)"
        _refuse(fix, "credentials", _type_of(credentials))
    if node.username or node.password:
        fix = "give either credentials or username and password"
        _refuse(fix, "credentials", "***")


def _checked_credentials(answer: object) -> tuple[str | None, str | None]:
    match answer:
        case [str() | None as username, str() as password]:
            return username, password
        case _:
            fix = "the function must return (username or None, password), both str, not awaitable"
            _refuse(fix, "credentials", _type_of(answer))


_TLS_TEXTS = ("ca_certs", "ca_path", "certfile", "keyfile", "keyfile_password", "min_version")


def _check_tls(tls: Tls) -> None:
    if tls.verify not in ("required", "optional", "none"):
        _refuse("verify is 'required', 'optional' or 'none'", "tls.verify", _shown(tls.verify))
    if not isinstance(cast("object", tls.check_hostname), bool):
        fix = "check_hostname is True or False"
        _refuse(fix, "tls.check_hostname", _shown(tls.check_hostname))
    for name in _TLS_TEXTS:
        value = getattr(tls, name)
        if not (value is None or _is_text(value)):
            _refuse(f"{name} must be a str", f"tls.{name}", _type_of(value))
    if not isinstance(cast("object", tls.ca_data), (str, bytes, type(None))):
        _refuse("ca_data is PEM text or DER bytes", "tls.ca_data", _type_of(tls.ca_data))
    _check_tls_together(tls)


def _check_tls_together(tls: Tls) -> None:
    if tls.min_version is not None and tls.min_version not in _MIN_VERSIONS:
        _refuse("the lowest version is 'TLSv1.2' or 'TLSv1.3'", "tls.min_version", tls.min_version)
    if tls.keyfile is not None and tls.certfile is None:
        _refuse("a key needs its certificate: give certfile too", "tls.keyfile", tls.keyfile)
    if tls.context is None:
        return
    if not _is_context(tls.context):
        _refuse("context is an ssl.SSLContext", "tls.context", _shown(tls.context))
    if (tls.verify, tls.check_hostname) != ("required", True) or any(
        getattr(tls, name) is not None for name in (*_TLS_TEXTS, "ca_data")
    ):
        _refuse("a context has its own settings; give it alone", "tls.context", "<SSLContext>")


def _is_context(thing: object) -> bool:
    # By shape: importing ssl costs about as much as all of quorlock.
    return all(hasattr(thing, name) for name in ("wrap_bio", "wrap_socket", "verify_mode"))


def _as_tls(tls: object) -> Tls | None:
    if tls is None or tls is False:
        return None
    if isinstance(tls, Tls):
        return tls
    if tls is True:
        return Tls()
    if not _is_context(tls):
        _refuse("tls is True, a Tls(...) or an ssl.SSLContext", "tls", _shown(tls))
    return Tls(context=cast("SSLContext", tls))


# --- URLs ------------------------------------------------------------------------------------

# Our own grammar and not urlsplit: it refuses where urlsplit guesses (a raw '/' in a password
# makes it take the rest for a path), and it raises nothing that quotes the URL. These are compiled
# at their first use, not at import.
_URL = (
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://|(?!.*://))"
    r"(?:(?P<userinfo>[^@/?#]*)@)?"
    r"(?P<host>\[[^\[\]@/?#]*:[^\[\]@/?#]*\]|[^\[\]@:/?#]*)"
    r"(?::(?P<port>[^@:/?#]*))?"
    r"(?P<path>/[^@?#]*)?"
    r"(?:\?(?P<query>[^@#]*))?"
)
_SCHEME = r"(?:rediss?|valkeys?|unix|memory|https?|tcp)://"
_PLAIN_HOST = r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]"
_DB_PATH = r"(?:/([0-9]{0,9})/?)?"

_URL_FORM = "redis://[[user]:password@]host[:port][/db], rediss://... or unix:///path?db=0"

_URL_FAULTS: tuple[tuple[Callable[[str], bool], str], ...] = (
    (
        lambda url: not _is_clean(url),
        "the URL contains a blank or a control character; write a blank as %20",
    ),
    (lambda url: "://" not in url, f"begin with the scheme: {_URL_FORM}"),
    (
        # An '@' ends the user info, where there is one; a '#' has no meaning at all.
        lambda url: not re.fullmatch("[^@/?#]*@?[^@#]*", url.partition("://")[2]),
        "percent-encode '@ / ? #' in user and password: urllib.parse.quote(password, safe='')",
    ),
    (
        lambda url: re.fullmatch(_URL, url) is None,
        f"the form is {_URL_FORM}; an IPv6 host stands in brackets: redis://[::1]:6379",
    ),
)


def _read_url(url: object) -> dict[str, Any]:
    """The arguments of `Node` that the URL gives."""
    if not isinstance(url, str):
        _refuse("a URL is a str")
    for at_fault, fix in _URL_FAULTS:
        if at_fault(url):
            _refuse(fix)
    match = cast("re.Match[str]", re.fullmatch(_URL, url))
    scheme = match["scheme"].lower()
    if scheme not in _SCHEMES:
        _refuse(f"the scheme must be {', '.join(f'{name}://' for name in _SCHEMES)}")
    options = _read_options(match["query"] or "")
    return _SCHEMES[scheme](match, options) | _read_login(match["userinfo"], options)


def _read_tcp(match: re.Match[str], options: dict[str, str]) -> dict[str, Any]:
    for name in options:
        if name.startswith("ssl_"):
            _refuse(f"{name} would be without effect: write rediss:// for an encrypted connection")
    host = _decoded(match["host"].strip("[]"), "the host")
    if not host:
        _refuse("name the host, e.g. redis://localhost:6379")
    facts: dict[str, Any] = {"host": host.lower(), "db": _read_db(match, options)}
    facts |= _read_durable(options)
    if match["port"]:
        facts["port"] = _port(match["port"])
    return facts


def _read_tls(match: re.Match[str], options: dict[str, str]) -> dict[str, Any]:
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    plain = {name: value for name, value in options.items() if name not in tls}
    return _read_tcp(match, plain) | {"tls": _tls_from(tls)}


def _read_unix(match: re.Match[str], options: dict[str, str]) -> dict[str, Any]:
    if match["host"] or match["port"] is not None:
        _refuse("a unix socket's path begins with a third slash: unix:///run/redis.sock")
    if not (match["path"] or "").strip("/"):
        _refuse("name the socket's file: unix:///run/redis.sock")
    for name in options:
        if name.startswith("ssl_"):
            _refuse(f"{name} is without effect: a unix socket is not encrypted")
    facts = {"path": _decoded(match["path"], "the path"), "db": _db(options.get("db", "0"))}
    return facts | _read_durable(options)


def _read_memory(match: re.Match[str], options: dict[str, str]) -> dict[str, Any]:
    beside = (match["userinfo"], match["port"], (match["path"] or "").strip("/") or None)
    if options or beside != (None, None, None):
        _refuse("a memory node has a name and nothing else: memory://a")
    return {"memory": match["host"]}


_SCHEMES: Mapping[str, Callable[[re.Match[str], dict[str, str]], dict[str, Any]]] = {
    "redis": _read_tcp,
    "rediss": _read_tls,
    "unix": _read_unix,
    "valkey": _read_tcp,
    "valkeys": _read_tls,
    "memory": _read_memory,
}


def _port(text: str) -> int:
    """The port as a number; 0, which is none, for anything else."""
    return int(text) if re.fullmatch("[0-9]{1,5}", text) and int(text) in _PORTS else 0


def _read_db(match: re.Match[str], options: dict[str, str]) -> int:
    path = re.fullmatch(_DB_PATH, _decoded(match["path"] or "", "the db"))
    if path is None:
        _refuse("what follows the host is the db's number: redis://host:6379/0")
    if path[1] and "db" in options and int(path[1]) != _db(options["db"]):
        _refuse("the db is given twice, after the host and as an option; keep one")
    return _db(path[1] or options.get("db", "0"))


def _read_durable(options: dict[str, str]) -> dict[str, bool]:
    return {"durable": _flag(options["durable"], "durable")} if "durable" in options else {}


def _db(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        _refuse("the db must be a whole number, 0 or more")
    return int(text)


def _read_login(userinfo: str | None, options: dict[str, str]) -> dict[str, str]:
    if userinfo is None:
        return {name: options[name] for name in ("username", "password") if name in options}
    if "username" in options or "password" in options:
        _refuse("user and password are given twice, before the '@' and as options; keep one")
    username, colon, password = userinfo.partition(":")
    if username and not colon:
        # Half of those who write this mean a password, which would then be shown as a name.
        _refuse("write :password@ for a password alone, user:@ for a user without one")
    login = {"username": username, "password": password}
    return {name: _decoded(value, f"the {name}") for name, value in login.items() if value}


def _decoded(text: str, what: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote  # here and below: most URLs have nothing to decode

    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        pass
    _refuse(f"{what} is not UTF-8 after percent-decoding")


def _read_options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in _pairs(query):
        if name not in _OPTIONS:
            _refuse(_about_option(name))
        if name in options:
            _refuse(f"the option {name} is given twice")
        if not value:
            _refuse(f"the option {name} is empty; give it a value or leave it out")
        options[name] = value
    return options


def _pairs(query: str) -> list[tuple[str, str]]:
    if not query:
        return []
    from urllib.parse import parse_qsl

    try:
        return parse_qsl(query, keep_blank_values=True, errors="strict")
    except ValueError:
        pass
    _refuse("the options are not UTF-8 after percent-decoding")


_NOT_NEEDED = "is not needed here, leave it out"
_NOT_BY_URL = "cannot be given here: make an ssl.SSLContext with it and give Node(..., tls=context)"

_FOREIGN_OPTIONS: Mapping[str, str] = {
    "socket_timeout": "is node_timeout= of Redlock(...); leave it out here",
    "socket_connect_timeout": "is connect_timeout= of Redlock(...); leave it out here",
    "ssl": "is the scheme's business: write rediss://",
    **dict.fromkeys(("host", "port", "path", "unix_socket_path"), "goes before the '?'"),
    **dict.fromkeys(
        (
            *("ssl_ciphers", "ssl_include_verify_flags", "ssl_exclude_verify_flags"),
            *("ssl_validate_ocsp", "ssl_validate_ocsp_stapled"),
            *("ssl_ocsp_context", "ssl_ocsp_expected_cert"),
        ),
        _NOT_BY_URL,
    ),
    **dict.fromkeys(
        (
            *("client_name", "decode_responses", "encoding", "encoding_errors", "lib_name"),
            *("health_check_interval", "legacy_responses", "lib_version", "max_connections"),
            *("protocol", "retry", "retry_on_error", "retry_on_timeout", "socket_keepalive"),
            *("socket_keepalive_options", "socket_read_size", "timeout"),
        ),
        _NOT_NEEDED,
    ),
}


def _about_option(name: str) -> str:
    if not re.fullmatch("[a-z_]{1,40}", name, re.IGNORECASE):
        return "an option's name is not one: the form is ?name=value&name=value"
    if name in _FOREIGN_OPTIONS:
        return f"the option {name} {_FOREIGN_OPTIONS[name]}"
    from difflib import get_close_matches  # here: for the slips of a few

    near = "".join(get_close_matches(name.lower(), (*_OPTIONS, *_FOREIGN_OPTIONS), n=1))
    hint = f"did you mean {near}?" if near else f"known are {', '.join(_OPTIONS)}"
    more = f" It {_FOREIGN_OPTIONS[near]}" if near in _FOREIGN_OPTIONS else ""
    return f"the option {name} is unknown; {hint}{more}"


# --- TLS options, as URLs and clients give them ----------------------------------------------


# ssl.CERT_NONE, CERT_OPTIONAL and CERT_REQUIRED are 0, 1 and 2; None is redis-py's "none".
_VERIFY: Mapping[object, str] = {
    **dict.fromkeys((0, "none", None), "none"),
    **dict.fromkeys((1, "optional"), "optional"),
    **dict.fromkeys((2, "required"), "required"),
}
_FLAGS: Mapping[str, bool] = {
    **dict.fromkeys(("1", "T", "TRUE", "Y", "YES", "ON"), True),
    **dict.fromkeys(("0", "F", "FALSE", "N", "NO", "OFF"), False),
}


def _verify(value: object) -> str:
    if not isinstance(value, (int, str, NoneType)) or isinstance(value, bool):
        value = "***"
    if value not in _VERIFY:
        _refuse("ssl_cert_reqs must be required, optional or none")
    return _VERIFY[value]


def _flag(value: object, name: str = "ssl_check_hostname") -> bool:
    text = str(value).upper() if isinstance(value, (bool, str)) else ""
    if text not in _FLAGS:
        _refuse(f"{name} must be true or false")
    return _FLAGS[text]


def _min_version(value: object) -> str:
    if not isinstance(value, (int, str)) or value not in _MIN_VERSIONS:
        _refuse("ssl_min_version must be TLSv1.2 or TLSv1.3 (771 or 772)")
    return _MIN_VERSIONS[value]


def _as_given(value: object) -> object:
    as_path: Any = getattr(value, "__fspath__", None)  # redis-py takes a pathlib.Path
    return as_path() if as_path else value


_TLS_OPTIONS: Mapping[str, tuple[str, Callable[[object], object]]] = {
    "ssl_cert_reqs": ("verify", _verify),
    "ssl_check_hostname": ("check_hostname", _flag),
    "ssl_ca_certs": ("ca_certs", _as_given),
    "ssl_ca_path": ("ca_path", _as_given),
    "ssl_ca_data": ("ca_data", _as_given),
    "ssl_certfile": ("certfile", _as_given),
    "ssl_keyfile": ("keyfile", _as_given),
    "ssl_password": ("keyfile_password", _as_given),
    "ssl_min_version": ("min_version", _min_version),
}
_OPTIONS = ("db", "username", "password", "durable", *_TLS_OPTIONS)


def _tls_from(options: Mapping[str, object]) -> Tls:
    given: dict[str, Any] = {}
    for name, (argument, read) in _TLS_OPTIONS.items():
        # For ssl_cert_reqs alone None says something: "none". Elsewhere it is "not given".
        if name in options and (options[name] is not None or name == "ssl_cert_reqs"):
            given[argument] = read(options[name])
    return Tls(**given)


# --- Clients of redis-py and valkey-py -------------------------------------------------------

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


class _Provider(Value):
    """A client's credential_provider as a Node's `credentials`."""

    __slots__ = __match_args__ = ("provider",)
    HIDDEN: ClassVar = frozenset({"provider"})

    provider: Any

    def __init__(self, provider: Any) -> None:
        self._fill(provider=provider)

    def __call__(self) -> tuple[str | None, str]:
        answer = self.provider.get_credentials()  # (password,) or (username, password)
        return cast("tuple[str | None, str]", answer if len(answer) != 1 else (None, *answer))


def _node_of_client(client: object) -> Node:
    pool: object = getattr(client, "connection_pool", None)
    connection: object = getattr(pool, "connection_class", None)
    value = _shown(client)
    for name in (*_kinds(type(client)), *_kinds(type(pool)), *_kinds(connection)):
        if name in _REFUSED_KINDS:
            _refuse(_REFUSED_KINDS[name], "node", value)
    settings: object = getattr(pool, "connection_kwargs", None)
    if not isinstance(settings, Mapping):
        _refuse(_ACCEPTED, "node", value)
    try:
        return Node(**_read_settings(connection, cast("Mapping[str, object]", settings)))
    except ConfigError as error:
        fix = error.fix
    raise ConfigError(argument="node", value=value, fix=fix)


def _kinds(kind: object) -> list[str]:
    return [base.__name__ for base in kind.__mro__] if isinstance(kind, type) else []


def _read_settings(connection: object, settings: Mapping[str, object]) -> dict[str, Any]:
    """The arguments of `Node` that a pool's connection_kwargs give."""
    # By the exact name: a subclass (fakeredis has one) may connect to something else.
    kind = getattr(connection, "__name__", "")
    if kind not in _CONNECTIONS:
        _refuse("its connection class is not one of redis-py or valkey-py; give a URL or Node(...)")
    if settings.get("redis_connect_func") or settings.get("valkey_connect_func"):
        _refuse("its connect function cannot be taken over; give Node(..., credentials=...)")
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


_FORMS = {"port": _whole, "db": _whole, "path": _as_given}


def _tls_of_client(settings: Mapping[str, object]) -> Tls:
    for name, fix in _FOREIGN_OPTIONS.items():
        if fix == _NOT_BY_URL and settings.get(name):
            _refuse(f"its {name} {fix}")
    return _tls_from(settings)
