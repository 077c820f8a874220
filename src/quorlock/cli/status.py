"""`quorlock status`: who holds what."""

from __future__ import annotations

import click

from quorlock.cli.exits import EX_NOPERM, EX_UNAVAILABLE, is_not_permitted
from quorlock.cli.nodes import Source, with_nodes


@click.command("status")
@click.argument("resources", metavar="RESOURCE...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON: docs/cli.schema.json.")
@with_nodes
def command(source: Source, *, resources: tuple[str, ...], as_json: bool) -> int:
    """See who holds these resources, node by node, and what that comes to.

    held: one holder on a quorum. free: no key on any node that answered. split: neither that nor
    a quorum that is free. leftover: a quorum is free, a minority of nodes still has a key.
    unreachable: fewer than a quorum of nodes answered.

    Tokens are secrets: holders are shown by a digest. Exit status: 69 if one is unreachable,
    77 if that is for want of a login or a right.
    """
    from quorlock.cli.holders import UNREACHABLE, as_facts, as_text

    with source.redlock() as redlock:
        told = list(map(redlock.inspect, resources))
    if as_json:
        import json

        click.echo(json.dumps({"resources": [as_facts(one) for one in told]}))
    else:
        click.echo("\n".join(as_text(one) for one in told))
    silent = [one for one in told if one.verdict == UNREACHABLE]
    if is_not_permitted(view.error for one in silent for view in one.nodes):
        return EX_NOPERM
    return EX_UNAVAILABLE if silent else 0
