"""`quorlock nodes fresh` and `reset-config`: what an operator knows and no node can prove.

`_drivers.node_resets` compares the statement with what the nodes show, and carries it out.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from quorlock._cli.exit_status import EX_NOPERM, EX_TEMPFAIL, EX_UNAVAILABLE, EX_USAGE, Failed
from quorlock._cli.nodes import Source, with_nodes
from quorlock._cli.stdio import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._drivers.node_resets import ChangeError, FoundNode

_yes = click.option("--yes", is_flag=True, help="Do it without a question.")


@click.command("fresh")
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

    found = find(source.settings().nodes)
    wanted = [it for it in found if not it.failed and (force or not it.objection)]
    if any(not it.is_marked for it in wanted) and not yes:
        for it in found:
            click.echo(f"{it.node.address}: {it.objection or it.text}", err=True)
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
        click.echo(f"{address}: refused: {found.objection}; if it is new, give --force", err=True)
    elif error is None:
        try:
            click.echo(f"{address}: {mark_as_new(found)}")
        except ChangeError as failed:
            error = failed
    if error is not None:
        click.echo(str(error), err=True)
    return error


@click.command("reset-config")
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

    nodes = source.settings().nodes
    if not yes:
        for kept in read(nodes):
            click.echo(f"{kept.address}: {kept.why or kept.text or 'nothing'}", err=True)
        _confirm(f"Delete these settings on {_these(len(nodes))}?", "nothing is deleted yet")
    try:
        errors = reset_settings(nodes, click.echo, force=force)
    except ChangeError as error:
        raise Failed(_status([error]), str(error)) from error
    for failed in errors:
        click.echo(str(failed), err=True)
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
