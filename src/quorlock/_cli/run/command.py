"""`quorlock run`: the options."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import click

from quorlock._cli.durations import duration
from quorlock._cli.exit_status import EX_TEMPFAIL, Failed, status_of
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
from quorlock._cli.run.parsing import RunCommand
from quorlock._cli.usage_errors import usage_failed
from quorlock.errors import ConfigError, QuorlockError

if TYPE_CHECKING:
    from quorlock import Lock, Redlock
    from quorlock._cli.config import FileSettings
    from quorlock._cli.run.reporter import Reporter
    from quorlock._cli.run.session import RunPlan

# Shares of the ttl for the command to end after TERM: the default, and the maximum, beyond which
# renewal would have no time to retry.
_KILL_AFTER, _KILL_AFTER_MAX = 1 / 5, 1 / 4
# Characters of the command's name in the owner: even percent-encoded they fit behind any host.
_NAME_MAX = 16


@click.command("run", cls=RunCommand)
@click.argument("resource")
@click.argument("words", nargs=-1, metavar="-- CMD...")
@with_others
@with_permits
@with_shared
@click.option("-n", "--nonblock", is_flag=True, help="Fail at once if the lock is held.")
@with_wait
@ttl_option("Lease duration; renewed while the command runs.")
@click.option(
    "--max-hold", type=duration, help="Stop the command after this time.  [default: no limit]"
)
@click.option("--no-renew", is_flag=True, help="Stop the command when the ttl is over.")
@click.option("--fencing", is_flag=True, help="Set QUORLOCK_FENCE for the command.")
@click.option(
    "--min-hold",
    type=duration,
    default=0.0,
    help="Keep the lock for at least this time.  [default: 0]",
)
@click.option(
    "--once-per",
    type=duration,
    help="If CMD succeeds, keep the lock as done for this time.  Never waits.",
)
@click.option(
    "-E",
    "--conflict-exit-code",
    "conflict",
    type=click.IntRange(0, 255),
    metavar="N",
    help=f"Exit status if the lock is held.  [default: {EX_TEMPFAIL}]",
)
@click.option(
    "--on-busy",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    help="If the lock is held: fail, or exit with 0 silently, at once unless --wait is given."
    "  [default: fail]",
)
@click.option(
    "--on-lost",
    type=click.Choice(["term", "kill", "warn"]),
    default="term",
    help="If the lease is lost: send TERM and then KILL, KILL at once, or only warn."
    "  [default: term]",
)
@click.option("--kill-after", type=duration, help="Time from TERM to KILL.  [default: ttl / 5]")
@click.option("-c", "--command", "shell", metavar="STRING", help="Run a command line with /bin/sh.")
@click.option("-q", "--quiet", is_flag=True, help="Print no warnings.")
@click.option("-v", "--verbose", is_flag=True, help="Print each step.")
@click.option("--json", "as_json", is_flag=True, help="Log events to stderr as JSON lines.")
@with_owner
@with_nodes
def command(source: Source, *, resource: str, as_json: bool, **chosen: Any) -> int:
    """Run CMD while holding the lock RESOURCE. Exits with CMD's status.

    With --permits N, up to N commands run at once: CMD has its number in QUORLOCK_PERMIT.

    CMD gets stdin, stdout and forwarded signals; messages go to stderr. CMD is stopped before the
    lease can expire, and when `quorlock run` is killed.

    Exit status if CMD did not run or was stopped: 75 the lock is held, 69 no quorum reachable,
    79 lease lost, 64 wrong usage, 78 configuration, 77 authentication or permission failed, 126 CMD
    cannot be run, 127 CMD not found, 128+N ended by signal N.
    """
    # Imported here and below: --help and completion load no driver.
    from quorlock._cli.run.reporter import Reporter

    shown = " + ".join((resource, *chosen["others"]))
    reporter = Reporter(shown, quiet=chosen["quiet"], verbose=chosen["verbose"], as_json=as_json)
    try:
        words = _words(chosen["shell"], chosen["words"])
        settings = source.settings().owned(chosen["owner"], _owner(words))
        return _run(settings, resource, words, chosen, reporter)
    except (Failed, QuorlockError, click.UsageError) as raised:
        if not as_json:
            raise
        error = source.failed(raised) if isinstance(raised, ConfigError) else raised
        if isinstance(error, click.UsageError):
            error = usage_failed(error, "quorlock run")
        reporter.fail(str(error), status=status_of(error))
        return status_of(error)


def _run(
    settings: FileSettings,
    resource: str,
    words: tuple[str, ...],
    chosen: dict[str, Any],
    reporter: Reporter,
) -> int:
    from quorlock._cli.run.child import Child
    from quorlock._cli.run.session import RunSession
    from quorlock._cli.run.signals import Signals

    # They end in reverse order: first the command, then the lock, then the signal handlers.
    with Signals() as signals, settings.redlock() as redlock:
        plan = _plan(redlock, resource, words, chosen)
        with Child(plan.orders) as child:
            return RunSession(plan, child, signals, reporter).take()


def _plan(
    redlock: Redlock, resource: str, words: tuple[str, ...], chosen: dict[str, Any]
) -> RunPlan:
    from quorlock._cli.run.guard import Orders
    from quorlock._cli.run.session import RunPlan

    if chosen["permits"] is not None and chosen["once_per"] is not None:
        raise click.UsageError("--permits and --once-per exclude each other")
    if chosen["shared"] and chosen["once_per"] is not None:
        raise click.UsageError("--shared and --once-per exclude each other")
    renew = not chosen["no_renew"]
    max_hold = math.inf if chosen["max_hold"] is None else chosen["max_hold"]
    lock = lock_of(
        redlock,
        *(resource, chosen["others"], chosen["permits"]),
        shared=chosen["shared"],
        ttl=chosen["ttl"],
        timeout=_timeout(chosen),
        renew=renew,
        max_hold=max_hold,
        fencing=chosen["fencing"],
    )
    grouped = not _has_terminal()
    orders = Orders(words, _kill_after(lock, chosen), chosen["on_lost"], grouped)
    longest = max_hold if renew else lock.ttl
    if chosen["min_hold"] > longest:
        raise click.UsageError(f"--min-hold is longer than the {longest:g} s for which it is held")
    once_per: float | None = chosen["once_per"]
    if once_per is not None:
        redlock.once(resource, every=once_per)  # checks it: afterwards the work would be done
    hold = (chosen["min_hold"], _busy(chosen), renew, max_hold)
    return RunPlan(redlock, lock, orders, *hold, once_per)


def _words(shell: str | None, words: tuple[str, ...]) -> tuple[str, ...]:
    if shell is None and not words:
        raise click.UsageError("the command is missing; give it after RESOURCE, or with -c")
    if shell is not None and words:
        raise click.UsageError(f"two commands: that of -c, and {words[0]!r}; leave out one of them")
    return words if shell is None else ("/bin/sh", "-c", shell)


def _owner(words: tuple[str, ...]) -> str:
    """Return the default owner: this process and the name of the command.

    Without its arguments, which may contain secrets.
    """
    name = words[0].rpartition("/")[2][:_NAME_MAX]
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in name)
    return f"{{host}}:{{pid}} {plain}".rstrip()


def _timeout(chosen: dict[str, Any]) -> float | None:
    wait: float | None = chosen["wait"]
    if chosen["nonblock"] and wait is not None:
        raise click.UsageError("--nonblock and --wait exclude each other")
    if chosen["once_per"] is not None and wait is not None:
        raise click.UsageError("--once-per never waits: leave out --wait")
    skips = chosen["on_busy"] == "skip" and wait is None
    at_once = chosen["nonblock"] or skips or chosen["once_per"] is not None
    return 0 if at_once else wait


def _busy(chosen: dict[str, Any]) -> int | None:
    if chosen["on_busy"] != "skip":
        return EX_TEMPFAIL if chosen["conflict"] is None else chosen["conflict"]
    if chosen["conflict"] is not None:
        raise click.UsageError("with --on-busy skip the status is 0: leave out -E")
    return None


def _kill_after(lock: Lock, chosen: dict[str, Any]) -> float:
    given: float | None = chosen["kill_after"]
    longest = lock.ttl * _KILL_AFTER_MAX
    if given is None:
        return lock.ttl * _KILL_AFTER
    if not 0 < given <= longest:
        fix = f"give more than 0 and at most {longest:g} s, a quarter of the ttl"
        raise click.UsageError(f"--kill-after: {fix}")
    return given


def _has_terminal() -> bool:
    """Return whether a terminal controls this process: its shell signals the whole group."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
