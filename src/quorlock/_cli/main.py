"""The commands by name, and `main`, which runs one.

A command is loaded when it is called. It returns its exit status; `exit_status` turns its
exceptions into one.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import click

from quorlock import __version__
from quorlock._cli import exit_status
from quorlock._cli.stdio import escape_what_cannot_be_shown, hold_places
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


# The groups and their commands, in the order of the help text.
GROUPS = {
    "Locks": {
        "run": CommandEntry("run.command", "Run a command while holding a lock."),
        "acquire": CommandEntry(
            "acquire_release", "Acquire a lock and print its token.", "acquire"
        ),
        "extend": CommandEntry("acquire_release", "Extend a lease.", "extend"),
        "release": CommandEntry("acquire_release", "Release a lease.", "release"),
        "status": CommandEntry("status", "Show which locks are held, and by whom."),
        "break": CommandEntry("break_lease", "Release a lock by force; shows its holder first."),
    },
    "Nodes": {
        "top": CommandEntry("top.command", "Show nodes and held locks, live."),
        "doctor": CommandEntry("doctor.command", "Check whether your nodes are ready for locks."),
        "bench": CommandEntry("bench.command", "Measure how fast locks are on your nodes."),
        "config": CommandEntry("show_config", "Show the settings in force and their sources."),
        "nodes": CommandEntry("agreement", "Show and change the settings that all clients share."),
    },
    "Try it": {
        "local": CommandEntry("local.command", "Run nodes on this machine."),
        "demo": CommandEntry("demo", "Watch locks work on local servers that fail."),
    },
    "More": {
        "completion": CommandEntry("completion", "Print a shell completion script."),
        "help": CommandEntry("help", "Show the help of a command or a topic."),
        "version": CommandEntry("help", "Show the version.", "version"),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

# Commands of similar programs, and what they are called here.
_MEANT = {
    **dict.fromkeys(("lock", "exec"), "did you mean 'run' or 'acquire'?"),
    **dict.fromkeys(("unlock", "free"), "did you mean 'release'?"),
    **dict.fromkeys(("ls", "list", "show", "inspect"), "did you mean 'status'?"),
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
        from quorlock._cli.examples import add_examples

        add_examples(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does, and suggest the nearest name for an unknown one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if args[0].startswith("-"):
                raise
        # Outside the except block: click's error is not its context.
        why = f"no such command {args[0]!r}"
        raise exit_status.Failed(exit_status.EX_USAGE, why, _nearest(args[0]))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for title, entries in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin with this text. click would load each one for its help."""
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name].help) for name in names), *options]


def _nearest(name: str) -> str:
    """Return the command that an unknown name probably means, as a question."""
    from difflib import get_close_matches

    if name in _MEANT:
        return _MEANT[name]
    near = get_close_matches(name, COMMANDS, n=1)
    return f"did you mean {near[0]!r}?" if near else "'quorlock help' lists all commands"


@click.command(
    NAME,
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`quorlock help COMMAND` has examples. Topics: `quorlock help environment`,"
    " `quorlock help exit-codes`.",
)
@click.version_option(__version__, prog_name=NAME)
@click.pass_context
def commands(context: click.Context) -> int:
    """Run commands under a distributed lock on independent Redis or Valkey nodes."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    hold_places()
    escape_what_cannot_be_shown()
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
    except click.UsageError as error:
        from quorlock._cli.usage_errors import report_usage_error

        return report_usage_error(context.invoked_subcommand if context else None, error)
    except (KeyboardInterrupt, OSError, exit_status.Failed, QuorlockError) as error:
        return exit_status.report_error(context.invoked_subcommand if context else None, error)
    except RuntimeError as error:
        if not exit_status.is_scarcity(error):
            raise
        return exit_status.report_error(context.invoked_subcommand if context else None, error)
