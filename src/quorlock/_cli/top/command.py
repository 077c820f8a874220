"""`quorlock top`: the options."""

from __future__ import annotations

import click

from quorlock._cli.durations import duration
from quorlock._cli.nodes import Source, with_nodes
from quorlock._cli.status import check_interval


@click.command("top")
@click.option(
    "--interval", type=duration, default=1.0, help="Time between refreshes.  [default: 1s]"
)
@click.option(
    "--match",
    metavar="PATTERN",
    default="*",
    help="Show only locks whose names match.  [default: *]",
)
@click.option(
    "--waiters", is_flag=True, help="Sample acquire attempts with MONITOR, which is costly."
)
@click.option("--once", is_flag=True, help="Print one snapshot and exit; the default when piped.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON lines: see docs/reference/cli.schema.json.",
)
@with_nodes
def command(
    source: Source, *, interval: float, match: str, waiters: bool, once: bool, as_json: bool
) -> int:
    """Show the nodes, their state and speed, and the held locks, live.

    p50, max: duration of recent TIME commands. conns: connections of quorlock's clients, including
    this one. keys: in the database. ops/s: of all clients. nodes: how many have the holder's key.
    seen: how long `top` has seen this holder. wait: how many wait in the queues of a quorum of
    nodes, one for each process. changes: how often it saw a new holder.

    --waiters shows clients that poll too, and needs +monitor. For up to half of each interval
    MONITOR shows the commands of one node, which slows a busy node to a third. tried:
    connections that tried to acquire, including the winner. One connection may stand for many
    waiting callers.

    A dash: a permission is missing. Any string with the prefix may be a lock: without a prefix,
    keys of other programs are listed too.

    Exit status of a snapshot: 69 if fewer than a quorum of nodes are up, 77 if authentication or
    permission failed.
    """
    from quorlock._cli.top.live import TopOptions, watch

    check_interval(interval)
    return watch(source.settings(), TopOptions(match, interval, waiters, once, as_json))
