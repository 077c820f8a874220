"""The options of several commands, and first those that name the nodes.

    @click.command("status")
    @with_nodes
    def command(source: Source, ...) -> int:
        with source.redlock() as redlock: ...

`config` reads files, the environment and passwords. It is loaded when they are needed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from quorlock._cli.durations import duration
from quorlock._settings.options import NodeOptions
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock import Redlock
    from quorlock._cli.config import FileSettings
    from quorlock._cli.exit_status import Failed


class Source(NodeOptions):
    """The options that name the source of the nodes, and the objects made from them."""

    __slots__ = ()

    def settings(self) -> FileSettings:
        """Return the arguments of `Redlock`. Raise Failed."""
        from quorlock._cli.config import settings

        return settings(self)

    def redlock(self) -> Redlock:
        """Return a `Redlock` over these nodes. Raise Failed."""
        return self.settings().redlock()

    def failed(self, error: ConfigError) -> Failed:
        """Return the error in the words of the command that is running."""
        from quorlock._cli.config_errors import as_failed
        from quorlock._settings.reader import unread

        return as_failed(error, click.get_current_context(), unread(self))


with_owner = click.option(
    "--owner",
    metavar="TEXT",
    help="Who holds the lock, for others to see; '' for none.  [env: QUORLOCK_OWNER;"
    " default: host:pid]",
)


with_wait = click.option(
    "-w",
    "--wait",
    "--timeout",
    "wait",
    type=duration,
    help="Maximum time to wait for the lock.  [default: no limit]",
)


def ttl_option(meaning: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the option --ttl."""
    default = "[default: ttl of the TOML file, else 10s]"
    return click.option("--ttl", type=duration, help=f"{meaning}  {default}")


def with_nodes(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options to a command, which gets `source` as its first argument."""

    @click.option(
        "--nodes",
        metavar="URL,URL,...",
        help="The nodes, or 'local'.  [env: QUORLOCK_NODES]",
    )
    @click.option(
        "--config",
        type=click.Path(),
        metavar="FILE",
        help="A TOML file with nodes and settings.  [env: QUORLOCK_CONFIG; default:"
        " ./quorlock.toml, ~/.config/quorlock/quorlock.toml]",
    )
    @click.option(
        "--password-fd",
        type=click.IntRange(min=0),
        metavar="N",
        help="Read the nodes' password from file descriptor N.  [env: QUORLOCK_PASSWORD]",
    )
    @click.option(
        "--max-ttl",
        type=duration,
        help="Longest lease of any client of these nodes.  [env: QUORLOCK_MAX_TTL; default: max_ttl"
        " of the TOML file, else 30s]",
    )
    @functools.wraps(command)
    def with_source(*args: Any, **options: Any) -> int:
        source = Source(*(options.pop(name) for name in Source._fields))
        try:
            return command(source, *args, **options)
        except ConfigError as error:
            failed = source.failed(error)
        raise failed

    return with_source
