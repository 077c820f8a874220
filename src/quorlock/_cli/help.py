"""`quorlock help`: the help of a command, and topics; and `quorlock version`."""

from __future__ import annotations

import click

from quorlock import __version__
from quorlock._cli.exit_status import EX_USAGE, Failed

_ENVIRONMENT = """\
Environment variables of quorlock

Read by every command that uses nodes; an option goes before its variable:
  QUORLOCK_NODES     the nodes, as URLs separated by commas, or 'local'
  QUORLOCK_CONFIG    a TOML file with nodes and settings
  QUORLOCK_MAX_TTL   the longest lease of any client of these nodes (30s)
  QUORLOCK_PASSWORD  the password of the nodes whose URL has none

Read by `run` and `acquire`:
  QUORLOCK_OWNER     who holds the lock, for others to see
  QUORLOCK_WAITING   auto: wait in order, called by the nodes; poll: ask at random times

Read by `extend` and `release`:
  QUORLOCK_TOKEN     the token that `acquire` printed

Set by `run` for its command:
  QUORLOCK_RESOURCE     the name of the lock
  QUORLOCK_TOKEN        the token of the lease
  QUORLOCK_TTL          the lease time, in seconds
  QUORLOCK_VALID_FOR    how long the lease was valid at the start of the command, in seconds
  QUORLOCK_VALID_UNTIL  the end of that time, an instant of quorlock.now()
  QUORLOCK_FENCE        the fence, with --fencing
  QUORLOCK_PERMIT       the number of the permit, with --permits
Also: NO_COLOR, TERM (colours), XDG_CONFIG_HOME (TOML file), XDG_STATE_HOME (local nodes)
"""

_EXIT_CODES = """\
Exit statuses of quorlock

    0  done
   64  wrong usage: an option, a name, an impossible time
   69  no quorum of nodes answered, too many returned errors that may pass (loading, busy,
       memory full), or something is not installed
   71  too few descriptors, threads, processes, or too little memory
   74  stdout cannot be written
   75  the lock is held by another client
   77  authentication or permission failed
   78  configuration: no nodes, an error in the file, nodes to be fixed (a replica)
   79  the lease is lost
  126  run: the command cannot be run
  127  run: the command is not found
128+N  ended by signal N: 130 Ctrl-C, 143 TERM, 129 HUP

`run` exits with the status of its command. Other commands may add a status: see their help.
"""

TOPICS = {"environment": _ENVIRONMENT, "exit-codes": _EXIT_CODES}


@click.command("help")
@click.argument("names", nargs=-1, metavar="[COMMAND|TOPIC]")
@click.pass_context
def command(context: click.Context, *, names: tuple[str, ...]) -> int:
    """Show the help of COMMAND, or of a topic: environment, exit-codes."""
    if len(names) == 1 and names[0] in TOPICS:
        click.echo(TOPICS[names[0]], nl=False)
    else:
        click.echo(_context_of(context.find_root(), names).get_help())
    return 0


@click.command("version")
def version() -> int:
    """Show the version of quorlock."""
    click.echo(f"quorlock, version {__version__}")
    return 0


def _context_of(context: click.Context, names: tuple[str, ...]) -> click.Context:
    for name in names:
        group = context.command
        if not isinstance(group, click.Group):
            raise Failed(EX_USAGE, f"{context.command_path!r} has no command {name!r}")
        _, found, _ = group.resolve_command(context, [name])
        if found is not None:
            context = click.Context(found, info_name=name, parent=context)
    return context
