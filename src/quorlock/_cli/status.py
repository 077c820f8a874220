"""`quorlock status`: show the holders of resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorlock._cli.durations import duration
from quorlock._cli.exit_status import EX_NOPERM, EX_TEMPFAIL, EX_UNAVAILABLE
from quorlock._cli.nodes import Source, with_nodes, with_permits
from quorlock._cli.stdio import say
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock import Inspection
    from quorlock._cli.config import FileSettings

_INTERVAL = 1.0  # seconds
INTERVAL_MIN = 0.1
_LIMIT = 100
_ALL = "*"
# The colour of each verdict on a terminal.
_COLOURS = {"free": "green", "held": "yellow", "leftover": "yellow"}


@click.command("status")
@click.argument("resources", metavar="[RESOURCE]...", nargs=-1)
@click.option(
    "--match",
    metavar="PATTERN",
    help="Show locks whose names match, as in 'deploy:*'; needs +scan.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Show at most N locks.  [default: {_LIMIT}]",
)
@with_permits
@click.option(
    "--exit-code", is_flag=True, help=f"Exit with {EX_TEMPFAIL} if a lock is held or split, else 0."
)
@click.option("--watch", "watched", is_flag=True, help="Refresh; when piped, print changes.")
@click.option(
    "--interval", type=duration, help="With --watch: time between refreshes.  [default: 1s]"
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: see docs/reference/cli.schema.json."
)
@with_nodes
def command(
    source: Source,
    *,
    resources: tuple[str, ...],
    match: str | None,
    limit: int | None,
    permits: int | None,
    exit_code: bool,
    watched: bool,
    interval: float | None,
    as_json: bool,
) -> int:
    """Show whether each lock RESOURCE is held, and by whom. Without RESOURCE: all held locks.

    held: one holder has a quorum of nodes. passing: the nodes have called the next waiter. free: no
    node that answered has a key. leftover: free, but a minority of nodes still has a key. split: no
    holder has a quorum, and no quorum is free.
    unreachable: fewer than a quorum of nodes answered.

    Without RESOURCE, every held lock is found if a quorum of nodes lists its keys. Keys of other
    programs with the same prefix are listed too.

    With --permits N, the permits of the semaphore RESOURCE, each as a lock; with --exit-code, the
    status is 75 if none of them is free.

    Tokens are secrets: a holder is shown by a digest. Exit status: 69 if a resource is unreachable,
    77 if authentication or permission failed.
    """
    _check(resources, match, limit, watched=watched, interval=interval)
    semaphore = resources
    if permits is not None:
        resources = _permits(resources, permits)
    if watched and exit_code:
        raise click.UsageError("--exit-code excludes --watch")
    settings, most = source.settings(), limit or _LIMIT
    pattern = match if match is not None or resources else _ALL
    if watched:
        from quorlock._cli.watch import WatchOptions, watch

        every = interval or _INTERVAL
        return watch(settings, WatchOptions(resources, pattern, most), every, as_json=as_json)
    from quorlock._cli.inspection_view import FREE, HELD, verdict
    from quorlock._cli.poll_loop import inspect_once

    names, left = (resources, 0) if pattern is None else _listed(settings, pattern, most)
    are_listed = pattern is not None
    inspections = inspect_once(settings, names, are_listed=are_listed) if names else []
    if not resources and match is None:
        inspections = [one for one in inspections if verdict(one) != FREE]  # others were released
    if permits is not None and not as_json:
        held = sum(verdict(one) == HELD for one in inspections)
        click.echo(f"{semaphore[0]!r}: {held} of {len(inspections)} permits held")
    _answer(inspections, left, as_json=as_json)
    return _status(inspections, exit_code=exit_code, of_all=permits is not None)


def _permits(resources: tuple[str, ...], permits: int) -> tuple[str, ...]:
    """Return the names of the permits of one semaphore."""
    if len(resources) != 1:
        raise click.UsageError("--permits needs one RESOURCE, the name of the semaphore.")
    return tuple([f"{resources[0]}#{permit}" for permit in range(permits)])


def _check(
    resources: tuple[str, ...],
    match: str | None,
    limit: int | None,
    *,
    watched: bool,
    interval: float | None,
) -> None:
    if resources and match is not None:
        raise click.UsageError("Name resources, or --match a pattern; not both.")
    if limit is not None and resources:
        raise click.UsageError("--limit is for --match.")
    if interval is not None and not watched:
        raise click.UsageError("--interval is for --watch.")
    check_interval(interval)


def check_interval(interval: float | None) -> None:
    """Raise UsageError if the nodes would be asked without a pause, or only after years."""
    if interval is not None and not INTERVAL_MIN <= interval <= 86_400:  # noqa: PLR2004 (a day)
        raise click.UsageError(f"--interval is {INTERVAL_MIN:g} seconds to a day.")


def _listed(settings: FileSettings, pattern: str, limit: int) -> tuple[list[str], int]:
    """Return the matching names and how many more there are. Write notes to stderr."""
    from quorlock._cli.scan import list_once
    from quorlock._cli.watch import more

    listing = list_once(settings, pattern)
    names = listing.names[:limit]
    left = len(listing.names) - len(names)
    notes = [listing.trouble] if listing.trouble else []
    if not names:
        notes.append("nothing is held" if pattern == _ALL else f"nothing matches {pattern!r}")
    if left:
        notes.append(more(left, limit))
    for note in notes:
        say(f"quorlock status: {note}\n")
    return names, left


def _answer(inspections: Sequence[Inspection], left: int, *, as_json: bool) -> None:
    from quorlock._cli.inspection_view import as_facts, as_text

    if as_json:
        import json

        rest = {"more": left} if left else {}
        click.echo(json.dumps({"resources": [as_facts(one) for one in inspections]} | rest))
    elif inspections:
        from quorlock._cli.text_layout import colour

        texts = (as_text(one, _painted) for one in inspections)
        click.echo("\n".join(texts), color=colour())


def _painted(verdict: str) -> str:
    return click.style(verdict, fg=_COLOURS.get(verdict, "red"))


def _status(inspections: Sequence[Inspection], *, exit_code: bool, of_all: bool) -> int:
    from quorlock._cli.inspection_view import FREE, UNREACHABLE

    silent = [one for one in inspections if one.verdict == UNREACHABLE]
    if any(view.code is VoteCode.ACCESS_DENIED for one in silent for view in one.nodes):
        return EX_NOPERM
    if silent:
        return EX_UNAVAILABLE
    # A leftover is free for the library: the lock can be acquired.
    busy = [one.verdict != FREE for one in inspections]
    is_busy = all(busy) if of_all else any(busy)
    return EX_TEMPFAIL if exit_code and is_busy else 0
