"""`quorlock break`: a release by force, of what was shown and of nothing else."""

from __future__ import annotations

import click

from quorlock.cli.exits import EX_UNAVAILABLE, EX_USAGE, Failed
from quorlock.cli.nodes import Source, with_nodes


@click.command("break")
@click.argument("resource")
@click.option("--yes", is_flag=True, help="Do it; without, it is only shown.")
@with_nodes
def command(source: Source, *, resource: str, yes: bool) -> int:
    """Release RESOURCE by force, whoever holds it.

    Shows first what it breaks, and breaks no more than that: a holder that came after stays.
    Whoever held it goes on until it looks at the nodes again, so end that first, and be sure.
    """
    from quorlock.cli.holders import UNREACHABLE, as_text, digests

    with source.redlock() as redlock:
        told = redlock.inspect(resource)
        click.echo(as_text(told), err=True)
        shown = digests(told)
        if shown and not yes:
            raise Failed(EX_USAGE, "nothing is broken yet; say --yes to break it")
        for holder in shown:
            redlock.break_lease(resource, holder)
        after = redlock.inspect(resource) if shown else told
    if shown:
        click.echo(as_text(after))
    elif told.verdict != UNREACHABLE:
        click.echo(f"{resource!r}: nothing to break")
    return EX_UNAVAILABLE if after.verdict == UNREACHABLE else 0
