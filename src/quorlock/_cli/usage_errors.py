"""click's usage errors in the form of all errors: `quorlock run: --ttl: ...`, then `hint: ...`."""

from __future__ import annotations

import io

import click

from quorlock._cli.exit_status import EX_USAGE, Failed
from quorlock._cli.stdio import say


def report_usage_error(command: str | None, error: click.UsageError) -> int:
    """Write a usage error of a command to stderr, and return its exit status."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show(text := io.StringIO())
        say(text.getvalue())
        return EX_USAGE
    path = " ".join(filter(None, ("quorlock", command)))
    if error.ctx is not None:  # it also has the subcommand
        path = error.ctx.command_path
    failed = usage_failed(error, path)
    say(f"{path}: {failed}\n")
    return failed.status


def usage_failed(error: click.UsageError, path: str) -> Failed:
    """Return the error in the form of all errors; path: the command, as in `quorlock run`."""
    return Failed(EX_USAGE, _why(error), _hint(error) or f"see '{path} --help'")


def _why(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        return f"no such option {error.option_name}"
    if isinstance(error, click.MissingParameter):
        return f"{_name(error)} is missing"
    text = _as_clause(error.message)
    return f"{_name(error)}: {text}" if isinstance(error, click.BadParameter) else text


def _hint(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        return f"did you mean {error.possibilities[0]}?"  # the closest
    if isinstance(error, click.MissingParameter) and error.param is not None:
        variable = error.param.envvar
        return f"give {_name(error)}, or set {variable}" if variable else ""
    return ""


def _name(error: click.BadParameter) -> str:
    """Return the option or argument as in the usage."""
    parameter = error.param
    if parameter is None or error.ctx is None:
        return "an argument"
    if isinstance(parameter, click.Option):
        return parameter.opts[-1]
    name = parameter.human_readable_name
    return name if name.isalpha() else (parameter.name or name).upper()


def _as_clause(text: str) -> str:
    """Return a sentence without its capital and its period, to stand after a colon."""
    text = text.removesuffix(".")
    return text if text[:2].isupper() else text[:1].lower() + text[1:]
