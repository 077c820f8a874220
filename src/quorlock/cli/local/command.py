"""`quorlock local`: nodes of one's own on this machine, for trying out and for locks among its
processes. Owns the words; the nodes are `nodes`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorlock.cli.exits import EX_UNAVAILABLE

if TYPE_CHECKING:
    from quorlock.cli.local.server import LocalServer


@click.group("local")
def command() -> None:
    """Nodes of your own on this machine: one set, which `--nodes local` names.

    They are real servers on unix sockets that only you can reach, and go on until `down` or the
    machine's end. They keep nothing on disk. They serve processes of this machine alone.
    """


@command.command("up")
@click.option("--nodes", type=click.IntRange(1, 9), help="How many (5).")
def up(*, nodes: int | None) -> int:
    """Start them, and those again that have died.

    A node that died keeps out until the longest lease that it may have forgotten is over.
    """
    from quorlock.cli.local.nodes import up

    return _show(up(nodes))


@command.command("down")
@click.option("--force", is_flag=True, help="Also while something is held.")
def down(*, force: bool) -> int:
    """End them, and leave nothing behind. Exit status: 75 if something is held."""
    from quorlock.cli.local.nodes import down

    ended = down(force=force)
    click.echo(f"{ended.nodes} local nodes ended" if ended.nodes else "there are no local nodes")
    if not ended.sure:
        why = "something may be held still: the next `up` gives no lock until that is over"
        click.echo(f"quorlock local: {why}", err=True)
    return 0


@command.command("status")
def status() -> int:
    """See which are up. Exit status: 69 if fewer than a quorum are."""
    from quorlock.cli.local.nodes import present

    return _show(present())


def _show(servers: list[LocalServer]) -> int:
    states = [_state(server) for server in servers]
    well = sum(state.startswith("up") for state in states)
    click.echo(
        f"{well} of {len(servers)} local nodes are up" if servers else "there are no local nodes"
    )
    for server, state in zip(servers, states, strict=True):
        click.echo(f"  {server.path}  {state}")
    return 0 if well > len(servers) // 2 else EX_UNAVAILABLE


def _state(server: LocalServer) -> str:
    if server.pid is None:
        return "down"
    told = server.told()
    if told is None:
        return "silent"
    return f"up for {told.uptime} s{'' if told.born_empty else ', restarted'}"
