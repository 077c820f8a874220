"""`quorlock acquire`, `extend` and `release`: three verbs for shell scripts, by bare token."""

from __future__ import annotations

import os
import shlex
import signal
from typing import TYPE_CHECKING, Any

import click

from quorlock._cli.exit_status import EX_LOST, Failed
from quorlock._cli.nodes import (
    Source,
    lock_of,
    ttl_option,
    with_nodes,
    with_others,
    with_owner,
    with_permits,
    with_shared,
    with_wait,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock import Lease

_ttl = ttl_option("Lease duration.")


def _token(command: Callable[..., int]) -> Callable[..., int]:
    meaning = "The token that `acquire` printed.  [env: QUORLOCK_TOKEN]"
    return click.option("--token", envvar="QUORLOCK_TOKEN", required=True, help=meaning)(command)


@click.command("acquire")
@click.argument("resource")
@with_others
@with_permits
@with_shared
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
    others: tuple[str, ...],
    permits: int | None,
    shared: bool,
    ttl: float | None,
    wait: float | None,
    form: str,
    owner: str | None,
) -> int:
    """Acquire the lock RESOURCE and print its token, which `extend` and `release` require.

    The lease is not renewed: it expires after its ttl. Prefer `quorlock run`, which renews the
    lease, and stops its command if the lease is lost.

    With --permits N, one of N permits is acquired: `extend` and `release` take its name, as in
    RESOURCE#2, which only --format shell and json print.
    """
    if permits is not None and form == "token":
        raise click.UsageError("--permits needs --format shell or json, which name the permit")
    # This process ends at once: its parent, the script, is the one to look at.
    settings = source.settings().owned(owner, f"{{host}}:{os.getppid()}")
    with settings.redlock() as redlock:
        lock = lock_of(redlock, resource, others, permits, shared=shared, ttl=ttl, timeout=wait)
        lease = lock.acquire()
        token, facts = lease.token, _facts(lease)
        try:
            facts["validity"] = round(lease.validity, 3)
            lease.hand_over()
            # From here on the token counts as printed: the status must say so.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            # As bytes: `release` needs the name as it was given, whatever stdout can show.
            click.echo(os.fsencode(_FORMS[form](facts)))  # flushes
        except BaseException:
            redlock.release(lease.resources, token)  # the token was not printed
            raise
    return 0


@click.command("extend")
@click.argument("resource")
@with_others
@_token
@_ttl
@with_nodes
def extend(
    source: Source, *, resource: str, others: tuple[str, ...], token: str, ttl: float | None
) -> int:
    """Extend the lease of this token on RESOURCE: it lasts at least its ttl from now.

    Exit status: 79 if the lease has expired or the lock has another holder.
    """
    with source.redlock() as redlock:
        names = (resource, *others)
        return _still(redlock.extend(names, token, ttl=ttl), names)


@click.command("release")
@click.argument("resource")
@with_others
@_token
@with_nodes
def release(source: Source, *, resource: str, others: tuple[str, ...], token: str) -> int:
    """Release the lock RESOURCE if this token still holds it.

    Exit status: 79 if the lease has expired or the lock has another holder.
    """
    with source.redlock() as redlock:
        names = (resource, *others)
        return _still(redlock.release(names, token), names)


def _still(held: bool, names: tuple[str, ...]) -> int:  # noqa: FBT001 (an answer, handed on)
    if held:
        return 0
    which = " + ".join(map(repr, names))
    raise Failed(EX_LOST, f"{which} was not held by this token any more")


def _facts(lease: Lease) -> dict[str, Any]:
    facts = {"resource": lease.resource, "token": lease.token, "ttl": lease.ttl}
    return facts if lease.permit is None else facts | {"permit": lease.permit}


def _as_shell(facts: dict[str, Any]) -> str:
    names = [name for name in ("resource", "token", "ttl", "permit") if name in facts]
    return "\n".join(f"export QUORLOCK_{n.upper()}={shlex.quote(str(facts[n]))}" for n in names)


def _as_json(facts: dict[str, Any]) -> str:
    import json

    return json.dumps(facts)


_FORMS: dict[str, Callable[[dict[str, Any]], str]] = {
    "token": lambda facts: str(facts["token"]),
    "shell": _as_shell,
    "json": _as_json,
}
