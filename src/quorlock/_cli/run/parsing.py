"""The arguments of `run`, split into its own options, RESOURCE, and the command.

Option parsing ends at the first word of the command, as in flock, timeout, env and sudo: all words
from there on are the command's, with or without `--` before them. `click` alone would look for
options among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from quorlock._cli.usage_errors import usage_failed

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from quorlock._cli.exit_status import Failed


class SplitArguments(NamedTuple):
    """The arguments of `run` by their meaning."""

    options: list[str]
    resource: str | None
    command: list[str]
    command_at: int | None  # where the words after RESOURCE and its options begin
    is_value_missing: bool = False  # the last option lacks its value


def split(arguments: Sequence[str], valued: Container[str]) -> SplitArguments:
    """Return the split arguments.

    Args:
        arguments: The words after `run`.
        valued: The names of the options that require a value, `-w` and `--wait`.
    """
    options: list[str] = []
    resource: str | None = None
    is_value = False
    for at, word in enumerate(arguments):
        if is_value:
            options.append(word)
            is_value = False
        elif word == "--":
            return SplitArguments(options, resource, [*arguments[at + 1 :]], at + 1)
        elif word.startswith("-") and word != "-":
            options.append(word)
            is_value = _awaits_value(word, valued)
        elif resource is None:
            resource = word
        else:
            return SplitArguments(options, resource, [*arguments[at:]], at)
    return SplitArguments(options, resource, [], None, is_value)


def _awaits_value(option: str, valued: Container[str]) -> bool:
    """Return whether the next word is this option's value."""
    if option.startswith("--"):
        return option in valued  # `--wait=5s` is not
    for at, letter in enumerate(option[1:], 2):
        if f"-{letter}" in valued:
            return at == len(option)  # the rest of the word is its value, if there is one
    return False


class RunCommand(click.Command):
    """A command whose option parsing ends at its second positional argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments as click does, after they were split."""
        found = split(args, self._valued(ctx))
        as_json = "--json" in found.options  # click empties the list
        try:
            return self._parse(ctx, found)
        except click.UsageError as error:
            if not as_json:
                raise
            status = _report(found.resource or "", usage_failed(error, ctx.command_path))
        raise click.exceptions.Exit(status)

    def _parse(self, ctx: click.Context, found: SplitArguments) -> list[str]:
        words = ["--", *found.command] if found.command else []
        if found.resource is not None:
            return super().parse_args(ctx, [found.resource, *found.options, *words])
        try:
            return super().parse_args(ctx, found.options)
        except click.MissingParameter:
            if found.command_at is None:
                raise
            ctx.fail("RESOURCE is missing before '--'.")

    def command_at(self, arguments: Sequence[str], word: str) -> int | None:
        """Return where the command begins, for completion; None if the word is not part of it.

        Args:
            arguments: The words between `run` and the cursor.
            word: The unfinished word at the cursor.
        """
        found = split(arguments, self._valued(click.Context(self)))
        if found.resource is None or found.is_value_missing:
            return None
        if found.command_at is None and not word.startswith("-"):
            return len(arguments)
        return found.command_at

    def _valued(self, ctx: click.Context) -> set[str]:
        options = (option for option in self.get_params(ctx) if isinstance(option, click.Option))
        return {name for it in options if not (it.is_flag or it.count) for name in it.opts}


def _report(resource: str, failed: Failed) -> int:
    """Write the error as the event of --json, and return its exit status."""
    from quorlock._cli.run.reporter import Reporter

    reporter = Reporter(resource, quiet=False, verbose=False, as_json=True)
    reporter.fail(str(failed), status=failed.status)
    return failed.status
