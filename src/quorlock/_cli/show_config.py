"""`quorlock config`: the settings in force, and the source of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from quorlock._cli.nodes import Source, with_nodes
from quorlock._cli.stdio import say

if TYPE_CHECKING:
    from quorlock import Node
    from quorlock._cli.config import FileSettings


class Setting(NamedTuple):
    """A setting in force."""

    name: str
    value: Any  # as JSON has it; durations in seconds
    origin: str  # an option, a variable, a file, or "default"


@click.command("config")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: see docs/reference/cli.schema.json."
)
@with_nodes
def command(source: Source, *, as_json: bool) -> int:
    """Show the settings in force, and where each comes from. Connects to no node.

    The nodes 'local' are started if they do not run. A password is never shown, only where it comes
    from. `quorlock nodes config` shows what the nodes themselves store. Exit status: 78 if a
    setting is invalid or no nodes are named.
    """
    from quorlock._cli.config import DEFAULTS

    settings = source.settings().owned(None, DEFAULTS["owner"])
    settings.redlock().close()  # raises if they are invalid
    found = _settings(settings)
    if as_json:
        import json

        facts = [setting._asdict() for setting in found]
        click.echo(json.dumps({"settings": facts, "unread": settings.unread or None}))
        return 0
    width = max(len(setting.name) for setting in found)
    texts = [_text(setting) for setting in found]
    column = max(len(text) for text in texts if len(text) <= _WIDE)
    for setting, text in zip(found, texts, strict=True):
        click.echo(f"{setting.name:{width}}  {text:{column}}  {setting.origin}")
    if settings.unread:
        say(f"quorlock config: {settings.unread}\n")
    return 0


_WIDE = 40
_PAIR = "retry_delay"  # the shortest and the longest


def _settings(settings: FileSettings) -> list[Setting]:
    from quorlock._cli.config import DEFAULTS

    origins = settings.origins
    found = [Setting("node", _url(node), origins["nodes"]) for node in settings.nodes]
    for name in DEFAULTS:
        value: Any = settings.argument(name)
        if name == "ttl":
            value = settings.default_ttl()
        if name == _PAIR:
            value = list(value)
        value = "none" if name == "restart_guard" and value is None else value
        found.append(Setting(name, value, origins.get(name, "default")))
    if "username" in origins:
        found.append(Setting("username", settings.nodes[0].username, origins["username"]))
    if "password" in origins:
        found.append(Setting("password", "***", origins["password"]))
    return found


def _url(node: Node) -> str:
    """Return the node's URL without its login."""
    if node.path is not None:
        return f"unix://{node.path}"
    scheme = "rediss" if node.tls else "redis"
    return f"{scheme}://{node.address}" + (f"/{node.db}" if node.db else "")


def _text(setting: Setting) -> str:
    from quorlock._cli.durations import as_duration
    from quorlock._settings.reader import DURATIONS

    if setting.name in DURATIONS:
        values = setting.value if setting.name == _PAIR else [setting.value]
        return " to ".join(map(as_duration, values))
    return str(setting.value) if setting.value != "" else "(empty)"
