"""The sources of nodes, settings and passwords: options, the environment, a TOML file.

This module owns their order of precedence and the error messages. It never makes up a node: a lock
that only seems shared is worse than none. `Redlock` checks the values, which are its arguments. No
error message contains a password.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from quorlock._nodes.node import Node
from quorlock._settings.durations import seconds_of
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorlock._settings.options import NodeOptions

FILE = "quorlock.toml"
LOCAL = "local"  # in place of URLs: the user's own nodes on this machine
_NODES, _CONFIG, _OWNER = "QUORLOCK_NODES", "QUORLOCK_CONFIG", "QUORLOCK_OWNER"
_PASSWORD, _MAX_TTL = "QUORLOCK_PASSWORD", "QUORLOCK_MAX_TTL"
_WAITING = "QUORLOCK_WAITING"
_MAX_TTL_OPTION = "--max-ttl"
_STDERR = 2

_GUARDS = {"uptime": "uptime", "marker": "marker", "none": None}  # TOML has no null
_LOGIN = ("username", "password")
# Keys whose value may also be written as in a shell: `ttl = "10s"`.
DURATIONS = ("ttl", "max_ttl", "node_timeout", "connect_timeout", "outage_timeout", "retry_delay")
_DURATION_HINT = "give a duration, such as 30s, 2h, 1m30s or 500ms, or a number of seconds"

# The forms in which nodes are named, without options.
FORMS = f"""\
  {_NODES}=redis://a:6379,redis://b:6379,redis://c:6379
  nodes = ["redis://a:6379", "redis://b:6379", "redis://c:6379"]
      in the TOML file that {{named}},
      in ./{FILE}, or in ~/.config/quorlock/{FILE}"""


class Found(NamedTuple):
    """The arguments of a `Redlock`, and the source of each: an option, a variable or a file."""

    nodes: tuple[Node, ...]
    arguments: dict[str, Any]
    origins: dict[str, str]
    unread: str = ""  # a sentence about a file that was found and not read


class SettingError(Exception):
    """A mistake in a source.

    Attributes:
        place: the option, variable or file, and the key or value in it.
        why: what is wrong.
        hint: what to do, or "".
    """

    def __init__(self, place: str, why: str, hint: str = "") -> None:
        super().__init__(place, why, hint)
        self.place = place
        self.why = why
        self.hint = hint


class NoNodesNamed(SettingError):
    """No source names nodes."""


def read(
    options: NodeOptions, names: Iterable[str], local: Callable[[], tuple[Node, ...]]
) -> Found:
    """Return the nodes and settings that the sources name. Raise SettingError.

    Nodes come from the option, else from the environment, else from the file. A file that is named
    is always read, for the other settings. A file that is only found is ignored if the nodes are
    named elsewhere: it may have been written for other nodes.

    Args:
        options: The options of the command line.
        names: The keyword arguments of `Redlock`, which a file may have.
        local: Returns the nodes that the word "local" stands for.
    """
    named, found = _named_file(options), _found_file()
    given, where = _given(options)
    path = named or (found if given is None else None)
    arguments = _read(path, ("nodes", *names, *_LOGIN)) if path is not None else {}
    origins = dict.fromkeys(arguments, str(path))
    if given is not None:
        # A name that is given but empty (`--nodes "$UNSET"`) is an error: no other source is tried.
        arguments["nodes"] = _split(given, where)
        origins["nodes"] = where
    elif "nodes" not in arguments:
        if path:
            raise SettingError(str(path), "it names no nodes")
        raise NoNodesNamed("", "no nodes are named")
    _set_max_ttl(options, arguments, origins)
    if (owner := os.environ.get(_OWNER)) is not None:
        arguments["owner"], origins["owner"] = owner, _OWNER
    if waiting := os.environ.get(_WAITING):
        arguments["waiting"], origins["waiting"] = waiting, _WAITING
    login = {name: arguments.pop(name, None) for name in _LOGIN}
    if password := _password(options):
        login["password"] = password
        origins["password"] = _PASSWORD if options.password_fd is None else "--password-fd"
    urls, place = arguments.pop("nodes"), origins["nodes"]
    # Local nodes take no password.
    nodes = local() if urls in (LOCAL, [LOCAL]) else _nodes(urls, login, place)
    return Found(nodes, arguments, origins, unread(options))


def unread(options: NodeOptions) -> str:
    """Return a sentence about the file that is found and not read; "" if there is none."""
    given, where = _given(options)
    if given is None or _named_file(options) or (found := _found_file()) is None:
        return ""
    return f"{found} is not read, because {where} names the nodes (--config {found} reads it)"


def _split(given: str, where: str) -> list[str]:
    urls = [url.strip() for url in given.split(",") if url.strip()]
    bare = [url for url in urls[1:] if "://" not in url]
    if "@" in "".join(bare) and "@" not in bare[0]:
        # It may be a password with commas, and the first piece would be shown as a host.
        why = "what follows a comma has no scheme"
        hint = "begin each URL with redis://, and write a comma in a password as %2C"
        raise SettingError(where, why, hint)
    return urls


def _set_max_ttl(options: NodeOptions, arguments: dict[str, Any], origins: dict[str, str]) -> None:
    longest, origin = options.max_ttl, _MAX_TTL_OPTION
    if longest is None:
        if not (text := os.environ.get(_MAX_TTL)):
            return
        longest, origin = _seconds(text, f"{_MAX_TTL} {text}"), _MAX_TTL
    arguments["max_ttl"], origins["max_ttl"] = longest, origin


def _given(options: NodeOptions) -> tuple[str | None, str]:
    if options.nodes is not None:
        return options.nodes, "--nodes"
    return os.environ.get(_NODES) or None, _NODES


def _named_file(options: NodeOptions) -> Path | None:
    if options.config is not None:
        return Path(options.config)
    name = os.environ.get(_CONFIG)
    return Path(name) if name else None


def _found_file() -> Path | None:
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    places = [Path(FILE)]
    with suppress(RuntimeError):  # no home: a container's user without a name
        places.append(Path(home).expanduser() / "quorlock" / FILE)
    return next((place for place in places if _is_there(place)), None)


def _is_there(place: Path) -> bool:
    """Return whether there is a file, for a user who may look: `sudo -u` keeps another's HOME."""
    try:
        return place.exists()
    except OSError:
        return False


