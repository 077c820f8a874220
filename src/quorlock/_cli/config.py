"""The sources of nodes, settings and passwords: options, the environment, a TOML file.

This module owns their order of precedence and the error messages. It never makes up a node: a lock
that only seems shared is worse than none. `Redlock` checks the values, which are its arguments. No
error message contains a password.
"""

from __future__ import annotations

import os
import tomllib
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from quorlock import ConfigError, Node, Redlock
from quorlock._cli.exit_status import EX_CONFIG, Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from quorlock._cli.options import NodeOptions

R = TypeVar("R")

FILE = "quorlock.toml"
_STDERR = 2
_MAX_TTL, _MAX_TTL_OPTION = "QUORLOCK_MAX_TTL", "--max-ttl"
LOCAL = "local"  # in place of URLs: the user's own nodes on this machine

# The names and defaults, read from the one place that defines them.
DEFAULTS: Mapping[str, Any] = cast("Any", Redlock.__init__).__kwdefaults__
_GUARDS = {"uptime": "uptime", "marker": "marker", "none": None}  # TOML has no null
_LOGIN = ("username", "password")
_KEYS = ("nodes", *DEFAULTS, *_LOGIN)
# Keys whose value may also be written as in a shell: `ttl = "10s"`.
DURATIONS = ("ttl", "max_ttl", "node_timeout", "connect_timeout", "outage_timeout", "retry_delay")

_NOWHERE = f"""\
no nodes are named. Say which, in one of these ways:
  --nodes redis://a:6379,redis://b:6379,redis://c:6379
  QUORLOCK_NODES=redis://a:6379,redis://b:6379,redis://c:6379
  nodes = ["redis://a:6379", "redis://b:6379", "redis://c:6379"]
      in the TOML file that --config or QUORLOCK_CONFIG names,
      in ./{FILE}, or in ~/.config/quorlock/{FILE}
  --nodes local
      for nodes of your own on this machine, as `quorlock local up` starts them"""
_WITHIN_RUN = """
`quorlock run`, under which this runs, removes QUORLOCK_NODES from its command's environment if a
URL in it has a password: name the nodes in a file"""


class FileSettings(NamedTuple):
    """The arguments of a `Redlock`, and the source of each: an option, a variable or a file."""

    nodes: tuple[Node, ...]
    arguments: dict[str, Any]
    origins: dict[str, str]
    unread: str = ""  # a sentence about a file that was found and not read

    def argument(self, name: str) -> Any:
        """Return an argument of `Redlock`: the value that was given, or the default."""
        return self.arguments.get(name, DEFAULTS[name])

    def seconds(self, name: str) -> float:
        """Return an argument that is a duration, in seconds."""
        return float(self.argument(name))

    def default_ttl(self) -> float:
        """Return the lease time of a lock without its own, in seconds. Raise Failed."""
        with self.redlock() as redlock:
            return redlock.lock("any").ttl

    @property
    def prefix(self) -> bytes:
        return str(self.argument("prefix")).encode()

    def owned(self, given: str | None, default: str) -> FileSettings:
        """Return these settings with an owner: the option, the environment, the file, the default.

        One that is given but empty is no owner.
        """
        named = {"--owner": given, "QUORLOCK_OWNER": os.environ.get("QUORLOCK_OWNER")}
        source = next((name for name, owner in named.items() if owner is not None), None)
        if source is None:
            return self._replace(arguments={"owner": default} | self.arguments)
        arguments = self.arguments | {"owner": named[source]}
        return self._replace(arguments=arguments, origins=self.origins | {"owner": source})

    def redlock(self) -> Redlock:
        """Return the blocking `Redlock`. Raise Failed if a value is invalid."""
        return self.made(Redlock)

    def made(self, face: Callable[..., R]) -> R:
        """Return a `Redlock` of this class: blocking or asyncio. Raise Failed."""
        try:
            return face(self.nodes, **self.arguments)
        except ConfigError as error:
            failed = self._failed(error)
        raise failed

    def _failed(self, error: ConfigError) -> Failed:
        from quorlock._cli.config_errors import value_of, words

        why, hint = words(error, self.unread)
        name, value = error.argument, value_of(error)
        origin = self.origins.get(name.partition("[")[0], "default")
        if name.startswith("nodes"):
            label = origin if error.value == () else f"{origin}: {value}"
        elif origin == "default":
            label = f"{name} {value} (default)"
        elif origin.startswith(("--", "QUORLOCK_")):
            label = f"{origin} {value}"
        else:
            label = f"{origin}: {name} {value}"
        return Failed(EX_CONFIG, f"{label}: {why}", hint)


