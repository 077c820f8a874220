"""`quorlock version`: the same as `quorlock --version`."""

from __future__ import annotations

import click

from quorlock import __version__


@click.command("version")
def command() -> int:
    """Show the version of quorlock."""
    click.echo(f"quorlock, version {__version__}")
    return 0