def _read(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    values = _parsed(path)
    for key in values:
        if key not in keys:
            raise SettingError(str(path), _about(key, keys))
    if "restart_guard" in values:
        guard = values["restart_guard"]
        if not isinstance(guard, str) or guard not in _GUARDS:
            fix = "give 'uptime', 'marker' or 'none'"
            raise SettingError(str(path), f"restart_guard={guard!r}: {fix}")
        values["restart_guard"] = _GUARDS[guard]
    for key in values.keys() & set(DURATIONS):
        values[key] = _plain_duration(values[key], f"{path}: {key}")
    return values


def _plain_duration(value: Any, where: str) -> Any:
    """Return the seconds of `"10s"`, also in a list; any other value as it is."""
    if isinstance(value, list):
        return [_plain_duration(one, where) for one in cast("list[object]", value)]
    return _seconds(value, f"{where} = {value!r}") if isinstance(value, str) else value


def _seconds(text: str, place: str) -> float:
    seconds = seconds_of(text)
    if seconds is None:
        raise SettingError(place, "this is no duration", _DURATION_HINT)
    return seconds


def _parsed(path: Path) -> dict[str, Any]:
    import tomllib  # here: most programs have no such file

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror
    except ValueError as error:  # not UTF-8 or TOML; only the message omits the text
        why = str(error)
    except RecursionError:
        why = "arrays or tables are nested too deeply"
    # Raised outside the except block, so that the first error is not its context.
    raise SettingError(str(path), str(why))


def _about(key: str, keys: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key.lower().replace("-", "_"), keys, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(keys)}"
    return f"the key {key!r} is unknown; {hint}"


def _nodes(urls: object, login: dict[str, Any], where: str) -> tuple[Node, ...]:
    if not isinstance(urls, list):
        raise SettingError(where, "nodes: give a list of URLs, also for one node")
    things = cast("list[object]", urls)
    return tuple(node_of(number, url, login, where) for number, url in enumerate(things))


def node_of(number: int, url: object, login: dict[str, Any], where: str) -> Node:
    """Return the node of a URL, with this login if the URL has none. Raise SettingError."""
    try:
        node = Node.from_url(cast("str", url))
        if node.memory is None and node.username is None and node.password is None:
            given = {name: value for name, value in login.items() if value not in (None, "")}
            node = Node(**vars(node) | given) if given else node
    except ConfigError as error:
        subject = error.value if error.argument == "url" else error.argument
        why, hint = f"nodes[{number}] {subject}: {error.fix}", ""
        if near := _with_scheme(url):
            why, hint = f"{near.address} is no URL", f"did you mean redis://{near.address}?"
    else:
        return node
    raise SettingError(where, why, hint)


def _with_scheme(url: object) -> Node | None:
    """Return the node that `host:port` means, else None."""
    if isinstance(url, str) and "://" not in url and not url.startswith(("/", "unix:")):
        with suppress(ConfigError):
            return Node.from_url(f"redis://{url}")
    return None


def _password(options: NodeOptions) -> str | None:
    """Return the password from the file descriptor, else from the environment."""
    number = options.password_fd
    place = _PASSWORD if number is None else f"--password-fd {number}"
    try:
        if number is None:
            return os.fsencode(os.environ.get(_PASSWORD, "")).decode() or None
        return _line(number).decode().removesuffix("\r")
    except OSError as error:
        why = error.strerror
    except UnicodeDecodeError:  # the error holds the bytes that were read
        why = "it is not UTF-8"
    raise SettingError(place, str(why))


def _line(number: int) -> bytes:
    """Read the first line byte by byte: the rest of stdin belongs to the command that is run."""
    line = bytearray()
    while (byte := os.read(number, 1)) not in (b"", b"\n"):
        line += byte
    if number > _STDERR:
        os.close(number)
    return bytes(line)
