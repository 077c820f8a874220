"""`quorlock local`: own nodes on this machine, for trying out and for locks among its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorlock._cli.exit_status import EX_UNAVAILABLE
from quorlock._cli.stdio import say

if TYPE_CHECKING:
    from quorlock._cli.local.server import LocalServer, ServerState


_COUNT = click.IntRange(1, 9)


@click.group("local")
def command() -> None:
    """Run nodes on this machine. Use them with `--nodes local`.

    They are real servers on unix sockets that only your user can reach. They run until `local down`
    or a reboot, store nothing on disk, and serve only this machine. Each user has one set of them.
    """


@command.command("up")
@click.option("--count", type=_COUNT, metavar="N", help="Number of nodes.  [default: 5]")
@click.option("--nodes", "count", type=_COUNT, hidden=True)  # the name in earlier recipes
def up(*, count: int | None) -> int:
    """Start the nodes, and restart those that have died.

    A node that died does not vote until the longest lease that it may have lost has expired.
    """
    from quorlock._cli.local.nodes import up

    return _show(up(count))


@command.command("down")
@click.option("--force", is_flag=True, help="Stop the nodes even if a lock is held.")
def down(*, force: bool) -> int:
    """Stop and delete the local nodes. Exit status: 75 if a lock is held."""
    from quorlock._cli.local.nodes import down

    ended = down(force=force)
    click.echo(f"{ended.nodes} local nodes ended" if ended.nodes else "there are no local nodes")
    if not ended.sure:
        why = "something may be held still: the next `up` gives no lock until that is over"
        say(f"quorlock local: {why}\n")
    return 0


@command.command("status")
def status() -> int:
    """Show which nodes are up. Exit status: 69 if fewer than a quorum are."""
    from quorlock._cli.local.nodes import present

    return _show(present())


def _show(servers: list[LocalServer]) -> int:
    states = [None if server.pid is None else server.state() for server in servers]
    well = sum(state is not None for state in states)
    click.echo(
        f"{well} of {len(servers)} local nodes are up" if servers else "there are no local nodes"
    )
    for server, state in zip(servers, states, strict=True):
        click.echo(f"  {server.path}  {_words(server, state)}")
    return 0 if well > len(servers) // 2 else EX_UNAVAILABLE


def _words(server: LocalServer, state: ServerState | None) -> str:
    if state is None:
        return "down" if server.pid is None else "silent"
    return f"up for {state.uptime} s{'' if state.born_empty else ', restarted'}"
