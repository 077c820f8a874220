"""The settings of a command: what `_settings.reader` finds, and its errors in this program's words.

No error message contains a password.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from quorlock import ConfigError, Node, Redlock
from quorlock._cli.exit_status import EX_CONFIG, Failed
from quorlock._settings import reader
from quorlock._settings.options import NodeOptions

R = TypeVar("R")

# The names and defaults, read from the one place that defines them.
DEFAULTS: Mapping[str, Any] = cast("Any", Redlock.__init__).__kwdefaults__
_NOWHERE = f"""\
Say which, in one of these ways:
  --nodes redis://a:6379,redis://b:6379,redis://c:6379
{reader.FORMS.format(named="--config or QUORLOCK_CONFIG names")}
  --nodes local
      for nodes of your own on this machine, as `quorlock local up` starts them"""
_WITHIN_RUN = """
`quorlock run`, under which this runs, removes QUORLOCK_NODES from its command's environment if a
URL in it has a password: name the nodes in a file"""


class FileSettings(reader.Found):
    """The settings that the sources name, and the objects made from them."""

    __slots__ = ()

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
        if given is None:
            return self._replace(arguments={"owner": default} | self.arguments)
        arguments = self.arguments | {"owner": given}
        return self._replace(arguments=arguments, origins=self.origins | {"owner": "--owner"})

    def distinct_nodes(self) -> tuple[Node, ...]:
        """Return the nodes. Raise Failed if there is none, or a server twice."""
        try:
            Redlock(self.nodes).close()  # it connects to none
        except ConfigError as error:
            failed = self._failed(error)
        else:
            return self.nodes
        raise failed

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
    """Return the nodes and settings that the sources name. Raise Failed."""
    try:
        found = FileSettings(*reader.read(source, DEFAULTS, _local_nodes))
        for number, node in enumerate(found.nodes):
            _check_shared(node, number, found.origins["nodes"])
    except reader.NoNodesNamed as error:
        failed = Failed(EX_CONFIG, f"{error.why}. {_nowhere()}")
    except reader.SettingError as error:
        failed = _failed_by(error)
    else:
        return found
    # Raised outside the except block, so that the first error is not its context.
    raise failed


def _failed_by(error: reader.SettingError) -> Failed:
    return Failed(EX_CONFIG, f"{error.place}: {error.why}", error.hint)


def _check_shared(node: Node, number: int, where: str) -> None:
    if node.memory is not None:
        fix = "a node in memory belongs to this process: no other process would see the lock"
        raise Failed(EX_CONFIG, f"{where}: nodes[{number}] {node.address}: {fix}")


def _local_nodes() -> tuple[Node, ...]:
    from quorlock._cli.local.nodes import local_nodes

    return local_nodes()


def node_like(url: str, others: Sequence[Node]) -> Node:
    """Return one more node, which gets the others' login if it has none. Raise Failed."""
    like = others[0] if others else None
    login = {"username": like.username, "password": like.password} if like else {}
    try:
        node = reader.node_of(len(others), url, login, "URL")
    except reader.SettingError as error:
        failed = _failed_by(error)
    else:
        _check_shared(node, len(others), "URL")
        return node
    raise failed


def secret_variables() -> list[str]:
    """Return the environment variables that children do not inherit: those with a password."""
    return ["QUORLOCK_PASSWORD", *["QUORLOCK_NODES"] * _has_password()]


def _has_password() -> bool:
    """Return whether a URL in QUORLOCK_NODES has a password, or cannot be read."""
    text = os.environ.get("QUORLOCK_NODES", "").strip()
    try:
        urls = (
            [] if text == reader.LOCAL else [url.strip() for url in text.split(",") if url.strip()]
        )
        return any(Node.from_url(url).password is not None for url in urls)
    except ConfigError:
        return True


def _nowhere() -> str:
    return _NOWHERE + (_WITHIN_RUN if "QUORLOCK_TOKEN" in os.environ else "")
