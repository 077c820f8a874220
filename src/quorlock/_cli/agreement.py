"""`quorlock nodes`: show and change the settings that the clients of these nodes share.

`_drivers.change_agreement` reads and writes them (decision 0030).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorlock._cli.durations import duration
from quorlock._cli.exit_status import EX_NOPERM, EX_TEMPFAIL, EX_UNAVAILABLE, EX_USAGE, Failed
from quorlock._cli.node_resets import fresh, reset_config
from quorlock._cli.nodes import Source, with_nodes

if TYPE_CHECKING:
    from collections.abc import Callable


_GUARDS = {"uptime": "uptime", "marker": "marker", "none": "None"}


@click.group("nodes")
def command() -> None:
    """Show and change the settings that all clients share, while they run.

    A change is made on one node after the other. It closes the connections of all clients there.
    They reconnect at once and read the new settings. To resume an interrupted change, repeat the
    command.
    """


@command.command("config")
@with_nodes
def config(source: Source) -> int:
    """Show what each node stores. Exit status: 69 if the nodes do not store the same."""
    from quorlock._drivers.change_agreement import read

    found = read(source.settings().nodes)
    for kept in found:
        click.echo(f"{kept.address}  {kept.why or kept.text or 'nothing'}")
    return 0 if len({(kept.text, kept.why) for kept in found}) == 1 else EX_UNAVAILABLE


@command.command("max-ttl")
@click.argument("longest", type=duration, metavar="DURATION")
@with_nodes
def max_ttl(source: Source, *, longest: float) -> int:
    """Set the longest lease duration that clients may use.

    To raise it, first deploy all clients with the longer max_ttl: clients with a shorter one are
    refused afterwards. To lower it, give this command first.
    """
    from quorlock._drivers.change_agreement import change_max_ttl

    nodes = source.settings().nodes
    return _done(lambda: change_max_ttl(nodes, round(longest * 1000), click.echo))


@command.command("guard")
@click.argument("guards", metavar="GUARD[,GUARD]")
@with_nodes
def guard(source: Source, *, guards: str) -> int:
    """Set the restart guards that clients may use: uptime, marker, none.

    Give two of them while you deploy clients that change from one to the other.
    """
    from quorlock._drivers.change_agreement import change_guards

    words = guards.lower().split(",")
    if not all(word in _GUARDS for word in words) or len(words) > len(set(words)):
        raise Failed(EX_USAGE, f"{guards!r}: give uptime, marker or none")
    nodes = source.settings().nodes
    return _done(lambda: change_guards(nodes, tuple(_GUARDS[word] for word in words), click.echo))


@command.command("add")
@click.argument("url")
@click.option("--finish", is_flag=True, help="Finish: all clients list it.")
@with_nodes
def add(source: Source, *, url: str, finish: bool) -> int:
    """Add a node: allow clients to list it.

    Then deploy all clients with the longer list, and repeat the command with --finish.
    """
    return _resize(source, url, joins=True, finish=finish)


@command.command("remove")
@click.argument("url")
@click.option("--finish", is_flag=True, help="Finish: no client lists it.")
@with_nodes
def remove(source: Source, *, url: str, finish: bool) -> int:
    """Remove a node, dead or alive: allow clients to omit it.

    Then deploy all clients with the shorter list, and repeat the command with --finish.
    """
    return _resize(source, url, joins=False, finish=finish)


def _resize(source: Source, url: str, *, joins: bool, finish: bool) -> int:
    from quorlock._cli.config import node_like
    from quorlock._drivers.change_agreement import begin, finish_change

    listed = source.settings().nodes
    other = node_like(url, listed)
    members = [node for node in listed if node.address != other.address]
    if not members:
        raise Failed(EX_USAGE, "give the other nodes with --nodes")
    act = finish_change if finish else begin
    return _done(lambda: act(members, other, joins=joins, say=click.echo))


def _done(change: Callable[[], None]) -> int:
    from quorlock._drivers.change_agreement import ChangeError

    try:
        change()
    except ChangeError as error:
        raise Failed(EX_NOPERM if error.denied else EX_TEMPFAIL, str(error)) from error
    return 0


command.add_command(fresh)
command.add_command(reset_config)
