"""A ConfigError of the library in the words of the command line: options, variables, TOML keys.

The words depend on the attributes of the error, never on its sentence.
"""

from __future__ import annotations

import math

import click

from quorlock._cli.durations import as_duration
from quorlock._cli.exit_status import Failed, status_of
from quorlock.errors import ConfigError

# Parameters of commands, by the argument of the library that they become.
_PARAMETERS = {"timeout": "wait", "every": "once_per"}
_NO_DURATIONS = ("drift_factor", "owner", "permits", "prefix", "waiting")
_NO_VALUE = ("fencing", "token")  # a flag, and a secret
_FENCING = (
    "fences need a restart guard: a node that forgot its fences would issue them again",
    'set restart_guard = "uptime" or "marker" in the TOML file',
)
_TOKEN = ("this is no token", "give the token that 'quorlock acquire' printed")


def as_failed(error: ConfigError, context: click.Context, unread: str) -> Failed:
    """Return the error for a command that was given these parameters.

    Args:
        error: The error of the library.
        context: The command's context.
        unread: A sentence about a file that was not read; "" if there is none.
    """
    why, hint = words(error, unread)
    name = _given(error, context)
    label = name if error.argument in _NO_VALUE else f"{name} {value_of(error)}".strip()
    if error.argument.startswith("nodes"):
        label = str(error.value)  # a node's address
    return Failed(status_of(error), f"{label}: {why}", hint)


def words(error: ConfigError, unread: str = "") -> tuple[str, str]:
    """Return what is wrong with the value, and a hint or ""."""
    if error.argument == "fencing":
        return _FENCING
    if error.argument == "token":
        return _TOKEN
    if error.limit is None:
        return error.fix, ""
    bound, given = as_duration(error.limit.seconds), value_of(error)
    if error.limit.argument == "max_ttl":
        ways = f"--max-ttl {given}, QUORLOCK_MAX_TTL={given}, or max_ttl in the TOML file"
        hint = f"give at most {bound}, or raise max_ttl for all clients: {ways}"
        return f"longer than max_ttl ({bound})", f"{hint}; {unread}" if unread else hint
    if error.limit.argument == "ttl":
        return f"shorter than the ttl ({bound})", f"give --ttl {given} as well"
    why = {
        "node_timeout": "a lease must outlive several replies of a node (node_timeout)",
        "renew": "a shorter lease cannot be renewed in time",
    }
    return f"shorter than {bound}", f"give at least {bound}: {why[error.limit.argument]}"


def value_of(error: ConfigError) -> str:
    """Return the value as it is written in a shell."""
    value = error.value
    is_duration = error.argument not in _NO_DURATIONS and not isinstance(value, bool)
    if is_duration and isinstance(value, (int, float)) and 0 <= value < math.inf:
        return as_duration(value)
    return value if isinstance(value, str) and value.isprintable() else repr(value)


def _given(error: ConfigError, context: click.Context) -> str:
    """Return the option, argument or variable that gave the value; else the setting's name."""
    import click
    from click.core import ParameterSource

    name = _PARAMETERS.get(error.argument, error.argument)
    source = context.get_parameter_source(name)
    for parameter in context.command.params:
        if parameter.name != name or source in (None, ParameterSource.DEFAULT):
            continue
        if source is ParameterSource.ENVIRONMENT and isinstance(parameter.envvar, str):
            return parameter.envvar
        is_option = isinstance(parameter, click.Option)
        longest = max(parameter.opts, key=len) if is_option else parameter.human_readable_name
        return "--wait" if name == "wait" else longest
    return error.argument
