"""`quorlock top`: the options."""

from __future__ import annotations

import click

from quorlock._cli.durations import duration
from quorlock._cli.nodes import Source, with_nodes
from quorlock._cli.status import check_interval


@click.command("top")
@click.option("--interval", type=duration, default=1.0, help="How often to refresh (1s).")
@click.option("--match", metavar="PATTERN", default="*", help="The resources that match ('*').")
@click.option("--waiters", is_flag=True, help="Sample acquire attempts, by MONITOR: costly.")
@click.option("--once", is_flag=True, help="One snapshot, of two samples; default when piped.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="JSON lines: docs/reference/cli.schema.json.",
)
@with_nodes
def command(
    source: Source, *, interval: float, match: str, waiters: bool, once: bool, as_json: bool
) -> int:
    """See the nodes and their locks, live: their state and speed, and which locks are held.

    p50, max: duration of recent TIME commands. conns: connections of quorlock's clients, ours among
    them. keys, ops/s: in the database, and of all clients. nodes: how many have the holder's key.
    seen: for how long we see this holder. changes: how often we saw the lock change hands.

    --waiters needs +monitor. Nodes do not track waiting clients, but waiting clients retry. For
    half a second of each look (at most half of it) MONITOR on one node shows its commands, which
    costs it two thirds of its speed if it is busy. tried: connections that tried to acquire, the
    winner too; one of them may stand for many waiting callers, and a client that pauses for longer
    is not seen.

    A dash: a permission is missing. Any string with the prefix may be a lock: without a prefix,
    keys of other programs are listed too.
    """
    from quorlock._cli.top.live import TopOptions, watch

    check_interval(interval)
    return watch(source.settings(), TopOptions(match, interval, waiters, once, as_json))
