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
LOCAL = "local"  # in place of URLs: the user's own nodes on this machine
# These may hold a password, so child processes do not inherit them.
SECRET = ("QUORLOCK_NODES", "QUORLOCK_PASSWORD")

# The names and defaults, read from the one place that defines them.
_DEFAULTS: Mapping[str, Any] = cast("Any", Redlock.__init__).__kwdefaults__
_GUARDS = {"uptime": "uptime", "marker": "marker", "none": None}  # TOML has no null
_LOGIN = ("username", "password")
_KEYS = ("nodes", *_DEFAULTS, *_LOGIN)

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
`quorlock run`, under which this runs, keeps QUORLOCK_NODES from its command, for it may hold
passwords: name them in a file"""


class FileSettings(NamedTuple):
    """The arguments of a `Redlock`, and their source."""

    nodes: tuple[Node, ...]
    arguments: dict[str, Any]
    where: str
    owner_from: str | None = None  # the source of the owner, if it is another one

    def argument(self, name: str) -> Any:
        """Return an argument of `Redlock`: the value that was given, or the default."""
        return self.arguments.get(name, _DEFAULTS[name])

    def seconds(self, name: str) -> float:
        """Return an argument that is a duration, in seconds: TOML has no other durations."""
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
        owner = named[source] if source else self.arguments.get("owner", default)
        return self._replace(arguments=self.arguments | {"owner": owner}, owner_from=source)

    def redlock(self) -> Redlock:
        """Return the blocking `Redlock`. Raise Failed if a value is invalid."""
        return self.made(Redlock)

    def made(self, face: Callable[..., R]) -> R:
        """Return a `Redlock` of this class: blocking or asyncio. Raise Failed."""
        try:
            return face(self.nodes, **self.arguments)
        except ConfigError as error:
            why = str(error)
            where = self.owner_from if error.argument == "owner" else None
        raise Failed(EX_CONFIG, f"{where or self.where}: {why}")


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
    if given is not None:
        # A name that is given but empty (`--nodes "$UNSET"`) is an error: no other source is tried.
        arguments["nodes"] = [url.strip() for url in given.split(",") if url.strip()]
    elif "nodes" in arguments:
        where = str(path)
    else:
        raise Failed(EX_CONFIG, f"{path}: it names no nodes" if path else _nowhere())
    login = {name: arguments.pop(name, None) for name in _LOGIN}
    login["password"] = _password(source) or login["password"]
    nodes = _nodes(arguments.pop("nodes"), login, where)
    return FileSettings(nodes, arguments, str(path or where))


def node_like(url: str, others: Sequence[Node]) -> Node:
    """Return one more node, which gets the others' login if it has none. Raise Failed."""
    like = others[0] if others else None
    login = {"username": like.username, "password": like.password} if like else {}
    return _node(len(others), url, login, "URL")


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
    return values


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
        why = str(error)
    else:
        return node
    raise Failed(EX_CONFIG, f"{where}: nodes[{number}]: {why}")


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
