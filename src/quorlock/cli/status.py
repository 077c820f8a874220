"""`quorlock status`: who holds what."""

from __future__ import annotations

import click

from quorlock.cli.exits import EX_UNAVAILABLE
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

    Tokens are secrets: holders are shown by a digest. Exit status: 69 if one is unreachable.
    """
    from quorlock.cli.holders import UNREACHABLE, as_facts, as_text

    with source.redlock() as redlock:
        told = list(map(redlock.inspect, resources))
    if as_json:
        import json

        click.echo(json.dumps({"resources": [as_facts(one) for one in told]}))
    else:
        click.echo("\n".join(as_text(one) for one in told))
    return EX_UNAVAILABLE if any(one.verdict == UNREACHABLE for one in told) else 0
