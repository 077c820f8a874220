"""`Redlock.from_env`: what the command line reads, without its options, as arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from quorlock._settings.options import NodeOptions
from quorlock._settings.reader import FORMS, NoNodesNamed, SettingError, read
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from quorlock._nodes.node import Node

R = TypeVar("R")

_NAMED = "QUORLOCK_CONFIG names"


def made(redlock: Callable[..., R], names: Iterable[str], overriding: Mapping[str, object]) -> R:
    """Return a `Redlock` of this class with the settings of the environment. Raise ConfigError.

    Args:
        redlock: The class.
        names: Its keyword arguments.
        overriding: Arguments that replace settings.
    """
    try:
        found = read(NodeOptions(), names, _local_nodes)
    except NoNodesNamed as raised:
        fix = f"{raised.why}. Say which, in one of these ways:\n{FORMS.format(named=_NAMED)}"
        error = ConfigError("QUORLOCK_NODES", None, fix)
    except SettingError as raised:
        error = _config_error(raised)
    else:
        origins = {name: found.origins[name] for name in found.origins.keys() - overriding}
        return _with_origin(redlock, found.nodes, {**found.arguments, **overriding}, origins)
    # Raised outside the except block, so that the first error is not its context.
    raise error


def _with_origin(
    redlock: Callable[..., R],
    nodes: tuple[Node, ...],
    arguments: dict[str, object],
    origins: Mapping[str, str],
) -> R:
    """Return the Redlock; an error about a value from the environment names its origin."""
    try:
        return redlock(nodes, **arguments)
    except ConfigError as raised:
        origin = origins.get(raised.argument.partition("[")[0])
        if origin is None:
            raise
        fix = f"{raised.fix} (from {origin})"
        error = ConfigError(raised.argument, raised.value, fix, limit=raised.limit)
    raise error


def _config_error(error: SettingError) -> ConfigError:
    fix = "; ".join(filter(None, (error.why, error.hint)))
    if not error.place.startswith("QUORLOCK_"):
        return ConfigError("file", error.place, fix)
    # A URL may contain a password.
    name, _, value = error.place.partition(" ")
    return ConfigError(name, value or None, fix, shown=value or "(not shown)")


def _local_nodes() -> tuple[Node, ...]:
    """Return the nodes that `quorlock local up` starts. Raise SettingError."""
    try:
        from quorlock._cli.local.nodes import local_nodes

        return local_nodes()
    except Exception as error:
        raise SettingError("QUORLOCK_NODES local", str(error)) from error
