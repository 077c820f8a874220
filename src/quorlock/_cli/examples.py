"""Examples of every command, for its help. A test parses each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES: dict[str, Sequence[str]] = {
    "run": (
        "quorlock run nightly -- ./backup --all",
        "quorlock run nightly --on-busy skip -- ./backup",
        "quorlock run deploy:web --wait 5m -c './build && ./deploy'",
        "quorlock run render --permits 3 -- ./render",
    ),
    "acquire": (
        "token=$(quorlock acquire deploy:web --ttl 20s --wait 10s)",
        "quorlock acquire deploy:web --json",
    ),
    "extend": ('quorlock extend deploy:web --token "$token" --ttl 20s',),
    "release": ('quorlock release deploy:web --token "$token"',),
    "status": (
        "quorlock status",
        "quorlock status deploy:web --exit-code",
        "quorlock status --match 'deploy:*' --watch",
        "quorlock status render --permits 3",
    ),
    "break": ("quorlock break deploy:web", "quorlock break deploy:web --yes"),
    "top": ("quorlock top", "quorlock top --match 'deploy:*' --once"),
    "doctor": (
        "quorlock doctor",
        "quorlock doctor --strict --json",
        "quorlock doctor --wait 60s",
    ),
    "bench": ("quorlock bench", "quorlock bench --seconds 30 --tasks 1,8,64"),
    "config": ("quorlock config", "quorlock config --nodes redis://a:6379 --json"),
    "nodes config": ("quorlock nodes config",),
    "nodes max-ttl": ("quorlock nodes max-ttl 2m",),
    "nodes guard": ("quorlock nodes guard uptime,marker",),
    "nodes add": (
        "quorlock nodes add redis://d:6379",
        "quorlock nodes add redis://d:6379 --finish",
    ),
    "nodes remove": ("quorlock nodes remove redis://a:6379",),
    "nodes fresh": ("quorlock nodes fresh", "quorlock nodes fresh --yes"),
    "nodes reset-config": ("quorlock nodes reset-config", "quorlock nodes reset-config --yes"),
    "local up": ("quorlock local up", "quorlock local up --count 3"),
    "local down": ("quorlock local down",),
    "local status": ("quorlock local status",),
    "demo": ("quorlock demo", "quorlock demo --no-lock", "quorlock demo --workers 16 --seconds 30"),
    "completion": ('eval "$(quorlock completion bash)"',),
    "help": ("quorlock help run", "quorlock help exit-codes"),
    "version": ("quorlock version",),
}


def add_examples(command: click.Command, path: str) -> None:
    """Append the examples to the help of a command and of its subcommands."""
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            add_examples(subcommand, f"{path} {name}")
    lines = [
        line
        for name, examples in EXAMPLES.items()
        if f"{name} ".startswith(f"{path} ")
        for line in examples
    ]
    if lines:
        command.epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
