"""The options that say which nodes are asked, for every command that asks some:

    @click.command("status")
    @with_nodes
    def command(source: Source, ...) -> int:
        with source.redlock() as redlock: ...

Leaves files, the environment and passwords to `config`, which is loaded when they are read.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock import Redlock
    from quorlock.cli.config import Settings


class Source(NamedTuple):
    """What was said on the command line of where the nodes are told."""

    nodes: str | None
    config: str | None
    password_fd: int | None

    def settings(self) -> Settings:
        """The arguments of `Redlock`. Raises Failed."""
        from quorlock.cli.config import settings

        return settings(self)

    def redlock(self) -> Redlock:
        """Those nodes. Raises Failed."""
        return self.settings().redlock()


def with_nodes(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options, and `source` as its first argument."""

    @click.option("--nodes", metavar="URL,URL,...", help="The nodes; else QUORLOCK_NODES.")
    @click.option(
        "--config",
        type=click.Path(),
        metavar="FILE",
        help="Nodes and settings, in TOML; else QUORLOCK_CONFIG, ./quorlock.toml,"
        " ~/.config/quorlock/quorlock.toml.",
    )
    @click.option(
        "--password-fd",
        type=click.IntRange(min=0),
        metavar="N",
        help="Read the nodes' password from this file descriptor; else QUORLOCK_PASSWORD.",
    )
    @functools.wraps(command)
    def with_source(
        *args: Any, nodes: str | None, config: str | None, password_fd: int | None, **options: Any
    ) -> int:
        return command(Source(nodes, config, password_fd), *args, **options)

    return with_source
