"""`quorlock top`: what goes on at the nodes, live."""

from __future__ import annotations

import click

from quorlock.cli.durations import duration
from quorlock.cli.nodes import Source, with_nodes
from quorlock.cli.status import check_interval


@click.command("top")
@click.option("--interval", type=duration, default=1.0, help="How often to look (1s).")
@click.option("--match", metavar="PATTERN", default="*", help="The resources that match ('*').")
@click.option("--waiters", is_flag=True, help="Sample who tries to acquire, by MONITOR: costly.")
@click.option("--once", is_flag=True, help="One picture, of two looks; so it is on a pipe.")
@click.option("--json", "as_json", is_flag=True, help="A line at each look: docs/cli.schema.json.")
@with_nodes
def command(
    source: Source, *, interval: float, match: str, waiters: bool, once: bool, as_json: bool
) -> int:
    """See what goes on at the nodes, live: their state and speed, and which locks are held.

    p50, max: how long a cheap command took at the last looks. conns: connections of quorlock's
    clients, ours among them. keys, ops/s: in the database, and of all clients. nodes: how many have
    the holder's key. seen: for how long we see this holder. changes: how often we saw the lock
    change hands.

    --waiters needs +monitor. Nodes know nobody who waits, but whoever waits tries again and again:
    for half a second of each look (at most half of it) one node tells every command that it gets,
    which costs it two thirds of its speed if it is busy. tried: connections that tried to acquire,
    the winner too; one of them may stand for many who wait, and who pauses for longer is not seen.

    A dash: the node does not tell, for want of a right. Any string with the prefix may be a lock:
    without a prefix, keys of other programs are listed too.
    """
    from quorlock.cli.top.live import Wish, watch

    check_interval(interval)
    return watch(source.settings(), Wish(match, interval, waiters, once, as_json))
