"""The commands by name, and `main`, which runs one. A command is loaded when it is called, and
returns its exit status; what it raises becomes one in `exits`.
"""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import click

from quorlock import __version__
from quorlock.cli import exits
from quorlock.cli.streams import hold_places, say
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click.shell_completion import CompletionItem

NAME = "quorlock"
COMPLETE = "_QUORLOCK_COMPLETE"


class Entry(NamedTuple):
    """A command that is not loaded yet: a module of this room, and its name there."""

    module: str
    help: str
    name: str = "command"


# In the order of the help.
COMMANDS = {
    "run": Entry("run.command", "Run a command under the lock."),
    "acquire": Entry("tokens", "Acquire a resource and print the token.", "acquire"),
    "extend": Entry("tokens", "Let it be held for longer.", "extend"),
    "release": Entry("tokens", "Give it back.", "release"),
    "status": Entry("status", "See who holds what, node by node."),
    "top": Entry("top.command", "See what goes on at the nodes, live."),
    "break": Entry("breaking", "Release by force; shows first what it breaks."),
    "doctor": Entry("doctor.command", "See whether these nodes are fit for locks."),
    "bench": Entry("bench.command", "See how fast locks are on your nodes."),
    "local": Entry("local.command", "Run nodes of your own on this machine."),
    "demo": Entry("demo", "See it work on local servers that fail, in seconds."),
    "completion": Entry("completion", "Print what makes a shell complete these."),
}


class Commands(click.Group):
    """Loads a command when it is called; tells of all without."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Their names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """One of them, loaded."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = import_module(f"quorlock.cli.{entry.module}")
        command: click.Command = getattr(module, entry.name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; but who mistypes is told of the nearest."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            for name in get_close_matches(args[0], COMMANDS, n=1):
                ctx.fail(f"{error.message} Did you mean {name!r}?")
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Those that begin so; click would load each one for its help."""
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
    """Run one command; returns the exit status."""
    hold_places()
    if instruction := os.environ.get(COMPLETE):
        from quorlock.cli.completion import complete

        return complete(instruction)
    context = None
    try:
        with (
            exits.interruptible(),
            commands.make_context(
                NAME, list(sys.argv[1:] if arguments is None else arguments)
            ) as context,
        ):
            status = int(commands.invoke(context))
            sys.stdout.flush()
            return status
    except click.exceptions.Exit as error:  # --help and --version
        return error.exit_code
    except click.ClickException as error:
        error.show(told := io.StringIO())
        say(told.getvalue())
        return exits.EX_USAGE
    except (KeyboardInterrupt, OSError, exits.Failed, QuorlockError) as error:
        return exits.told(context.invoked_subcommand if context else None, error)
    except RuntimeError as error:
        if not exits.is_scarcity(error):
            raise
        return exits.told(context.invoked_subcommand if context else None, error)