def settings(source: NodeOptions) -> FileSettings:
    """Return the nodes and settings that the sources name. Raise Failed.

    Nodes come from the option, else from the environment, else from the file. A file that is named
    is always read, for the other settings. A file that is only found is ignored if the nodes are
    named elsewhere: it may have been written for other nodes.
    """
    named, found = _named_file(source), _found_file()
    given, where = _given(source)
    path = named or (found if given is None else None)
    arguments = _read(path) if path is not None else {}
    origins = dict.fromkeys(arguments, str(path))
    if given is not None:
        # A name that is given but empty (`--nodes "$UNSET"`) is an error: no other source is tried.
        arguments["nodes"] = [url.strip() for url in given.split(",") if url.strip()]
        origins["nodes"] = where
    elif "nodes" not in arguments:
        raise Failed(EX_CONFIG, f"{path}: it names no nodes" if path else _nowhere())
    _set_max_ttl(source, arguments, origins)
    login = {name: arguments.pop(name, None) for name in _LOGIN}
    if password := _password(source):
        login["password"] = password
        origins["password"] = "QUORLOCK_PASSWORD" if source.password_fd is None else "--password-fd"
    nodes = _nodes(arguments.pop("nodes"), login, origins["nodes"])
    return FileSettings(nodes, arguments, origins, unread(source))


def unread(source: NodeOptions) -> str:
    """Return a sentence about the file that is found and not read; "" if there is none."""
    given, where = _given(source)
    if given is None or _named_file(source) or (found := _found_file()) is None:
        return ""
    return f"{found} is not read, because {where} names the nodes (--config {found} reads it)"


def _set_max_ttl(source: NodeOptions, arguments: dict[str, Any], origins: dict[str, str]) -> None:
    longest, origin = source.max_ttl, _MAX_TTL_OPTION
    if longest is None:
        if not (text := os.environ.get(_MAX_TTL)):
            return
        longest, origin = _seconds(text, f"{_MAX_TTL} {text}"), _MAX_TTL
    arguments["max_ttl"], origins["max_ttl"] = longest, origin


def node_like(url: str, others: Sequence[Node]) -> Node:
    """Return one more node, which gets the others' login if it has none. Raise Failed."""
    like = others[0] if others else None
    login = {"username": like.username, "password": like.password} if like else {}
    return _node(len(others), url, login, "URL")


def secret_variables() -> list[str]:
    """Return the environment variables that children do not inherit: those with a password."""
    return ["QUORLOCK_PASSWORD", *["QUORLOCK_NODES"] * _has_password()]


def _has_password() -> bool:
    """Return whether a URL in QUORLOCK_NODES has a password, or cannot be read."""
    text = os.environ.get("QUORLOCK_NODES", "").strip()
    try:
        urls = [] if text == LOCAL else [url.strip() for url in text.split(",") if url.strip()]
        return any(Node.from_url(url).password is not None for url in urls)
    except ConfigError:
        return True


def _nowhere() -> str:
    return _NOWHERE + (_WITHIN_RUN if "QUORLOCK_TOKEN" in os.environ else "")


def _given(source: NodeOptions) -> tuple[str | None, str]:
    if source.nodes is not None:
        return source.nodes, "--nodes"
    return os.environ.get("QUORLOCK_NODES") or None, "QUORLOCK_NODES"


def _named_file(source: NodeOptions) -> Path | None:
    if source.config is not None:
        return Path(source.config)
    name = os.environ.get("QUORLOCK_CONFIG")
    return Path(name) if name else None


def _found_file() -> Path | None:
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    places = [Path(FILE)]
    with suppress(RuntimeError):  # no home: a container's user without a name
        places.append(Path(home).expanduser() / "quorlock" / FILE)
    return next((place for place in places if place.exists()), None)


