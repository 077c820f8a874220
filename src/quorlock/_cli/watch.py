"""`quorlock status --watch`: redraw a display, or print the changes to a pipe.

`poll_loop` inspects, `scan` lists the resources, and `inspection_view` makes the text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from quorlock import Inspection
from quorlock._cli.config import FileSettings
from quorlock._cli.inspection_view import FREE, as_facts, as_line, as_text, digests, verdict
from quorlock._cli.node_pollers import NodePollers
from quorlock._cli.poll_loop import Show, inspect_all, poll
from quorlock._cli.scan import Listing, Names, WatchedNames, merged, pollers_of, required
from quorlock._cli.stdio import say
from quorlock._cli.text_layout import fitted, screen, wrapped
from quorlock._cli.timestamps import timestamp
from quorlock.asyncio import Redlock

if TYPE_CHECKING:
    from quorlock._cli.full_screen import Screen  # it imports rich


class WatchOptions(NamedTuple):
    """The options: resources or a pattern, and a limit on their number."""

    resources: Sequence[str]
    pattern: str | None
    limit: int


def watch(settings: FileSettings, options: WatchOptions, interval: float, *, as_json: bool) -> int:
    """Show the resources until interrupted. Raise Failed if a permission is missing."""
    with ExitStack() as stack:
        drawn = None if as_json else screen()
        view = Changes(as_json=as_json) if drawn is None else Picture(drawn, interval)
        pollers: NodePollers[Names] | None = None
        if options.pattern is not None:
            pollers = stack.enter_context(pollers_of(settings, options.pattern, interval))
            pollers.wait(settings.seconds("connect_timeout"))
        if drawn is not None:
            stack.enter_context(drawn)
        poll(settings, interval, LockWatcher(options, view, pollers).turn)
    return 0


class LockWatcher:
    """The work of every turn."""

    def __init__(
        self,
        options: WatchOptions,
        view: Picture | Changes,
        pollers: NodePollers[Names] | None,
    ) -> None:
        self._options = options
        self._view = view
        self._pollers = pollers
        self._wanted = WatchedNames(options.resources, options.limit)

    async def turn(self, redlock: Redlock) -> Show:
        """Inspect the resources, and return the function that shows the result."""
        wanted, notes = self._wanted, list[str]()
        if self._pollers is not None:
            notes = self._list(merged(self._pollers.reports))
        inspections = await inspect_all(redlock, wanted.names, are_listed=self._pollers is not None)
        if self._pollers is not None:
            wanted.keep(one.resource for one in inspections if verdict(one) != FREE)
        return partial(self._view.show, inspections, notes)

    def _list(self, listing: Listing) -> list[str]:
        if listing.is_forbidden:
            required(listing)
        left = self._wanted.take(listing)
        notes = [listing.trouble] if listing.trouble else []
        if not self._wanted.names:
            notes.append(f"nothing matches {self._options.pattern!r}")
        if left:
            notes.append(more(left, self._options.limit))
        return notes


def more(left: int, limit: int) -> str:
    """Return the note about resources that match and are not shown."""
    return f"and {left:,} more match; --limit {limit} shows no more, narrow the pattern or raise it"


class Picture:
    """A display of all resources on a terminal."""

    def __init__(self, drawn: Screen, interval: float) -> None:
        self._screen = drawn
        self._every = f"every {interval:g} s"

    def show(self, inspections: Sequence[Inspection], notes: Sequence[str]) -> None:
        """Redraw the display."""
        width, height = self._screen.width, self._screen.height
        head = f"{datetime.now():%H:%M:%S}  {self._every}"
        tail = [line for note in notes for line in wrapped(note, width)]
        blocks = [wrapped(as_text(one), width) for one in inspections]
        body = fitted(blocks, list(map(as_line, inspections)), height - 1 - len(tail))
        self._screen.draw(
            [(head, "dim"), *((line, "") for line in body), *((line, "yellow") for line in tail)]
        )


class Changes:
    """The changes, printed as text or JSON lines. Each note is written once, to stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._seen: dict[str, Inspection] = {}
        self._said: set[str] = set()

    def show(self, inspections: Sequence[Inspection], notes: Sequence[str]) -> None:
        """Print the changes."""
        for note in notes:
            if note not in self._said:
                say(f"quorlock status: {note}\n")
        self._said = set(notes)
        at = datetime.now().astimezone()
        for one in inspections:
            was = self._seen.get(one.resource)
            if was is None or sight(was) != sight(one):
                self._print(at, was, one)
        self._seen = {one.resource: one for one in inspections}
        sys.stdout.flush()

    def _print(self, at: datetime, was: Inspection | None, one: Inspection) -> None:
        if not self._as_json:
            click.echo(f"{at.isoformat(timespec='milliseconds')} {as_text(one)}")
            return
        before = None if was is None else verdict(was)
        click.echo(json.dumps({"time": timestamp(at), "was": before, "now": as_facts(one)}))


def sight(inspection: Inspection) -> tuple[object, ...]:
    """Return what counts as a change if it differs: verdict, holders and silent nodes.

    The remaining ttl and the number of nodes that have a key do not count.
    """
    silent = [view.node for view in inspection.nodes if view.error]
    return verdict(inspection), sorted(digests(inspection)), silent
