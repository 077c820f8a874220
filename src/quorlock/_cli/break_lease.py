"""`quorlock break`: release by force the holders that it has shown, and no other."""

from __future__ import annotations

from shlex import quote

import click

from quorlock._cli.exit_status import EX_TEMPFAIL, EX_UNAVAILABLE, Failed
from quorlock._cli.nodes import Source, with_nodes
from quorlock._cli.stdio import say


@click.command("break")
@click.argument("resource")
@click.option(
    "--yes", is_flag=True, help="Release it. Without this option the holder is only shown."
)
@with_nodes
def command(source: Source, *, resource: str, yes: bool) -> int:
    """Release the lock RESOURCE by force, even if its holder is running.

    Shows the holder first and releases only that one: a later holder keeps its lock. The process
    that held the lock continues until it checks the nodes again. Stop it first.

    Exit status: 0 if a quorum of nodes answered (stdout shows what they have then), 75 if --yes is
    missing and there is a key, 69 if too few nodes answered.
    """
    from quorlock._cli.inspection_view import UNREACHABLE, as_text, digests

    with source.redlock() as redlock:
        before = redlock.inspect(resource)
        say(f"{as_text(before)}\n")
        shown = digests(before)
        if shown and not yes:
            why = f"{resource!r} is not released"
            name = "-- " * resource.startswith("-") + quote(resource)
            raise Failed(EX_TEMPFAIL, why, f"to release it: quorlock break --yes {name}")
        for holder in shown:
            redlock.break_lease(resource, holder)
        after = redlock.inspect(resource) if shown else before
    if shown:
        click.echo(as_text(after))
    elif before.verdict != UNREACHABLE:
        click.echo(f"{resource!r}: nothing to break")
    return EX_UNAVAILABLE if after.verdict == UNREACHABLE else 0
