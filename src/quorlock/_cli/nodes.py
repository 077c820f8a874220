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

    from quorlock import Lock, Redlock
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


with_others = click.option(
    "--and",
    "others",
    metavar="RESOURCE",
    multiple=True,
    help="One more resource: all are locked or none. May be given several times.",
)
with_permits = click.option(
    "--permits",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="So many may hold RESOURCE at once, each with one permit.  [default: a lock]",
)
with_shared = click.option(
    "--shared",
    is_flag=True,
    help="Share the lock with others that do so too; none then holds it alone.",
)
with_wait = click.option(
    "-w",
    "--wait",
    "--timeout",
    "wait",
    type=duration,
    help="Maximum time to wait for the lock.  [default: no limit]",
)


def lock_of(
    redlock: Redlock,
    resource: str,
    others: tuple[str, ...],
    permits: int | None,
    *,
    shared: bool = False,
    **options: Any,
) -> Lock:
    """Return the lock of --and, the semaphore of --permits, or a plain lock. Raise UsageError."""
    if shared and (others or permits is not None):
        raise click.UsageError("--shared excludes --and and --permits")
    if shared and options.get("fencing"):
        raise click.UsageError("--shared and --fencing exclude each other: none of them writes")
    if permits is None:
        return redlock.lock(resource, *others, shared=shared, **options)
    if others:
        raise click.UsageError("--permits and --and exclude each other")
    if options.get("fencing"):
        raise click.UsageError("--permits and --fencing exclude each other: permits have no fences")
    return redlock.semaphore(resource, permits, **options)


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
        type=click.IntRange(0, 2**31 - 1),  # the numbers that the system takes
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
