"""`quorlock nodes`: show and change what the clients of these nodes share.

`_drivers.change_agreement` reads and writes their settings (decision 0030). `_drivers.node_resets`
carries out what an operator knows and no node can prove: `fresh` and `reset-config`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from quorlock import ConfigError, Redlock
from quorlock._cli.durations import as_duration, duration
from quorlock._cli.exit_status import EX_NOPERM, EX_TEMPFAIL, EX_UNAVAILABLE, EX_USAGE, Failed
from quorlock._cli.nodes import Source, with_nodes
from quorlock._cli.stdio import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock._cli.config import FileSettings
    from quorlock._drivers.node_resets import ChangeError, FoundNode


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

    found = read(source.settings().distinct_nodes())
    for kept in found:
        click.echo(f"{kept.address}  {kept.why or kept.shown}")
    is_same = len({kept.text for kept in found}) == 1 and not any(kept.why for kept in found)
    return 0 if is_same else EX_UNAVAILABLE


@command.command("max-ttl")
@click.argument("longest", type=duration, metavar="DURATION")
@with_nodes
def max_ttl(source: Source, *, longest: float) -> int:
    """Set the longest lease duration that clients may use.

    To raise it, first deploy all clients with the longer max_ttl: clients with a shorter one are
    refused afterwards. To lower it, give this command first.
    """
    from quorlock._drivers.change_agreement import change_max_ttl

    settings = source.settings()
    nodes = settings.distinct_nodes()
    _require_usable(longest, settings)
    return _done(lambda: change_max_ttl(nodes, round(longest * 1000), click.echo))


def _require_usable(longest: float, settings: FileSettings) -> None:
    """Raise Failed if no client with these settings could have this max_ttl."""
    from quorlock._cli.config_errors import words

    others = ("node_timeout", "drift_factor")
    arguments = {name: settings.arguments[name] for name in others if name in settings.arguments}
    try:
        Redlock(settings.nodes, max_ttl=longest, **arguments).close()  # it connects to none
    except ConfigError as error:
        why, hint = words(error)
        failed = Failed(EX_USAGE, f"DURATION {as_duration(longest)}: {why}", hint)
    else:
        return
    raise failed


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
    nodes = source.settings().distinct_nodes()
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
    from quorlock._drivers.change_agreement import begin
    from quorlock._drivers.change_agreement import finish as finish_change

    listed = source.settings().distinct_nodes()
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


_yes = click.option("--yes", is_flag=True, help="Do it without a question.")


@command.command("fresh")
@_yes
@click.option("--force", is_flag=True, help="Mark nodes too that do not look new.")
@with_nodes
def fresh(source: Source, *, yes: bool, force: bool) -> int:
    """Mark nodes as new, so that they vote at once.

    A node that started less than max_ttl ago does not vote, because it may have lost locks. Only
    you know that it has never had one. Nodes that hold keys, or that started later than others of
    their set, are refused.

    Exit status: 75 if a node is refused, 69 if one does not answer, 77 if one denies it.
    """
    from quorlock._drivers.node_resets import find

    found = find(source.settings().distinct_nodes())
    wanted = [it for it in found if not it.failed and (force or not it.objection)]
    if any(not it.is_marked for it in wanted) and not yes:
        for it in found:
            say(f"{it.node.address}: {it.objection or it.text}\n")
        _confirm(f"Have {_these(len(wanted))} never held a lock?", "nothing is marked yet")
    errors = [error for it in found if (error := _mark(it, force=force))]
    refused = any(it.objection and not it.failed for it in found) and not force
    return _status(errors) or (EX_TEMPFAIL if refused else 0)


def _mark(found: FoundNode, *, force: bool) -> ChangeError | None:
    """Mark one node, say so, and return the error if that fails."""
    from quorlock._drivers.node_resets import ChangeError, mark_as_new

    address, error = found.node.address, found.failed
    if error is None and found.is_marked:
        click.echo(f"{address}: is marked as new already")
    elif error is None and found.objection and not force:
        say(f"{address}: refused: {found.objection}; if it is new, give --force\n")
    elif error is None:
        try:
            click.echo(f"{address}: {mark_as_new(found)}")
        except ChangeError as failed:
            error = failed
    if error is not None:
        say(f"{error}\n")
    return error


@command.command("reset-config")
@_yes
@click.option("--force", is_flag=True, help="Also while clients are connected, or nodes are down.")
@with_nodes
def reset_config(source: Source, *, yes: bool, force: bool) -> int:
    """Delete the settings that nodes store; the next client writes its own.

    For nodes that get other clients: first one node was tried, now three are. Refuses while clients
    are connected: with other settings they would continue to lock beside the new ones. If keys
    that expire are left, it waits for the old max_ttl. --force disconnects the clients.

    Exit status: 75 if clients are connected, 69 if a node does not answer, 77 if one denies it.
    """
    from quorlock._drivers.node_resets import ChangeError, read, reset_settings

    nodes = source.settings().distinct_nodes()
    if not yes:
        for kept in read(nodes):
            say(f"{kept.address}: {kept.why or kept.shown}\n")
        _confirm(f"Delete these settings on {_these(len(nodes))}?", "nothing is deleted yet")
    try:
        errors = reset_settings(nodes, click.echo, force=force)
    except ChangeError as error:
        raise Failed(_status([error]), str(error)) from error
    for failed in errors:
        say(f"{failed}\n")
    return _status(errors)


def _these(count: int) -> str:
    return "this node" if count == 1 else f"these {count} nodes"


def _confirm(question: str, otherwise: str) -> None:
    """Ask on a terminal. Raise Failed if the answer is not yes, and where there is no terminal."""
    if not sys.stdin.isatty():
        raise Failed(EX_USAGE, f"{otherwise}; give --yes")
    say(f"{question} [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failed(EX_USAGE, otherwise)


def _status(errors: Sequence[ChangeError]) -> int:
    if not errors:
        return 0
    if any(error.denied for error in errors):
        return EX_NOPERM
    return EX_UNAVAILABLE if any(error.silent for error in errors) else EX_TEMPFAIL