def _read(path: Path) -> dict[str, Any]:
    values = _parsed(path)
    for key in values:
        if key not in _KEYS:
            raise Failed(EX_CONFIG, f"{path}: {_about(key)}")
    if "restart_guard" in values:
        guard = values["restart_guard"]
        if not isinstance(guard, str) or guard not in _GUARDS:
            fix = "give 'uptime', 'marker' or 'none'"
            raise Failed(EX_CONFIG, f"{path}: restart_guard={guard!r}: {fix}")
        values["restart_guard"] = _GUARDS[guard]
    for key in values.keys() & set(DURATIONS):
        values[key] = _plain_duration(values[key], f"{path}: {key}")
    return values


def _plain_duration(value: Any, where: str) -> Any:
    """Return the seconds of `"10s"`, also in a list; any other value as it is."""
    if isinstance(value, list):
        return [_plain_duration(one, where) for one in cast("list[object]", value)]
    return _seconds(value, f"{where} = {value!r}") if isinstance(value, str) else value


def _seconds(text: str, label: str) -> float:
    from click import BadParameter

    from quorlock._cli.durations import duration

    with suppress(BadParameter):
        return duration(text)
    hint = "give a duration, such as 30s, 2h, 1m30s or 500ms, or a number of seconds"
    raise Failed(EX_CONFIG, f"{label}: this is no duration", hint)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror
    except ValueError as error:  # not UTF-8 or TOML; only the message omits the text
        why = str(error)
    # Raised outside the except block, so that the first error is not its context.
    raise Failed(EX_CONFIG, f"{path}: {why}")


def _about(key: str) -> str:
    near = get_close_matches(key.lower().replace("-", "_"), _KEYS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_KEYS)}"
    return f"the key {key!r} is unknown; {hint}"


def _nodes(urls: object, login: dict[str, Any], where: str) -> tuple[Node, ...]:
    if urls in (LOCAL, [LOCAL]):  # these take no password
        from quorlock._cli.local.nodes import local_nodes

        return local_nodes()
    if not isinstance(urls, list):
        raise Failed(EX_CONFIG, f"{where}: nodes: give a list of URLs, also for one node")
    things = cast("list[object]", urls)
    return tuple(_node(number, url, login, where) for number, url in enumerate(things))


def _node(number: int, url: object, login: dict[str, Any], where: str) -> Node:
    try:
        node = Node.from_url(cast("str", url))
        if node.memory is not None:
            fix = "a node in memory belongs to this process: no other process would see the lock"
            raise ConfigError("url", node.address, fix)
        if node.username is None and node.password is None and any(login.values()):
            node = replace(node, **login)
    except ConfigError as error:
        subject = error.value if error.argument == "url" else error.argument
        why, hint = f"nodes[{number}] {subject}: {error.fix}", ""
        if near := _with_scheme(url):
            why, hint = f"{near.address} is no URL", f"did you mean redis://{near.address}?"
    else:
        return node
    raise Failed(EX_CONFIG, f"{where}: {why}", hint)


def _with_scheme(url: object) -> Node | None:
    """Return the node that `host:port` means, else None."""
    if isinstance(url, str) and "://" not in url and not url.startswith(("/", "unix:")):
        with suppress(ConfigError):
            return Node.from_url(f"redis://{url}")
    return None


def _password(source: NodeOptions) -> str | None:
    """Return the password from the file descriptor, else from the environment."""
    number = source.password_fd
    if number is None:
        return os.environ.get("QUORLOCK_PASSWORD") or None
    try:
        return _line(number).decode().removesuffix("\r")
    except OSError as error:
        why = error.strerror
    except UnicodeDecodeError:  # the error holds the bytes that were read
        why = "it is not UTF-8"
    raise Failed(EX_CONFIG, f"--password-fd {number}: {why}")


def _line(number: int) -> bytes:
    """Read the first line byte by byte: the rest of stdin belongs to the command that is run."""
    line = bytearray()
    while (byte := os.read(number, 1)) not in (b"", b"\n"):
        line += byte
    if number > _STDERR:
        os.close(number)
    return bytes(line)
