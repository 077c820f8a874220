"""Where nodes, settings and passwords are told: options, the environment, a TOML file.

Owns the order in which they are looked for, and what is said of a slip. Never makes up a node:
a lock that only seems shared is worse than none. Leaves the values to `Redlock`, whose arguments
they are. A password is read and handed on; no sentence here quotes one.
"""

from __future__ import annotations

import os
import tomllib
from contextlib import suppress
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from quorlock import ConfigError, Node, Redlock
from quorlock.cli.exits import EX_CONFIG, Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quorlock.cli.nodes import Source

R = TypeVar("R")

FILE = "quorlock.toml"
_STDERR = 2
LOCAL = "local"  # in place of URLs: the user's own nodes on this machine
# What may hold a password, and so is not for the children that we start.
SECRET = ("QUORLOCK_NODES", "QUORLOCK_PASSWORD")

# Their names and defaults, from the one place where they are written.
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


class Settings(NamedTuple):
    """What a `Redlock` is made of, and where that was said."""

    nodes: tuple[Node, ...]
    arguments: dict[str, Any]
    where: str

    @property
    def ttl(self) -> float:
        """The default lease time, in seconds."""
        return float(self.arguments.get("ttl", _DEFAULTS["ttl"]))

    def argument(self, name: str) -> Any:
        """Of `Redlock`, as it was said, or its default."""
        return self.arguments.get(name, _DEFAULTS[name])

    def seconds(self, name: str) -> float:
        """One of these that is a duration."""
        duration: float | timedelta = self.argument(name)
        return duration.total_seconds() if isinstance(duration, timedelta) else duration

    def redlock(self) -> Redlock:
        """It. Raises Failed where a value cannot work."""
        return self.made(Redlock)

    def made(self, face: Callable[..., R]) -> R:
        """It, of this class: blocking or asyncio. Raises Failed."""
        try:
            return face(self.nodes, **self.arguments)
        except ConfigError as error:
            why = str(error)
        raise Failed(EX_CONFIG, f"{self.where}: {why}")


def settings(source: Source) -> Settings:
    """What was said of the nodes. Raises Failed.

    Nodes are named by the option, else by the environment, else in the file. A file that is
    named is read in any case, for the other settings; one that is only found is not, where the
    nodes are named elsewhere: it may be there for others.
    """
    named, found = _named_file(source), _found_file()
    given, where = _given(source)
    path = named or (found if given is None else None)
    arguments = _read(path) if path is not None else {}
    if given is not None:
        # A name that is given and empty (`--nodes "$UNSET"`) is no reason to look elsewhere.
        arguments["nodes"] = [url.strip() for url in given.split(",") if url.strip()]
    elif "nodes" in arguments:
        where = str(path)
    else:
        raise Failed(EX_CONFIG, f"{path}: it names no nodes" if path else _nowhere())
    login = {name: arguments.pop(name, None) for name in _LOGIN}
    login["password"] = _password(source) or login["password"]
    nodes = _nodes(arguments.pop("nodes"), login, where)
    return Settings(nodes, arguments, str(path or where))


def _nowhere() -> str:
    return _NOWHERE + (_WITHIN_RUN if "QUORLOCK_TOKEN" in os.environ else "")


def _given(source: Source) -> tuple[str | None, str]:
    if source.nodes is not None:
        return source.nodes, "--nodes"
    return os.environ.get("QUORLOCK_NODES") or None, "QUORLOCK_NODES"


def _named_file(source: Source) -> Path | None:
    if source.config is not None:
        return Path(source.config)
    name = os.environ.get("QUORLOCK_CONFIG")
    return Path(name) if name else None


def _found_file() -> Path | None:
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    places = [Path(FILE)]
    with suppress(RuntimeError):  # there is no home: a container's user without a name
        places.append(Path(home).expanduser() / "quorlock" / FILE)
    return next((place for place in places if place.exists()), None)


def _read(path: Path) -> dict[str, Any]:
    told = _parsed(path)
    for key in told:
        if key not in _KEYS:
            raise Failed(EX_CONFIG, f"{path}: {_about(key)}")
    if "restart_guard" in told:
        guard = told["restart_guard"]
        if not isinstance(guard, str) or guard not in _GUARDS:
            fix = "give 'uptime', 'marker' or 'none'"
            raise Failed(EX_CONFIG, f"{path}: restart_guard={guard!r}: {fix}")
        told["restart_guard"] = _GUARDS[guard]
    return told


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror
    except ValueError as error:  # not UTF-8, or not TOML: it has the text, its sentence does not
        why = str(error)
    # Outside of the except block: the first error must not hang on to this one.
    raise Failed(EX_CONFIG, f"{path}: {why}")


def _about(key: str) -> str:
    near = get_close_matches(key.lower().replace("-", "_"), _KEYS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_KEYS)}"
    return f"the key {key!r} is unknown; {hint}"


def _nodes(urls: object, login: dict[str, Any], where: str) -> tuple[Node, ...]:
    if urls in (LOCAL, [LOCAL]):  # they take no password
        from quorlock.cli.local.nodes import local_nodes

        return local_nodes()
    if not isinstance(urls, list):
        raise Failed(EX_CONFIG, f"{where}: nodes: give a list of URLs, also for one node")
    things = cast("list[object]", urls)
    return tuple(_node(number, url, login, where) for number, url in enumerate(things))


def _node(number: int, url: object, login: dict[str, Any], where: str) -> Node:
    try:
        node = Node.from_url(cast("str", url))
        if node.memory is not None:
            fix = "a node in memory is this process's alone: nobody else would see the lock"
            raise ConfigError("url", node.address, fix)
        if node.username is None and node.password is None and any(login.values()):
            node = node.__replace__(**login)
    except ConfigError as error:
        why = str(error)
    else:
        return node
    raise Failed(EX_CONFIG, f"{where}: nodes[{number}]: {why}")


def _password(source: Source) -> str | None:
    """From the descriptor, else from the environment."""
    number = source.password_fd
    if number is None:
        return os.environ.get("QUORLOCK_PASSWORD") or None
    try:
        return _line(number).decode().removesuffix("\r")
    except OSError as error:
        why = error.strerror
    except UnicodeDecodeError:  # its text is what was read
        why = "it is not UTF-8"
    raise Failed(EX_CONFIG, f"--password-fd {number}: {why}")


def _line(number: int) -> bytes:
    """The first line, byte by byte: of stdin the rest is for the command that is run."""
    line = bytearray()
    while (byte := os.read(number, 1)) not in (b"", b"\n"):
        line += byte
    if number > _STDERR:
        os.close(number)
    return bytes(line)
