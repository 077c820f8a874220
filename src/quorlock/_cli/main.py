"""The commands by name, and `main`, which runs one.

A command is loaded when it is called. It returns its exit status; `exit_status` turns its
exceptions into one.
"""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import click

from quorlock import __version__
from quorlock._cli import exit_status
from quorlock._cli.stdio import hold_places, say
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click.shell_completion import CompletionItem

NAME = "quorlock"
COMPLETE = "_QUORLOCK_COMPLETE"


class CommandEntry(NamedTuple):
    """A command that is not loaded yet: a module of this package, and a name in it."""

    module: str
    help: str
    name: str = "command"


# In the order of the help text.
COMMANDS = {
    "run": CommandEntry("run.command", "Run a command under the lock."),
    "acquire": CommandEntry(
        "acquire_release", "Acquire a resource and print the token.", "acquire"
    ),
    "extend": CommandEntry("acquire_release", "Extend a lease.", "extend"),
    "release": CommandEntry("acquire_release", "Release a lease.", "release"),
    "status": CommandEntry("status", "See who holds what, node by node."),
    "top": CommandEntry("top.command", "See the nodes and their locks, live."),
    "break": CommandEntry("break_lease", "Release by force; shows first what it breaks."),
    "nodes": CommandEntry("agreement", "See and change what the clients of your nodes agree on."),
    "doctor": CommandEntry("doctor.command", "See whether these nodes are fit for locks."),
    "bench": CommandEntry("bench.command", "See how fast locks are on your nodes."),
    "local": CommandEntry("local.command", "Run nodes of your own on this machine."),
    "demo": CommandEntry("demo", "See it work on local servers that fail, in seconds."),
    "completion": CommandEntry("completion", "Print a shell completion script."),
}


class Commands(click.Group):
    """A group that loads a command when it is called, and lists all of them without loading any."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = import_module(f"quorlock._cli.{entry.module}")
        command: click.Command = getattr(module, entry.name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does, and suggest the nearest name for an unknown one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            for name in get_close_matches(args[0], COMMANDS, n=1):
                ctx.fail(f"{error.message} Did you mean {name!r}?")
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin with this text. click would load each one for its help."""
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name].help) for name in names), *options]


@click.command(NAME, cls=Commands, invoke_without_command=True)
@click.version_option(__version__, prog_name=NAME)
@click.pass_context
def commands(context: click.Context) -> int:
    """quorlock, the distributed lock: Redlock over independent Redis or Valkey nodes."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    hold_places()
    if instruction := os.environ.get(COMPLETE):
        from quorlock._cli.completion import complete

        return complete(instruction, commands)
    context = None
    try:
        with (
            exit_status.interruptible(),
            commands.make_context(
                NAME, list(sys.argv[1:] if arguments is None else arguments)
            ) as context,
        ):
            status = int(commands.invoke(context))
            sys.stdout.flush()
            return status
    except click.exceptions.Exit as error:  # raised by --help and --version
        return error.exit_code
    except click.ClickException as error:
        error.show(text := io.StringIO())
        say(text.getvalue())
        return exit_status.EX_USAGE
    except (KeyboardInterrupt, OSError, exit_status.Failed, QuorlockError) as error:
        return exit_status.report_error(context.invoked_subcommand if context else None, error)
    except RuntimeError as error:
        if not exit_status.is_scarcity(error):
            raise
        return exit_status.report_error(context.invoked_subcommand if context else None, error)
