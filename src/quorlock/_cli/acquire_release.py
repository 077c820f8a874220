"""`quorlock acquire`, `extend` and `release`: three verbs for shell scripts, by bare token."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from quorlock._cli.durations import duration
from quorlock._cli.exit_status import EX_LOST, Failed
from quorlock._cli.nodes import Source, with_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

_ttl = click.option("--ttl", type=duration, help="The lease time; else that of the nodes' file.")


def _token(command: Callable[..., int]) -> Callable[..., int]:
    meaning = "What `acquire` printed; else QUORLOCK_TOKEN."
    return click.option("--token", envvar="QUORLOCK_TOKEN", required=True, help=meaning)(command)


@click.command("acquire")
@click.argument("resource")
@_ttl
@click.option("-w", "--wait", type=duration, help="How long to wait for the lock (no limit).")
@click.option(
    "--format",
    "form",
    type=click.Choice(["token", "shell", "json"]),
    default="token",
    help="shell: variables for eval. json: docs/reference/cli.schema.json.",
)
@with_nodes
def acquire(
    source: Source, *, resource: str, ttl: float | None, wait: float | None, form: str
) -> int:
    """Acquire RESOURCE and print the token, by which it is extended and released.

    The lease is not renewed: it ends after its ttl. Prefer `quorlock run`, which renews it, and
    ends its command if the lease is lost.
    """
    with source.redlock() as redlock:
        lease = redlock.lock(resource, ttl=ttl, timeout=wait).acquire()
        token, facts = lease.token, {"resource": resource, "token": lease.token, "ttl": lease.ttl}
        try:
            facts["validity"] = round(lease.validity, 3)
            lease.hand_over()
            click.echo(_FORMS[form](facts))  # flushes
        except BaseException:
            redlock.release(resource, token)  # the token was not printed
            raise
    return 0


@click.command("extend")
@click.argument("resource")
@_token
@_ttl
@with_nodes
def extend(source: Source, *, resource: str, token: str, ttl: float | None) -> int:
    """Let RESOURCE be held for its ttl from now on, or longer, if it still is by this token."""
    with source.redlock() as redlock:
        return _still(redlock.extend(resource, token, ttl=ttl), resource)


@click.command("release")
@click.argument("resource")
@_token
@with_nodes
def release(source: Source, *, resource: str, token: str) -> int:
    """Release RESOURCE if it is still held by this token."""
    with source.redlock() as redlock:
        return _still(redlock.release(resource, token), resource)


def _still(held: bool, resource: str) -> int:  # noqa: FBT001 (an answer, handed on)
    if held:
        return 0
    raise Failed(EX_LOST, f"{resource!r} was not held by this token any more")


def _as_shell(facts: dict[str, Any]) -> str:
    names = ("resource", "token", "ttl")
    return "\n".join(f"export QUORLOCK_{n.upper()}={shlex.quote(str(facts[n]))}" for n in names)


def _as_json(facts: dict[str, Any]) -> str:
    import json

    return json.dumps(facts)


_FORMS: dict[str, Callable[[dict[str, Any]], str]] = {
    "token": lambda facts: str(facts["token"]),
    "shell": _as_shell,
    "json": _as_json,
}
