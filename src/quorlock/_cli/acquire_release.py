"""`quorlock acquire`, `extend` and `release`: three verbs for shell scripts, by bare token."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

import click

from quorlock._cli.exit_status import EX_LOST, Failed
from quorlock._cli.nodes import Source, ttl_option, with_nodes, with_owner, with_wait

if TYPE_CHECKING:
    from collections.abc import Callable

_ttl = ttl_option("Lease duration.")


def _token(command: Callable[..., int]) -> Callable[..., int]:
    meaning = "The token that `acquire` printed.  [env: QUORLOCK_TOKEN]"
    return click.option("--token", envvar="QUORLOCK_TOKEN", required=True, help=meaning)(command)


@click.command("acquire")
@click.argument("resource")
@_ttl
@with_wait
@click.option(
    "--format",
    "form",
    type=click.Choice(["token", "shell", "json"]),
    default="token",
    help="token; shell: variables for eval; json: see docs/reference/cli.schema.json."
    "  [default: token]",
)
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
@with_owner
@with_nodes
def acquire(
    source: Source,
    *,
    resource: str,
    ttl: float | None,
    wait: float | None,
    form: str,
    owner: str | None,
) -> int:
    """Acquire the lock RESOURCE and print its token, which `extend` and `release` require.

    The lease is not renewed: it expires after its ttl. Prefer `quorlock run`, which renews the
    lease, and stops its command if the lease is lost.
    """
    # This process ends at once: its parent, the script, is the one to look at.
    settings = source.settings().owned(owner, f"{{host}}:{os.getppid()}")
    with settings.redlock() as redlock:
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
    """Extend the lease of this token on RESOURCE: it lasts at least its ttl from now.

    Exit status: 79 if the lease has expired or the lock has another holder.
    """
    with source.redlock() as redlock:
        return _still(redlock.extend(resource, token, ttl=ttl), resource)


@click.command("release")
@click.argument("resource")
@_token
@with_nodes
def release(source: Source, *, resource: str, token: str) -> int:
    """Release the lock RESOURCE if this token still holds it.

    Exit status: 79 if the lease has expired or the lock has another holder.
    """
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
