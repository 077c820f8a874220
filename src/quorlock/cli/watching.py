"""`quorlock status --watch`: a picture that is drawn anew, or on a pipe what has changed.

Leaves the looking to `turns`, the listing to `listing`, and what an inspection says to `holders`.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import click

from quorlock.cli.holders import FREE, as_facts, as_line, as_text, digests, verdict
from quorlock.cli.listing import Wanted, askers_of, merged, required
from quorlock.cli.streams import say
from quorlock.cli.terminal import fitted, screen, wrapped
from quorlock.cli.turns import look, repeat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock import Inspection
    from quorlock.asyncio import Redlock
    from quorlock.cli.asking import Askers
    from quorlock.cli.config import Settings
    from quorlock.cli.listing import Listing, Names
    from quorlock.cli.screen import Screen
    from quorlock.cli.turns import Show


class Wish(NamedTuple):
    """What is to be shown: these resources, or those that match a pattern, so many at most."""

    resources: Sequence[str]
    pattern: str | None
    limit: int


class View(Protocol):
    """Shows what was seen, and what is to be said of it."""

    def show(self, told: Sequence[Inspection], notes: Sequence[str]) -> None:
        """Do it."""
        ...


def watch(settings: Settings, wish: Wish, interval: float, *, as_json: bool) -> int:
    """Show them until interrupted. Raises Failed where the nodes may not be asked."""
    with ExitStack() as stack:
        drawn = None if as_json else screen()
        view = Changes(as_json=as_json) if drawn is None else Picture(drawn, interval)
        askers: Askers[Names] | None = None
        if wish.pattern is not None:
            askers = stack.enter_context(askers_of(settings, wish.pattern, interval))
            askers.wait(settings.seconds("connect_timeout"))
        if drawn is not None:
            stack.enter_context(drawn)
        repeat(settings, interval, Watch(wish, view, askers).turn)
    return 0


class Watch:
    """What is done at every turn."""

    def __init__(self, wish: Wish, view: View, askers: Askers[Names] | None) -> None:
        self._wish = wish
        self._view = view
        self._askers = askers
        self._wanted = Wanted(wish.resources, wish.limit)

    async def turn(self, redlock: Redlock) -> Show:
        """Look; what shows it."""
        wanted, notes = self._wanted, list[str]()
        if self._askers is not None:
            notes = self._list(merged(self._askers.reports))
        told = await look(redlock, wanted.names)
        if self._askers is not None:
            wanted.keep(one.resource for one in told if verdict(one) != FREE)
        return partial(self._view.show, told, notes)

    def _list(self, listing: Listing) -> list[str]:
        if listing.is_forbidden:
            required(listing)
        left = self._wanted.take(listing)
        notes = [listing.trouble] if listing.trouble else []
        if not self._wanted.names:
            notes.append(f"nothing matches {self._wish.pattern!r}")
        if left:
            notes.append(more(left, self._wish.limit))
        return notes


def more(left: int, limit: int) -> str:
    """What is said of those that match and are not shown."""
    return f"and {left:,} more match; --limit {limit} shows no more, narrow the pattern or raise it"


class Picture:
    """All of it, on a terminal."""

    def __init__(self, drawn: Screen, interval: float) -> None:
        self._screen = drawn
        self._every = f"every {interval:g} s"

    def show(self, told: Sequence[Inspection], notes: Sequence[str]) -> None:
        """Draw it anew."""
        from quorlock.cli.screen import Line

        width, height = self._screen.width, self._screen.height
        head = f"{datetime.now():%H:%M:%S}  {self._every}"
        tail = [line for note in notes for line in wrapped(note, width)]
        blocks = [wrapped(as_text(one), width) for one in told]
        body = fitted(blocks, list(map(as_line, told)), height - 1 - len(tail))
        self._screen.draw(
            [Line(head, "dim"), *map(Line, body), *(Line(line, "yellow") for line in tail)]
        )


class Changes:
    """What has changed, on a pipe, as text or as lines of JSON. What is to be said goes to stderr,
    once.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._seen: dict[str, Inspection] = {}
        self._said: set[str] = set()

    def show(self, told: Sequence[Inspection], notes: Sequence[str]) -> None:
        """Print it."""
        for note in notes:
            if note not in self._said:
                say(f"quorlock status: {note}\n")
        self._said = set(notes)
        at = datetime.now().astimezone().isoformat(timespec="milliseconds")
        for one in told:
            was = self._seen.get(one.resource)
            if was is None or sight(was) != sight(one):
                self._print(at, was, one)
        self._seen = {one.resource: one for one in told}
        sys.stdout.flush()

    def _print(self, at: str, was: Inspection | None, one: Inspection) -> None:
        if not self._as_json:
            click.echo(f"{at} {as_text(one)}")
            return
        before = None if was is None else verdict(was)
        click.echo(json.dumps({"time": at, "was": before, "now": as_facts(one)}))


def sight(told: Inspection) -> tuple[object, ...]:
    """What makes a change when it is another: not how long the keys will live, nor on how many
    nodes they are, but which nodes are silent.
    """
    silent = [view.node for view in told.nodes if view.error]
    return verdict(told), sorted(digests(told)), silent
