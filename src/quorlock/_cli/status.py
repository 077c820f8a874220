"""`quorlock status`: show the holders of resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorlock._cli.durations import duration
from quorlock._cli.exit_status import EX_NOPERM, EX_UNAVAILABLE
from quorlock._cli.nodes import Source, with_nodes
from quorlock._cli.stdio import say
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock import Inspection
    from quorlock._cli.config import FileSettings

_INTERVAL = 1.0  # seconds
INTERVAL_MIN = 0.1
_LIMIT = 100


@click.command("status")
@click.argument("resources", metavar="RESOURCE...", nargs=-1)
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
    watched: bool,
    interval: float | None,
    as_json: bool,
) -> int:
    """Show whether each lock RESOURCE is held, and by whom, node by node.

    held: one holder has a quorum of nodes. free: no node that answered has a key. leftover: free,
    but a minority of nodes still has a key. split: no holder has a quorum, and no quorum is free.
    unreachable: fewer than a quorum of nodes answered.

    --match finds every held lock if a quorum of nodes lists its keys. Keys of other programs with
    the same prefix are listed too.

    Tokens are secrets: a holder is shown by a digest. Exit status: 69 if a resource is unreachable,
    77 if authentication or permission failed.
    """
    _check(resources, match, limit, watched=watched, interval=interval)
    settings, most = source.settings(), limit or _LIMIT
    if watched:
        from quorlock._cli.watch import WatchOptions, watch

        every = interval or _INTERVAL
        return watch(settings, WatchOptions(resources, match, most), every, as_json=as_json)
    from quorlock._cli.poll_loop import inspect_once

    names, left = (resources, 0) if match is None else _listed(settings, match, most)
    inspections = inspect_once(settings, names) if names else []
    _answer(inspections, left, as_json=as_json)
    return _status(inspections)


def _check(
    resources: tuple[str, ...],
    match: str | None,
    limit: int | None,
    *,
    watched: bool,
    interval: float | None,
) -> None:
    if not resources and match is None:
        raise click.UsageError("Missing argument 'RESOURCE...': name some, or --match a pattern.")
    if resources and match is not None:
        raise click.UsageError("Name resources, or --match a pattern; not both.")
    if limit is not None and match is None:
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
        notes.append(f"nothing matches {pattern!r}")
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
        click.echo("\n".join(as_text(one) for one in inspections))


def _status(inspections: Sequence[Inspection]) -> int:
    from quorlock._cli.inspection_view import UNREACHABLE

    silent = [one for one in inspections if one.verdict == UNREACHABLE]
    if any(view.code is VoteCode.ACCESS_DENIED for one in silent for view in one.nodes):
        return EX_NOPERM
    return EX_UNAVAILABLE if silent else 0
